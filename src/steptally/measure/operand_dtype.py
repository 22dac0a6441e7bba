"""The dtype of a recorded operator's operands, from the types that the profiler wrote."""

from __future__ import annotations

import msgspec

from steptally.trace.dtypes import dtype_name


def operand_dtype(types: str | None) -> str:
    """The dtype of the first operand that has one; empty where none is told.

    >>> operand_dtype('["c10::BFloat16", "c10::BFloat16", "Scalar"]')
    'bfloat16'
    """
    try:
        spelled = msgspec.json.decode(types) if types else []
    except msgspec.DecodeError:
        return ""
    texts = spelled if isinstance(spelled, list) else []
    names = [dtype_name(text) for text in texts if isinstance(text, str)]
    return next(filter(None, names), "")
