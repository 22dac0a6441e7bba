"""Bandwidth of gloo between two processes of this machine, over loopback.

`python -m steptally.run.gloo_rate RENDEZVOUS RANK` is one of the two processes; rank 0 prints the
times as JSON. For two ranks, the bytes of the tensor over the time of an all-reduce are both
NCCL's algorithm bandwidth and its bus bandwidth, 2(n − 1)/n = 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from steptally.errors import RunError
from steptally.job.calibration import Samples

SIZES_BYTES = (4 * 1024, 1024**2, 16 * 1024**2)
REPETITIONS = 10
# Two imports of torch on a busy machine take most of it.
LONGEST_S = 180


def gloo_rates() -> list[Samples]:
    """All-reduce of fp32 over 2 ranks: seconds for 4 KiB (a latency), bytes/s for larger ones.

    Raises `RunError` where the two processes fail, with the failing one's last words.
    """
    times_s = _measured()
    measured = []
    for size_bytes in SIZES_BYTES:
        small = size_bytes < 1024**2
        words = f"{size_bytes // 1024} KiB" if small else f"{size_bytes // 1024**2} MiB"
        samples = times_s[str(size_bytes)]
        measured.append(
            Samples(
                quantity=f"gloo all_reduce {words}",
                case="2 ranks, loopback",
                unit="s" if small else "byte/s",
                samples=tuple(samples if small else (size_bytes / time_s for time_s in samples)),
            )
        )
    return measured


def _measured() -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="steptally-gloo-") as directory:
        rendezvous = str(Path(directory) / "rendezvous")
        ranks = [_start(rendezvous, rank) for rank in range(2)]
        try:
            ends = [rank.communicate(timeout=LONGEST_S) for rank in ranks]
        except subprocess.TimeoutExpired as error:
            raise RunError(
                f"gloo over loopback did not finish within {LONGEST_S} s: see whether the network "
                f"interface {_loopback()!r} is up, then run `steptally calibrate` again."
            ) from error
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    for number, (rank, (_, said)) in enumerate(zip(ranks, ends, strict=True)):
        if rank.returncode:
            last_line = (said.strip().splitlines() or ["no message"])[-1]
            raise RunError(f"gloo over loopback failed; rank {number} said: {last_line}")
    times_s: dict[str, list[float]] = json.loads(ends[0][0])
    return times_s


def _start(rendezvous: str, rank: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "steptally.run.gloo_rate", rendezvous, str(rank)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # gloo else binds to the interface that the host name resolves to.
        env=os.environ | {"GLOO_SOCKET_IFNAME": _loopback(), "OMP_NUM_THREADS": "1"},
    )


def _loopback() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"


def _work(rendezvous: str, rank: int) -> None:
    """One of the two processes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=LONGEST_S),
    )
    times_s: dict[int, list[float]] = {}
    for size_bytes in SIZES_BYTES:
        tensor = torch.ones(size_bytes // 4)
        times_s[size_bytes] = []
        for repetition in range(REPETITIONS + 2):
            tensor.fill_(1.0)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if repetition >= 2:  # the first ones set up gloo's buffers
                times_s[size_bytes].append(time.perf_counter() - start)
    dist.destroy_process_group()
    if rank == 0:
        sys.stdout.write(json.dumps(times_s))


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
