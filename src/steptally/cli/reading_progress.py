"""How many recordings are read, on a terminal's stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steptally.trace.read import TraceSource


@contextmanager
def shown_progress(files: int) -> Iterator[Callable[[TraceSource], None]]:
    """Show how many of the files are done; yields what to call for each."""
    if files == 1 or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("reading traces", total=files)
        yield lambda source: bar.update(task, advance=1, description=source.label)
