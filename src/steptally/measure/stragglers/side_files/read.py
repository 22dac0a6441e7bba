"""Reads optional side files of any kind; each is recognised by its content, never by its name.

read_side_files([Path("gpu.csv"), Path("topo.txt")]).findings
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from steptally import strict_json
from steptally.errors import InputError
from steptally.measure.stragglers.side_files import dcgm, experts, nic, numa, nvidia_csv
from steptally.measure.stragglers.side_files.gpu_findings import judge_gpus
from steptally.measure.stragglers.side_files.nvidia_query import MARKS, read_nvidia_query
from steptally.measure.stragglers.side_files.rows import (
    GPU_SAMPLES,
    SEVERITIES,
    GpuRows,
    SideFinding,
    SideFindings,
)

HEAD_CHARACTERS = 64 << 10
LONGEST_LINE = 64 << 10
KINDS = (
    "`nvidia-smi --query-gpu=… --format=csv` with its header, `nvidia-smi -q`, "
    "`nvidia-smi topo -m`, `dcgmi dmon`, dcgm-exporter's metrics, a CSV of DCGM_FI_… fields, "
    "`rdma statistic show`, or a CSV of NIC counters (host, device, counter, value), of ranks' "
    "places (rank, gpu, cpus) or of tokens (step, layer, expert or rank, tokens)"
)


@dataclass(slots=True, kw_only=True)
class _Gathered:
    """What the files have given so far; NUMA places are joined when all are read."""

    samples: list[pl.DataFrame] = field(default_factory=list)
    tokens: list[tuple[pl.DataFrame, str]] = field(default_factory=list)
    counters: list[tuple[list[nic.NicCounter], str]] = field(default_factory=list)
    findings: list[SideFinding] = field(default_factory=list)
    gpus: list[numa.GpuPlace] = field(default_factory=list)
    ranks: list[tuple[list[numa.RankPlace], str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def lose(self, path: Path, count: int, what: str = "rows") -> None:
        if count:
            self.lost.append(f"{count} {what} of {path} could not be read, and are left out")


Reader = Callable[[Iterable[str], Path, str | None, _Gathered], None]


def read_side_files(
    paths: Sequence[Path],
    hosts: Mapping[Path, str] | None = None,
    places: Sequence[numa.GpuPlace] = (),
) -> SideFindings:
    """Findings of all files, faults first, in the order of the files within a severity.

    `hosts` tells the host of a file that does not name one (nvidia-smi does not); `places` are
    GPUs' NUMA places known from elsewhere (a run's manifest: `numa.places_of_manifest`).
    Raises `InputError` for a file that cannot be read, or is of no kind that is known.
    """
    gathered = _Gathered(gpus=list(places))
    for path in paths:
        _read(path, (hosts or {}).get(path), gathered)
    samples = pl.concat(gathered.samples) if gathered.samples else pl.DataFrame(schema=GPU_SAMPLES)
    findings = [*gathered.findings, *judge_gpus(samples)]
    for counters, source in gathered.counters:
        findings += nic.judge_nics(counters, source)
    findings += _judge_places(gathered)
    for tokens, source in gathered.tokens:
        findings += experts.judge_expert_tokens(tokens, source)
    found = SideFindings(
        findings=tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))),
        lost=tuple(gathered.lost),
        gpu_samples=samples,
    )
    if not gathered.tokens:
        return found
    return replace(found, expert_tokens=pl.concat([tokens for tokens, _ in gathered.tokens]))


def _read(path: Path, host: str | None, gathered: _Gathered) -> None:
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline=None) as file:
            head = file.read(HEAD_CHARACTERS)
            reader = _reader_of(head)
            if reader is None:
                raise InputError(f"{path} is no side file that is known: give {KINDS}.")
            file.seek(0)
            reader((line[:LONGEST_LINE] for line in file), path, host, gathered)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error
    except InputError as error:
        message = str(error)
        raise error if str(path) in message else InputError(f"{path}: {message}") from error


def _reader_of(head: str) -> Reader | None:
    """What reads a file that begins so; None where nothing does."""
    lines = [line for line in head.splitlines() if line.strip()]
    if not lines:
        return None
    if nvidia_csv.is_nvidia_csv(lines[0]):
        return _read_nvidia_csv
    if dcgm.is_dcgm_exporter(lines):
        return _gpu_reader(dcgm.read_dcgm_exporter)
    if dcgm.is_dcgm_dmon(lines):
        return _gpu_reader(dcgm.read_dcgm_dmon)
    if dcgm.is_dcgm_csv(lines[0]):
        return _gpu_reader(dcgm.read_dcgm_csv)
    if MARKS.search(head):
        return _read_query
    if numa.is_topology(head):
        return _read_topology
    if any(nic.RDMA.match(line) for line in lines[:50]):
        return _read_rdma
    return _reader_of_table(_names(lines[0]))


def _reader_of_table(names: set[str]) -> Reader | None:
    if nic.is_nic_csv(names):
        return _read_nic
    if experts.is_expert_tokens(names):
        return _read_tokens
    return _read_ranks if numa.is_rank_places(names) else None


def _names(line: str) -> set[str]:
    """The columns of a header, or the keys of a first JSON object, in lower case."""
    if not line.lstrip().startswith("{"):
        return {name.strip().lower() for name in line.split(",")}
    try:
        value = strict_json.decode(line)
    except ValueError:
        return set()
    return set(value) if isinstance(value, dict) else set()


def _gpu_reader(read: Callable[[Iterable[str], GpuRows], None]) -> Reader:
    def reader(lines: Iterable[str], path: Path, host: str | None, gathered: _Gathered) -> None:
        rows = GpuRows(str(path), host)
        read(lines, rows)
        _keep(rows, path, gathered)

    return reader


def _keep(rows: GpuRows, path: Path, gathered: _Gathered) -> None:
    if not len(rows):
        raise InputError(
            f"{path} has the form of a GPU log, but no row of it can be read "
            f"({rows.lost} damaged): record it again."
        )
    gathered.samples.append(rows.frame())
    gathered.lose(path, rows.lost)


_read_nvidia_csv = _gpu_reader(nvidia_csv.read_nvidia_csv)


def _read_query(lines: Iterable[str], path: Path, host: str | None, gathered: _Gathered) -> None:
    rows = GpuRows(str(path), host)
    findings = read_nvidia_query(lines, rows, str(path))
    _keep(rows, path, gathered)
    gathered.findings += [replace(finding, host=host) for finding in findings]


def _read_topology(lines: Iterable[str], path: Path, host: str | None, gathered: _Gathered) -> None:
    places = numa.read_topology(lines, host)
    if not places:
        gathered.lost.append(
            f"{path} gives no GPU a NUMA node: this driver does not tell, or the host has one node"
        )
    gathered.gpus += places


def _read_ranks(lines: Iterable[str], path: Path, host: str | None, gathered: _Gathered) -> None:
    places, lost = numa.read_rank_places(lines, host)
    gathered.lose(path, lost)
    gathered.ranks.append((places, str(path)))


def _read_nic(lines: Iterable[str], path: Path, host: str | None, gathered: _Gathered) -> None:
    counters, lost = nic.read_nic_csv(lines, host)
    gathered.lose(path, lost)
    gathered.counters.append((counters, str(path)))


def _read_rdma(lines: Iterable[str], path: Path, host: str | None, gathered: _Gathered) -> None:
    gathered.counters.append((nic.read_rdma_statistic(lines, host), str(path)))


def _read_tokens(lines: Iterable[str], path: Path, host: str | None, gathered: _Gathered) -> None:
    tokens, lost = experts.read_expert_tokens(lines)
    gathered.lose(path, lost)
    gathered.tokens.append((tokens, str(path)))


def _judge_places(gathered: _Gathered) -> Iterator[SideFinding]:
    for ranks, source in gathered.ranks:
        findings, unknown = numa.judge_numa(ranks, gathered.gpus, source)
        yield from findings
        if unknown:
            gathered.lost.append(
                f"{len(unknown)} ranks of {source} are on GPUs whose NUMA node is not told: give "
                "`nvidia-smi topo -m` of their hosts, or a column gpu_node"
            )
