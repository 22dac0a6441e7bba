"""What steptally says when it cannot go on.

Every message has four parts in one or two sentences: what was read, what was found there, what the
rule is, and what to do next. `cli.main` catches `SteptallyError` once, prints it and exits with
its status: a user never sees a traceback for bad input.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SteptallyError(Exception):
    """Unusable or contradictory input, or a step that failed. Exit status 2."""

    exit_status = 2


class InputError(SteptallyError):
    """The job, file or option as given cannot be used."""


class MissingPartError(SteptallyError):
    """An optional part that this verb needs (torch, megatron-core, …) is not installed."""


class RunError(SteptallyError):
    """Training processes were started and failed."""


class WriteError(SteptallyError, OSError):
    """A file cannot be written. Also an `OSError`: a recorder goes on without the disk."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for a near miss, else an empty string.

    >>> did_you_mean("hiden_size", ["hidden_size", "num_layers"])
    " (did you mean 'hidden_size'?)"
    """
    close = get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f" (did you mean '{close[0]}'?)" if close else ""
