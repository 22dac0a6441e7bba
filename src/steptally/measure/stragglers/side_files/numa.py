"""Whether a rank's CPUs are on its GPU's NUMA node: `nvidia-smi topo -m`, and who runs where.

Where ranks run is a table (CSV) of rank, GPU and CPUs or node; the CPUs of a process are what
`taskset -cp PID` or `os.sched_getaffinity(0)` says. A run directory's manifest holds the topology
of rank 0's host, and the nodes of GPUs, but not where the ranks' CPUs are on GPU hosts.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from steptally.measure.stragglers.side_files.readings import whole
from steptally.measure.stragglers.side_files.rows import SideFinding

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
ROW = re.compile(
    r"^GPU(?P<index>\d{1,9})\s.*?\s(?P<cpus>[0-9][0-9,-]*)\s+(?P<node>\d{1,9})(?:\s+\S+)?\s*$"
)
CPU_LIST = re.compile(r"^[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*$")
LARGEST_CPU = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlace:
    """One GPU: the CPUs that are near it, and its NUMA node."""

    host: str | None
    index: int
    cpus: frozenset[int]
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank: its GPU's index, the CPUs it may run on or their node, and its GPU's node."""

    rank: int
    host: str | None
    gpu_index: int | None
    cpus: frozenset[int] | None
    cpu_node: int | None
    gpu_node: int | None


def is_topology(text: str) -> bool:
    """Whether a text is `nvidia-smi topo -m`'s matrix."""
    return (
        "CPU Affinity" in text and re.search(r"^GPU\d+\s", ESCAPE.sub("", text), re.M) is not None
    )


def read_topology(lines: Iterable[str], host: str | None = None) -> list[GpuPlace]:
    """The CPU and NUMA affinity of each GPU of a matrix; without those columns, none.

    >>> read_topology(["GPU1\\tSYS\\t X \\t14-27\\t1\\t\\tN/A"])[0].node
    1
    """
    places = []
    for line in lines:
        found = ROW.match(ESCAPE.sub("", line).rstrip())
        cpus = _cpus(found["cpus"]) if found else None
        if found and cpus is not None:
            places.append(
                GpuPlace(host=host, index=int(found["index"]), cpus=cpus, node=int(found["node"]))
            )
    return places


def is_rank_places(names: Iterable[str]) -> bool:
    """Whether the columns of a CSV say where ranks run."""
    known = set(names)
    return "rank" in known and bool(known & {"cpus", "cpu_node"}) and "tokens" not in known


def read_rank_places(lines: Iterable[str], host: str | None = None) -> tuple[list[RankPlace], int]:
    """Rows of rank, and cpus or cpu_node, with host, gpu and gpu_node where known; lost rows."""
    places, lost = [], 0
    for record in csv.DictReader((line.replace("\0", "") for line in lines), skipinitialspace=True):
        row = {str(k).strip().lower(): (v or "").strip() for k, v in record.items() if k}
        rank, cpus = whole(row.get("rank")), _cpus(row.get("cpus", ""))
        cpu_node = whole(row.get("cpu_node"))
        if rank is None or (cpus is None and cpu_node is None):
            lost += 1
            continue
        places.append(
            RankPlace(
                rank=rank,
                host=row.get("host") or host,
                gpu_index=whole(row.get("gpu") or row.get("gpu_index")),
                cpus=cpus,
                cpu_node=cpu_node,
                gpu_node=whole(row.get("gpu_node")),
            )
        )
    return places, lost


def judge_numa(
    ranks: Sequence[RankPlace], gpus: Sequence[GpuPlace], source: str
) -> tuple[list[SideFinding], list[RankPlace]]:
    """Findings of each rank whose GPU's place is known, and the ranks whose is not."""
    findings, unknown = [], []
    for rank in ranks:
        told = _judge(rank, _gpu_of(rank, gpus))
        if told is None:
            unknown.append(rank)
            continue
        severity, sentence = told
        findings.append(
            SideFinding(
                severity=severity,
                subject="numa",
                sentence=sentence,
                source=source,
                host=rank.host,
                gpu_index=rank.gpu_index,
                rank=rank.rank,
            )
        )
    return findings, unknown


def _gpu_of(rank: RankPlace, gpus: Sequence[GpuPlace]) -> GpuPlace | None:
    """The rank's GPU in the matrices of its host; one matrix without a host serves all hosts."""
    same = [gpu for gpu in gpus if gpu.index == rank.gpu_index]
    exact = [gpu for gpu in same if gpu.host == rank.host]
    anywhere = [gpu for gpu in same if gpu.host is None]
    found = exact or anywhere
    return found[0] if len(found) == 1 else None


def _judge(rank: RankPlace, gpu: GpuPlace | None) -> tuple[str, str] | None:
    gpu_node = gpu.node if gpu else rank.gpu_node
    name = f"GPU {rank.gpu_index}" if rank.gpu_index is not None else "its GPU"
    if gpu_node is None:
        return None
    if rank.cpus is not None and gpu is not None:
        away = rank.cpus - gpu.cpus
        if not away:
            return "healthy", f"runs on CPUs near {name} (node {gpu_node})"
        if away == rank.cpus:
            return "notable", (
                f"runs on CPUs {cpu_text(rank.cpus)}, all on another node than {name} "
                f"(node {gpu_node}, CPUs {cpu_text(gpu.cpus)}): bind it with numactl or "
                "`--cpu-bind`"
            )
        return "notable", (
            f"may run on CPUs of other nodes than {name}'s node {gpu_node}: it is not bound "
            f"({len(away)} of its {len(rank.cpus)} CPUs are away)"
        )
    if rank.cpu_node is None:
        return None
    if rank.cpu_node == gpu_node:
        return "healthy", f"runs on node {rank.cpu_node}, that of {name}"
    return "notable", f"runs on node {rank.cpu_node}, {name} is on node {gpu_node}"


def cpu_text(cpus: Iterable[int]) -> str:
    """CPUs as the kernel lists them.

    >>> cpu_text({0, 1, 2, 8})
    '0-2,8'
    """
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def _cpus(text: str) -> frozenset[int] | None:
    if not CPU_LIST.match(text or ""):
        return None
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high > LARGEST_CPU or high < low:
            return None
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def places_of_manifest(manifest: Mapping[str, object]) -> list[GpuPlace]:
    """The GPUs' places that a run directory's manifest holds, of rank 0's host."""
    machine = manifest.get("machine")
    if not isinstance(machine, dict) or not isinstance(machine.get("gpu_topology"), str):
        return []
    host = machine.get("host")
    return read_topology(
        machine["gpu_topology"].splitlines(), host if isinstance(host, str) else None
    )
