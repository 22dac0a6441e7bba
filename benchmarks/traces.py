"""Reading traces: MB and kernels a second of one core's time, peak memory, and a peer beside it.

The files are made here: 226 MB of Kineto JSON in torch's layout, an Nsight Systems export of half a
million kernels. HolisticTraceAnalysis, where it can be installed from PyPI, reads the same JSON.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.kineto_file import write_kineto
from benchmarks.timing import Result
from steptally.measure.trace_account import TraceOptions, account_for_trace
from steptally.measure.trace_pool import available_cores, measure_sources
from steptally.trace.kinds import load_rules
from steptally.trace.kineto import read_kineto
from steptally.trace.nsys import nsys_parts, read_nsys
from steptally.trace.read import read_traces
from steptally.trace.schema import Trace

MEGABYTES = 226
KERNELS = 500_000
PEER = ("HolisticTraceAnalysis==0.5.0", "pandas==2.2.3")  # with pandas 3 parts of it fail
RUNS = 5
RANKS = 8


def run() -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        kineto, export = Path(folder, "rank0.json"), Path(folder, "report.sqlite")
        write_kineto(kineto, MEGABYTES)
        write_export(export)
        (part,) = nsys_parts(export)
        megabytes = kineto.stat().st_size / 1e6
        ours = cpu_rate("Kineto JSON, read", "MB/s", megabytes, lambda: read_kineto(kineto))
        results = [
            ours,
            cpu_rate(
                "Kineto JSON, with overlap, gaps and kernels",
                "MB/s",
                megabytes,
                lambda: _account(read_kineto(kineto)),
            ),
            peak_memory("peak memory / size of the file", kineto, megabytes),
            peak_memory("the same, low memory", kineto, megabytes, "low_memory=True"),
            cpu_rate(
                "Nsight Systems, kernels with all else",
                "kernels/s",
                KERNELS,
                lambda: read_nsys(export, part),
            ),
            cpu_rate(
                "the same, with overlap, gaps and kernels",
                "kernels/s",
                KERNELS,
                lambda: _account(read_nsys(export, part)),
            ),
            job_of_ranks(Path(folder, "job"), kineto),
        ]
        peer = _peer(Path(folder), kineto, megabytes)
        return [*results, *peer, *(_ratio(ours, one) for one in peer)]


def job_of_ranks(folder: Path, kineto: Path) -> Result:
    """All ranks of a job, each with a file as large, in a process for each core."""
    folder.mkdir()
    text = kineto.read_bytes()
    for rank in range(RANKS):
        own = text.replace(b'"rank": 0', b'"rank": %d' % rank, 1)
        Path(folder, f"rank{rank}.json").write_bytes(own)
    options = TraceOptions(rules=load_rules())
    start = time.perf_counter()
    outcomes = list(measure_sources(read_traces([folder]), options))
    seconds = time.perf_counter() - start
    assert all(outcome.account for outcome in outcomes)
    cores = min(available_cores(), RANKS)
    return _result(f"{RANKS} ranks of {MEGABYTES} MB on {cores} cores, wall", "s", [seconds])


def cpu_rate(name: str, unit: str, work: float, function: Callable[[], object]) -> Result:
    """Work a second of CPU time: other processes of a shared machine count less in it."""
    function()
    rates = []
    for _ in range(RUNS):
        start = time.process_time()
        function()
        rates.append(work / (time.process_time() - start))
    return _result(name, unit, sorted(rates))


def peak_memory(name: str, path: Path, megabytes: float, options: str = "") -> Result:
    """The highest memory of a process that reads the file, in sizes of the file."""
    script = (
        "import re, sys; from pathlib import Path; "
        "from steptally.trace.kineto import read_kineto; "
        f"read_kineto(Path(sys.argv[1]), {options}); "
        # Not getrusage: its maximum outlives exec, and is the parent's.
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text()).group(1))"
    )
    command = [sys.executable, "-c", script, str(path)]
    kibibytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return _result(name, "x", [kibibytes * 1024 / 1e6 / megabytes])


def write_export(path: Path) -> None:
    """An export with as many kernels, each with its launch, as a training step has them."""
    process = (1 << 48) + (4242 << 24)
    names = ["void gemm_kernel<float>()", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", "add()"]
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate([*names, "launch"]))
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, "
        "globalPid, demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ, graphId)"
    )
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)"
    )
    database.executemany(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 14)})",
        (_kernel(n, process) for n in range(KERNELS)),
    )
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
        (
            (60_111_413_113 + 9000 * n, 60_111_417_113 + 9000 * n, process + 77, n, 3)
            for n in range(KERNELS)
        ),
    )
    database.commit()
    database.close()


def _kernel(number: int, process: int) -> tuple[int, ...]:
    """Every 40th is a collective on a stream of its own."""
    start = 60_111_513_113 + 9_000 * number
    stream, name = (13, 1) if number % 40 == 0 else (7, 2 * (number % 2))
    place = (0, stream, number, process, name)
    return (start, start + 7_000, *place, 132 + number % 9, 1, 1, 256, 1, 1, 0)


def _account(trace: Trace) -> None:
    account_for_trace(trace, 0, TraceOptions(rules=load_rules()))


def _peer(folder: Path, kineto: Path, megabytes: float) -> list[Result]:
    """The same file read by HolisticTraceAnalysis in an environment of its own; nothing without."""
    python = folder / "peer" / "bin" / "python"
    script = (
        "import sys, time; from hta.common.trace import Trace; "
        "start = time.process_time(); "
        "trace = Trace(trace_files={0: sys.argv[1]}, trace_dir='/'); "
        "trace.parse_traces(max_ranks=1, use_multiprocessing=False); "
        "print(time.process_time() - start)"
    )
    try:
        subprocess.run([sys.executable, "-m", "venv", folder / "peer"], check=True)
        install = [python, "-m", "pip", "install", "--quiet", *PEER]
        subprocess.run(install, check=True, capture_output=True, timeout=600)
        done = subprocess.run(
            [python, "-c", script, kineto], check=True, capture_output=True, text=True, timeout=900
        )
    except (subprocess.SubprocessError, OSError) as error:
        print(f"  HolisticTraceAnalysis cannot be run here ({type(error).__name__}): left out")
        return []
    seconds = float(done.stdout.split()[-1])
    return [_result("HolisticTraceAnalysis 0.5.0, the same file", "MB/s", [megabytes / seconds])]


def _ratio(ours: Result, peer: Result) -> Result:
    return _result(f"steptally / {peer.name.split(',')[0]}", "x", [ours.median / peer.median])


def _result(name: str, unit: str, values: list[float]) -> Result:
    middle = values[len(values) // 2]
    return Result(
        name=name, unit=unit, median=middle, low=values[0], high=values[-1], count=len(values)
    )
