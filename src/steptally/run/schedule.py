"""Which steps of a run are traced and which are timed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from steptally.errors import InputError


def choose_traced_steps(steps: int | None, warmup_steps: int, count: int = 2) -> tuple[int, ...]:
    """`count` consecutive steps, after warm-up and after up to three steps that are timed.

    Fewer, or none, where the run is too short to time as many steps as it traces: step times come
    from untraced steps. `steps` is None where the length of the run is not known.

    >>> choose_traced_steps(20, 2), choose_traced_steps(5, 2), choose_traced_steps(3, 2)
    ((6, 7), (4,), ())
    """
    left = sys.maxsize if steps is None else max(0, steps - warmup_steps)
    count = min(count, left // 2)
    first = warmup_steps + min(3, (left - count + 1) // 2) + 1
    return tuple(range(first, first + count))


def check_steps(steps: int | None, warmup_steps: int, traced_steps: Sequence[int]) -> None:
    """Raise `InputError` for steps that are not in the run."""
    if warmup_steps < 0:
        raise InputError(f"warmup_steps is {warmup_steps}: it must be 0 or more.")
    last = sys.maxsize if steps is None else steps
    outside = [step for step in traced_steps if not 1 <= step <= last]
    if outside:
        end = "the last step" if steps is None else steps
        raise InputError(
            f"traced_steps names {outside}: steps are numbered from 1 to {end}. Name steps of "
            f"this run, or leave traced_steps out."
        )


def nothing_timed(steps: int, warmup_steps: int, traced_steps: Sequence[int]) -> str | None:
    """What to do about a run whose every step is warm-up or traced; None where one is timed."""
    timed = max(0, steps - warmup_steps) - sum(step > warmup_steps for step in set(traced_steps))
    if timed > 0:
        return None
    return (
        f"every one of {steps} steps is warm-up (the first {warmup_steps}) or traced: no step time "
        f"will be known. Run more steps, or fewer warm-up steps."
    )
