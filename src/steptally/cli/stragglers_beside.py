"""Side files of `steptally stragglers`: what they say of the ranks that verdicts name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steptally.errors import InputError
from steptally.measure.stragglers.search import Found
from steptally.measure.stragglers.side_files.numa import places_of_manifest
from steptally.measure.stragglers.side_files.read import read_side_files
from steptally.measure.stragglers.side_files.rows import SideFinding
from steptally.tally import VerdictRow
from steptally.trace.run_directory import RunDirectory


def check_side_files(files: Sequence[str]) -> None:
    """Raises `InputError` for one that is not there, before anything long begins."""
    for file in files:
        if not Path(file).exists():
            raise InputError(f"--beside {file}: there is no such file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seat:
    """Where a rank runs: its GPU's uuid, and its number on the host, by the order of ranks."""

    host: str | None
    uuid: str | None
    index: int


def with_side_files(found: Found, files: Sequence[str], run: RunDirectory | None) -> Found:
    """The verdicts with what the files say of their ranks, devices or hosts as evidence.

    All else that is no good news is a note. A file that names no host is of the run's only one.
    Raises `InputError` for a file of no known kind.
    """
    seats = {} if run is None else _seats(run)
    gpus = [] if run is None else places_of_manifest(run.read_manifest())
    hosts = {seat.host for seat in seats.values()}
    only = hosts.pop() if len(hosts) == 1 else None
    paths = [Path(file) for file in files]
    said = read_side_files(paths, dict.fromkeys(paths, only) if only else None, gpus)
    told = [one for one in said.findings if one.severity != "healthy"]
    used: set[SideFinding] = set()
    verdicts = []
    for verdict in found.verdicts:
        own = [one for one in told if _is_of(one, verdict, seats)]
        used.update(own)
        evidence = (*verdict.evidence, *(one.told() for one in own))
        verdicts.append(replace(verdict, evidence=evidence))
    rest = [f"{one.severity}: {one.told()}" for one in told if one not in used]
    return replace(found, verdicts=tuple(verdicts), notes=[*found.notes, *rest, *said.lost])


def _seats(run: RunDirectory) -> dict[int, _Seat]:
    """Every rank's seat, as the run's manifest tells them."""
    seats = {}
    taken: Counter[str | None] = Counter()
    for row in sorted(run.read_manifest().get("ranks") or [], key=lambda row: int(row["rank"])):
        host = row.get("host")
        seats[row["rank"]] = _Seat(host=host, uuid=row.get("device_uuid"), index=taken[host])
        taken[host] += 1
    return seats


def _is_of(finding: SideFinding, verdict: VerdictRow, seats: Mapping[int, _Seat]) -> bool:
    """Whether a finding is of one of the verdict's ranks, of its device, or of its host at all."""
    if finding.rank is not None:
        return finding.rank in verdict.ranks
    own = [seats[rank] for rank in verdict.ranks if rank in seats]
    if finding.gpu_uuid is not None and any(seat.uuid for seat in own):
        return any(seat.uuid == finding.gpu_uuid for seat in own)
    on_host = [seat for seat in own if finding.host is not None and seat.host == finding.host]
    if finding.gpu_index is not None:
        return any(seat.index == finding.gpu_index for seat in on_host)
    return bool(on_host) or (finding.host is not None and finding.host == verdict.host)
