"""Which machine this is: enough to tell whether figures measured on it belong to it."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A host's CPU model (as the operating system writes it) and the cores this process may use.

    `cpu_revision` tells apart CPUs whose model name a virtual machine hides (`AMD EPYC`).
    """

    hostname: str
    cpu_model: str
    cpu_revision: str
    cores: int


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        hostname=platform.node() or "localhost",
        cpu_model=cpu_model(),
        cpu_revision=_cpu_revision(),
        cores=usable_cores(),
    )


def cpu_model() -> str:
    """The CPU's model name, or its architecture where the system gives no name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine() or "unknown CPU"


def usable_cores() -> int:
    """Cores this process may run on: its affinity, or fewer where a container's quota says so."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no control group version 2, or a quota of `max`
        return cores


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache of the first core, or None where the system does not say."""
    sizes = [
        int(found[1]) * {"K": 1024, "M": 1024**2}[found[2]]
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        if (found := re.fullmatch(r"(\d+)([KM])", _text(path).strip()))
    ]
    return max(sizes, default=None)


def memory_bytes() -> int | None:
    """Physical memory of the host, or None where the system does not say."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(Path("/proc/meminfo")), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _cpu_revision() -> str:
    parts = ("cpu family", "model", "stepping")  # x86; ARM writes `CPU part` and `CPU revision`
    found = [f"{name.removeprefix('cpu ')} {value}" for name in parts if (value := _cpuinfo(name))]
    found += [
        f"{name} {value}" for name in ("CPU part", "CPU revision") if (value := _cpuinfo(name))
    ]
    return ", ".join(found)


def _cpuinfo(name: str) -> str:
    pattern = rf"^{re.escape(name)}[ \t]*:[ \t]*(.+)$"
    found = re.search(pattern, _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
