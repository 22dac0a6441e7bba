"""The memory tally: rows that add up, ranks that are alike, what fits, what is refused."""

import dataclasses
import itertools

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings, read_job
from steptally.job.catalog.devices import find_device
from steptally.predict.memory import memory_tally, predict_memory
from steptally.predict.memory.outside import CONTEXT, GROUP, PAIR, PEER, RESERVE
from steptally.tally import tally_from_json

SETTINGS = (
    "tensor_model_parallel_size=8",
    "pipeline_model_parallel_size=8",
    "virtual_pipeline_model_parallel_size=3",
    "world_size=64",
    "global_batch_size=64",
    "bf16=true",
)
A100 = "a100-sxm-80"


@pytest.fixture(scope="module")
def gpt3():
    return memory_tally(read_job("gpt3-175b", SETTINGS), None, find_device(A100))


def small(**changes):
    settings = {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 32,
        "vocab_size": 128,
        "bf16": True,
    }
    return job_from_settings({**settings, **changes})


def test_what_is_alive_adds_up_to_each_ranks_peak(gpt3):
    for peak in gpt3.accounts["memory_peaks"]:
        rows = [row for row in gpt3.accounts["memory"] if row.rank == peak.rank]
        inside = sum(row.bytes for row in rows if row.lifetime != "outside")
        outside = sum(row.bytes for row in rows if row.lifetime == "outside")
        assert inside == peak.peak_bytes == rows[0].peak_bytes
        assert outside == peak.outside_bytes
        highest = max(peak.first_step_peak_bytes, peak.peak_bytes, peak.checkpoint_peak_bytes)
        assert peak.total_bytes == highest + outside


def test_every_rank_stands_in_one_stages_row(gpt3):
    assert [row.ranks for row in gpt3.accounts["memory_peaks"]] == [
        f"{first}–{first + 7}" for first in range(0, 64, 8)
    ]


def test_ranks_of_a_stage_are_numbered_as_the_job_orders_them():
    job = small(
        world_size=8,
        pipeline_model_parallel_size=2,
        tensor_model_parallel_size=2,
        expert_tensor_parallel_size=2,
        use_tp_pp_dp_mapping=True,
        global_batch_size=2,
    )
    peaks = memory_tally(job).accounts["memory_peaks"]
    assert [row.ranks for row in peaks] == ["0–1, 4–5", "2–3, 6–7"]


def test_one_rank_has_the_rows_of_its_stage():
    job = read_job("gpt3-175b", SETTINGS)
    (first, *_), (other, *_) = predict_memory(job, 8), predict_memory(job, 15)
    assert (other.rank, other.pp) == (15, 1)
    assert dataclasses.replace(other, rank=8) == first


def test_activations_are_told_apart_by_chunk(gpt3):
    chunks = {row.vpp for row in gpt3.accounts["memory"] if row.lifetime == "microbatch"}
    assert chunks == {0, 1, 2}


def test_the_timeline_reaches_the_peaks_and_ends_each_step_where_it_began(gpt3):
    moments = gpt3.accounts["memory_timeline"]
    peak = max(gpt3.accounts["memory_peaks"], key=lambda row: row.total_bytes)
    assert {moment.rank for moment in moments} == {peak.rank}
    for step, expected in (("later", peak.peak_bytes), ("first", peak.first_step_peak_bytes)):
        events = [moment for moment in moments if moment.step == step]
        assert max(event.peak_bytes for event in events) == expected
        passes = [event for event in events if event.event in ("forward", "backward")]
        assert passes[0].before_bytes == passes[-1].after_bytes
    for before, after in itertools.pairwise(moments):
        assert before.after_bytes == after.before_bytes


def test_a_device_decides_whether_it_fits_and_with_what_margin(gpt3):
    need = gpt3.summary["device_memory_needed_bytes_max"].value
    margin = gpt3.summary["memory_margin_bytes"].value
    assert need + margin == 80 * 2**30
    assert gpt3.summary["fits"].value == (margin >= 0)


def test_without_a_device_fitting_is_refused_and_says_how_to_ask():
    tally = memory_tally(small())
    assert "fits" not in tally.summary
    assert "--device" in tally.refusals[0]


def test_what_is_outside_comes_from_listed_constants():
    job = small(
        num_experts=8,
        moe_token_dispatcher_type="alltoall",
        expert_model_parallel_size=4,
        world_size=4,
        global_batch_size=4,
    )
    tally = memory_tally(job, None, find_device("h100-sxm"))
    rows = {row.name: row.bytes for row in tally.accounts["memory"] if row.lifetime == "outside"}
    peak = tally.accounts["memory_peaks"][0].peak_bytes
    assert rows["context and kernels"] == CONTEXT["Hopper"].value
    assert rows["NCCL all-to-all buffers"] == round(3 * PEER.value)
    assert rows["allocator's reserve"] == round(RESERVE.value * peak)
    assert rows["kept by the driver"] == round(0.01 * 80 * 2**30)
    assert rows["NCCL communicators"] % GROUP.value == 0
    assert PAIR.value < GROUP.value


def test_a_tally_survives_its_json(gpt3):
    assert tally_from_json(gpt3.dumps()).accounts == dict(gpt3.accounts)


def test_fsdp_is_refused_since_it_is_not_modelled():
    with pytest.raises(InputError, match="use_megatron_fsdp"):
        memory_tally(small(use_megatron_fsdp=True))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "attention_backend is auto"),
        ({"seq_length": 16384}, "256 MiB a micro-batch"),
        ({"num_experts": 4}, "equally many tokens"),
        ({"fp8": "hybrid"}, "FP8"),
        ({"cuda_graph_impl": "local"}, "private pools"),
        (
            {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "linear"},
            "never makes all logits",
        ),
    ],
)
def test_what_the_figures_take_for_granted_is_said(changes, word):
    assert any(word in sentence for sentence in memory_tally(small(**changes)).warnings)
