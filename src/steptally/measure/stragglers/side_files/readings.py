"""Numbers as monitoring tools print them: with units, in brackets, or not available."""

from __future__ import annotations

import math
import re

LEADING = re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
HEXADECIMAL = re.compile(r"^0[xX][0-9a-fA-F]{1,16}$")
# DCGM gives these, and those above, where it has no value (dcgm_structs.h: DCGM_*_BLANK).
BLANK_INT32 = 0x7FFFFFF0
BLANK_FLOAT = 140737488355328.0


def reading(text: str | None) -> float | None:
    """The number that a field starts with; None for `[N/A]`, `ERR!`, an empty field.

    >>> reading("1980 MHz"), reading("[Not Supported]"), reading("99 %")
    (1980.0, None, 99.0)
    """
    found = LEADING.match((text or "").strip())
    if found is None:
        return None
    value = float(found[0])
    return value if math.isfinite(value) else None


def dcgm_reading(text: str | None) -> float | None:
    """The same, without DCGM's blanks.

    >>> dcgm_reading("2147483632"), dcgm_reading("75.5")
    (None, 75.5)
    """
    value = reading(text)
    if value is None or value >= BLANK_FLOAT or BLANK_INT32 <= value <= BLANK_INT32 + 15:
        return None
    return value


def whole(text: str | None) -> int | None:
    """A whole number of at most nine plain digits, else None.

    >>> whole("12"), whole("-1"), whole("²"), whole(None)
    (12, None, None, None)
    """
    digits = (text or "").strip()
    return int(digits) if re.fullmatch(r"[0-9]{1,9}", digits) else None


def mask(text: str | None) -> int | None:
    """A bit mask, in hexadecimal or decimal.

    >>> mask("0x0000000000000004"), mask("8"), mask("[N/A]")
    (4, 8, None)
    """
    stripped = (text or "").strip()
    if HEXADECIMAL.match(stripped):
        value = int(stripped, 16)
    else:
        number = dcgm_reading(stripped)
        if number is None or number != int(number) or number < 0:
            return None
        value = int(number)
    return value if value < 1 << 63 else None


def bus_id(text: str | None) -> str | None:
    """A PCI address with a domain of four digits, in lower case: both tools' forms alike.

    >>> bus_id("00000000:3B:00.0"), bus_id("0000:3b:00.0")
    ('0000:3b:00.0', '0000:3b:00.0')
    """
    found = re.fullmatch(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)", text or "")
    return f"{found[1][-4:]}:{found[2]}".lower() if found else None
