"""The memory account: jobs a second with every rank, layouts a second as arrays, on one core."""

from __future__ import annotations

import numpy

from benchmarks.timing import Result, rate
from steptally.job import read_job
from steptally.predict.layout_flops import layouts_flops
from steptally.predict.memory.layouts import Layouts
from steptally.predict.memory.search import worst_stage_bytes
from steptally.predict.memory.stage import all_stages

SCALAR_JOBS = 500
ARRAY_LAYOUTS = 8_192  # arrays that stay in a core's cache
ARRAY_CALLS = 8
JOBS = {
    "gpt3-175b PP8": (
        "gpt3-175b",
        ("tensor_model_parallel_size=8", "pipeline_model_parallel_size=8", "world_size=64"),
    ),
    "llama-3-8b": ("llama-3-8b", ("tensor_model_parallel_size=2", "world_size=8")),
    "qwen3-30b-a3b": (
        "qwen3-30b-a3b",
        (
            "tensor_model_parallel_size=2",
            "expert_model_parallel_size=4",
            "expert_tensor_parallel_size=1",
            "world_size=8",
        ),
    ),
    "deepseek-v3 PP16": (
        "deepseek-v3",
        (
            "tensor_model_parallel_size=2",
            "pipeline_model_parallel_size=16",
            "decoder_first_pipeline_num_layers=3",
            "decoder_last_pipeline_num_layers=2",
            "expert_model_parallel_size=8",
            "world_size=256",
        ),
    ),
}
# Equal stages and no multi-token prediction: what a search over layouts can vary.
SEARCHED = ("gpt3-175b PP8", "llama-3-8b", "qwen3-30b-a3b")
RECIPE = ("bf16=true", "use_distributed_optimizer=true", "global_batch_size=512")


def run() -> list[Result]:
    jobs = {name: read_job(model, (*settings, *RECIPE)) for name, (model, settings) in JOBS.items()}
    return [
        *(_scalar(name, job) for name, job in jobs.items()),
        *(_array(name, jobs[name]) for name in SEARCHED),
    ]


def _scalar(name, job):
    def call():
        for _ in range(SCALAR_JOBS):
            all_stages(job)

    return rate(f"memory of every rank, {name}", "jobs/s", SCALAR_JOBS, call)


def _array(name, job):
    """Worst-stage memory and FLOPs of the same layouts."""
    random = numpy.random.default_rng(0)

    def choice(*values):
        return random.choice(values, ARRAY_LAYOUTS).astype(float)

    layouts = Layouts(
        tensor_model_parallel_size=choice(1, 2, 4, 8),
        pipeline_model_parallel_size=choice(1, 2, 4, 8),
        virtual_size=choice(1, 2),
        context_parallel_size=choice(1, 2),
        expert_model_parallel_size=choice(1, 2, 4, 8),
        expert_tensor_parallel_size=choice(1),
        data_parallel_size=choice(1, 2, 4, 8),
        micro_batch_size=choice(1, 2, 4),
        num_microbatches=choice(8, 16, 32),
    )
    varied = {
        "tensor_model_parallel_size": layouts.tensor_model_parallel_size,
        "global_batch_size": layouts.data_parallel_size
        * layouts.micro_batch_size
        * layouts.num_microbatches,
    }

    def call():
        for _ in range(ARRAY_CALLS):
            worst_stage_bytes(job, layouts)
            layouts_flops(job, varied)

    work = ARRAY_CALLS * ARRAY_LAYOUTS
    return rate(f"worst-stage memory and FLOPs, {name}", "layouts/s", work, call)
