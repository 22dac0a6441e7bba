"""The training loop of one rank: Megatron-Core's own schedule, DDP and optimizer.

The same code runs on CPU over gloo (inside `engine.cpu.megatron_on_cpu`) and on CUDA over NCCL.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

from steptally.engine.config import optimizer_config, transformer_config
from steptally.engine.model import build_chunks, connect_schedule, wrap_for_data_parallel
from steptally.engine.weights import fill_weights
from steptally.errors import RunError
from steptally.job import Job
from steptally.run.data import TokenSource, micro_batches
from steptally.run.faults.injector import Injector


class StepRecord(Protocol):
    """What a step leaves behind; the recorder reads it once the step is over."""

    loss: Any
    grad_norm: Any
    tokens: int | None


class StepRecorder(Protocol):
    """Times and traces one step of this rank (`run.record.Recorder`)."""

    def step(self) -> AbstractContextManager[StepRecord]:
        """A context around one whole training step."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """This rank's model and optimizer, ready for its first step."""

    job: Job
    config: TransformerConfig
    chunks: list[DistributedDataParallel]
    optimizer: MegatronOptimizer
    device: torch.device


def prepare(job: Job, device: torch.device) -> Trainer:
    """Build this rank's model chunks and optimizer. The process groups must exist."""
    config = transformer_config(job)
    bare_chunks = build_chunks(job, config)
    for chunk in bare_chunks:
        fill_weights(chunk, seed=job.recipe.seed)
    chunks = wrap_for_data_parallel(job, config, bare_chunks)
    optimizer = get_megatron_optimizer(optimizer_config(job), chunks, use_gloo_process_groups=False)
    connect_schedule(job, config, chunks, optimizer)
    return Trainer(job=job, config=config, chunks=chunks, optimizer=optimizer, device=device)


def train(
    trainer: Trainer,
    source: TokenSource,
    *,
    steps: int,
    recorder: StepRecorder,
    injector: Injector | None = None,
) -> None:
    """Run `steps` optimizer steps (counted from 1), each inside the recorder's context.

    Faults of the `injector` act inside the step, so that they are recorded as part of it.

    Raises `RunError` where the loss or the gradients are not finite.
    """
    for step in range(1, steps + 1):
        faults = nullcontext() if injector is None else injector.step(step, trainer.chunks)
        with recorder.step() as record, faults:
            loss, record.grad_norm = train_step(trainer, source, step, injector)
            record.loss = loss
            record.tokens = trainer.job.layout.tokens_per_step
        if loss is not None and not torch.isfinite(loss):
            raise _not_finite(trainer.job, step, "loss")


def train_step(
    trainer: Trainer, source: TokenSource, step: int, injector: Injector | None = None
) -> tuple[torch.Tensor | None, float | None]:
    """One forward, backward and update: the loss and the norm of all gradients.

    The loss is the mean over the global batch, on the ranks of the last pipeline stage, and None
    elsewhere; the norm is None where fp16's loss scaler skipped the update.
    """
    layout = trainer.job.layout
    for chunk in trainer.chunks:
        chunk.zero_grad_buffer()
    trainer.optimizer.zero_grad()
    iterators = [_on_device(trainer, source, step) for _ in trainer.chunks]
    if injector is not None:
        iterators = [injector.batches(batches) for batches in iterators]
    try:
        sums = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=trainer.chunks,
            num_microbatches=layout.num_microbatches,
            seq_length=layout.seq_length,
            micro_batch_size=layout.micro_batch_size,
            forward_only=False,
        )
    except RuntimeError as error:
        if "found NaN" in str(error) or "found Inf" in str(error):  # Megatron's own check
            raise _not_finite(trainer.job, step, "gradient") from error
        raise
    _, grad_norm, _ = trainer.optimizer.step()
    return _mean_loss(sums), grad_norm


def forward_step(
    batches: Iterator[dict[str, torch.Tensor]], model: Any, return_schedule_plan: bool = False
) -> tuple[Any, Any]:
    """Megatron's forward step: the model's output for the next micro-batch, and its loss.

    `return_schedule_plan` asks for the plan that overlaps experts' all-to-all with compute.
    """
    batch = next(batches)
    inputs = (batch["tokens"], batch["position_ids"], None)  # None: the causal mask
    if return_schedule_plan:
        plan = model.build_schedule_plan(*inputs, labels=batch["labels"])
        return plan, summed_loss
    return model(*inputs, labels=batch["labels"]), summed_loss


def summed_loss(token_losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """From [micro_batch, sequence] losses: their sum, their count, and both for the log.

    Megatron divides the first by the second and by the number of micro-batches, and DDP averages
    over replicas: the gradient is that of the mean over the global batch.
    """
    total = token_losses.float().sum()
    count = torch.tensor(token_losses.numel(), dtype=torch.int, device=total.device)
    logged = torch.stack([total.detach().double(), count.double()])
    return total, count, logged


def _on_device(
    trainer: Trainer, source: TokenSource, step: int
) -> Iterator[dict[str, torch.Tensor]]:
    layout = trainer.job.layout
    as_tensor = partial(torch.as_tensor, device=trainer.device)
    positions = torch.arange(layout.seq_length, device=trainer.device)
    for batch in micro_batches(
        source,
        layout,
        seed=trainer.job.recipe.seed,
        step=step,
        dp_rank=parallel_state.get_data_parallel_rank(),
    ):
        yield {
            "tokens": as_tensor(batch.tokens),
            "labels": as_tensor(batch.labels),
            "position_ids": positions.expand(len(batch.tokens), -1),
        }


def _mean_loss(sums: list[torch.Tensor]) -> torch.Tensor | None:
    """The mean loss over the global batch's tokens; None except on the last pipeline stage."""
    if not sums:
        return None
    total = torch.stack(sums).sum(dim=0)
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    torch.distributed.all_reduce(total, group=group)
    return total[0] / total[1]


def _not_finite(job: Job, step: int, what: str) -> RunError:
    return RunError(
        f"the {what} of step {step} is not finite: training has diverged. Use a lower lr than "
        f"{job.recipe.lr}, or more precision than {job.recipe.params_dtype}."
    )
