"""The search for stragglers in op tables of 64 to 1,024 ranks: wall time, memory, growth with size.

Each table is a simulated pipeline (tests/pipelines.py) of 8 stages, 10 steps and 32 micro-batches,
with one slow worker, searched in a process of its own: read, replayed, judged, what-ifs included.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.pipelines import Pipeline, op_table

from benchmarks.timing import Result

STAGES, STEPS, MICROBATCHES = 8, 10, 32
REPLICAS = (8, 32, 128)
_SEARCH = (
    "import sys, time; from pathlib import Path; import polars as pl; "
    "from steptally.measure.stragglers.search import search_tables; "
    "begin = time.perf_counter(); path = Path(sys.argv[1]); "
    "found = search_tables([(path, pl.read_parquet(path))]); "
    "assert [v.verdict for v in found.verdicts] == ['slow-worker']; "
    "print(time.perf_counter() - begin); "
    "print(Path('/proc/self/status').read_text())"
)


def run() -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for replicas in REPLICAS:
            path = Path(folder, f"{replicas}.parquet")
            count = _write(path, replicas)
            seconds, gigabytes = _search(path)
            ranks = f"{replicas * STAGES:,} ranks, {count / 1e6:.2f} M operations"
            results += [
                _result(f"{ranks}: wall", "s", seconds),
                _result(f"{ranks}: a million operations", "s", seconds / count * 1e6),
                _result(f"{ranks}: peak memory", "GB", gigabytes),
            ]
    return results


def _write(path: Path, replicas: int) -> int:
    """The number of operations in the table."""

    def slow(step: int, dp: int, stage: int, microbatch: int) -> float:
        return 1.5 if (dp, stage) == (5, 3) else 1.0

    pipeline = Pipeline(
        dp=replicas,
        pp=STAGES,
        steps=STEPS,
        microbatches=MICROBATCHES,
        noise=0.03,
        forward=slow,
        backward=slow,
    )
    table = op_table(pipeline)
    table.write_parquet(path)
    return len(table)


def _search(path: Path) -> tuple[float, float]:
    command = [sys.executable, "-c", _SEARCH, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peak = re.search(r"VmHWM:\s+(\d+)", done)
    assert peak is not None
    return float(done.splitlines()[0]), int(peak.group(1)) * 1024 / 1e9


def _result(name: str, unit: str, value: float) -> Result:
    return Result(name=name, unit=unit, median=value, low=value, high=value, count=1)
