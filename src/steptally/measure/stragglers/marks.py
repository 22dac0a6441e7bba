"""Where in a rank's recording backward runs, and where a step's model begins."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from steptally.trace.intervals import EMPTY, Intervals, merge
from steptally.trace.schema import Trace

# Autograd's engine shows each backward node as an operator of this name.
_NODE = "autograd::engine::evaluate_function: "
# The operator by which a rank is slowed on purpose (run/faults/slow_compute.py).
DELAY_OPERATOR = "steptally::injected_delay"
# What a model computes and neither loading a batch nor clearing gradients does.
_MODEL_OPERATORS = re.compile(
    r"^(aten|te|transformer_engine|apex)::.*(embedding|linear|matmul|mm|layer_norm|rms_norm|attention)"
)
_MODEL_KERNELS = re.compile(
    r"gemm|cutlass|cublas|nvjet|matmul|embedding|norm|attention|flash|fmha", re.IGNORECASE
)


def backward_runs(trace: Trace, work: pl.DataFrame | None = None) -> Intervals:
    """The runs of backward: from a first node to the last before other work begins.

    On a CPU rank in the time of its operators; on a device (`work`, `measure.device_work`) in that
    of the kernels that were launched inside, which may start long after.
    """
    runs = _host_runs(trace)
    if work is None or not len(runs):
        return runs
    launched = work.filter(pl.col("launch_start_ns").is_not_null() & (pl.col("kind") == "compute"))
    launched = launched.sort("start_ns")
    inside = _inside(launched["launch_start_ns"].to_numpy(), runs)
    return _consecutive(launched["start_ns"].to_numpy(), launched["end_ns"].to_numpy(), inside)


def model_begins(trace: Trace, steps: pl.DataFrame, work: pl.DataFrame | None) -> dict[int, int]:
    """By step: when the first operator or kernel of its model starts; only steps that have any."""
    if work is not None:
        pattern, rows = _MODEL_KERNELS, work.filter(pl.col("kind") == "compute")
    else:
        pattern, rows = _MODEL_OPERATORS, trace.events.filter(pl.col("kind") == "operator")
    known = [name for name in rows["name"].unique().drop_nulls() if pattern.search(name)]
    starts = np.sort(rows.filter(pl.col("name").is_in(known))["start_ns"].to_numpy())
    begins = {}
    for step, start, end in steps.iter_rows():
        first = np.searchsorted(starts, start)
        if first < starts.size and starts[first] < end:
            begins[step] = int(starts[first])
    return begins


def _host_runs(trace: Trace) -> Intervals:
    """Runs of outermost operators that are backward nodes, on the threads that run any."""
    operators = trace.events.filter(pl.col("kind") == "operator")
    threads = operators.filter(pl.col("name").str.starts_with(_NODE))["thread"].unique()
    if threads.is_empty():
        return EMPTY
    own = operators.filter(pl.col("thread").is_in(threads.implode())).sort(
        "thread", "start_ns", pl.col("end_ns").neg()
    )
    reach = pl.col("end_ns").cum_max().shift(1).over("thread").fill_null(0)
    outermost = own.filter(pl.col("start_ns") >= reach)
    # A thread of autograd's own runs nothing else, and its runs end where the caller goes on.
    outermost = outermost.sort("start_ns")
    node = pl.col("name").str.starts_with(_NODE)
    # What `steptally run --inject` adds belongs to what it slows: the pass before it.
    told = pl.when(pl.col("name") != DELAY_OPERATOR).then(node)
    nodes = outermost.select(told.forward_fill().fill_null(False)).to_series().to_numpy()
    return _consecutive(outermost["start_ns"].to_numpy(), outermost["end_ns"].to_numpy(), nodes)


def _consecutive(starts: np.ndarray, ends: np.ndarray, chosen: np.ndarray) -> Intervals:
    """From first start to last end of each run of rows that are `chosen`, in order."""
    edges = np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    reach = np.maximum.accumulate(ends) if ends.size else ends
    return merge(starts[first], reach[last])


def _inside(times: np.ndarray, runs: Intervals) -> np.ndarray:
    return np.asarray(np.searchsorted(runs.ravel(), times, side="right") % 2 == 1)
