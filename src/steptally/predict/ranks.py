"""Which ranks communicate with which: rank coordinates and every process group, as Megatron does.

Ranks are numbered along `Layout.order`, innermost first. Dense groups count tp, cp, dp, pp; expert
groups divide the same ranks into etp, ep, edp, pp. Group names are Megatron-Core's `group_desc`.
Source: `RankGenerator` and `initialize_model_parallel` (megatron-core 0.16.1, parallel_state.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

from steptally.errors import InputError, did_you_mean
from steptally.job.job import Job
from steptally.job.layout import Layout
from steptally.predict.stages import model_chunks

# Group name → the axes whose ranks it joins: of the dense grid, or of the expert grid.
DENSE_GROUPS: Mapping[str, tuple[str, ...]] = {
    "TENSOR_MODEL_PARALLEL_GROUP": ("tp",),
    "PIPELINE_MODEL_PARALLEL_GROUP": ("pp",),
    "MODEL_PARALLEL_GROUP": ("tp", "pp"),
    "DATA_PARALLEL_GROUP": ("dp",),
    "DATA_PARALLEL_GROUP_WITH_CP": ("dp", "cp"),
    "CONTEXT_PARALLEL_GROUP": ("cp",),
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": ("tp", "cp"),
    "TENSOR_AND_DATA_PARALLEL_GROUP": ("tp", "dp"),
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": ("tp", "dp", "cp"),
}
EXPERT_GROUPS: Mapping[str, tuple[str, ...]] = {
    "EXPERT_MODEL_PARALLEL_GROUP": ("ep",),
    "EXPERT_TENSOR_PARALLEL_GROUP": ("tp",),
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": ("tp", "ep"),
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": ("tp", "ep", "pp"),
    "EXPERT_DATA_PARALLEL_GROUP": ("dp",),
}
# Parts of the groups above, with more than one distributed optimizer instance or stage.
DERIVED_GROUPS = (
    "EMBEDDING_GROUP",
    "POSITION_EMBEDDING_GROUP",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
    "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0",
    "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1",
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Where a rank stands in the dense grid (tp, cp, dp, pp) and the expert grid (etp, ep, edp)."""

    rank: int
    tp: int
    cp: int
    dp: int
    pp: int
    etp: int
    ep: int
    edp: int


def expert_data_parallel_size(layout: Layout) -> int:
    """Replicas of each expert: world / (etp · ep · pp)."""
    return layout.world_size // (
        layout.expert_tensor_parallel_size
        * layout.expert_model_parallel_size
        * layout.pipeline_model_parallel_size
    )


def coordinates(layout: Layout, rank: int) -> Coordinates:
    """The coordinates of a rank. Raises `InputError` for a rank that the world does not hold.

    >>> layout = Layout(world_size=8, tensor_model_parallel_size=2, seq_length=1,
    ...     pipeline_model_parallel_size=2, micro_batch_size=1, global_batch_size=2)
    >>> (c := coordinates(layout, 5)).tp, c.dp, c.pp
    (1, 0, 1)
    """
    if not 0 <= rank < layout.world_size:
        raise InputError(
            f"rank is {rank}, but the job has {layout.world_size} ranks: "
            f"use 0 to {layout.world_size - 1}."
        )
    dense = _decompose(layout, dense_sizes(layout), rank)
    expert = _decompose(layout, expert_sizes(layout), rank)
    return Coordinates(
        rank=rank,
        tp=dense["tp"],
        cp=dense["cp"],
        dp=dense["dp"],
        pp=dense["pp"],
        etp=expert["tp"],
        ep=expert["ep"],
        edp=expert["dp"],
    )


def rank_at(layout: Layout, *, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
    """The rank that stands at dense coordinates."""
    at = {"tp": tp, "cp": cp, "ep": 0, "dp": dp, "pp": pp}
    strides = _strides(layout, dense_sizes(layout))
    return sum(at[axis] * stride for axis, stride in strides.items())


def dense_sizes(layout: Layout) -> dict[str, int]:
    """Sizes of the dense grid; ep is 1 there, as in Megatron's own generator."""
    return {
        "tp": layout.tensor_model_parallel_size,
        "cp": layout.context_parallel_size,
        "ep": 1,
        "dp": layout.data_parallel_size,
        "pp": layout.pipeline_model_parallel_size,
    }


def expert_sizes(layout: Layout) -> dict[str, int]:
    """Sizes of the expert grid, where tp means etp and dp means edp; cp is folded into edp."""
    sizes = {
        "tp": layout.expert_tensor_parallel_size,
        "cp": 1,
        "ep": layout.expert_model_parallel_size,
        "dp": expert_data_parallel_size(layout),
        "pp": layout.pipeline_model_parallel_size,
    }
    pp_inside = not layout.order.endswith("pp") and sizes["pp"] > 1
    if pp_inside and sizes["dp"] != layout.data_parallel_size:
        raise InputError(
            f"use_tp_pp_dp_mapping orders ranks {layout.order}: Megatron-Core then needs the "
            f"expert data parallel size {sizes['dp']} to equal the data parallel size "
            f"{layout.data_parallel_size}; drop the flag, or choose etp · ep = tp · cp."
        )
    return sizes


def group_ranks(job: Job, group: str, rank: int) -> tuple[int, ...]:
    """The ranks of `rank`'s own group, in Megatron's order; empty where it is not in one.

    `group` is one of `DENSE_GROUPS`, `EXPERT_GROUPS` or `DERIVED_GROUPS`; anything else raises
    `InputError`.
    """
    layout = job.layout
    coordinates(layout, rank)
    if group in DENSE_GROUPS:
        return _members(layout, dense_sizes(layout), DENSE_GROUPS[group], rank)
    if group in EXPERT_GROUPS:
        return _members(layout, expert_sizes(layout), EXPERT_GROUPS[group], rank)
    if group in ("EMBEDDING_GROUP", "POSITION_EMBEDDING_GROUP"):
        pipeline = group_ranks(job, "PIPELINE_MODEL_PARALLEL_GROUP", rank)
        stages = _embedding_stages(job) if group == "EMBEDDING_GROUP" else [0]
        members = tuple(pipeline[stage] for stage in stages)
        return members if rank in members else ()
    if group in DERIVED_GROUPS:
        return _optimizer_instance_ranks(job, group, rank)
    known = (*DENSE_GROUPS, *EXPERT_GROUPS, *DERIVED_GROUPS)
    raise InputError(
        f"process group {group!r} is not one of Megatron's{did_you_mean(group, known)}: "
        f"use one of {', '.join(known)}."
    )


def all_groups(job: Job, group: str) -> Iterator[tuple[int, ...]]:
    """Every group of that name over the world, each once, in the order of its first rank."""
    seen: set[int] = set()
    for rank in range(job.layout.world_size):
        if rank not in seen and (members := group_ranks(job, group, rank)):
            seen.update(members)
            yield members


def _embedding_stages(job: Job) -> list[int]:
    """Stages that hold the word embedding: `get_embedding_ranks` of Megatron-LM's pretrain_gpt.py.

    The first; the last where it is tied to the output weights; those of the MTP depths.
    """
    stages = {0}
    if not job.architecture.untie_embeddings_and_output_weights:
        stages.add(job.layout.pipeline_model_parallel_size - 1)
    stages.update(chunk.pp for chunk in model_chunks(job) if chunk.mtp_layers)
    return sorted(stages)


def _optimizer_instance_ranks(job: Job, group: str, rank: int) -> tuple[int, ...]:
    """Groups of partial distributed optimizer: `num_distributed_optimizer_instances` replicas."""
    layout = job.layout
    instances = layout.num_distributed_optimizer_instances
    if group == "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP":
        return _slice(group_ranks(job, "DATA_PARALLEL_GROUP_WITH_CP", rank), instances, rank)
    expert = group_ranks(job, "EXPERT_DATA_PARALLEL_GROUP", rank)
    if group == "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L0":
        return _slice(expert, instances, rank)
    if group == "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1":
        size = len(expert) // instances
        return expert[expert.index(rank) % size :: size]
    # All ranks of one optimizer instance: consecutive etp-ep-pp groups, one per replica in it.
    size = expert_data_parallel_size(layout) // instances
    models = [
        group_ranks(job, "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", replica)
        for replica in _slice(expert, instances, rank)
    ]
    return tuple(member for model in models[:size] for member in model)


def _slice(ranks: tuple[int, ...], parts: int, rank: int) -> tuple[int, ...]:
    """The one of `parts` equal consecutive slices of `ranks` that holds `rank`."""
    if len(ranks) % parts:
        raise InputError(
            f"num_distributed_optimizer_instances {parts} does not divide the {len(ranks)} ranks "
            f"of the data parallel group: use a divisor of {len(ranks)}."
        )
    size = len(ranks) // parts
    start = ranks.index(rank) // size * size
    return ranks[start : start + size]


def _strides(layout: Layout, sizes: Mapping[str, int]) -> dict[str, int]:
    """How far apart neighbours along each axis are, innermost axis first."""
    axes = layout.order.split("-")
    return {axis: prod(sizes[inner] for inner in axes[:i]) for i, axis in enumerate(axes)}


def _decompose(layout: Layout, sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    strides = _strides(layout, sizes)
    return {axis: rank // stride % sizes[axis] for axis, stride in strides.items()}


def _members(
    layout: Layout, sizes: Mapping[str, int], axes: tuple[str, ...], rank: int
) -> tuple[int, ...]:
    """All ranks that differ from `rank` along `axes` only, the innermost axis running fastest."""
    strides = _strides(layout, sizes)
    at = _decompose(layout, sizes, rank)
    base = rank - sum(at[axis] * strides[axis] for axis in axes)
    ordered = [axis for axis in strides if axis in axes]
    steps = [[i * strides[axis] for i in range(sizes[axis])] for axis in reversed(ordered)]
    return tuple(base + sum(offsets) for offsets in product(*steps))
