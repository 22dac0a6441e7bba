"""How the parts of a bar are told apart: by sign and colour in a terminal, never colour alone."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.report.rank_bars import Part

# Exposed groups take these in turn, the group with the most exposed time first.
EXPOSED_SIGNS = "▓▒░▚▞abcdefghijklmnopqrstuvwxyz"
EXPOSED_SIGNS_ASCII = "abcdefghijklmnopqrstuvwxyz"
EXPOSED_COLOURS = ("red", "yellow", "magenta", "cyan", "bright_red", "bright_magenta")


def signs(parts: Sequence[Part], *, ascii_only: bool) -> dict[str, tuple[str, str]]:
    """(sign, colour) of each part, by name."""
    fixed = {
        "compute": ("#" if ascii_only else "█", "green"),
        "copies": ("=" if ascii_only else "▬", "blue"),
        "idle": ("." if ascii_only else "·", "bright_black"),
    }
    exposed_signs = EXPOSED_SIGNS_ASCII if ascii_only else EXPOSED_SIGNS
    chosen: dict[str, tuple[str, str]] = {}
    exposed = 0
    for part in parts:
        if part.kind == "exposed":
            colour = EXPOSED_COLOURS[exposed % len(EXPOSED_COLOURS)]
            chosen[part.name] = (exposed_signs[exposed % len(exposed_signs)], colour)
            exposed += 1
        else:
            chosen[part.name] = fixed[part.kind]
    return chosen


def cells(durations_ns: Sequence[int], longest_ns: int, width: int) -> list[int]:
    """How many of `width` cells each part of a bar takes, the longest bar filling them all.

    The bar's length is rounded once and the parts share it by largest remainder, so that rounding
    never makes equal bars unequal.

    >>> cells([50, 30, 20], 100, 10), cells([1, 1, 1], 6, 10)
    ([5, 3, 2], [2, 2, 1])
    """
    whole = sum(durations_ns)
    if not whole or not longest_ns:
        return [0] * len(durations_ns)
    length = min(width, (whole * width + longest_ns // 2) // longest_ns)
    counts = [duration * length // whole for duration in durations_ns]
    by_remainder = sorted(
        range(len(counts)), key=lambda place: -(durations_ns[place] * length % whole)
    )
    for place in by_remainder[: length - sum(counts)]:
        counts[place] += 1
    return counts
