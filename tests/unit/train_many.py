"""One rank that trains several jobs in turn, so that a test pays for the imports once.

    torchrun --nproc-per-node N tests/unit/train_many.py JOBS.json

JOBS.json maps a label to [steps, settings]. The last pipeline stage of the first replica prints one
JSON line a job: its label, and the loss of each step.
"""

import json
import sys
from pathlib import Path

import torch
from megatron.core import parallel_state

from steptally.engine.cpu import megatron_on_cpu
from steptally.engine.groups import initialize_groups, seed_this_rank
from steptally.job import job_from_settings
from steptally.run.data import open_source
from steptally.run.train import prepare, train_step


def main():
    jobs = json.loads(Path(sys.argv[1]).read_text())
    with megatron_on_cpu():
        torch.distributed.init_process_group("gloo")
        for label, (steps, settings) in jobs.items():
            coordinates, losses = train(job_from_settings(settings), steps)
            last_stage = (
                coordinates.pp == parallel_state.get_pipeline_model_parallel_world_size() - 1
            )
            if last_stage and coordinates.tp == coordinates.dp == 0:
                print(json.dumps({"label": label, "losses": losses}), flush=True)
            parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def train(job, steps):
    coordinates = initialize_groups(job)
    seed_this_rank(job.recipe.seed)
    trainer, source = prepare(job, torch.device("cpu")), open_source("corpus", job)
    losses = [train_step(trainer, source, step)[0] for step in range(1, steps + 1)]
    return coordinates, [None if loss is None else float(loss) for loss in losses]


if __name__ == "__main__":
    main()
