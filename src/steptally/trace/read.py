"""One way to any recording: paths in, a list of what can be read out.

    for source in read_traces([Path("traces/")]):
        trace = source.read()

Sources are found without being read: small, picklable, one for each rank, so that thousands can be
handed to worker processes. A file's format is told by its content; its rank by its content, else by
its name, else by the caller, else it stays unknown.
"""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steptally.errors import InputError
from steptally.trace.kinds import Rules
from steptally.trace.kineto import read_kineto
from steptally.trace.nsys import Part, nsys_parts, read_nsys
from steptally.trace.optable import read_table, table_ranks
from steptally.trace.rank_names import rank_in_name
from steptally.trace.recognise import Format, recognise, stated_rank
from steptally.trace.schema import Trace

_PATTERNS = ("*.json", "*.json.gz", "*.sqlite", "*.parquet", "*.nsys-rep")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """One rank's recording, not read yet. `rank` is None where nothing tells it.

    `part` is the device of an Nsight Systems export, which may hold several.
    """

    path: Path
    format: Format
    rank: int | None
    part: Part | None = None

    @property
    def label(self) -> str:
        """The recording in words: `rank 3`, or the file with its process and device."""
        if self.rank is not None:
            return f"rank {self.rank}"
        if self.part is None:
            return str(self.path)
        process = "" if self.part.process is None else f"process {self.part.process}, "
        return f"{self.path}, {process}device {self.part.device}"

    def read(self, rules: Rules | None = None, low_memory: bool = False) -> Trace:
        """Read it. `low_memory` leaves out what only products and shapes need (Kineto).

        Raises `InputError` where it cannot be read after all.
        """
        if self.part is not None:
            return read_nsys(self.path, self.part, self.rank, rules)
        if self.format == "table":
            return read_table(self.path, self.rank, rules)
        return read_kineto(self.path, self.rank, rules, low_memory=low_memory)


def read_traces(paths: Sequence[Path | str], rank: int | None = None) -> list[TraceSource]:
    """The recordings in files, directories (with all below) and patterns (`traces/*.json.gz`).

    In order of rank, then of path. `rank` is that of the one recording given. Raises `InputError`
    where nothing is found, a file is no recording, an Nsight Systems report is not exported, or
    two files claim one rank.
    """
    found = {path.resolve(): path for given in paths for path in trace_files(Path(given))}
    sources = [source for path in found.values() for source in _sources(path)]
    if not sources:
        raise InputError(
            f"{', '.join(map(str, paths)) or 'no path'}: no trace there. Give files, directories "
            "or patterns of PyTorch profiler traces (.json, .json.gz), Nsight Systems exports "
            "(.sqlite) or op tables (.parquet)."
        )
    if rank is not None:
        sources = [replace(_only(sources, rank), rank=rank)]
    _check_ranks(sources)
    return sorted(sources, key=lambda s: (s.rank is None, s.rank or 0, str(s.path), s.part))


def trace_files(given: Path) -> Iterator[Path]:
    """The recordings that one argument of `read_traces` stands for."""
    if given.is_dir():
        candidates = sorted({path for pattern in _PATTERNS for path in given.rglob(pattern)})
        yield from (path for path in candidates if _is_trace(path, candidates))
    elif given.exists() and not given.is_file():
        raise InputError(f"{given} is no regular file: give a file, a directory or a pattern.")
    elif given.exists() or not glob.has_magic(str(given)):
        yield given
    else:
        # Path.glob takes no absolute pattern.
        for path in sorted(map(Path, glob.glob(str(given), recursive=True))):  # noqa: PTH207
            yield from trace_files(path)


def _is_trace(path: Path, beside: Sequence[Path]) -> bool:
    """Whether a file of a directory is a recording; other JSON stands beside them.

    A report whose export lies beside it is there already.
    """
    if path.suffix == ".nsys-rep":
        return path.with_suffix(".sqlite") not in beside
    return path.is_file() and recognise(path) is not None


def _sources(path: Path) -> Iterator[TraceSource]:
    """The recordings in one file."""
    if path.suffix in (".nsys-rep", ".qdrep"):
        raise InputError(
            f"{path} is a report of Nsight Systems, which only its own program reads: export it "
            f"with nsys export --type sqlite {path.name}, and give the .sqlite file."
        )
    form = recognise(path) or "kineto"
    named = rank_in_name(path)
    if form == "nsys":
        parts = nsys_parts(path)
        for part in parts:
            own = named if len(parts) == 1 else None
            yield TraceSource(path=path, format=form, rank=own, part=part)
    elif form == "table":
        ranks = table_ranks(path)
        for rank in ranks:
            own = named if rank is None and len(ranks) == 1 else rank
            yield TraceSource(path=path, format=form, rank=own)
    else:
        stated = stated_rank(path)
        yield TraceSource(path=path, format=form, rank=named if stated is None else stated)


def _only(sources: Sequence[TraceSource], rank: int) -> TraceSource:
    if len(sources) > 1:
        own = [source for source in sources if source.rank == rank]
        if len(own) == 1:
            return own[0]
        raise InputError(
            f"rank {rank} was given for {len(sources)} recordings, as {sources[0].label} and "
            f"{sources[1].label}: it tells the rank of one. Give one file, or leave it out."
        )
    return sources[0]


def _check_ranks(sources: Sequence[TraceSource]) -> None:
    by_rank: dict[int, list[Path]] = defaultdict(list)
    for source in sources:
        if source.rank is not None:
            by_rank[source.rank].append(source.path)
    for rank, paths in sorted(by_rank.items()):
        if len(paths) > 1:
            more = f" and {len(paths) - 2} more" if len(paths) > 2 else ""
            raise InputError(
                f"{paths[0]} and {paths[1]}{more} all say that they are of rank {rank}: a rank can "
                "be there once. Give the files of one recording."
            )
