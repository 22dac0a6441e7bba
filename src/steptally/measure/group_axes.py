"""Which parallel axis a process group joins: from Megatron's names, or from a job's ranks.

The names are Megatron-Core's `group_desc` (parallel_state.py, megatron-core 0.16.1) and those of
torch's DeviceMesh (`mesh_tp`). A group that neither its name nor its ranks tell has no axis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from steptally.tally import TimeRow
from steptally.trace.schema import UNATTRIBUTED, Trace

# A tensor-parallel group also carries sequence parallelism's collectives (tp/sp).
AXES: Mapping[str, str] = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "EXPERT_TENSOR_PARALLEL_GROUP": "tp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUPS": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "dp",
    "INTER_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": "dp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "EMBEDDING_GROUP": "pp",
    "POSITION_EMBEDDING_GROUP": "pp",
    "MODEL_PARALLEL_GROUP": "tp-pp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp-cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp-dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp-cp-dp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "tp-ep",
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": "tp-ep-pp",
    "mesh_tp": "tp",
    "mesh_cp": "cp",
    "mesh_ep": "ep",
    "mesh_pp": "pp",
    "mesh_dp": "dp",
    "mesh_fsdp": "dp",
    "mesh_ddp": "dp",
    "mesh_dp_shard": "dp",
    "mesh_dp_replicate": "dp",
    "mesh_dp_cp": "dp",
    "mesh_dp_shard_cp": "dp",
}


_NUMBER = re.compile(r"\b\d{1,9}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroups:
    """A job's process groups, from their members (sorted) to Megatron's names of the group.

    Groups of different axes can have the same members (with cp = 1, those of tp and tp-cp): such
    members have several names, in the order of preference.
    """

    source: str
    names: Mapping[tuple[int, ...], Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What is known of a group beside its name."""

    axis: str | None = None
    size: int | None = None
    ranks: tuple[int, ...] = ()


def axis_of(label: str) -> str | None:
    """The axis that a group of this name joins; None where the name does not tell.

    >>> axis_of("TENSOR_MODEL_PARALLEL_GROUP"), axis_of("default_pg")
    ('tp', None)
    """
    return AXES.get(label)


def name_groups(trace: Trace, job: JobGroups | None) -> tuple[Trace, dict[str, GroupFacts]]:
    """The trace with the best name for each of its groups, and what is known of each.

    A group's own description stands where it names an axis; else the description that the trace's
    list of groups has for its number; else the name that the job gives to its members.
    """
    facts: dict[str, GroupFacts] = {}
    renamed: dict[str, str] = {}
    for group in _groups(trace):
        name = _best_name(trace, job, group)
        renamed[group.label] = name
        facts[name] = GroupFacts(axis=_axis(name), size=group.size, ranks=group.ranks)
    changed = {old: new for old, new in renamed.items() if old != new}
    if changed:
        trace = replace(trace, events=trace.events.with_columns(pl.col("group").replace(changed)))
    return trace, facts


def with_axes(row: TimeRow, facts: Mapping[str, GroupFacts]) -> TimeRow:
    """The row with the axis and size of each of its groups."""
    nothing = GroupFacts()
    groups = tuple(
        replace(group, axis=known.axis, size=known.size)
        for group in row.groups
        for known in (facts.get(group.group, nothing),)
    )
    return replace(row, groups=groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A group as the trace has it; `listed` is its list of ranks as written, maybe shortened."""

    label: str
    number: str | None
    ranks: tuple[int, ...]
    listed: str
    size: int | None


def _groups(trace: Trace) -> Iterator[_Group]:
    """Each group that communicates in the trace."""
    used = trace.events.select("group", "collective").drop_nulls().unique()
    used = used.filter(pl.col("group") != UNATTRIBUTED)
    columns = ("group_name", "group_ranks", "group_size")
    told = trace.collectives.select(columns)[used["collective"]].with_columns(used["group"])
    known = {group.name: group.ranks for group in trace.groups}
    each = told.unique("group", maintain_order=True).select("group", *columns)
    for label, number, listed, size in each.iter_rows():
        ranks = _members(listed) or known.get(number, ())
        yield _Group(
            label=label,
            number=number,
            ranks=ranks,
            listed=listed or "",
            size=size or len(ranks) or None,
        )


def _best_name(trace: Trace, job: JobGroups | None, group: _Group) -> str:
    if axis_of(group.label):
        return group.label
    for listed in trace.groups:
        if listed.name == group.number and axis_of(listed.description):
            return listed.description
    names = _names_in_job(job, group) if job else ()
    # Several groups with the same members: named together where they do not join the same axis.
    axes = {AXES.get(name) for name in names}
    if len(axes) > 1:
        return " or ".join(names)
    return names[0] if names else group.label


def _names_in_job(job: JobGroups, group: _Group) -> Sequence[str]:
    """The job's names of these members; of a shortened list, if it fits one group alone."""
    if group.ranks or "..." not in group.listed:
        return job.names.get(tuple(sorted(group.ranks)), ())
    first, last = _ends(group.listed)
    fitting = [
        names
        for members, names in job.names.items()
        if len(members) == group.size and members[: len(first)] == first and members[-1:] == last
    ]
    return fitting[0] if len(fitting) == 1 else ()


def _ends(listed: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first ranks and the last one of a list that torch has shortened.

    >>> _ends("[0, 8, 16, ..., 1016]")
    ((0, 8, 16), (1016,))
    """
    first, _, last = listed.partition("...")
    numbers = [tuple(int(rank) for rank in _NUMBER.findall(part)) for part in (first, last)]
    return numbers[0], numbers[1][-1:]


def _axis(name: str) -> str | None:
    """The axis of a name, or of several names that the same ranks may have: tp or ep."""
    axes = [axis_of(one) for one in name.split(" or ")]
    told = list(dict.fromkeys(axis for axis in axes if axis))
    return " or ".join(told) if told and None not in axes else None


def _members(text: str | None) -> tuple[int, ...]:
    """The ranks that a collective's arguments list; none where NCCL has shortened the list."""
    try:
        ranks = json.loads(text or "")
    except ValueError:
        return ()
    whole = isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks)
    return tuple(ranks) if whole else ()
