"""One rank of a run: `torchrun … -m steptally.run.worker --job JOB.json --steps 20`.

Started by `run.launch` under torchrun, never by hand. A rank that fails writes its own error to
`<errors>/rank<N>.txt`, since torchrun reports only that some rank died.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptally.errors import SteptallyError
from steptally.job import Job, job_from_settings
from steptally.run.faults.specification import parse_faults
from steptally.trace.run_directory import ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    import torch

    from steptally.run.train import StepRecorder


def main() -> None:
    """Run this rank; on failure leave its error in a file and exit with status 1."""
    arguments = _parse()
    rank = int(os.environ["RANK"])
    try:
        run_rank(arguments)
    except Exception as error:
        text = str(error) if isinstance(error, SteptallyError) else traceback.format_exc()
        sys.stderr.write(f"rank {rank}: {text}\n")
        if arguments.errors is not None:
            write_error(arguments.errors, rank, text)
        # Other ranks may wait for this one: leave without torch's collective shutdown.
        os._exit(1)


def write_error(directory: Path, rank: int, text: str) -> None:
    """Leave a rank's error where the launcher looks for it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"rank{rank}.txt").write_text(text, encoding="utf-8")


def read_job_settings(path: Path) -> Job:
    """The job that the launcher resolved: `{"name", "source", "settings", "assumed"}`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    job = job_from_settings(content["settings"], name=content["name"], source=content["source"])
    return dataclasses.replace(job, assumed=content.get("assumed", {}))


def run_rank(arguments: argparse.Namespace) -> None:
    """Join the process group, build, train, leave."""
    import torch

    from steptally.engine.groups import initialize_groups, seed_this_rank
    from steptally.run.data import open_source
    from steptally.run.faults.injector import Injector
    from steptally.run.train import prepare, train

    job = read_job_settings(arguments.job)
    source = open_source(arguments.data, job)
    device = _device(job)
    injector = Injector(parse_faults(arguments.inject))
    with injector.entered(), _engine_for(device):
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        place = initialize_groups(job)
        injector.place(job, rank=torch.distributed.get_rank(), stage=place.pp)
        seed_this_rank(job.recipe.seed)
        trainer = prepare(job, device)
        with injector.slow_links(), _recorder(job, arguments) as recorder:
            train(trainer, source, steps=arguments.steps, recorder=recorder, injector=injector)
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


class PrintedSteps:
    """A recorder for a run without a run directory: one JSON line a step on stdout."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.steps = 0

    @contextlib.contextmanager
    def step(self) -> Iterator[PrintedStep]:
        """Print what the step sets, once it has ended."""
        self.steps += 1
        record = PrintedStep()
        yield record
        loss = None if record.loss is None else float(record.loss)
        line = {"step": self.steps, "rank": self.rank, **vars(record), "loss": loss}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class PrintedStep:
    """What `run.train` sets on a step."""

    def __init__(self) -> None:
        self.loss: Any = None
        self.grad_norm: Any = None
        self.tokens: int | None = None


def _recorder(
    job: Job, arguments: argparse.Namespace
) -> contextlib.AbstractContextManager[StepRecorder]:
    """Into the launcher's run directory; on stdout where there is none."""
    if ENVIRONMENT_VARIABLE not in os.environ:
        return contextlib.nullcontext(PrintedSteps(int(os.environ["RANK"])))
    from steptally.run.record import Recorder

    return Recorder(
        name=job.name,
        job=job,
        steps=arguments.steps,
        warmup_steps=arguments.warmup_steps,
        traced_steps=arguments.traced_steps,
    )


def _device(job: Job) -> torch.device:
    """This rank's own GPU, or the CPU."""
    import torch

    if (
        job.layout.tensor_model_parallel_size > 1
        and not job.recipe.overlap_moe_expert_parallel_comm
    ):
        # Megatron-LM insists on it before Blackwell: it keeps kernels in the order of their launch.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")

    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def _engine_for(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Megatron-Core as it is on CUDA; with the CPU shim elsewhere."""
    from steptally.engine.cpu import megatron_on_cpu

    return contextlib.nullcontext() if device.type == "cuda" else megatron_on_cpu()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m steptally.run.worker")
    parser.add_argument("--job", type=Path, required=True, help="JSON of the resolved job")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warmup-steps", type=int, default=2)
    parser.add_argument("--traced-steps", type=_numbers, help="1-based: 6,7", metavar="LIST")
    parser.add_argument("--data", default="corpus", help="corpus, random, or a text file")
    parser.add_argument("--inject", action="append", default=[], metavar="SPEC", help="a fault")
    parser.add_argument("--errors", type=Path, help="folder for the errors of failed ranks")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


if __name__ == "__main__":
    main()
