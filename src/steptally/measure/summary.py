"""Figures over all ranks of a run: executed FLOPs of a step, and the shares of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from steptally.measure.rank import RankAccount
from steptally.tally import Figure
from steptally.tally.ranges import number_ranges

NOT_APPLICABLE = "not applicable"
# The name under which `predict` counts the same.
EXECUTED = "executed"
COUNTED = "2·m·n·k of every matrix product, no elementwise operations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Figures, and what to say about those that are odd or missing."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    refusals: Sequence[str] = ()


def executed_flops(ranks: Sequence[RankAccount], world_size: int) -> Findings:
    """FLOPs of one step, summed over all ranks: exact, or refused.

    Every rank's trace must be whole and show its products' shapes. All traced steps must agree;
    where they do not, the first one's is given, with a warning that holds every step's.
    """
    reason = _why_not_summed(ranks, world_size)
    if reason:
        return Findings(refusals=[f"flops_per_step_executed: {reason}"])
    by_step = {step: sum(rank.gemms[step].flops for rank in ranks) for step in common_steps(ranks)}
    first = min(by_step)
    warnings = []
    if len(set(by_step.values())) > 1:
        numbers = ", ".join(f"{flops:,} in step {step}" for step, flops in by_step.items())
        warnings.append(f"executed FLOPs differ between traced steps: {numbers}")
    figure = Figure(
        value=by_step[first],
        unit="FLOP",
        basis="measured",
        convention=EXECUTED,
        origin=f"{COUNTED}; recorded shapes of {world_size} ranks in step {first}"
        + (", equal in all traced steps" if len(by_step) > 1 and not warnings else ""),
    )
    return Findings(figures={"flops_per_step_executed": figure}, warnings=warnings)


def time_figures(ranks: Sequence[RankAccount]) -> dict[str, Figure]:
    """How the ranks' traced steps divide, each share of the sum of their spans."""
    rows = [row for rank in ranks for row in rank.times]
    span_ns = sum(row.span_ns for row in rows)
    if not span_ns:
        return {}
    steps = number_ranges(row.step for row in rows)
    origin = f"sum over {len(ranks)} ranks' traced steps ({steps}) / sum of their spans"

    def share(part_ns: int) -> Figure:
        return Figure(value=part_ns / span_ns, unit="1", basis="measured", origin=origin)

    communication_ns = sum(row.communication_ns for row in rows)
    exposed_ns = sum(row.exposed_ns for row in rows)
    figures = {
        "compute_share": share(sum(row.compute_ns for row in rows)),
        "exposed_communication_share": share(exposed_ns),
        "idle_share": share(sum(row.idle_ns for row in rows)),
    }
    if communication_ns:
        hidden = (communication_ns - exposed_ns) / communication_ns
        origin = f"overlap with compute / communication, {len(ranks)} ranks, steps {steps}"
        figures["hidden_communication_share"] = Figure(
            value=hidden, unit="1", basis="measured", origin=origin
        )
    else:
        origin = f"no communication in the traced steps of {len(ranks)} ranks"
        none = Figure(value=NOT_APPLICABLE, unit="1", basis="measured", origin=origin)
        figures["exposed_communication_share"] = none
        figures["hidden_communication_share"] = none
    return figures


def common_steps(ranks: Sequence[RankAccount]) -> list[int]:
    """The steps that every one of these ranks recorded, in order."""
    recorded = [set(rank.gemms) for rank in ranks]
    return sorted(set.intersection(*recorded)) if recorded else []


def _why_not_summed(ranks: Sequence[RankAccount], world_size: int) -> str | None:
    """Why the products of the ranks do not make the step's executed FLOPs; None where they do."""
    missing = set(range(world_size)) - {rank.rank for rank in ranks}
    if missing:
        return (
            f"a sum over all ranks needs each one's trace, and rank {number_ranges(missing)} left "
            "none that can be read; trace all ranks"
        )
    if not common_steps(ranks):
        return "no step was traced on all ranks; trace the same steps on each"
    damaged = [rank.rank for rank in ranks if rank.lost_events]
    if damaged:
        return (
            f"the trace of rank {number_ranges(damaged)} is damaged, so products may be missing; "
            "record again"
        )
    silent = [rank.rank for rank in ranks if any(one.uncounted for one in rank.gemms.values())]
    if silent:
        return (
            f"products of rank {number_ranges(silent)} ran inside operators that do not show their "
            "shapes (see the warnings); record with record_shapes=True"
        )
    return None
