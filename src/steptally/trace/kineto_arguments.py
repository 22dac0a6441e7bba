"""Decodes the arguments of events: only of those whose kind has any that matter, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from steptally.trace.kinds import keeps_arguments
from steptally.trace.kineto_format import (
    CollectiveArguments,
    DeviceArguments,
    LaunchArguments,
    OperatorArguments,
)
from steptally.trace.schema import DEVICE_KINDS

READERS: tuple[type[msgspec.Struct], ...] = (
    LaunchArguments,
    DeviceArguments,
    CollectiveArguments,
    OperatorArguments,
)
NO_READER = -1

_ONE = {struct: msgspec.json.Decoder(struct, strict=False) for struct in READERS}
_ALL = {
    struct: msgspec.json.Decoder(list[struct], strict=False)  # type: ignore[valid-type]
    for struct in READERS
}
_UNREADABLE = (msgspec.MsgspecError, RecursionError)


def reader_of(kind: str, name: str) -> int:
    """Which of `READERS` reads such an event's arguments; `NO_READER` if they are of no use."""
    if kind == "launch":
        return READERS.index(LaunchArguments)
    if kind in DEVICE_KINDS:
        return READERS.index(DeviceArguments)
    if kind == "collective":
        return READERS.index(CollectiveArguments)
    if kind in ("issue", "transfer") or (kind == "operator" and keeps_arguments(name)):
        return READERS.index(OperatorArguments)
    return NO_READER


def decode_arguments(
    texts: Sequence[msgspec.Raw], struct: type[msgspec.Struct]
) -> tuple[list[Any], int]:
    """The arguments of events of one kind, and how many were of the wrong type (and are empty).

    Decoded in one call, since a call for each would take most of a file's time.
    """
    try:
        return _ALL[struct].decode(b"[" + b",".join(texts) + b"]"), 0
    except _UNREADABLE:
        alone = [_decode_one(text, struct) for text in texts]
        return [struct() if one is None else one for one in alone], alone.count(None)


def _decode_one(text: msgspec.Raw, struct: type[msgspec.Struct]) -> Any:
    try:
        return _ONE[struct].decode(text)
    except _UNREADABLE:
        return None
