"""Decodes a file's blocks into events: fast where they are whole, slowly where they are not.

A block is decoded in one call as what Kineto writes. Where it is no JSON, or a field has another
type, `kineto_salvage` reads what is whole.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from steptally.trace.kineto_blocks import Block
from steptally.trace.kineto_format import (
    Document,
    Event,
    ExactDocument,
    ExactEvent,
    FileInfo,
)
from steptally.trace.kineto_salvage import Salvage, salvage_events, salvage_info
from steptally.trace.schema import Loss

# A double holds microseconds to the nanosecond up to here; beyond, its decimals are rounded.
EXACT_FLOAT_MICROSECONDS = 2**43


class _Shape(NamedTuple):
    """How events are decoded: those of a block, and a file's last with what stands around them."""

    events: Any
    document: Any


_FAST = _Shape(msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(Document))
_EXACT = _Shape(
    msgspec.json.Decoder(list[ExactEvent], float_hook=str),
    msgspec.json.Decoder(ExactDocument, float_hook=str),
)
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
ENDS_EARLY = "the file ends before its events do"
# Damage without a single whole event is given up after this much text.
_MOST_CARRIED = 16 << 20
# Python's json and some profilers write these; JSON has no such numbers.
_NO_NUMBER = re.compile(rb'("\s*:\s*)[-+]?(?:NaN|nan|Infinity|inf(?:inity)?)(?=\s*[,}])')


@dataclasses.dataclass(slots=True)
class DecodedFile:
    """The events of a file as they come; `info` and `losses()` are complete after the last."""

    blocks: Iterator[Block]
    info: FileInfo = dataclasses.field(default_factory=FileInfo)
    lost_events: Counter[str] = dataclasses.field(default_factory=Counter)
    lost_bytes: Counter[str] = dataclasses.field(default_factory=Counter)
    _shape: _Shape = _FAST

    def events(self) -> Iterator[list[Event]]:
        """The events of one block after another."""
        carried = b""
        for block in self.blocks:
            if carried:
                block = dataclasses.replace(block, parts=(carried, *block.parts))
            try:
                yield self._decode(block)
                carried = b""
            except _UNREADABLE:
                saved = salvage_events(block.text().decode("utf-8", errors="replace"))
                self._note(saved, block)
                yield saved.events
                # A block may have been cut inside an event: its rest belongs to the next.
                carried = saved.rest.encode() + b"," if saved.rest.strip() else b""
                if len(carried) > _MOST_CARRIED:
                    self._lose("text that is no whole event", saved.rest)
                    carried = b""

    def losses(self) -> list[Loss]:
        """What could not be read, by reason."""
        reasons = dict.fromkeys((*self.lost_bytes, *self.lost_events))
        return [
            Loss(reason=reason, events=self.lost_events[reason], size_bytes=self.lost_bytes[reason])
            for reason in reasons
        ]

    def _decode(self, block: Block) -> list[Event]:
        # Behind its header, the last block is the file without the events that came before.
        text = block.text(*_around(block.header)) if block.is_last else block.text(b"[", b"]")
        try:
            return self._decode_text(text, block.is_last)
        except msgspec.DecodeError:
            mended, count = _NO_NUMBER.subn(rb"\1null", text)
            if not count:
                raise
            return self._decode_text(mended, block.is_last)

    def _decode_text(self, text: bytes, is_last: bool) -> list[Event]:
        events = self._decode_as(self._shape, text, is_last)
        if self._shape is _FAST and _rounds(events):
            self._shape = _EXACT
            return self._decode_as(_EXACT, text, is_last)
        return events

    def _decode_as(self, shape: _Shape, text: bytes, is_last: bool) -> list[Event]:
        if not is_last:
            events: list[Event] = shape.events.decode(text)
            return events
        self.info = shape.document.decode(text)
        return list(self.info.events)  # type: ignore[attr-defined]

    def _note(self, saved: Salvage, block: Block) -> None:
        """Keep account of what a salvaged block lost, and read what stands around the events."""
        for text in saved.lost:
            self._lose("text that is no whole event", text)
        if saved.unusable_events:
            self.lost_events["fields missing or of the wrong type"] += saved.unusable_events
        if block.is_last and not saved.reached_end:
            self._lose(ENDS_EARLY, saved.rest.strip())
        if block.is_last:
            self._read_info(block.header, saved.rest)

    def _lose(self, reason: str, text: str) -> None:
        """Count lost text; what holds no whole event is at least one."""
        # A byte that is no text was read as a character of three bytes.
        self.lost_bytes[reason] += len(text.encode()) - 2 * text.count("\ufffd")
        self.lost_events[reason] += max(text.count('"ph"'), 1 if text.strip("{}[], \t\r\n") else 0)

    def _read_info(self, header: bytes, rest: str) -> None:
        """Read the text around the events, of which `rest` begins with their end."""
        try:
            before, after = _around(header)
            self.info = _FAST.document.decode(before + rest.encode() + after)
        except _UNREADABLE:
            self.info = salvage_info(header, rest)
            if not self.lost_bytes:
                self.lost_bytes["the text before or behind the events is no JSON"] += 0


def _around(header: bytes) -> tuple[bytes, bytes]:
    """What to put around events that run to the end of the file, to make it whole again.

    A bare list has no header.
    """
    return (header + b'"traceEvents":[', b"") if header else (b'{"traceEvents":[', b"}")


def _rounds(events: list[Event]) -> bool:
    """Whether the file writes decimal times so large that a double loses nanoseconds."""
    sample = next((event.ts for event in events if event.ph == "X"), None)
    if not isinstance(sample, int | float) or abs(sample) < EXACT_FLOAT_MICROSECONDS:
        return False
    return any(type(event.ts) is float for event in events)
