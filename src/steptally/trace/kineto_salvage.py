"""Reads what is whole in damaged Kineto text, one event at a time, and counts the rest.

Slow (about 20 MB/s) and rarely needed: for blocks that `kineto_events` could not read at once
because the file was cut, a name holds raw control characters or broken UTF-8, or a field has an
impossible type.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from steptally.trace.kineto_format import NO_ARGUMENTS, Event, FileInfo

_EVENT_START = re.compile(r'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:')
_BETWEEN = re.compile(r"\}\s*,\s*\{")
_PHASE = re.compile(r'"ph"\s*:\s*"')
_LONG_EVENT = 1 << 16
_EVENTS_END = re.compile(r'\]\s*(?:\}|$|,\s*"[^"\n]*"\s*:)')
# Only with what follows the number: a file may be cut inside it.
_BASE_TIME = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)\s*[,}]')
_DISTRIBUTED = re.compile(r'"distributedInfo"\s*:\s*(?=\{)')
# Not strict: raw control characters in names are read. Decimals stay text, digits and all; NaN and
# Infinity are no numbers.
_MOST_REREAD = 16  # times its length a damaged text is gone through
_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=lambda _: None)


@dataclass(slots=True)
class Salvage:
    """What was saved from a run of damaged events.

    `events` have their arguments as JSON text. `rest` is the text after the last whole event;
    `reached_end` tells that it begins with the bracket that ends all events of the file. `lost` is
    what stood between whole events.
    """

    events: list[Event] = field(default_factory=list)
    unusable_events: int = 0
    lost: list[str] = field(default_factory=list)
    rest: str = ""
    reached_end: bool = False


def salvage_events(text: str) -> Salvage:
    """Every whole event of a damaged run of events."""
    saved = Salvage()
    position = whole_until = _behind_separator(text, 0)  # of the last whole event
    patience = _MOST_REREAD * len(text)
    while (start := _next_start(text, position)) is not None:
        try:
            value, position = _decode_at(text, start)
        except (ValueError, RecursionError) as error:
            # The next event may begin inside what was read of this one, but not without end.
            read_until = _read_until(text, start, error)
            patience -= read_until - start
            position = start + 1 if patience > 0 else max(read_until, start + 1)
            continue
        event = _event(value)
        if event is None and start > whole_until:
            continue  # an object inside the remains of a broken event
        if start > whole_until:
            saved.lost.append(text[whole_until:start])
        position = whole_until = _behind_separator(text, position)
        if event is None:
            saved.unusable_events += 1
        else:
            saved.events.append(event)
    saved.rest = text[whole_until:]
    saved.reached_end = _EVENTS_END.match(saved.rest) is not None
    return saved


def salvage_info(header: bytes, tail: str) -> FileInfo:
    """What the text around the events still tells: the base of its clock, the rank."""
    before = header.decode("utf-8", errors="replace")
    info = FileInfo()
    base = _BASE_TIME.search(tail) or _BASE_TIME.search(before)
    if base:
        info.base_time_ns = int(base.group(1))
    distributed = _DISTRIBUTED.search(before)
    if distributed:
        try:
            info.distributed, _ = _DECODER.raw_decode(before, distributed.end())
        except (ValueError, RecursionError):
            info.distributed = None
    return info


def _next_start(text: str, position: int) -> int | None:
    """Where the next event may start; None at the end of the events."""
    position = _behind_separator(text, position)
    if _EVENTS_END.match(text, position) and not _PHASE.search(text, position):
        return None  # else it is a stray bracket, and events follow
    found = _EVENT_START.search(text, position)
    return found.start() if found else None


def _behind_separator(text: str, position: int) -> int:
    while position < len(text) and text[position] in ", \t\r\n":
        position += 1
    return position


def _decode_at(text: str, start: int) -> tuple[Any, int]:
    """The value that starts there, and where it ends.

    Looked for in a short piece first: Python's decoder goes through its whole text to describe
    an error.
    """
    piece = text[start : start + _LONG_EVENT]
    try:
        value, end = _DECODER.raw_decode(piece)
    except json.JSONDecodeError as error:
        if len(piece) < _LONG_EVENT or (error.pos < len(piece) - 1 and "Unterm" not in error.msg):
            raise json.JSONDecodeError(error.msg, "", start + error.pos) from error
        return _DECODER.raw_decode(text, start)
    return value, start + end


def _read_until(text: str, start: int, error: Exception) -> int:
    """How far the decoder came; where it nests too deeply, it is taken to the next event."""
    if isinstance(error, json.JSONDecodeError):
        return error.pos
    following = _BETWEEN.search(text, start + 1)
    return following.start() if following else len(text)


def _event(value: dict[str, Any]) -> Event | None:
    """An event from loosely typed fields; None where it has no phase."""
    arguments = value.pop("args", None)
    times = {name: value.pop(name, None) for name in ("ts", "dur")}
    try:
        event = msgspec.convert(value, Event, strict=False)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not event.ph:
        return None
    event.name, event.cat = _readable(event.name), event.cat and _readable(event.cat)
    event.ts, event.dur = (
        _readable(time) if isinstance(time, str) else time for time in times.values()
    )
    event.args = NO_ARGUMENTS if arguments is None else msgspec.Raw(_spelled(arguments))
    return event


def _spelled(arguments: Any) -> bytes:
    """Decoded arguments as JSON again, for those who read them field by field."""
    try:
        return _readable(json.dumps(arguments, ensure_ascii=False)).encode()
    except RecursionError:
        return b"{}"


def _readable(text: str) -> str:
    """The text without halves of characters ("\\ud83d"), which no table can hold."""
    return text.encode("utf-8", errors="replace").decode()
