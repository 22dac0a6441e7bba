"""Whole rehearsals of two large jobs, all stages, and the largest resident memory of a process."""

from __future__ import annotations

import resource
import time

from benchmarks.timing import Result
from steptally.job import read_job
from steptally.rehearse.pool import rehearse_all, usable_processes
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import make_rehearsable

SHARDED = ("use_distributed_optimizer=true", "sequence_parallel=true", "bf16=true")
JOBS = {
    "gpt3-175b, 1,024 ranks, 16 micro-batches": (
        "gpt3-175b",
        (
            *("tensor_model_parallel_size=8", "pipeline_model_parallel_size=8"),
            *("world_size=1024", "global_batch_size=256", "transformer_impl=local"),
        ),
    ),
    "llama-3.1-405b, 16,384 ranks, full recompute": (
        "llama-3.1-405b",
        (
            *("tensor_model_parallel_size=8", "pipeline_model_parallel_size=16"),
            *("context_parallel_size=16", "world_size=16384", "seq_length=131072"),
            *("decoder_first_pipeline_num_layers=7", "decoder_last_pipeline_num_layers=7"),
            *("recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"),
            "global_batch_size=128",
        ),
    ),
}


def run() -> list[Result]:
    found = []
    for name, (model, settings) in JOBS.items():
        job = read_job(model, (*settings, *SHARDED))
        start = time.perf_counter()
        rehearse_all(make_rehearsable(job), Routing(), processes=usable_processes())
        seconds = time.perf_counter() - start
        found.append(_once(f"all stages of {name}", "s", seconds))
    # Of the processes that have ended: the pool's.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return [*found, _once("largest process of a rehearsal", "MiB", peak)]


def _once(name: str, unit: str, value: float) -> Result:
    return Result(name=name, unit=unit, median=value, low=value, high=value, count=1)
