"""The catalogue's settings build the models that were published."""

import pytest
from tests.parameter_count import count_parameters

from steptally.job import read_job
from steptally.job.catalog.models import find_model, find_named, models
from steptally.predict.parameters import predict_parameters


@pytest.mark.parametrize("model", models().values(), ids=lambda model: model.name)
def test_the_settings_build_the_published_number_of_parameters(model):
    counted = count_parameters(read_job(model.name))
    if model.name == "bloom-176b":
        counted += 2 * 14336  # the norm after the embedding, which the entry says it leaves out
    if isinstance(model.parameters, int):
        assert counted == model.parameters  # the checkpoint's own count
    else:
        # Papers print two or three digits: 1.7 for 1.65, 2.7 for 2.65.
        assert counted == pytest.approx(model.parameters, rel=0.03)


# Safetensors totals that Hugging Face shows, which count what a preset leaves out.
@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("gemma-3-4b", 4_300_079_472),
        ("gemma-3-12b", 12_187_325_040),
        ("gemma-3-27b", 27_432_406_640),
    ],
)
def test_gemmas_checkpoint_is_the_text_part_and_its_vision_encoder(name, total):
    job = read_job(name)
    width, ffn, layers, patches = 1152, 4304, 27, (896 // 14) ** 2  # SigLIP So400m/14, 896 px
    layer = 4 * (width + 1) * width + (2 * width + 1) * ffn + width + 4 * width
    vision = layers * layer + (14 * 14 * 3 + 1 + patches) * width + 2 * width
    projector = width * job.architecture.hidden_size + width
    assert count_parameters(job) + vision + projector == total


def test_deepseeks_checkpoint_holds_a_second_embedding_and_head():
    # BF16 and F8_E4M3 of deepseek-ai/DeepSeek-V3; its F32 are scales and routing biases.
    job = read_job("deepseek-v3")
    with_mtp = sum(row.count for row in predict_parameters(job))
    assert with_mtp + 2 * 129280 * 7168 == 3_918_786_560 + 680_571_043_840


def test_there_are_the_presets_that_people_ask_for():
    assert len(models()) >= 60
    for name in ("GPT3-175B", "Llama-3.1-8B", "mixtral_8x7b", "Qwen3-235B-A22B", "DeepSeek-R1"):
        assert find_model(name) is not None
    assert all(model.source for model in models().values())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B", "llama-3-8b"),
        ("runs/train_llama3_8b_h100_fp8.sh", "llama-3-8b"),
        ("Llama-3.2-1B-Instruct", "llama-3.2-1b"),
        ("gpt3-1.3b", "gpt3-1.3b"),
        ("train_gpt3_175b_distributed", "gpt3-175b"),
        ("unsloth/DeepSeek-V3", "deepseek-v3"),
        ("gpt3-130b", None),
        ("Llama-3.2-11B-Vision", None),
        ("my_model", None),
        ("", None),
    ],
)
def test_a_model_is_recognised_within_a_path(text, name):
    found = find_named(text)
    assert (found.name if found else None) == name
