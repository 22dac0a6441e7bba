"""Decodes a file's blocks into events: fast where they are whole, slowly where they are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec

from steptally.trace.kineto_blocks import Block
from steptally.trace.kineto_format import Document, Event, ExactDocument, ExactEvent, FileInfo
from steptally.trace.kineto_salvage import Salvage, salvage_events, salvage_info
from steptally.trace.schema import Loss

# A double holds microseconds to the nanosecond up to here; beyond, its decimals are rounded.
EXACT_FLOAT_MICROSECONDS = 2**43

_EVENTS = msgspec.json.Decoder(list[Event])
_DOCUMENT = msgspec.json.Decoder(Document)
_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent], float_hook=str)
_EXACT_DOCUMENT = msgspec.json.Decoder(ExactDocument, float_hook=str)
_UNREADABLE = (msgspec.MsgspecError, RecursionError)


@dataclasses.dataclass(slots=True)
class DecodedFile:
    """The events of a file as they come; `info` and `losses` are complete after the last."""

    blocks: Iterator[Block]
    info: FileInfo = dataclasses.field(default_factory=FileInfo)
    losses: list[Loss] = dataclasses.field(default_factory=list)

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
                yield saved.events
                # A block may have been cut inside an event: its rest belongs to the next.
                carried = saved.rest.encode() + b"," if saved.rest.strip() else b""
                self._note(saved, block)
                if saved.reached_end:
                    return

    def _decode(self, block: Block) -> list[Event]:
        if not block.is_last:
            text = block.text(b"[", b"]")
            events = _EVENTS.decode(text)
            return list(_EXACT_EVENTS.decode(text)) if _rounds(events) else events
        # Behind its header, the last block is the file without the events that came before.
        text = block.text(*_around(block.header))
        document = _DOCUMENT.decode(text)
        self.info = document
        if _rounds(document.events):
            return list(_EXACT_DOCUMENT.decode(text).events)
        return document.events

    def _note(self, saved: Salvage, block: Block) -> None:
        """Keep account of what a salvaged block lost, and read what stands around the events."""
        lost_bytes = saved.lost_bytes
        if block.is_last and not saved.reached_end:
            self.losses.append(Loss(reason="the file ends before its events do"))
            lost_bytes += len(saved.rest.strip())
        if lost_bytes:
            self.losses.append(Loss(reason="text that is no whole event", size_bytes=lost_bytes))
        if saved.unusable_events:
            reason = "fields missing or of the wrong type"
            self.losses.append(Loss(reason=reason, events=saved.unusable_events))
        if block.is_last or saved.reached_end:
            self._read_info(block.header, saved.rest)

    def _read_info(self, header: bytes, rest: str) -> None:
        """Read the text around the events, of which `rest` begins with their end."""
        try:
            before, after = _around(header)
            self.info = _DOCUMENT.decode(before + rest.encode() + after)
        except _UNREADABLE:
            self.info = salvage_info(header, rest)
            if not self.losses:
                reason = "the text before or behind the events is no JSON"
                self.losses.append(Loss(reason=reason))


def _around(header: bytes) -> tuple[bytes, bytes]:
    """What to put around events that run to the end of the file, to make it whole again.

    A bare list has no header.
    """
    return (header + b'"traceEvents":[', b"") if header else (b'{"traceEvents":[', b"}")


def _rounds(events: list[Event]) -> bool:
    """Whether the file writes decimal times so large that a double loses nanoseconds."""
    sample = next((event.ts for event in events if event.ph == "X"), None)
    return isinstance(sample, float) and abs(sample) >= EXACT_FLOAT_MICROSECONDS
