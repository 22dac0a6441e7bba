"""What a rehearsal ran, for whom it stands, and what stood in for what."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.report.quantity import printable
from steptally.report.table import Table
from steptally.tally import ProgramRow, SubstitutionRow


def programs_table(rows: Sequence[ProgramRow]) -> Table:
    """The programs that were run, and the ranks that execute each."""
    return Table(
        title="Programs",
        note="each was run once, on the rank named, and stands for all its ranks; counts are of "
        "one step of one rank",
        columns=(
            *("stands for ranks", "rehearsed", "stage", "in flight", "micro-batches run"),
            *("ranks", "parameters", "operators", "products", "collectives"),
        ),
        text_columns=5,
        least_wanted=("micro-batches run", "operators", "parameters"),
        rows=tuple(
            (
                printable(row.ranks),
                f"rank {row.rank}",
                str(row.pp),
                "+".join(map(str, row.in_flight)),
                " and ".join(map(str, row.microbatches)),
                f"{row.rank_count:,}",
                f"{row.parameters:,}",
                f"{row.operators:,}",
                f"{row.products:,}",
                f"{row.collectives:,}",
            )
            for row in rows
        ),
    )


def substitutions_table(rows: Sequence[SubstitutionRow]) -> Table:
    """What was rehearsed in place of what the job states."""
    return Table(
        title="Substitutions",
        note="what the job needs, against what was rehearsed: it stands, or is at most or at "
        "least that, or void",
        columns=("setting", "stated", "rehearsed", "FLOPs", "traffic", "memory", "why"),
        text_columns=7,
        least_wanted=("why",),
        rows=tuple(
            (
                printable(row.setting),
                printable(row.stated),
                printable(row.rehearsed),
                printable(row.flops),
                printable(row.traffic),
                printable(row.memory),
                printable(row.why),
            )
            for row in rows
        ),
    )
