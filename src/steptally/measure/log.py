"""Read the iteration lines of a Megatron log, in every dialect that forks print.

Lines and fields are found by what they say, not by their place: prefixes (dates, ranks, loggers),
spaces and further fields differ. Docs: docs/cli/mfu.md lists the dialects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from steptally.errors import InputError

CHUNK_BYTES = 4 << 20
LONGEST_LINE_BYTES = 64 << 10
MARKS = (b"elapsed time", b"step_timing")
ITERATION = re.compile(r"\biteration\s+(\d{1,18})\s*/\s*(\d{1,18})(?!\d)")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
RANK_OF_WORLD = re.compile(r"\brank[- ]\d+/(\d{1,18})\b")
PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd"}

# What a field means, by its name in lower case, and what turns its number into that unit.
# Beyond, a float holds no whole number exactly: no time of a step.
LARGEST_MS = 1 << 53
ELAPSED_MS = {
    "elapsed time per iteration (ms)": 1.0,
    "elapsed time this iteration (ms)": 1.0,
    "elapsed time per iteration (s)": 1e3,
    "train_step_timing in s": 1e3,
}
TFLOPS = (
    "throughput per gpu (tflop/s/gpu)",
    "throughput (tflop/s/gpu)",
    "tflops",
    "tflops_per_gpu",
    "model_tflop/s/gpu",
)
LOSS = ("lm loss", "lm-loss", "loss", "reduced_train_loss")
BATCH = ("global batch size", "global_batch_size")
SAMPLES = ("consumed samples", "consumed_samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One iteration line. `duration_ms` is per iteration, the mean of a log interval.

    What a dialect does not print is None. `skipped` counts iterations of the interval whose
    optimizer step was left out (a loss-scale overflow), `nan` those with a NaN.
    """

    number: int
    iteration: int
    of_iterations: int
    duration_ms: float
    consumed_samples: int | None
    global_batch_size: int | None
    tflops_per_device: float | None
    loss: float | None
    skipped: int
    nan: int
    world_size: int | None


def read_log(path: Path) -> list[LogLine]:
    """Every iteration line of a log, in its order; lines that several ranks print count once.

    Raises `InputError` for a file that cannot be read or holds none.
    """
    lines = []
    last: tuple[int, int | None] | None = None
    for number, text in _candidate_lines(path):
        line = parse_line(text, number)
        if line is None:
            continue
        same = (line.iteration, line.consumed_samples)
        if same != last:
            lines.append(line)
        last = same
    if not lines:
        raise InputError(
            f"{path} holds no iteration line of Megatron (`iteration 5/ 100 | … | elapsed time per "
            f"iteration (ms): … |`): give the log of the rank that prints them, usually the last."
        )
    return lines


def parse_line(text: str, number: int = 0) -> LogLine | None:
    """One line of a log; None where it is no iteration line or its time is damaged.

    >>> parse_line(" iteration 7/ 100 | elapsed time per iteration (ms): 86545.2 |").duration_ms
    86545.2
    """
    found = ITERATION.search(text)
    if found is None:
        return None
    fields = _fields(text)
    duration_ms = _elapsed(fields)
    if duration_ms is None:
        return None
    world = RANK_OF_WORLD.search(text)
    return LogLine(
        number=number,
        iteration=int(found[1]),
        of_iterations=int(found[2]),
        duration_ms=duration_ms,
        consumed_samples=_whole(fields, *SAMPLES),
        global_batch_size=_whole(fields, *BATCH),
        tflops_per_device=_first(fields, *TFLOPS),
        loss=_first(fields, *LOSS),
        skipped=_whole(fields, "number of skipped iterations") or 0,
        nan=_whole(fields, "number of nan iterations") or 0,
        world_size=int(world[1]) if world else None,
    )


def _candidate_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that speak of an iteration and its time; the rest is never split or decoded.

    A line beyond all measure is cut, so that memory stays bounded.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe may wait long
            raise InputError(f"{path} is a pipe or a device: LOG is a file, read twice.")
        with path.open("rb") as file:
            _refuse_packed(path, file.read(4))
            file.seek(0)
            first_number, rest = 1, b""
            while chunk := file.read(CHUNK_BYTES):
                buffer = rest + chunk
                end = buffer.rfind(b"\n") + 1
                rest = buffer[end:][:LONGEST_LINE_BYTES]
                yield from _hits(buffer[:end], first_number)
                first_number += buffer.count(b"\n", 0, end)
            yield from _hits(rest, first_number)
    except OSError as error:
        raise InputError(f"{path} cannot be read as a log: {error.strerror or error}.") from error


def _hits(buffer: bytes, first_number: int) -> Iterator[tuple[int, str]]:
    """The lines of a buffer that hold a mark, found at the speed of a search for bytes."""
    number, counted, position = first_number, 0, 0
    following = dict.fromkeys(MARKS, -1)
    while True:
        for mark, at in following.items():
            if at < position:
                found = buffer.find(mark, position)
                following[mark] = found if found >= 0 else len(buffer)
        first = min(following.values())
        if first == len(buffer):
            return
        start = buffer.rfind(b"\n", 0, first) + 1
        stop = buffer.find(b"\n", first)
        position = stop if stop >= 0 else len(buffer)
        number += buffer.count(b"\n", counted, start)
        counted = start
        line = buffer[start : min(position, start + LONGEST_LINE_BYTES)]
        yield number, line.decode("utf-8", "replace")


def _refuse_packed(path: Path, head: bytes) -> None:
    kind = next((name for magic, name in PACKED.items() if head.startswith(magic)), None)
    if kind:
        raise InputError(f"{path} is packed ({kind}): unpack it first.")


def _fields(text: str) -> Mapping[str, str]:
    fields = {}
    for part in text.split("|"):
        name, colon, value = part.partition(":")
        if colon:
            fields[" ".join(name.split()).lower()] = value.strip()
    return fields


def _elapsed(fields: Mapping[str, str]) -> float | None:
    for name, factor in ELAPSED_MS.items():
        value = _first(fields, name)
        if value is not None and 0 < value < LARGEST_MS:
            return value * factor
    return None


def _first(fields: Mapping[str, str], *names: str) -> float | None:
    """The first finite number of the first field that is there; `current/average` gives current."""
    for name in names:
        found = NUMBER.match(fields.get(name, ""))
        if found is not None and math.isfinite(value := float(found[0])):
            return value
    return None


def _whole(fields: Mapping[str, str], *names: str) -> int | None:
    value = _first(fields, *names)
    return None if value is None or value < 0 else int(value)
