"""Which files a list of paths means (until `trace.read` stands for it)."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steptally.errors import InputError

if TYPE_CHECKING:
    from steptally.trace.kinds import Rules
    from steptally.trace.schema import Trace


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One Kineto trace."""

    path: Path
    rank: int | None

    def read(self, rules: Rules) -> Trace:
        """Read it by these rules."""
        from steptally.trace.kineto import read_kineto

        return read_kineto(self.path, self.rank, rules)


def find_sources(paths: Sequence[str], rank: int | None) -> list[TraceFile]:
    """The traces that files, folders and globs name."""
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            found += sorted(p for p in path.rglob("*.json*") if p.suffix in (".json", ".gz"))
        elif path.exists():
            found.append(path)
        else:
            found += [Path(one) for one in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207
    if not found:
        raise InputError(f"{', '.join(paths)}: there is no trace; name files or folders of them.")
    if rank is not None and len(found) > 1:
        raise InputError(
            f"--rank is given for {len(found)} traces: it is the rank of one; drop it."
        )
    return [TraceFile(path, rank) for path in found]
