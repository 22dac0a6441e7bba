"""Logs, YAML, job files, presets and what is none of them."""

import json
from pathlib import Path

import pytest
from tests.parameter_count import count_parameters

from steptally.errors import InputError
from steptally.job import Job, read_job

JOBS = Path(__file__).parents[1] / "golden" / "jobs"
# Each line holds the one before nine times: 9^7 values.
BOMB = b"a: &a [x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b",".join([b"*%c" % (name - 1)] * 9)) for name in b"bcdefgh"
)
LOGS = sorted((Path(__file__).parents[3] / "shared" / "traces" / "logs").glob("meg_*.log"))


def test_an_argument_dump_with_rank_prefixes_among_other_lines():
    job = read_job(str(JOBS / "modern.log"))
    assert count_parameters(job) == 30_532_122_624  # Qwen3-30B-A3B, as its tokenizer's name says
    layout = job.layout
    assert (layout.world_size, layout.data_parallel_size, layout.num_microbatches) == (128, 8, 32)
    assert layout.recompute_modules == ("core_attn", "moe_act")
    assert layout.expert_tensor_parallel_size == 1
    assert job.recipe.attention_backend == "flash"
    assert job.architecture.norm_epsilon == 1e-6
    assert not job.unknown
    assert not job.notes


def test_the_last_of_several_dumps_is_read_and_the_change_is_told(tmp_path):
    text = (JOBS / "modern.log").read_text()
    path = tmp_path / "restarted.log"
    path.write_text(text + text.replace(". 256", ". 512"))
    job = read_job(str(path))
    assert job.layout.global_batch_size == 512
    assert "2 argument dumps" in job.notes[0]
    assert "global_batch_size 256 → 512" in job.notes[0]


@pytest.mark.skipif(not LOGS, reason="the shared recordings are not here")
def test_dumps_of_real_runs_of_2021_parse():
    # 16 nodes: TP4 PP16, 8 nodes: TP4 PP8; sizes as the dumps print them.
    found = {path.name: read_job(str(path)) for path in LOGS}
    assert {job.layout.world_size for job in found.values()} == {32, 64}
    assert {job.architecture.hidden_size for job in found.values()} == {7168, 8192}
    assert all(
        job.recipe.fp16 and job.layout.recompute_granularity == "full" for job in found.values()
    )


def test_megatrons_yaml_with_sections_and_flat_arguments():
    job = read_job(str(JOBS / "megatron.yaml"))
    assert job.architecture.num_query_groups == 4
    assert job.architecture.ffn_hidden_size == 2688  # ⌊8·1024/3⌋ in units of 64
    assert job.layout.sequence_parallel
    assert job.recipe.lr == 2.5e-4
    assert not job.unknown


def test_a_dump_of_bridges_configuration():
    job = read_job(str(JOBS / "bridge.yaml"))
    assert count_parameters(job) == 30_532_122_624
    assert (job.recipe.fp8, job.recipe.fp8_recipe, job.recipe.bf16) == ("e4m3", "mxfp8", True)
    assert job.recipe.overlap_param_gather
    assert job.recipe.ddp_average_in_collective
    assert job.layout.seq_length == 4096
    assert job.recipe.train_iters == 50
    assert job.unknown == {"moe_flex_dispatcher_backend": "hybridep"}


def test_bridges_layout_lists_and_variables(tmp_path):
    text = (JOBS / "bridge.yaml").read_text()
    stages = "[[embedding, decoder], [decoder, decoder, loss]]"
    text = text.replace(
        "  num_layers: 48", f"  num_layers: 3\n  pipeline_model_parallel_layout: {stages}"
    )
    path = tmp_path / "bridge.yaml"
    path.write_text(text.replace("_batch_size: 256", "_batch_size: ${GBS}"))
    assert read_job(str(path), ["GBS=64"]).layout.pipeline_model_parallel_layout == "Et|ttL"
    with pytest.raises(InputError, match=r"global_batch_size is \$\{GBS\}.*--set GBS=VALUE"):
        read_job(str(path))


def test_a_table_of_flags_in_yaml():
    job = read_job(str(JOBS / "model_args.yaml"))
    assert job.architecture.num_layers == 12
    assert not job.architecture.add_bias_linear
    assert job.recipe.bf16
    assert not job.layout.sequence_parallel


def test_a_job_file_may_start_from_a_preset(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("model: Llama-3-8B\nlayout:\n  seq-length: 4096\n  world_size: 8\n")
    job = read_job(str(path), ["--global-batch-size=16"])
    assert count_parameters(job) == 8_030_261_248
    assert (job.layout.seq_length, job.layout.global_batch_size) == (4096, 16)


def test_a_preset_says_that_its_sequence_is_an_assumption():
    job = read_job("qwen3-8b")
    assert "seq_length" in job.assumed
    assert "seq_length" not in read_job("qwen3-8b", ["seq_length=1024"]).assumed


def test_a_changed_preset_says_that_it_is_no_longer_that_model():
    assert "num_layers 4 instead of 36" in read_job("qwen3-8b", ["num_layers=4"]).notes[0]


def test_none_unsays_what_the_source_states():
    for word in ("none", "None"):
        assert read_job("mistral-7b", [f"window_size={word}"]).architecture.window_size is None


def test_an_override_unsays_what_followed_from_the_old_value(tmp_path):
    path = tmp_path / "job.json"
    job = read_job("qwen3-8b", ["device=h100-sxm", "world_size=16", "global_batch_size=16"])
    path.write_text(json.dumps(job.settings()))
    cluster = read_job(str(path), ["device=gb200", "world_size=32", "global_batch_size=32"]).cluster
    assert (cluster.nodes, cluster.link_domain_size) == (4, 72)


def test_a_tally_or_manifest_is_a_job(tmp_path):
    job = read_job("llama-3-8b")
    tally = tmp_path / "tally.json"
    tally.write_text(json.dumps({"schema": "steptally/1", "job": job.as_json()}))
    assert read_job(str(tally)).architecture == job.architecture
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"format": "steptally-run/1", "settings": job.settings()}))
    again: Job = read_job(str(manifest))
    assert again.settings() == job.settings()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"  \n\n ", "is empty"),
        (b"\x1f\x8b\x08\x00", "packed (gzip)"),
        (b"\x7fELF\x00\x01", "binary file"),
        (b"- a\n- b\n", "holds a list"),
        (b"just words", "holds text"),
        (b"a: [1", "read as YAML"),
        (b"{\"a\": 1}", "does not state num_layers"),
        (b" iteration  5/ 10 | elapsed time per iteration: 1 |", "without Megatron's argument"),
        (b"model: llama-9\n", "llama-9"),
        (b"layout: 3\n", "layout holds a int"),
        (b"num_layers: 1\nnum-layers: 2\n", "states num_layers twice"),
        (BOMB, "expands to over"),
    ],
)  # fmt: skip
def test_what_is_no_job_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "job"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        read_job(str(path))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_large_log_without_a_dump_is_refused_without_reading_it_into_memory(tmp_path):
    path = tmp_path / "big.log"
    with path.open("wb") as file:
        file.truncate(0)
        file.write(b"some line\n" * 100)
        for _ in range(8):
            file.write(b"x" * (1 << 20) + b"\n")
    with pytest.raises(InputError, match="8 MiB and holds no argument dump"):
        read_job(str(path))


@pytest.mark.parametrize("argument", ["nowhere.yaml", "x" * 5000, "a\0b", "llama-4-8b", ""])
def test_what_does_not_exist_is_refused(argument):
    with pytest.raises(InputError):
        read_job(argument)


def test_a_folder_with_a_config_is_that_model(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_job(str(tmp_path))
