"""Which ranks are alike: all of one pipeline stage."""

from __future__ import annotations

from steptally.job import Layout

MOST_RUNS = 4


def stage_ranks(layout: Layout, stage: int) -> list[range]:
    """The ranks of a pipeline stage, as runs in a row."""
    world, stages = layout.world_size, layout.pipeline_model_parallel_size
    # Ranks that differ inside a stage before the stage changes: all, or tp · cp where pp is inside.
    inner = layout.tensor_model_parallel_size * layout.context_parallel_size
    run = inner if layout.use_tp_pp_dp_mapping else world // stages
    block = run * stages
    return [
        range(start + stage * run, start + (stage + 1) * run) for start in range(0, world, block)
    ]


def ranks_in_words(layout: Layout, stage: int) -> str:
    """The same as text.

    >>> from steptally.job import Layout
    >>> layout = Layout(world_size=16, pipeline_model_parallel_size=2, seq_length=1,
    ...     micro_batch_size=1, global_batch_size=8)
    >>> ranks_in_words(layout, 1)
    '8–15'
    """
    runs = stage_ranks(layout, stage)
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs[:MOST_RUNS]]
    more = f" and {len(runs) - MOST_RUNS} more runs" if len(runs) > MOST_RUNS else ""
    return ", ".join(texts) + more
