"""Decodes the arguments of events: only those that matter, all of a block and kind in one call.

A call for each would take most of a file's time, and so would the arguments of events that need
none, as Python's frames. Arguments of other types than Kineto's are read field by field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, get_type_hints

import msgspec

from steptally.trace.kineto_format import (
    CollectiveArguments,
    DeviceArguments,
    LaunchArguments,
    OperatorArguments,
    ShapeArguments,
)

Told = TypeVar("Told", bound=msgspec.Struct)

_STRUCTS: tuple[type[msgspec.Struct], ...] = (
    LaunchArguments,
    DeviceArguments,
    OperatorArguments,
    ShapeArguments,
    CollectiveArguments,
)
_ALL = {
    struct: msgspec.json.Decoder(list[struct], strict=False)  # type: ignore[valid-type]
    for struct in _STRUCTS
}
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def _readers(struct: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """For each field as the file spells it, its name and how its value is decoded."""
    types = get_type_hints(struct)
    return {
        field.encode_name: (field.name, msgspec.json.Decoder(types[field.name], strict=False))
        for field in msgspec.structs.fields(struct)
    }


_READERS = {struct: _readers(struct) for struct in _STRUCTS}


def decode_arguments(texts: Sequence[msgspec.Raw], struct: type[Told]) -> tuple[list[Told], int]:
    """The arguments of events of one kind, and how many of them lost a field."""
    try:
        return _ALL[struct].decode(b"[%b]" % b",".join(texts)), 0
    except _UNREADABLE:
        pairs = [_decode_one(text, struct) for text in texts]
        return [told for told, _ in pairs], sum(not whole for _, whole in pairs)


def holds(texts: Sequence[msgspec.Raw], word: bytes) -> bool:
    """Whether any of the texts has this word in it."""
    return word in b",".join(texts)


def _decode_one(text: msgspec.Raw, struct: type[Told]) -> tuple[Told, bool]:
    """The arguments as far as they are readable, and whether that is all of them."""
    try:
        fields = _FIELDS.decode(text) or {}
    except _UNREADABLE:
        return struct(), False
    readers = _READERS[struct]
    found = {}
    whole = True
    for spelled in fields.keys() & readers.keys():
        name, decoder = readers[spelled]
        try:
            found[name] = decoder.decode(fields[spelled])
        except _UNREADABLE:
            whole = False
    return struct(**found), whole
