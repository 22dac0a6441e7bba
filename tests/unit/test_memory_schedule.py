"""How many micro-batches are in flight, by 1F1B and interleaved, as Megatron-Core schedules."""

import pytest

from steptally.job import read_job
from steptally.predict.memory.schedule import Sizes, moments, passes, warmup_passes
from steptally.predict.memory.stage import all_stages


def test_gpt3_on_eight_stages_holds_eight_to_one_micro_batches():
    settings = (
        "tensor_model_parallel_size=8",
        "pipeline_model_parallel_size=8",
        "world_size=64",
        "global_batch_size=16",
        "bf16=true",
    )
    stages = all_stages(read_job("gpt3-175b", settings))
    assert [stage.moment.in_flight for stage in stages] == [(n,) for n in range(8, 0, -1)]


def test_fewer_micro_batches_than_stages_are_all_in_flight():
    assert [moments(Sizes(8, 1, 3, 8), stage)[0].in_flight for stage in range(8)] == [
        *[(3,)] * 6,
        (2,),
        (1,),
    ]


@pytest.mark.parametrize(("stage", "warmup"), [(0, 14), (1, 12), (2, 10), (3, 8)])
def test_interleaving_warms_up_with_twice_the_distance_and_a_group_a_chunk(stage, warmup):
    # get_pp_rank_microbatches: 2 (p − r − 1) + (v − 1) · group, p = 4, v = 3, group = 4.
    assert warmup_passes(Sizes(4, 3, 8, 4), stage) == warmup


def test_the_first_stage_holds_eleven_chunks_passes_where_two_chunks_interleave():
    # p = 4, v = 2, m = 8: 10 passes of warm-up are chunks 0 0 0 0 1 1 1 1 0 0, then one more of 0
    # before the first backward, of chunk 1; then another of 0.
    chunk_zero = {one.in_flight for one in moments(Sizes(4, 2, 8, 4), 0) if one.chunk == 0}
    assert {(7, 4), (8, 3)} <= chunk_zero
    assert {sum(counts) for counts in chunk_zero} == {11}


@pytest.mark.parametrize("sizes", [Sizes(4, 1, 6, 4), Sizes(4, 2, 8, 4), Sizes(2, 3, 5, 2)])
def test_every_micro_batch_goes_forward_and_then_backward_through_every_chunk(sizes):
    for stage in range(sizes.stages):
        seen = []
        for one in passes(sizes, stage):
            key = (one.microbatch, one.chunk)
            assert one.forward != ((True, *key) in seen)
            seen.append((one.forward, *key))
        assert len(seen) == len(set(seen)) == 2 * sizes.chunks * sizes.microbatches
