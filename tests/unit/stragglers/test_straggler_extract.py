"""What is extracted of one rank: from kernels with and without arguments, and from gloo runs."""

import pickle
from dataclasses import replace

import polars as pl
import pytest
from tests.device_traces import kernel, nccl, read_trace, step
from tests.recordings import recorded_run, recorded_trace

from steptally.cli.straggler_places import job_places
from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.measure.stragglers.collective_names import collective_of
from steptally.measure.stragglers.extract import (
    ExtractOptions,
    extract,
    extract_source,
    extract_sources,
)
from steptally.measure.stragglers.places import (
    RankPosition,
    manifest_places,
    placed,
    places_beside,
)
from steptally.measure.stragglers.recording import COLLECTIVE_NAMES, COMMUNICATIONS
from steptally.trace.read import read_traces

OPTIONS = ExtractOptions()
SMALL_JOB = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": 16,
    "vocab_size": 256,
    "micro_batch_size": 1,
    "global_batch_size": 4,
}
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", None, "all-reduce"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", None, "all-reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", None, "reduce-scatter"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "_allgather_base", "all-gather"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", None, "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)", "broadcast", "broadcast"),
        (SEND_RECV, None, "send-recv"),
        (SEND_RECV, "all_to_allv", "all-to-all"),
        (SEND_RECV, "send", "send"),
        (SEND_RECV, "recv", "recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgs)", None, "unknown"),  # RCCL's, for all of them
        ("ncclDevKernel_Generic(ncclDevKernelArgs)", "allreduce", "all-reduce"),
        ("multimem_all_reduce_kernel", None, "all-reduce"),
        ("void vllm::cross_device_reduce_1stage<c10::BFloat16, 8>", None, "all-reduce"),
        ("void deep_ep::intranode::dispatch<8, 768>", None, "all-to-all"),
        ("void deep_ep::intranode::barrier<8>", None, "barrier"),
        ("Memcpy PtoP (Device -> Device)", None, "copy"),
        ("gloo:all_gather", None, "all-gather"),
        ("gloo:barrier", None, "barrier"),
        ("", "reduce_scatter_tensor_coalesced_", "reduce-scatter"),
        ("", "alltoall_base_", "all-to-all"),
        ("", "recv_", "recv"),
        ("", "recv_any_source_", "recv"),
    ],
)
def test_collectives_are_known_by_arguments_first_and_names_second(name, argument, expected):
    assert collective_of(name, argument) == expected
    assert expected in COLLECTIVE_NAMES


def test_kernels_enter_when_they_start_and_carry_their_group_and_step(tmp_path):
    group = ("3", "TENSOR_MODEL_PARALLEL_GROUP")
    trace = read_trace(
        tmp_path / "rank1.json",
        step(5, 0, 100),
        kernel("gemm", 10, 40, launched=5),
        nccl(40, 70, group=group, ranks=(0, 1), launched=20),
        step(6, 100, 200),
        nccl(150, 190, stream=21, launched=120),
    )
    recording = extract(trace, 1, OPTIONS)
    assert recording.communications.schema == COMMUNICATIONS
    first, second = recording.communications.iter_rows(named=True)
    assert first == {
        "step": 5,
        "lane": "0:20",
        "collective": "all-reduce",
        "group": "TENSOR_MODEL_PARALLEL_GROUP",
        "axis": "tp",
        "members": [0, 1],
        "sequence": None,
        "source_rank": None,
        "destination_rank": None,
        "bytes": 2048,  # 1,024 elements of bf16
        "bytes_in": 2048,
        "bytes_out": 2048,
        "enter_ns": 40_000,
        "leave_ns": 70_000,
    }
    assert (second["step"], second["lane"], second["group"]) == (6, "0:21", None)
    assert recording.compute.tolist() == [[10_000, 40_000]]
    # A step is the span of its own work: as `steptally trace` has it.
    assert recording.steps.rows() == [(5, 10_000, 70_000), (6, 150_000, 190_000)]


def test_a_recording_without_steps_is_step_0_from_its_first_work_to_its_last(tmp_path):
    trace = read_trace(tmp_path / "rank0.json", kernel("gemm", 10, 40), nccl(40, 70))
    recording = extract(trace, 0, OPTIONS)
    assert recording.steps.rows() == [(0, 10_000, 70_000)]
    assert recording.communications["step"].to_list() == [0]


def test_chosen_steps_leave_out_the_others_and_steps_that_are_not_there_are_refused(tmp_path):
    events = [step(5, 0, 100), nccl(40, 70), step(6, 100, 200), nccl(150, 190)]
    trace = read_trace(tmp_path / "rank0.json", *events)
    recording = extract(trace, 0, ExtractOptions(steps=(6, 6)))
    assert recording.steps["step"].to_list() == [6]
    assert recording.communications["step"].to_list() == [6]
    with pytest.raises(InputError, match=r"steps 8 to 9.*has the steps 5–6"):
        extract(trace, 0, ExtractOptions(steps=(8, 9)))


def test_m108_12_records_with_start_and_end_0_are_dropped_and_counted(tmp_path):
    # NVIDIA/nvidia-resiliency-ext#115: CUPTI writes 0 for times that it did not collect.
    hour = 3_600_000_000
    trace = read_trace(
        tmp_path / "rank0.json",
        nccl(hour, hour + 50),
        nccl(0, 0),
        kernel("gemm", hour + 60, hour + 90),
        kernel("gemm", 0, 0),
    )
    recording = extract(trace, 0, OPTIONS)
    assert recording.communications["enter_ns"].to_list() == [hour * 1000]
    assert recording.steps.rows() == [(0, hour * 1000, (hour + 90) * 1000)]
    assert recording.lost == ("2 records without a time (start and end 0) are dropped",)


def test_a_kernel_shorter_than_the_unit_of_its_times_is_kept(tmp_path):
    # 2022's profilers write whole microseconds: such a kernel starts and ends at once.
    trace = read_trace(tmp_path / "rank0.json", nccl(500, 500), nccl(600, 640))
    recording = extract(trace, 0, OPTIONS)
    assert len(recording.communications) == 2
    assert recording.lost == ()


def test_nccl_numbers_of_messages_are_left_out_since_both_ends_count_their_own(tmp_path):
    arguments = {"Collective name": "send", "Seq": 4, "Src Rank": 0, "Dst Rank": 1}
    message = kernel(SEND_RECV, 10, 20, stream=9, **arguments)
    trace = read_trace(tmp_path / "rank0.json", message, kernel("gemm", 30, 40))
    row = extract(trace, 0, OPTIONS).communications.row(0, named=True)
    assert (row["collective"], row["sequence"]) == ("send", None)
    assert (row["source_rank"], row["destination_rank"]) == (0, 1)


def test_a_gloo_rank_enters_when_its_tag_begins_and_leaves_when_the_transfer_ends():
    trace = recorded_trace("tp2_dp2", 0)
    recording = extract(trace, 0, OPTIONS)
    rows = recording.communications
    tag = trace.collectives.row(0, named=True)
    transfer = trace.events.filter((pl.col("kind") == "transfer") & (pl.col("collective") == 0))
    first = rows.filter(pl.col("sequence") == 0).row(0, named=True)
    assert (first["collective"], first["group"]) == ("reduce-scatter", tag["group_description"])
    assert first["enter_ns"] == trace.events["start_ns"][tag["event"]]
    assert first["leave_ns"] == transfer["end_ns"][0]
    # 23 tags, and the recorder's own barrier before the step, which has none.
    assert rows["collective"].value_counts().sort("collective").rows() == [
        ("all-gather", 10),
        ("all-reduce", 6),
        ("barrier", 1),
        ("reduce-scatter", 7),
    ]
    assert rows.filter(pl.col("collective") == "barrier").row(0, named=True)["step"] is None
    assert recording.steps["step"].to_list() == [3]
    assert recording.lost == ()


def test_messages_of_a_pipeline_name_both_ends():
    rows = extract(recorded_trace("pp2", 1), 1, OPTIONS).communications
    messages = rows.filter(pl.col("collective").is_in(["send", "recv"]))
    told = messages.select("collective", "source_rank", "destination_rank", "sequence", "axis")
    # Two micro-batches: activations of rank 0 come in, gradients go back; one stage ahead.
    assert sorted(told.rows()) == [
        ("recv", 0, 1, 0, "pp"),
        ("recv", 0, 1, 1, "pp"),
        ("send", 1, 0, 0, "pp"),
        ("send", 1, 0, 1, "pp"),
    ]


def test_a_gloo_transfer_that_was_not_recorded_ends_with_the_wait_for_it():
    trace = recorded_trace("tp2_dp2", 0)
    kept = (pl.col("kind") != "transfer") | (pl.col("collective") != 0).fill_null(True)
    kind = pl.when(kept).then("kind").otherwise(pl.lit("annotation", trace.events["kind"].dtype))
    events = trace.events.with_columns(kind=kind)
    wait = events.filter(pl.col("kind") == "wait").sort("start_ns").row(0, named=True)
    recording = extract(replace(trace, events=events), 0, OPTIONS)
    first = recording.communications.filter(pl.col("sequence") == 0).row(0, named=True)
    assert first["leave_ns"] == wait["end_ns"]
    assert recording.lost == ()


def test_coordinates_come_from_the_groups_and_places_from_the_run_directory():
    recording = extract(recorded_trace("tp2_dp2", 3), 3, OPTIONS)
    expected = {"tp": 1, "cp": 0, "dp": 1, "pp": 0, "ep": 0}
    assert recording.coordinates == expected
    directory = recorded_run("tp2_dp2")
    (other,) = placed([recording], manifest_places(directory))
    assert (other.coordinates, other.host, other.device) == (expected, "vm", "cpu")
    assert places_beside(read_traces([directory.path])) == manifest_places(directory)


def test_a_place_that_is_given_goes_before_what_the_recording_tells():
    recording = extract(recorded_trace("pp2", 1), 1, OPTIONS)
    assert recording.coordinates["pp"] == 1
    (other,) = placed([recording], {1: RankPosition(coordinates={"pp": 7}, host="node3")})
    assert (other.coordinates["pp"], other.host) == (7, "node3")


def test_traces_that_lie_in_no_run_directory_have_no_places(tmp_path):
    read_trace(tmp_path / "rank0.json", nccl(40, 70))
    assert places_beside(read_traces([tmp_path])) == {}


def test_sources_are_extracted_each_on_its_own_and_small_enough_to_send():
    sources = read_traces([recorded_run("tp2_dp2").path])
    found = sorted(extract_sources(sources, OPTIONS), key=lambda one: one.source.rank)
    assert [one.recording.rank for one in found] == [0, 1, 2, 3]
    assert not any(one.is_numbered for one in found)
    largest = max(len(pickle.dumps(one.recording)) for one in found)
    assert largest < 64_000


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path):
    path = tmp_path / "rank0.json"
    read_trace(path, nccl(40, 70))
    (source,) = read_traces([path])
    path.write_text('{"traceEvents": [')
    assert "damaged" in extract_source(source, 0, OPTIONS).error


def test_gloo_takes_up_what_it_is_handed_as_late_as_the_formulas_say():
    # docs/formulas/stragglers.md: 0.24 ms at the median, 53 ms at most.
    lags = []
    for name, ranks in (("tp2_dp2", 4), ("pp2", 2), ("two_groups", 2)):
        for rank in range(ranks):
            trace = recorded_trace(name, rank)
            handed = trace.events["start_ns"].gather(trace.collectives["event"])
            begun = (
                trace.events.filter(pl.col("kind") == "transfer")
                .drop_nulls("collective")
                .group_by("collective")
                .agg(pl.col("start_ns").min())
            )
            lags.append(begun["start_ns"] - handed.gather(begun["collective"]))
    every = pl.concat(lags)
    assert round(every.median() / 1e6, 2) == 0.24
    assert round(every.max() / 1e6) == 53


def test_a_jobs_places_are_those_that_the_run_of_it_recorded():
    settings = {"world_size": 4, "tensor_model_parallel_size": 2, "num_layers": 1}
    job = job_from_settings({**SMALL_JOB, **settings})
    recorded = manifest_places(recorded_run("tp2_dp2"))
    for rank, place in job_places(job).items():
        told = {axis: recorded[rank].coordinates[axis] for axis in place.coordinates}
        assert place.coordinates == told


def test_a_jobs_places_count_expert_parallel_ranks_where_there_are_experts():
    settings = {"world_size": 4, "num_experts": 4, "expert_model_parallel_size": 2}
    places = job_places(job_from_settings({**SMALL_JOB, **settings}))
    # Source: Megatron-Core's RankGenerator: ep runs inside dp.
    assert [places[rank].coordinates["ep"] for rank in range(4)] == [0, 1, 0, 1]
    assert [places[rank].coordinates["dp"] for rank in range(4)] == [0, 1, 2, 3]


def test_a_pool_of_processes_extracts_the_same():
    sources = read_traces([recorded_run("pp2").path])
    here, pooled = (
        sorted(extract_sources(sources, OPTIONS, processes), key=lambda one: one.source.rank)
        for processes in (1, 2)
    )
    for one, other in zip(here, pooled, strict=True):
        assert one.recording.communications.equals(other.recording.communications)
        assert one.recording.compute.tolist() == other.recording.compute.tolist()
