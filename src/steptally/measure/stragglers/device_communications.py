"""A device's collectives, from its communication kernels and what their arguments tell."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from steptally.measure.group_axes import GroupFacts
from steptally.measure.stragglers.collective_names import MESSAGES, collectives_of
from steptally.measure.stragglers.recording import COMMUNICATIONS
from steptally.trace.dtypes import ELEMENT_BYTES, dtype_name
from steptally.trace.run_directory import MOST_RANKS
from steptally.trace.schema import UNATTRIBUTED

_TOLD = ("collective", "sequence", "source_rank", "destination_rank", "dtype")


def device_communications(
    work: pl.DataFrame, collectives: pl.DataFrame, facts: Mapping[str, GroupFacts]
) -> pl.DataFrame:
    """`COMMUNICATIONS` of a device: entered when the kernel starts, left when it ends.

    A kernel starts when its stream reaches it and spins until the other members are there, so
    that its duration is wait and transfer. `work` is `device_work` with steps, groups by their
    best names.
    """
    kernels = work.filter(pl.col("kind") == "communication")
    told = collectives.select(
        *_TOLD,
        bytes_in="bytes_in",
        bytes_out="bytes_out",
        elements_in="elements_in",
        elements_out="elements_out",
    ).with_row_index("row")
    told = told.rename({"collective": "argument"})
    rows = kernels.join(
        told.with_columns(pl.col("row").cast(pl.Int64)),
        left_on="collective",
        right_on="row",
        how="left",
        maintain_order="left",
    )
    sizes = {name: ELEMENT_BYTES.get(dtype_name(name), 0) for name in rows["dtype"].drop_nulls()}
    each = pl.col("dtype").replace_strict(sizes, default=None, return_dtype=pl.Int64)
    rows = rows.with_columns(
        pl.Series("kinds", collectives_of(rows["name"], rows["argument"]), dtype=pl.String)
    )
    # NCCL numbers the messages of a rank, whomever they go to: both ends have other numbers.
    numbered = ~pl.col("kinds").is_in((*MESSAGES, "send-recv"))
    return with_groups(
        rows.select(
            "step",
            lane=pl.format("{}:{}", pl.col("device").fill_null(0), pl.col("stream").fill_null(0)),
            collective="kinds",
            group=pl.when(pl.col("group") != UNATTRIBUTED).then("group"),
            sequence=pl.when(numbered).then("sequence"),
            source_rank="source_rank",
            destination_rank="destination_rank",
            bytes=pl.max_horizontal(
                pl.coalesce("bytes_in", pl.col("elements_in") * each),
                pl.coalesce("bytes_out", pl.col("elements_out") * each),
            ),
            bytes_in=pl.coalesce("bytes_in", pl.col("elements_in") * each),
            bytes_out=pl.coalesce("bytes_out", pl.col("elements_out") * each),
            enter_ns="start_ns",
            leave_ns="end_ns",
        ),
        facts,
    )


def with_groups(rows: pl.DataFrame, facts: Mapping[str, GroupFacts]) -> pl.DataFrame:
    """The rows as `COMMUNICATIONS`, in order of entering, with each group's axis and members."""
    names = [name for name in rows["group"].unique() if name is not None]
    known = pl.DataFrame(
        {
            "group": names,
            "axis": [facts[name].axis if name in facts else None for name in names],
            "members": [_members(facts.get(name)) for name in names],
        },
        schema={"group": pl.String, "axis": pl.String, "members": pl.List(pl.Int32)},
    )
    joined = rows.join(known, on="group", how="left", maintain_order="left")
    columns = [pl.col(name).cast(kind) for name, kind in COMMUNICATIONS.items()]
    return joined.select(columns).sort("enter_ns", "leave_ns", maintain_order=True)


def _members(known: GroupFacts | None) -> list[int] | None:
    """The members in order; none where they are not told, or are no ranks (a damaged file's)."""
    ranks = sorted(set(known.ranks)) if known else []
    return ranks if ranks and ranks[0] >= 0 and ranks[-1] < MOST_RANKS else None
