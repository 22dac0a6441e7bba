"""Small Kineto traces of a device, made by hand: times in microseconds, on one clock."""

import json
from itertools import count

from steptally.measure.device_work import device_work, host_launches, with_steps
from steptally.measure.step_finding import find_steps
from steptally.measure.trace_account import TraceOptions, account_for_trace
from steptally.trace.kinds import load_rules
from steptally.trace.kineto import read_kineto

HOST, MAIN, COMPUTE, NCCL = 900, 901, 7, 20
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

_numbers = count(1)


def event(category, name, start, end, *, process=HOST, thread=MAIN, **arguments):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": end - start,
        "args": arguments,
    }


def call(name, start, end, thread=MAIN, correlation=None):
    """A call of the runtime that launches nothing, or what `correlation` says."""
    number = next(_numbers) if correlation is None else correlation
    return event("cuda_runtime", name, start, end, thread=thread, correlation=number)


def on_device(
    category, name, start, end, *, stream=COMPUTE, launched=None, launch="cudaLaunchKernel",
    thread=MAIN, took=1, **arguments,
):  # fmt: skip
    """A piece of device work, and the call at `launched` that put it there (none if None)."""
    number = next(_numbers)
    placed = {"device": 0, "stream": stream, "correlation": number, **arguments}
    work = event(category, name, start, end, process=0, thread=stream, **placed)
    if launched is None:
        return [work]
    return [call(launch, launched, launched + took, thread, number), work]


def kernel(name, start, end, **where):
    return on_device("kernel", name, start, end, **where)


def nccl(start, end, stream=NCCL, group=None, ranks=None, **where):
    """An NCCL kernel; `group` is (number, description)."""
    told = {}
    if group is not None:
        told = {
            "Collective name": "allreduce",
            "Process Group Name": group[0],
            "Process Group Description": group[1],
            "Group size": len(ranks or (0, 1)),
            "Process Group Ranks": json.dumps(list(ranks or (0, 1))),
            "In msg nelems": 1024,
            "Out msg nelems": 1024,
            "dtype": "BFloat16",
        }
    return on_device("kernel", NCCL_KERNEL, start, end, stream=stream, **where, **told)


def copy(start, end, name="Memcpy HtoD (Pinned -> Device)", **where):
    where = {"launch": "cudaMemcpyAsync", "stream": 13, **where}
    return on_device("gpu_memcpy", name, start, end, **where)


def step(number, start, end):
    return [event("user_annotation", f"ProfilerStep#{number}", start, end)]


def operator(name, start, end, dimensions=None, types=None, thread=MAIN):
    arguments = {}
    if dimensions is not None:
        arguments = {"Input Dims": dimensions, "Input type": types or ["float"] * len(dimensions)}
    return [event("cpu_op", name, start, end, thread=thread, **arguments)]


def write_trace(path, *events, **entries):
    """A file of these events (lists of them), with file-wide entries beside."""
    flat = [one for part in events for one in (part if isinstance(part, list) else [part])]
    path.write_text(json.dumps({**entries, "traceEvents": flat}))
    return path


def read_trace(path, *events, **entries):
    return read_kineto(write_trace(path, *events, **entries))


def account(path, *events, steps=None, job=None, rank=0, **entries):
    """The account of a trace of these events."""
    options = TraceOptions(rules=load_rules(), steps=steps, job=job)
    return account_for_trace(read_trace(path, *events, **entries), rank, options)


def work_of(trace):
    """A trace's device work with its steps, and its launches."""
    launches = host_launches(trace.events)
    work = device_work(trace.events, launches)
    return with_steps(work, find_steps(trace.events, work)), launches


def microseconds(row, *names):
    return tuple(getattr(row, f"{name}_ns") / 1000 for name in names)
