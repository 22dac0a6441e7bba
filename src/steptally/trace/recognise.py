"""What a file is, and which rank it says it is of, from its first bytes: no file is read whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from isal import isal_zlib

from steptally.errors import InputError

Format = Literal["kineto", "nsys", "table"]

_BEGINNING = 128 << 10
_MAGIC: tuple[tuple[bytes, Format], ...] = ((b"SQLite format 3\0", "nsys"), (b"PAR1", "table"))
_GZIP = b"\x1f\x8b"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
# What stands before them; thousands of process groups may be longer than the part looked at.
_KINETO = re.compile(rb'"(?:traceEvents|distributedInfo|deviceProperties)"\s*:')
_EVENT = re.compile(rb'\s*\[\s*\{[^{}]*"ph"\s*:')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d+)')


def recognise(path: Path) -> Format | None:
    """The format of a recording; None for what is none, or cannot be told to be one.

    Raises `InputError` where the file cannot be read.
    """
    beginning = _beginning(path)
    for magic, binary in _MAGIC:
        if beginning.startswith(magic):
            return binary
    is_kineto = _KINETO.search(beginning) or _EVENT.match(beginning.removeprefix(b"\xef\xbb\xbf"))
    return "kineto" if is_kineto else None


def stated_rank(path: Path) -> int | None:
    """The rank in a Kineto file's header or, uncompressed, at its end; None where it tells none."""
    beginning = _beginning(path)
    head = _EVENTS.split(beginning, maxsplit=1)[0]
    found = _RANK.search(head) or _RANK.search(_end(path))
    return int(found.group(1)) if found else None


def _beginning(path: Path) -> bytes:
    """The first part of a file's content, inflated where it is gzipped."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
            if start != _GZIP:
                return start + file.read(_BEGINNING)
            packed = start + file.read(_BEGINNING // 4)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}. Check the path and its permissions."
        ) from error
    try:
        return bytes(isal_zlib.decompressobj(wbits=31).decompress(packed, max_length=_BEGINNING))
    except isal_zlib.error:  # type: ignore[misc]
        return b""


def _end(path: Path) -> bytes:
    """The last 64 KiB of a plain file; nothing of a compressed one, whose end cannot be reached."""
    with path.open("rb") as file:
        if file.read(2) == _GZIP:
            return b""
        file.seek(max(0, path.stat().st_size - (1 << 16)))
        return file.read()
