"""What a job calls the process groups of a trace: the ranks of each, as Megatron makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steptally.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steptally.job import Job
    from steptally.measure.group_axes import JobGroups
    from steptally.measure.trace_account import TraceAccount


def job_groups(job: Job) -> JobGroups:
    """Names by members: one name for each axis that these members may join.

    With cp = 1 a group of tp and cp is that of tp alone, and its name says nothing more.
    """
    from steptally.measure.group_axes import AXES, JobGroups
    from steptally.predict.ranks import (
        DENSE_GROUPS,
        EXPERT_GROUPS,
        all_groups,
        dense_sizes,
        expert_sizes,
    )

    names: dict[tuple[int, ...], dict[str, str]] = {}
    kinds = [(DENSE_GROUPS, dense_sizes(job.layout))]
    if job.architecture.num_experts:
        kinds.append((EXPERT_GROUPS, expert_sizes(job.layout)))
    # Groups of one axis first: they are what Megatron communicates in most.
    ordered = sorted(
        (
            (len(axes), name, axes, sizes)
            for groups, sizes in kinds
            for name, axes in groups.items()
        ),
        key=lambda kind: kind[0],
    )
    for _, name, axes, sizes in ordered:
        joined = [axis for axis in axes if sizes[axis] > 1]
        if len(joined) < len(axes) and len(joined) != 1:
            continue  # of no size, or the same as a group of fewer axes
        axis = "-".join(joined) if len(axes) > 1 else AXES[name]
        for members in all_groups(job, name):
            if len(members) > 1:
                names.setdefault(tuple(sorted(members)), {}).setdefault(axis, name)
    return JobGroups(
        source=job.source, names={key: tuple(found.values()) for key, found in names.items()}
    )


def check_world(job: Job, accounts: Iterable[TraceAccount]) -> None:
    """Raises `InputError` where a trace is of another number of ranks than the job."""
    for account in accounts:
        told = account.source.world_size
        if told is not None and told != job.layout.world_size:
            raise InputError(
                f"{account.source.source} is of a job of {told:,} ranks, but {job.source} has "
                f"{job.layout.world_size:,}: its groups would be misnamed; add "
                f"--set world_size={told}, or name the job that was traced."
            )
