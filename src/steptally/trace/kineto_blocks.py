"""Streams a Kineto file as blocks of whole events, so that memory does not grow with the file.

A Kineto file is one JSON object, `{header, "traceEvents": [event, event, …], tail}`, plain or
gzipped; some tools keep only the bare list. It is cut between events, at text that looks like the
end of one event and the start of the next. A cut in the wrong place (inside a nested list of
objects) leaves a block that does not parse; `kineto_events` then carries its rest to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from isal import isal_zlib

from steptally.errors import InputError
from steptally.trace.schema import Loss

# Small enough for the events of a block to stay in a core's cache: a quarter faster than 4 MiB.
BLOCK_BYTES = 256 << 10
_MOST_HEADER_BYTES = 64 << 20  # thousands of process groups with their ranks are a few MB
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PIECE_BYTES = 16 << 10  # of compressed input: what a flipped bit in it can cost
_SURELY_WHOLE_EVENTS = 1 << 16  # a piece of this size is searched alone for where to cut
_GZIP_MAGIC = b"\x1f\x8b"
_LIST_START = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_EVENTS_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_EVENTS = re.compile(rb'\}\s*(,)\s*\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|args|s|bp)"\s*:')


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some whole events, comma-separated; the last block goes on to the end of the file.

    `header` is the text before the file's first event, empty for a bare list. The block's own text
    is kept in `parts`, so that it is copied only once, with the brackets it needs.
    """

    header: bytes
    parts: tuple[bytes | memoryview, ...]
    is_last: bool

    def text(self, before: bytes = b"", after: bytes = b"") -> bytes:
        """The events' text between two others."""
        return b"".join((before, *self.parts, after))


def read_blocks(path: Path, losses: list[Loss]) -> Iterator[Block]:
    """The blocks of a trace file; what a damaged archive withholds is added to `losses`.

    Raises `InputError` where the file cannot be read or holds no trace events.
    """
    pieces = _pieces(path, losses)
    header, first = _split_header(path, pieces)
    parts: list[bytes | memoryview] = []
    size = 0
    for piece in chain([first], pieces):
        parts.append(piece)
        size += len(piece)
        if size < BLOCK_BYTES:
            continue
        if len(piece) < _SURELY_WHOLE_EVENTS:
            piece = b"".join(parts)
            parts = [piece]
        cut = _last_boundary(piece)
        if cut is not None:
            ended, begun = memoryview(piece)[:cut], memoryview(piece)[cut + 1 :]
            yield Block(header=header, parts=(*parts[:-1], ended), is_last=False)
            parts, size = [begun], len(begun)
    yield Block(header=header, parts=tuple(parts), is_last=True)


def _split_header(path: Path, pieces: Iterator[bytes]) -> tuple[bytes, bytes]:
    """The text before the first event, and the first of what follows."""
    text = bytearray()
    searched = 0
    for piece in pieces:
        text += piece
        if _LIST_START.match(text):
            return b"", bytes(text[text.index(b"[") + 1 :])
        start = _EVENTS_START.search(text, searched)
        if start:
            header = bytes(text[: start.start()])
            return header.removeprefix(_BYTE_ORDER_MARK), bytes(text[start.end() :])
        searched = max(0, len(text) - 64)  # the words may lie across two pieces
        if len(text) > _MOST_HEADER_BYTES:
            break
    raise InputError(
        f"{path} holds no traceEvents: it is no trace of torch.profiler (Kineto JSON). "
        "Export one with prof.export_chrome_trace(path), plain or .gz."
    )


def _last_boundary(text: bytes) -> int | None:
    """Where the comma after the last whole event stands."""
    window = 1 << 12
    while True:
        start = max(0, len(text) - window)
        found = list(_BETWEEN_EVENTS.finditer(text, start))
        if found:
            return found[-1].start(1)
        if start == 0:
            return None
        window *= 16


def _pieces(path: Path, losses: list[Loss]) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            if file.read(2) != _GZIP_MAGIC:
                file.seek(0)
                while piece := file.read(BLOCK_BYTES):
                    yield piece
                return
            file.seek(0)
            compressed = iter(lambda: file.read(_PIECE_BYTES), b"")
            yield from _inflate(compressed, path.stat().st_size, losses)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}. Check the path and its permissions."
        ) from error


def _inflate(compressed: Iterator[bytes], size: int, losses: list[Loss]) -> Iterator[bytes]:
    """The contents of a gzip file of one or more members, as far as it is whole."""
    inflater = isal_zlib.decompressobj(wbits=31)
    consumed = 0
    for piece in compressed:
        consumed += len(piece)
        while piece:
            try:
                yield inflater.decompress(piece)
            except isal_zlib.error as error:  # type: ignore[misc]
                left = size - consumed + len(piece)
                losses.append(Loss(reason=f"corrupt gzip data ({error})", size_bytes=left))
                return
            piece = inflater.unused_data if inflater.eof else b""
            if inflater.eof:
                piece = piece.lstrip(b"\0")  # padding between or after members
                inflater = isal_zlib.decompressobj(wbits=31)
                ended = True
            else:
                ended = False
    if not ended:
        losses.append(Loss(reason="the gzip data end before their end mark: the file was cut"))
