"""What must hold of the memory of every job."""

from dataclasses import replace

from hypothesis import given, settings
from tests.property.random_jobs import jobs

from steptally.predict.memory.contents import contents, peak_event
from steptally.predict.memory.schedule import moments, passes
from steptally.predict.memory.stage import all_stages, schedule_sizes
from steptally.predict.memory.timeline import timeline

QUICK = settings(max_examples=50, deadline=None)


@given(jobs())
@QUICK
def test_contents_add_up_to_the_peak_of_every_stage(job):
    for stage in all_stages(job):
        found = contents(job, stage)
        assert sum(content.bytes for content in found) == stage.peak
        assert all(content.bytes > 0 for content in found)
        assert peak_event(job, stage)


@given(jobs())
@QUICK
def test_the_timeline_reaches_the_peaks_and_frees_every_activation(job):
    for stage in all_stages(job):
        events = timeline(job, stage)
        later = [event for event in events if event.step == "later"]
        assert max(event.peak for event in later if event.name != "checkpoint") == stage.peak
        assert max(event.peak for event in events if event.step == "first") == (
            stage.first_step_peak
        )
        assert events[-1].after == stage.lasting
        assert all(event.peak >= max(0, event.before, event.after) for event in events)


@given(jobs())
@QUICK
def test_larger_micro_batches_and_longer_sequences_need_no_less(job):
    peaks = [stage.peak for stage in all_stages(job)]
    layout = job.layout
    for changes in (
        {
            "micro_batch_size": 2 * layout.micro_batch_size,
            "global_batch_size": 2 * layout.global_batch_size,
        },
        {"seq_length": 2 * layout.seq_length},
    ):
        larger = replace(job, layout=replace(layout, **changes))
        for small, large in zip(peaks, all_stages(larger), strict=True):
            assert large.peak >= small


@given(jobs())
@QUICK
def test_tensor_parallelism_splits_or_copies_parameters_and_loses_none(job):
    """Over the tensor-parallel ranks together there is the whole model, and at most `tp` copies."""
    tp = job.layout.tensor_model_parallel_size
    if job.recipe.use_distributed_optimizer or job.architecture.num_experts is not None:
        return  # padding, or experts that have a split of their own
    layout = replace(
        job.layout,
        tensor_model_parallel_size=1,
        sequence_parallel=False,
        world_size=job.layout.world_size // tp,
    )
    # The same padded vocabulary on both sides.
    architecture = replace(job.architecture, padded_vocab_size=job.padded_vocab_size)
    whole = parameters(replace(job, layout=layout, architecture=architecture))
    split = parameters(replace(job, architecture=architecture))
    for one, other in zip(whole, split, strict=True):
        assert one <= tp * other <= tp * one


@given(jobs())
@QUICK
def test_no_moment_of_the_whole_schedule_is_missed(job):
    """The moments that are looked at dominate every pass of all micro-batches."""
    stages = all_stages(job)
    for stage in stages:
        sizes = schedule_sizes(job, len(stage.segments))._replace(microbatches=24)
        kept = moments(sizes, stage.stage)
        held = [0] * sizes.chunks
        for one in passes(sizes, stage.stage):
            held[one.chunk] += one.forward
            assert any(
                (moment.forward, moment.chunk) == (one.forward, one.chunk)
                and all(a >= b for a, b in zip(moment.in_flight, held, strict=True))
                for moment in kept
            )
            held[one.chunk] -= not one.forward


def parameters(job):
    return [stage.parameter_bytes for stage in all_stages(job)]
