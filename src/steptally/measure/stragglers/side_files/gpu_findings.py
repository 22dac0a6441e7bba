"""What readings of GPUs tell: held-down clocks, errors, and clocks below those of its peers.

A software power cap alone is healthy where the GPU draws its power limit and is busy: training at
full load does that (mlfoundations/open_clip#703). Hardware slowdowns are faults.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from steptally.measure.stragglers.side_files.rows import SideFinding
from steptally.measure.stragglers.side_files.throttle import (
    HARDWARE,
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    NAMES,
    SW_POWER_CAP,
    SW_THERMAL,
    reason_names,
)

# Severity, sentence, and the readings that it is about.
Told = tuple[str, str, pl.DataFrame]

BUSY_PERCENT = 80.0  # of utilization
IDLE_PERCENT = 10.0
NEAR_LIMIT = 0.9  # of the power limit
SLOWER_CLOCK = 0.10  # than the median GPU's
FEWEST_PEERS = 2
# NVIDIA's catalogue of Xid errors: the GPU's memory, bus, NVLink, firmware or power is at fault.
HARDWARE_XIDS = {48, 54, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 140, 143}


def judge_gpus(samples: pl.DataFrame) -> list[SideFinding]:
    """Findings of every GPU of some samples (`GPU_SAMPLES`), each GPU at least once.

    A GPU is what has one uuid, else one bus id, else one index, on one host.
    """
    gpus = list(_by_gpu(samples))
    clocks = [_median(_busy(rows), "sm_mhz") for _, rows in gpus]
    known = [mhz for mhz in clocks if mhz is not None]
    middle = statistics.median(known) if len(known) > FEWEST_PEERS else None
    findings = []
    for (gpu, rows), mhz in zip(gpus, clocks, strict=True):
        told = [*_reasons(rows), *_errors(rows), *_heat(rows)]
        if mhz is not None and middle is not None and mhz < (1 - SLOWER_CLOCK) * middle:
            told.append(_slow_clock(rows, mhz, middle, len(known)))
        if all(severity == "healthy" for severity, _, _ in told):
            told.append(_healthy(rows))
        findings += [_finding(gpu, *one) for one in told]
    return findings


def _by_gpu(samples: pl.DataFrame) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    identity = pl.coalesce(
        pl.col("uuid"), pl.col("bus_id"), pl.format("index {}", pl.col("index")), pl.lit("")
    )
    keyed = samples.with_columns(identity.alias("gpu"))
    for _, rows in keyed.group_by("host", "gpu", maintain_order=True):
        first = rows.row(0, named=True)
        place = ("source", "host", "index", "uuid", "bus_id")
        yield {name: first[name] for name in place}, rows


def _reasons(rows: pl.DataFrame) -> Iterable[Told]:
    """Severity, sentence and rows of each reason that holds clocks down."""
    told = rows.filter(pl.col("reasons").is_not_null())
    for bit in (HW_THERMAL, HW_POWER_BRAKE, HW_SLOWDOWN, SW_THERMAL):
        held = told.filter(pl.col("reasons") & bit != 0)
        if bit == HW_SLOWDOWN:  # set together with its two causes, which say more
            held = held.filter(pl.col("reasons") & (HW_THERMAL | HW_POWER_BRAKE) == 0)
        if held.is_empty():
            continue
        use = _most(held, "utilization_percent")
        passing = bit == HW_SLOWDOWN and use is not None and use < IDLE_PERCENT
        severity = "fault" if bit & HARDWARE and not passing else "notable"
        aside = " (on an idle GPU: a change of clocks shows it too)" if passing else ""
        sentence = (
            f"{NAMES[bit]} holds the clocks in {len(held)} of {len(told)} readings"
            f"{_clock_of(held)}{aside}"
        )
        yield severity, sentence, held
    yield from _power_cap(told)


def _power_cap(told: pl.DataFrame) -> Iterable[Told]:
    held = told.filter(pl.col("reasons") & SW_POWER_CAP != 0)
    if held.is_empty():
        return
    power, limit = _median(held, "power_w"), _median(held, "power_limit_w")
    use = _median(held, "utilization_percent")
    count = f"SW power cap is active in {len(held)} of {len(told)} readings"
    if power is None or limit is None or not limit:
        sentence = f"{count}; whether at full load is not told: record power.draw and power.limit"
        yield "notable", sentence, held
        return
    draw = f"{power:.0f} of {limit:.0f} W"
    if power < NEAR_LIMIT * limit:
        sentence = (
            f"{count} at {draw}, below its own limit: something else caps it (the node's power "
            "supply, a cable, its management controller)"
        )
        yield "notable", sentence, held
    elif use is not None and use < BUSY_PERCENT:
        yield "notable", f"{count} at {draw} while utilization is {use:.0f} %", held
    else:
        busy = "" if use is None else f", utilization {use:.0f} %"
        yield "healthy", f"{count} at {draw}{busy}: full load, not a fault", held


def _errors(rows: pl.DataFrame) -> Iterable[Told]:
    """Xid errors, ECC, and counters of PCIe and NVLink."""
    for xid in sorted({int(value) for value in rows["xid"].drop_nulls().to_list() if value > 0}):
        severity = "fault" if xid in HARDWARE_XIDS else "notable"
        kind = "of the hardware" if xid in HARDWARE_XIDS else "often of the program"
        at = rows.filter(pl.col("xid") == xid)
        yield severity, f"Xid {xid}, an error {kind} (DCGM keeps the last one)", at
    for name, what, grown, stands in (
        ("ecc_uncorrected", "uncorrected ECC errors", "fault", "fault"),
        ("nvlink_recoveries", "NVLink recoveries", "fault", "notable"),
        ("nvlink_errors", "NVLink CRC and replay errors", "notable", "notable"),
        ("pcie_replays", "PCIe replays", "notable", ""),
        ("ecc_corrected", "corrected ECC errors", "notable", ""),
    ):
        yield from _counter(rows, name, what, grown, stands)


def _counter(rows: pl.DataFrame, name: str, what: str, grown: str, stands: str) -> Iterable[Told]:
    """A counter that grew in the log, or that stands above 0 where that alone says something."""
    told = rows.filter(pl.col(name).is_not_null())
    if told.is_empty():
        return
    first, last = float(told[name][0]), float(told[name][-1])
    if last > first:
        yield grown, f"{what} grow from {first:.0f} to {last:.0f} in {len(told)} readings", told
    elif stands and last > 0:
        yield stands, f"{last:.0f} {what} since the counter was reset", told


def _heat(rows: pl.DataFrame) -> Iterable[Told]:
    hot = rows.filter(pl.col("temperature_c") >= pl.col("slowdown_c"))
    if not hot.is_empty():
        at, limit = _most(hot, "temperature_c"), _most(hot, "slowdown_c")
        yield "fault", f"{at:.0f} °C is at or over its slowdown temperature of {limit:.0f} °C", hot


def _slow_clock(rows: pl.DataFrame, mhz: float, middle: float, gpus: int) -> Told:
    sentence = (
        f"its SM clock under load is {mhz:.0f} MHz (median), that of all {gpus} GPUs "
        f"{middle:.0f} MHz: {mhz / middle:.2f}x"
    )
    return "notable", sentence, _busy(rows)


def _busy(rows: pl.DataFrame) -> pl.DataFrame:
    """Readings under load; all of them where utilization is not told."""
    return rows.filter(pl.col("utilization_percent").fill_null(100) >= BUSY_PERCENT)


def _healthy(rows: pl.DataFrame) -> Told:
    told = rows["reasons"].drop_nulls()
    seen = 0
    for bits in told.unique().to_list():
        seen |= int(bits)
    what = f"reasons seen: {reason_names(seen)}" if len(told) else "reasons are not recorded"
    sentence = f"no slowdown and no error in {len(rows)} readings{_clock_of(rows)}; {what}"
    return "healthy", sentence, rows


def _clock_of(rows: pl.DataFrame) -> str:
    clock, most = _median(rows, "sm_mhz"), _most(rows, "sm_max_mhz")
    if clock is None:
        return ""
    return f", SM clock {clock:.0f}" + (f" of {most:.0f}" if most is not None else "") + " MHz"


def _median(rows: pl.DataFrame, name: str) -> float | None:
    values = rows[name].drop_nulls().to_list()
    return statistics.median(values) if values else None


def _most(rows: pl.DataFrame, name: str) -> float | None:
    return max(rows[name].drop_nulls().to_list(), default=None)


def _finding(gpu: dict[str, Any], severity: str, sentence: str, at: pl.DataFrame) -> SideFinding:
    times = at["time"].drop_nulls()
    return SideFinding(
        severity=severity,
        subject="gpu",
        sentence=sentence,
        source=gpu["source"],
        host=gpu["host"],
        gpu_index=gpu["index"],
        gpu_uuid=gpu["uuid"],
        bus_id=gpu["bus_id"],
        first=times[0] if len(times) else None,
        last=times[-1] if len(times) else None,
    )
