"""Ranks whose collectives of equal size run in several process groups at once.

Run by test_gloo_attribution.py, and once by hand for tests/data/gloo_groups. Leaves a run directory
and, for each rank, `threads<RANK>.json`: which of gloo's threads belong to which group, learnt from
the operating system when the group was made, not from the trace.
"""

import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import steptally

ELEMENTS = 200_000
GROUPS = (
    "TENSOR_MODEL_PARALLEL_GROUP",
    "DATA_PARALLEL_GROUP_WITH_CP",
    "CONTEXT_PARALLEL_GROUP",
)


def threads_of_this_process():
    """The name of each thread, by its id."""
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): (task / "comm").read_text().strip() for task in tasks}


def new_gloo_threads(before):
    """The two threads that gloo starts for a group, once both have given themselves a name."""
    for _ in range(1000):
        now = threads_of_this_process()
        found = [t for t, name in now.items() if t not in before and name == "pt_gloo_runloop"]
        if len(found) == 2:
            return found
        time.sleep(0.01)
    raise TimeoutError(f"gloo started {found} for a group, not two threads")


def made_groups():
    """One process group of all ranks for each name, and the gloo threads that came with it."""
    groups, threads = {}, {}
    new_gloo_threads(before=())  # the default group's
    for name in GROUPS:
        before = threads_of_this_process()
        groups[name] = dist.new_group(list(range(dist.get_world_size())), group_desc=name)
        threads |= dict.fromkeys(new_gloo_threads(before), name)
    return groups, threads


def issue(kind, group, size):
    """Start one collective that moves as many elements as every other one does."""
    data = torch.ones(ELEMENTS)
    if kind == "all_reduce":
        return dist.all_reduce(data, group=group, async_op=True)
    if kind == "reduce_scatter":  # gloo runs it as an all-reduce of the whole input
        output = torch.empty(ELEMENTS // size)
        return dist.reduce_scatter_tensor(output, data, group=group, async_op=True)
    output = torch.empty(ELEMENTS * size)
    return dist.all_gather_into_tensor(output, data, group=group, async_op=True)


def one_step(groups, order):
    """Collectives of all groups in flight together, waited for in another order."""
    size = dist.get_world_size()
    for _ in range(4):
        works = []
        for name in order.sample(GROUPS, k=len(GROUPS)):
            kinds = order.choices(("all_reduce", "reduce_scatter", "all_gather"), k=2)
            works += [issue(kind, groups[name], size) for kind in kinds]
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
        order.shuffle(works)
        for work in works:
            work.wait()


def main(directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups, threads = made_groups()
    order = random.Random(7)  # the same on every rank: all issue in one order
    with steptally.Recorder(directory, steps=3, warmup_steps=0, traced_steps=(2, 3)) as recorder:
        for _ in range(3):
            with recorder.step():
                one_step(groups, order)
        path = Path(directory) / f"threads{dist.get_rank()}.json"
        path.write_text(json.dumps(threads), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
