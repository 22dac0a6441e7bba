"""A rank for test_launch.py: all-reduces in recorded steps, and fails as it is told.

`python -m launched_loop HOW`: `traced` (10 steps), `raise` (rank 1 raises in step 8), `forever` and
`traced-forever` (each rank with a child process that must not be left behind).
"""

import subprocess
import sys
import time

import torch
import torch.distributed as dist

import steptally


def main(how):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if "forever" in how:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    steps = 1_000_000 if "forever" in how else 10
    traced = (2, 3) if "traced" in how else ()
    with steptally.Recorder(steps=steps, warmup_steps=1, traced_steps=traced) as recorder:
        for _ in range(steps):
            with recorder.step() as step:
                if how == "raise" and rank == 1 and step.number == 8:
                    raise ValueError("the data ended\nin the middle of a batch")
                dist.all_reduce(torch.ones(16))
                step.loss = 1.0 / step.number
                time.sleep(0.01)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
