"""The FLOP account: jobs a second, one at a time and as arrays of layouts, on one core."""

from __future__ import annotations

import numpy

from benchmarks.timing import Result, rate
from steptally.job import read_job
from steptally.predict.conventions import CONVENTIONS
from steptally.predict.flops import flops_per_step, useful_flops
from steptally.predict.layers import count_layer_kinds
from steptally.predict.layout_flops import layouts_flops

SCALAR_JOBS = 2_000
ARRAY_LAYOUTS = 1_000_000


def run() -> list[Result]:
    models = ("gpt3-175b", "llama-3-8b", "deepseek-v3")
    return [
        *(_scalar(model) for model in models),
        rate(
            "megatron-lm convention, deepseek-v3",
            "jobs/s",
            SCALAR_JOBS,
            _repeat(useful_flops, read_job("deepseek-v3"), CONVENTIONS["megatron-lm"]),
        ),
        *(_array(model) for model in models),
    ]


def _scalar(model: str) -> Result:
    return rate(
        f"flops_per_step, {model}", "jobs/s", SCALAR_JOBS, _repeat(flops_per_step, read_job(model))
    )


def _repeat(function, *arguments):
    def call():
        for _ in range(SCALAR_JOBS):
            function(*arguments)

    return call


def _array(model: str) -> Result:
    job = read_job(model)
    random = numpy.random.default_rng(0)
    layouts = {
        "tensor_model_parallel_size": random.choice([1.0, 2.0, 4.0, 8.0], ARRAY_LAYOUTS),
        "global_batch_size": random.integers(1, 4096, ARRAY_LAYOUTS).astype(float),
    }
    rerun = {
        kind: random.integers(0, layers + 1, ARRAY_LAYOUTS).astype(float)
        for kind, layers in count_layer_kinds(job.architecture).items()
    }
    return rate(
        f"layouts_flops, {model}",
        "layouts/s",
        ARRAY_LAYOUTS,
        lambda: layouts_flops(job, layouts, rerun),
    )
