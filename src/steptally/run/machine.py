"""What this machine is made of and what software runs on it, without importing torch."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from steptally import __version__

_PACKAGES = (
    "torch",
    "megatron-core",
    "numpy",
    "triton",
    "transformer-engine",
    "flash-attn",
    "apex",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)
_COMMAND_TIMEOUT_S = 10.0


def describe_machine() -> dict[str, object]:
    """CPU, memory, NUMA nodes and GPUs of this host, as the operating system reports them."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu_model": _cpu_model(),
        "logical_cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "numa_nodes": {node: cpus for node, (cpus, _) in _numa_nodes().items()},
        "gpus": _gpus(),
        "gpu_topology": _output(["nvidia-smi", "topo", "-m"]),
    }


def describe_versions() -> dict[str, str]:
    """Versions of Python, steptally and of each installed package that a step depends on."""
    versions = {"python": platform.python_version(), "steptally": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions | _versions_inside_torch()


def _versions_inside_torch() -> dict[str, str]:
    """CUDA's and NCCL's versions, where this process has torch loaded and torch has them."""
    torch = sys.modules.get("torch")
    if torch is None or torch.version.cuda is None:
        return {}
    found = {"cuda": str(torch.version.cuda)}
    if torch.cuda.is_available():
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, or fewer by a container's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no control group version 2, or a quota of `max`
        return cores


def peak_resident_bytes() -> int:
    """High-water mark of this process's resident memory.

    Not `getrusage`: its ru_maxrss is inherited, so that a small worker started by a large launcher
    would report the launcher's.
    """
    found = re.search(r"^VmHWM:\s+(\d+) kB", _text("/proc/self/status"), re.MULTILINE)
    if found:
        return int(found[1]) * 1024
    import resource  # not a Linux /proc: the inherited figure is the only one there is

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def numa_node_of_cpus() -> int | None:
    """The NUMA node that holds all cores this process may run on; None if they span several."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    mine = os.sched_getaffinity(0)
    holding = [node for node, (_, cpus) in _numa_nodes().items() if mine <= cpus]
    return int(holding[0]) if holding else None


def _numa_nodes() -> dict[str, tuple[str, set[int]]]:
    """Node number → its CPUs, as the kernel writes them (`0-3,8`) and as a set."""
    nodes = {}
    for path in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        listed = _text(path / "cpulist").strip()
        nodes[path.name.removeprefix("node")] = (listed, _cpu_set(listed))
    return nodes


def _cpu_set(listed: str) -> set[int]:
    cpus: set[int] = set()
    for part in filter(None, listed.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _cpu_model() -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or None


def _memory_bytes() -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


_GPU_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total", "pci.bus_id")


def _gpus() -> list[dict[str, str]]:
    query = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader"]
    rows = [line.split(", ") for line in (_output(query) or "").splitlines()]
    return [
        dict(zip(_GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(_GPU_FIELDS)
    ]


def describe_git(directory: Path) -> dict[str, object] | None:
    """Commit of the checkout that holds `directory`, and whether tracked files differ from it."""
    commit = _output(["git", "-C", str(directory), "rev-parse", "HEAD"])
    if commit is None:
        return None
    changed = _output(["git", "-C", str(directory), "status", "--porcelain", "-uno"])
    return {"commit": commit.strip(), "dirty": None if changed is None else bool(changed.strip())}


def describe_steptally_checkout() -> dict[str, object] | None:
    """The same for steptally itself; None where it is installed and not run from a checkout."""
    package = Path(__file__).resolve().parents[1]
    tracked = ["git", "-C", str(package), "ls-files", "--error-unmatch", "__init__.py"]
    return describe_git(package) if _output(tracked) is not None else None


def _output(command: Sequence[str]) -> str | None:
    """What a command prints; None if it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
