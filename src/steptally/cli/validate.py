"""`steptally validate FILE`: published or own results against what the accounts predict."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptally.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from steptally.predict.published.flops_check import Comparison
    from steptally.predict.published.rows import PublishedRow

MOST_LINES = 40


def validate_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Rows of results (docs/cli/validate.md).")
    ],
    account: Annotated[
        str, typer.Option("--account", metavar="NAME", help="Which account to check.")
    ] = "flops",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check an account against measured results: error, bias and order, row by row.

    What a source counts is fixed in one committed table. See docs/cli/validate.md.
    """
    from steptally.predict.published.rows import read_published

    compare = _account(account)
    comparisons = compare(read_published(file))
    more = _memory_fit(comparisons) if account == "memory" else {}
    if json_output:
        found = {**_as_json(account, file, comparisons), **more}
        typer.echo(json.dumps(found, indent=1, allow_nan=False))
    else:
        _print(comparisons)
        _print_fit(more)


def _account(name: str) -> Callable[[Sequence[PublishedRow]], list[Comparison]]:
    from steptally.predict.published.flops_check import compare_flops
    from steptally.predict.published.memory_check import compare_memory

    accounts = {"flops": compare_flops, "memory": compare_memory}
    if name not in accounts:
        raise InputError(
            f"--account {name!r} is not known{did_you_mean(name, accounts)}: it must be one of "
            f"{', '.join(accounts)}."
        )
    return accounts[name]


def _memory_fit(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Fitted constants, and the agreement by rank, by source and with each model left out."""
    from steptally.predict.published import memory_fit

    compared = memory_fit.compared_memory(comparisons)
    return memory_fit.fit_as_json(compared)


def _as_json(account: str, file: Path, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    from dataclasses import asdict

    from steptally.tally import SCHEMA

    summary = asdict(_agreement(comparisons))
    return {
        "schema": SCHEMA,
        "basis": "predicted",
        "account": account,
        "file": str(file),
        "convention": "of each source, see per_row",
        "summary": summary,
        **summary,
        "per_row": [_row(comparison) for comparison in comparisons],
        "warnings": [],
        "refusals": [
            f"{comparison.id}: {comparison.reason}."
            for comparison in comparisons
            if comparison.reason
        ],
    }


def _row(comparison: Comparison) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": comparison.id,
        "predicted": comparison.predicted,
        "measured": comparison.measured,
        "unit": comparison.unit,
        "error": comparison.error,
        "convention": comparison.convention,
    }
    if comparison.reason:
        row["reason"] = comparison.reason
    if comparison.note:
        row["note"] = comparison.note
    return row


def _agreement(comparisons: Sequence[Comparison]) -> Any:
    from steptally.predict.published.agreement import agreement

    return agreement(
        [
            (comparison.predicted, comparison.measured)
            for comparison in comparisons
            if comparison.predicted is not None and comparison.measured is not None
        ]
    )


def _print(comparisons: Sequence[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    compared = [comparison for comparison in comparisons if comparison.error is not None]
    table = Table(title="Predicted against measured, largest errors first", box=None)
    for name in ("row", "convention", "unit"):
        table.add_column(name, overflow="fold")
    for name in ("predicted", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for comparison in sorted(compared, key=lambda found: -abs(found.error or 0))[:MOST_LINES]:
        table.add_row(
            comparison.id,
            comparison.convention,
            comparison.unit,
            f"{comparison.predicted:.4g}",
            f"{comparison.measured:.4g}",
            f"{100 * (comparison.error or 0):+.2f} %",
        )
    console.print(table)
    if len(compared) > MOST_LINES:
        console.print(f"{len(compared) - MOST_LINES} more compared rows: see --json.")
    _print_words(console, comparisons)
    _print_totals(console, comparisons)


def _print_words(console: Any, comparisons: Sequence[Comparison]) -> None:
    from rich.markup import escape

    for comparison in comparisons:
        if comparison.note:
            console.print(f"! {escape(comparison.id)}: {escape(comparison.note)}.")
    by_reason: dict[str, list[str]] = {}
    for comparison in comparisons:
        if comparison.reason:
            by_reason.setdefault(comparison.reason, []).append(comparison.id)
    for reason, names in by_reason.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        listed = escape(", ".join(names[:3]) + more)
        console.print(f"× not compared, {escape(reason)}: {listed}.")


def _print_totals(console: Any, comparisons: Sequence[Comparison]) -> None:
    found = _agreement(comparisons)
    if not found.compared:
        console.print("No row can be compared.")
        return
    order = "not known" if found.order is None else f"{100 * found.order:.2f} %"
    console.print(
        f"{found.compared} of {len(comparisons)} rows compared: {found.within_0_3pct} within 0.3 % "
        f"({found.within_0_3pct / found.compared:.1%}), {found.within_1pct} within 1 % "
        f"({found.within_1pct / found.compared:.1%}); MAPE {100 * found.mape:.3f} %, bias "
        f"{100 * found.bias:+.3f} %, pairs in order {order}."
    )


def _print_fit(more: dict[str, Any]) -> None:
    """What was fitted, and the agreement without it; nothing for an account without constants."""
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    for constant in more.get("constants", ()):
        console.print(
            f"fitted: {escape(constant['name'])} = {constant['value']:g} {constant['unit']}; "
            f"{escape(constant['source'])}."
        )
    for name, found in more.get("agreements", {}).items():
        if found["compared"]:
            console.print(
                f"{escape(name)}: {found['compared']} compared, MAPE {100 * found['mape']:.3f} %, "
                f"bias {100 * found['bias']:+.3f} %."
            )
