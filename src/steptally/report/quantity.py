"""How a figure's value is written: human units first, the exact integer where it matters.

Sizes are binary (MiB), rates are decimal (GB/s, TFLOP/s), as STREAM and data sheets give them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

Value = int | float | bool | str | None

NOT_KNOWN = "not known"
BINARY_PREFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
DECIMAL_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
# Below this an integer is easier to read with its digits than as a power of ten.
LONGEST_PLAIN_INTEGER = 10**12
COUNTED_UNITS = ("byte", "token", "parameter", "sequence", "step", "rank", "call")


def quantity(value: Value, unit: str) -> str:
    """A value with its unit, for people.

    >>> quantity(141_100_000_000_000_000, "FLOP")
    '1.411e17 FLOP'
    >>> quantity(0.3124, "s"), quantity(0.514, "1"), quantity(1_610_612_736, "byte")
    ('312.4 ms', '51.4 %', '1.500 GiB')
    """
    if value is None:
        return NOT_KNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} (not a finite number)"
    try:
        return _number(value, unit)
    except OverflowError:  # an integer beyond every float
        return f"{_power_of_ten(value)} {printable(unit)}"


def _number(value: int | float, unit: str) -> str:
    if unit == "1":
        return f"{100 * value:.1f} %"
    if unit == "s":
        return duration(value * 1e9)
    if unit == "ns":
        return duration(value)
    if unit == "byte":
        return _scaled(value, BINARY_PREFIXES, 1024, "B")
    if unit in ("byte/s", "FLOP/s"):
        return _scaled(value, DECIMAL_PREFIXES, 1000, unit.replace("byte", "B"))
    if unit.startswith("FLOP"):
        return f"{_power_of_ten(value) if abs(value) >= 10**6 else _plain(value)} {unit}"
    shown = _plain(value) if abs(value) < LONGEST_PLAIN_INTEGER else _power_of_ten(value)
    return f"{shown} {_plural(unit, value)}".rstrip()


def _plural(unit: str, value: int | float) -> str:
    counted, *per = printable(unit).split("/", 1)
    plural = "s" if counted in COUNTED_UNITS and value != 1 else ""
    return "/".join((counted + plural, *per))


def exact(value: Value, unit: str) -> str | None:
    """All digits of an integer that `quantity` rounds, with its unit; else None.

    >>> exact(141_100_000_000_000_000, "FLOP"), exact(4096, "token")
    ('141,100,000,000,000,000 FLOP', None)
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    digits = f"{value:,}"
    return None if digits in quantity(value, unit) else f"{digits} {_plural(unit, value)}"


def duration(duration_ns: float) -> str:
    """Nanoseconds, in the unit that keeps four digits readable.

    >>> duration(312_400_000), duration(1_500), duration(0)
    ('312.4 ms', '1.500 µs', '0 ns')
    """
    size = abs(duration_ns)
    for unit, unit_ns in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if size >= unit_ns:
            return f"{_four_digits(duration_ns / unit_ns)} {unit}"
    return f"{duration_ns:.0f} ns" if size >= 1 or size == 0 else f"{duration_ns:.2g} ns"


def share(part: int, whole: int) -> str:
    """A part of a whole as a percentage, or a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "–"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as a short list of ranges.

    >>> ranges([0, 1, 2, 3, 6])
    '0–3, 6'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)


def printable(text: str) -> str:
    """Text from a file, safe to show: no terminal escapes, no bidirectional overrides."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def _scaled(value: float, prefixes: tuple[str, ...], step: int, unit: str) -> str:
    size, power = abs(value), 0
    while size >= step and power < len(prefixes) - 1:
        size /= step
        power += 1
    if power == 0:
        return f"{_plain(value)} {unit}"
    return f"{_four_digits(value / step**power)} {prefixes[power]}{unit}"


def _plain(value: int | float) -> str:
    if isinstance(value, int) or abs(value) >= 10_000:
        return f"{value:,.0f}" if isinstance(value, float) else f"{value:,}"
    return _four_digits(value) if abs(value) >= 0.001 or value == 0 else f"{value:.3g}"


def _four_digits(value: float) -> str:
    size = abs(value)
    decimals = 3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0
    return f"{value:,.{decimals}f}"


def _power_of_ten(value: int | float) -> str:
    # Decimal, since a float ends at 1e308 and an exact integer does not.
    mantissa, exponent = f"{Decimal(value):.3e}".split("e")
    return f"{mantissa}e{int(exponent)}"
