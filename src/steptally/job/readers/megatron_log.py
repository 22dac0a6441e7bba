"""The `name ....... value` argument dump in a Megatron log, of any length, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from steptally.job.catalog.options import effect_of
from steptally.job.readers.reading import Reading
from steptally.job.readers.tokenizer import vocabulary

CHUNK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 64 << 10
MARKS = (b" ...", b"arguments -")
OPENS, CLOSES = "- arguments -", "end of arguments"
# DeepSpeed prints its own configuration in the same form; it is no argument of Megatron's.
FOREIGN = "config.py:"
FEWEST_ARGUMENTS = 20
LONGEST_NAME = 80
PREFIX = re.compile(r"[\]:|>)]")


def read_log(path: Path, name: str) -> Reading | None:
    """The settings of the last argument dump of a log; None where it holds none.

    A log of several starts holds several dumps: the last one is read, and what changed is noted.
    """
    dumps = _dumps(_interesting_lines(path))
    if not dumps:
        return None
    values: dict[str, object] = {key: _typed(text) for key, text in dumps[-1].items()}
    notes = _changes(dumps)
    values.setdefault("group_query_attention", False)
    assumed = vocabulary(values, notes)
    return Reading(values=values, name=name, assumed=assumed, notes=tuple(notes), names=(name,))


def _interesting_lines(path: Path) -> Iterator[str]:
    """Lines with a row of dots or a dump's edge; a line beyond all measure is cut."""
    with path.open("rb") as file:
        rest = b""
        while chunk := file.read(CHUNK_BYTES):
            buffer = rest + chunk
            end = buffer.rfind(b"\n") + 1
            rest = buffer[end:][:LONGEST_LINE_BYTES]
            yield from _hits(buffer, end)
        yield from _hits(rest, len(rest))


def _hits(buffer: bytes, end: int) -> Iterator[str]:
    """The lines of `buffer[:end]` that hold a mark, found at the speed of `bytes.find`."""
    position = 0
    following = dict.fromkeys(MARKS, -1)
    while True:
        for mark, at in following.items():
            if at < position:
                found = buffer.find(mark, position, end)
                following[mark] = found if found >= 0 else end
        first = min(following.values())
        if first >= end:
            return
        start = buffer.rfind(b"\n", 0, first) + 1
        stop = buffer.find(b"\n", first)
        position = stop + 1 if stop >= 0 else end
        line = buffer[start : min(position, start + LONGEST_LINE_BYTES)]
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def _dumps(lines: Iterator[str]) -> list[dict[str, str]]:
    """Every dump: between its edges where they are printed, else one run of distinct names."""
    dumps: list[dict[str, str]] = []
    current: dict[str, str] = {}
    fenced = False

    def close() -> None:
        if len(current) >= FEWEST_ARGUMENTS or "num_layers" in current:
            dumps.append(dict(current))
        current.clear()

    for line in lines:
        if CLOSES in line:
            close()
            fenced = False
        elif OPENS in line:
            close()
            fenced = True
        elif FOREIGN not in line and (argument := _argument(line)):
            name, value = argument
            if name in current and not fenced:
                close()
            current.setdefault(name, value)
    close()
    return [dump for dump in dumps if "hidden_size" in dump or "num_layers" in dump]


def _argument(line: str) -> tuple[str, str] | None:
    """(name, value) of a line `name ....... value`."""
    before, _, after = line.partition(" ...")
    value = after.lstrip(".")
    words = before[-LONGEST_NAME:].split()
    if not words or (value and not value.startswith(" ")):
        return None
    name = PREFIX.split(words[-1])[-1]  # rank prefixes, time stamps and loggers stand before it
    return (name, value.strip()) if name.isidentifier() else None


def _typed(text: str) -> object:
    """`None` is an option that was not given; the rest stays text, which a setting's type reads."""
    return None if text in ("None", "") else text


def _changes(dumps: list[dict[str, str]]) -> list[str]:
    if len(dumps) < 2:
        return []
    first, last = dumps[0], dumps[-1]
    changed = [
        f"{name} {first.get(name, 'absent')} → {value}"
        for name, value in last.items()
        if first.get(name) != value and effect_of(name) in ("setting", "derived")
    ]
    what = f"; since the first, {', '.join(changed[:8])}" if changed else "; they agree"
    return [f"The log holds {len(dumps)} argument dumps: the last one is read{what}."]
