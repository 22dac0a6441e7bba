"""Tokens per expert: CSV or JSON lines with step, layer, expert or rank, and tokens.

Megatron-Core logs no such table by itself; a hook on the router's `tokens_per_expert` writes one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from steptally import strict_json
from steptally.measure.stragglers.side_files.readings import reading
from steptally.measure.stragglers.side_files.rows import EXPERT_TOKENS, SideFinding

# One expert-parallel rank with this much over the mean makes the others wait in the combine.
RANK_EXCESS = 1.10
# An expert with this much over the mean fills its rank, unless cold ones share it.
EXPERT_EXCESS = 2.0
LARGEST = 1 << 53  # beyond, a float holds no whole number exactly


def is_expert_tokens(names: Iterable[str]) -> bool:
    """Whether the columns are those of such a table."""
    known = set(names)
    return "tokens" in known and bool(known & {"expert", "rank"})


def read_expert_tokens(lines: Iterable[str]) -> tuple[pl.DataFrame, int]:
    """The table as `EXPERT_TOKENS`, and how many rows could not be used."""
    columns: dict[str, list[Any]] = {name: [] for name in EXPERT_TOKENS}
    lost = 0
    for record in _records(lines):
        tokens = _number(record.get("tokens"))
        places = {name: _whole(record.get(name)) for name in ("step", "layer", "expert", "rank")}
        if tokens is None or tokens < 0 or (places["expert"] is None and places["rank"] is None):
            lost += 1
            continue
        for name, value in {**places, "tokens": tokens}.items():
            columns[name].append(value)
    return pl.DataFrame(columns, schema=EXPERT_TOKENS, strict=False), lost


def judge_expert_tokens(tokens: pl.DataFrame, source: str) -> list[SideFinding]:
    """Ranks and experts that take much more than the mean: the median over steps, per layer.

    Rows that name ranks are judged by rank: those whose load makes others wait. Rows that name
    experts alone are judged by expert, since which rank holds which expert is not told.
    """
    findings = []
    of_ranks = tokens.filter(pl.col("rank").is_not_null())
    of_experts = tokens.filter(pl.col("rank").is_null())
    if not of_ranks.is_empty():
        loads = of_ranks.group_by("step", "layer", "rank").agg(pl.col("tokens").sum())
        findings += _judge(loads, "rank", RANK_EXCESS, source)
    if not of_experts.is_empty():
        loads = of_experts.group_by("step", "layer", "expert").agg(pl.col("tokens").sum())
        findings += _judge(loads, "expert", EXPERT_EXCESS, source)
    return findings


def _judge(loads: pl.DataFrame, what: str, excess: float, source: str) -> list[SideFinding]:
    """One finding per rank or expert that is hot in any layer, naming its hottest; else healthy."""
    at = ["step", "layer"]
    shares = loads.with_columns(
        (pl.col("tokens") / pl.col("tokens").mean().over(at)).fill_nan(1.0).alias("times"),
        (pl.col("tokens") == pl.col("tokens").max().over(at)).alias("hottest"),
    )
    middle = (
        shares.group_by("layer", what)
        .agg(
            pl.col("times").median(),
            pl.col("tokens").median(),
            pl.col("hottest").mean(),
            pl.len().alias("steps"),
        )
        .sort("times", what, descending=[True, False])
    )
    findings = []
    hot = middle.filter(pl.col("times") >= excess)
    for _, rows in hot.group_by(what, maintain_order=True):
        findings.append(_hot(rows.row(0, named=True), what, rows.height, source))
    if findings or middle.is_empty():
        return findings
    top = middle.row(0, named=True)
    sentence = (
        f"no {what} takes {excess:g}x the mean tokens or more: {what} {top[what]}{_layer(top)} "
        f"has {top['times']:.2f}x (median of {top['steps']} steps)"
    )
    return [SideFinding(severity="healthy", subject="experts", sentence=sentence, source=source)]


def _hot(top: Mapping[str, Any], what: str, layers: int, source: str) -> SideFinding:
    more = f", and is hot in {layers} layers" if layers > 1 else ""
    sentence = (
        f"{what} {top[what]} takes {top['times']:.2f}x the mean tokens{_layer(top)} "
        f"({top['tokens']:.0f}, median of {top['steps']} steps; the most of all in "
        f"{100 * top['hottest']:.0f} % of them){more}"
    )
    return SideFinding(
        severity="notable",
        subject="experts",
        sentence=sentence,
        source=source,
        rank=top["rank"] if what == "rank" else None,
    )


def _layer(row: Mapping[str, Any]) -> str:
    return "" if row["layer"] is None else f" in layer {row['layer']}"


def _records(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """CSV rows or JSON objects, with names in lower case; what is neither comes empty."""
    iterator = (line.lstrip("\ufeff").replace("\0", "") for line in lines if line.strip())
    first = next(iterator, "")
    if not first.lstrip().startswith("{"):
        reader = csv.DictReader([first, *iterator], skipinitialspace=True)
        for row in reader:
            yield {str(name).strip().lower(): value for name, value in row.items() if name}
        return
    for line in (first, *iterator):
        try:
            value = strict_json.decode(line)
        except ValueError:
            value = {}
        yield value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < LARGEST else None
    number = reading(value) if isinstance(value, str) else None
    return number if number is not None and abs(number) < LARGEST else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    whole = number is not None and number == int(number) and number >= 0
    return int(number) if whole and number is not None else None
