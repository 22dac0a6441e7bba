"""Figures over the ranks of some traces: how their time divides, and what could be won.

Each is a part of the sum of the ranks' spans: of their recorded steps, or of whole recordings where
no steps are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptally.measure.summary import NOT_APPLICABLE, Findings
from steptally.measure.trace_account import TraceAccount
from steptally.measure.trust import spoils_busy
from steptally.tally import Figure, GapRow, TimeRow
from steptally.tally.ranges import number_ranges


def trace_figures(accounts: Sequence[TraceAccount]) -> Findings:
    """The figures, with ranks left out whose recordings are not to be believed."""
    refusals = []
    believed = []
    for account in accounts:
        reasons = spoils_busy(account.trust)
        if reasons:
            refusals.append(f"shares of rank {account.rank}'s time: {'; '.join(reasons)}")
        else:
            believed.append(account)
    return Findings(
        figures={**_time_shares(believed), **_gap_shares(believed), **_contention(believed)},
        refusals=refusals,
    )


def _time_shares(accounts: Sequence[TraceAccount]) -> dict[str, Figure]:
    rows, of = _rows(accounts)
    span_ns = sum(row.span_ns for row in rows)
    if not span_ns:
        return {}
    origin = f"sum over {of} / sum of their spans"
    communication_ns = sum(row.communication_ns for row in rows)
    exposed_ns = sum(row.exposed_ns for row in rows)
    figures = {
        "compute_share": _share(sum(row.compute_ns for row in rows), span_ns, origin),
        "exposed_communication_share": _share(exposed_ns, span_ns, origin),
        "idle_share": _share(sum(row.idle_ns for row in rows), span_ns, origin),
        "hidden_communication_share": _share(
            communication_ns - exposed_ns,
            communication_ns,
            f"overlap with compute / communication, {of}",
        ),
    }
    if not communication_ns:
        none = Figure(
            value=NOT_APPLICABLE, unit="1", basis="measured", origin=f"no communication in {of}"
        )
        figures["exposed_communication_share"] = figures["hidden_communication_share"] = none
    return figures


def _rows(accounts: Sequence[TraceAccount]) -> tuple[list[TimeRow], str]:
    """The whole steps of all ranks, and what they are in words; recordings where none are known."""
    steps = [row for account in accounts for row in account.times.steps]
    ranks = _ranks(len(accounts))
    if steps:
        numbers = {row.step for row in steps}
        return steps, f"step{'s' * (len(numbers) > 1)} {number_ranges(numbers)} of {ranks}"
    whole = [row for account in accounts if (row := account.times.recording) is not None]
    return whole, f"the recordings of {ranks}"


def _gap_shares(accounts: Sequence[TraceAccount]) -> dict[str, Figure]:
    rows = [account.gaps for account in accounts if account.gaps is not None]
    span_ns = sum(row.span_ns for row in rows)
    if not span_ns:
        return {}
    of = f"the recordings of {_ranks(len(rows))} / sum of their spans"
    figures = {
        "cpu_bound_share": _share(
            sum(row.host_ns for row in rows), span_ns, f"idle time waiting for the host, {of}"
        )
    }
    kernels = sum(row.kernels for row in rows)
    if kernels:
        figures["short_kernels_share"] = _share(
            sum(row.short_kernels for row in rows), kernels, "compute kernels under 10 µs / all"
        )
    told = [row for row in rows if row.recoverable_ns is not None]
    if told:
        figures["graph_recoverable_share"] = _share(
            sum(row.recoverable_ns or 0 for row in told),
            sum(row.span_ns for row in told),
            "upper bound: waiting for the host between kernels that a CUDA graph can hold",
        )
        figures["graph_speedup_max"] = Figure(
            value=_speedup(told),
            unit="×",
            basis="measured",
            origin="span / (span − what a CUDA graph could recover at most)",
        )
    return figures


def _speedup(rows: Sequence[GapRow]) -> float:
    span_ns = sum(row.span_ns for row in rows)
    return span_ns / (span_ns - sum(row.recoverable_ns or 0 for row in rows))


def _contention(accounts: Sequence[TraceAccount]) -> dict[str, Figure]:
    gains = [gain for account in accounts if (gain := account.contention.net_gain) is not None]
    if not gains:
        return {}
    weight = sum(gain.hidden_ns * gain.covered_share for gain in gains)
    factor = sum(gain.factor * gain.hidden_ns * gain.covered_share for gain in gains)
    origin = f"same kernels and launch shapes, overlapped / alone, {_ranks(len(gains))}"
    if not weight:
        return {}
    return {
        "contention_factor": Figure(
            value=factor / weight, unit="× alone", basis="measured", origin=origin
        )
    }


def _ranks(number: int) -> str:
    return f"{number} rank{'s' * (number != 1)}"


def _share(part_ns: int, whole_ns: int, origin: str) -> Figure:
    value = part_ns / whole_ns if whole_ns else NOT_APPLICABLE
    return Figure(value=value, unit="1", basis="measured", origin=origin)
