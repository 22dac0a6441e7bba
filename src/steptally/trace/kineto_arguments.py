"""Reads arguments that are not of the types Kineto writes: field by field, keeping what can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

import msgspec

from steptally.trace.kineto_format import Arguments, Event

_LAX = msgspec.json.Decoder(Arguments, strict=False)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TYPES = get_type_hints(Arguments)
_READERS = {
    field.encode_name: (field.name, msgspec.json.Decoder(_TYPES[field.name], strict=False))
    for field in msgspec.structs.fields(Arguments)
}
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def read_arguments(events: Sequence[Event]) -> int:
    """Put `Arguments` in place of the JSON texts that the events have; how many lost a field."""
    bad = 0
    for event in events:
        arguments, whole = _read(event.args)
        event.args = arguments
        bad += not whole
    return bad


def _read(text: Any) -> tuple[Arguments | None, bool]:
    """The arguments as far as they are readable, and whether that is all of them."""
    if text is None:
        return None, True
    try:
        return _LAX.decode(text), True
    except _UNREADABLE:
        pass
    try:
        fields = _FIELDS.decode(text)
    except _UNREADABLE:
        return None, False
    found = {}
    whole = True
    for spelled in fields.keys() & _READERS.keys():
        name, decoder = _READERS[spelled]
        try:
            found[name] = decoder.decode(fields[spelled])
        except _UNREADABLE:
            whole = False
    return Arguments(**found), whole
