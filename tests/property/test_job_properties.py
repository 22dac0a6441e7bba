"""What holds for every job: settings give it back, and no text breaks a reader."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from steptally.errors import InputError
from steptally.job import job_from_settings, read_job
from steptally.job.catalog.devices import find_device
from steptally.job.catalog.options import options_by_flag
from steptally.job.readers.shell import read_script

EASY = budget(max_examples=60, deadline=None)
FLAGS = sorted(options_by_flag())
WORDS = st.sampled_from(
    ["--num-layers", "4", "--bf16", "$X", "${Y:-2}", "$((", "))", "(", ")", "'", '"', "\\\n", "#",
     "if", "then", "fi", "[", "]", "case", "in", "esac", "for", "do", "done", "&&", "A=(", "A+=(",
     "${A[@]}", "${", "}", "<<EOF", "EOF", "\n", ";", "| ", ">", "torchrun", "t.py", "`", "$(", "="]
)  # fmt: skip


@st.composite
def jobs(draw):
    """Settings of a job that Megatron would take."""
    tp, pp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    dp, heads = draw(st.integers(1, 3)), draw(st.sampled_from([2, 4, 8]))
    stated = {
        "num_layers": pp * draw(st.integers(1, 3)),
        "hidden_size": heads * 16,
        "num_attention_heads": heads,
        "num_query_groups": draw(st.sampled_from([2, heads])),
        "seq_length": 32 * draw(st.integers(1, 3)),
        "vocab_size": draw(st.integers(1, 1000)),
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "world_size": tp * pp * dp,
        "global_batch_size": dp * draw(st.integers(1, 3)),
        "sequence_parallel": draw(st.booleans()),
        "bf16": draw(st.booleans()),
        "swiglu": draw(st.booleans()),
        "add_bias_linear": draw(st.booleans()),
        "position_embedding_type": draw(st.sampled_from(["rope", "none"])),
        "recompute_granularity": draw(st.sampled_from([None, "selective"])),
    }
    if draw(st.booleans()):
        stated |= {"num_experts": 4, "moe_router_topk": 2}
        stated["moe_layer_freq"] = [1] * stated["num_layers"]
    if draw(st.booleans()):
        stated |= {"window_size": draw(st.integers(1, 64)), "window_attn_skip_freq": 2}
    return stated


@EASY
@given(jobs())
def test_a_jobs_settings_give_the_job_back(stated):
    job = job_from_settings(stated)
    assert job_from_settings(job.settings()).settings() == job.settings()
    assert job_from_settings(json.loads(json.dumps(job.settings()))).settings() == job.settings()


@EASY
@given(jobs())
def test_a_job_file_of_the_settings_is_the_same_job(tmp_path_factory, stated):
    job = job_from_settings(stated)
    path = tmp_path_factory.mktemp("job") / "job.json"
    path.write_text(json.dumps(job.settings()))
    assert read_job(str(path)).settings() == job.settings()


def refused_or_read(path, content):
    """Whatever a file holds, reading it gives a job or one sentence."""
    path.write_bytes(content)
    message = ""
    try:
        read_job(str(path))
    except InputError as error:
        message = str(error)
    assert "\n" not in message


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "job"


@EASY
@given(st.binary(max_size=300))
def test_bytes_give_a_job_or_a_sentence(path, content):
    refused_or_read(path, content)


@EASY
@given(st.text(max_size=300))
def test_text_gives_a_job_or_a_sentence(path, content):
    refused_or_read(path, content.encode("utf-8", "replace"))


@EASY
@given(st.lists(WORDS, max_size=40))
def test_broken_scripts_give_a_job_or_a_sentence(path, words):
    text = " ".join(words)
    refused_or_read(path, f"{text} --num-layers 2 --hidden-size 8".encode())
    with contextlib.suppress(InputError):
        read_script(text, "s")


@EASY
@given(st.lists(st.tuples(st.sampled_from(FLAGS), st.text(max_size=12)), max_size=8))
def test_any_flags_with_any_values_give_a_job_or_a_sentence(path, pairs):
    text = " ".join(f"{flag} {value}" for flag, value in pairs)
    refused_or_read(path, text.encode("utf-8", "replace"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(
    ["num_layers", "hidden_size", "num_attention_heads", "seq_length", "vocab_size", "model",
     "model_type", "num_hidden_layers", "train", "language_model", "MODEL_ARGS", "moe_layer_freq",
     "window_size", "cp_comm_type", "layer_types", "text_config", "num_experts", "format",
     "settings", "schema", "job", "device", "hybrid_layer_pattern", "params_dtype", "fp8"]
)  # fmt: skip


@EASY
@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_values_under_known_names_give_a_job_or_a_sentence(path, content):
    small = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32}
    refused_or_read(path, json.dumps({**small, "vocab_size": 9, **content}).encode())


@EASY
@given(st.text(max_size=60))
def test_any_device_name_is_found_or_refused(name):
    with contextlib.suppress(InputError):
        assert find_device(name).source
