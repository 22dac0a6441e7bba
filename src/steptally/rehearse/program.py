"""One rank's training step, run by Megatron-Core on fake tensors under the recorder."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

from steptally.engine.config import optimizer_config, transformer_config
from steptally.engine.cpu import replaced
from steptally.engine.model import connect_schedule, wrap_for_data_parallel
from steptally.job import Job
from steptally.rehearse.model import build_chunks
from steptally.rehearse.passes import Pass, Passes
from steptally.rehearse.phases import BUILD, GRADIENTS, OPTIMIZER
from steptally.rehearse.purposes import MAIN_GRADIENT, PARAMETER
from steptally.rehearse.recorder import Operation, Recorder
from steptally.rehearse.routing import Routing
from steptally.rehearse.shapes import announced_shapes
from steptally.rehearse.storages import Allocation
from steptally.rehearse.substitutions import Rehearsable
from steptally.rehearse.world import fake_world


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What one rank did in one step, in its order; `parameters` of each chunk in Megatron's.

    `step_began` and `update_began` are the moments, as those of the allocations, at which the step
    and its optimizer update began.
    """

    rank: int
    microbatches: int
    parameters: tuple[tuple[tuple[str, int], ...], ...]
    operations: list[Operation]
    allocations: list[Allocation]
    passes: list[Pass]
    step_began: int
    update_began: int


def rehearse_rank(
    rehearsable: Rehearsable, rank: int, routing: Routing, microbatches: int
) -> Rehearsal:
    """Run one optimizer step of `rank` with that many micro-batches.

    Raises what megatron-core raises where it refuses the job; `rehearse.worker` makes a sentence of
    it.
    """
    job, recorder = rehearsable.job, Recorder()
    with fake_world(rehearsable, rank, recorder, routing):
        config = transformer_config(job)
        bare = build_chunks(job, config, rehearsable.stand_ins)
        parameters = tuple(
            tuple((name, tensor.numel()) for name, tensor in chunk.named_parameters())
            for chunk in bare
        )
        chunks = wrap_for_data_parallel(job, config, bare)
        with recorder.during(OPTIMIZER):
            optimizer = get_megatron_optimizer(
                optimizer_config(job), chunks, use_gloo_process_groups=False
            )
        recorder.places.name_modules(bare)
        _name_what_lasts(recorder, chunks)
        built, passes = len(recorder.operations), Passes(recorder, chunks)
        step_began = recorder.storages.moment
        connect_schedule(job, config, chunks, optimizer)
        with contextlib.ExitStack() as stack:
            for replacement in passes.replacements():
                stack.enter_context(replaced(replacement))
            if config.mtp_standalone:
                shapes = announced_shapes(config, microbatches, _message_shape(job), recorder)
                stack.enter_context(replaced(shapes))
            config.finalize_model_grads_func = recorder.staged(GRADIENTS, finalize_model_grads)
            _run_passes(job, chunks, optimizer, recorder, microbatches)
        update_began = recorder.storages.moment
        with recorder.during(OPTIMIZER):
            optimizer.step()
        operations = recorder.operations[built:]
        # The next step begins so: gradients that the update made for main parameters end here.
        with recorder.during(OPTIMIZER):
            optimizer.zero_grad()
        recorder.storages.forget_everything()
    return Rehearsal(
        rank=rank,
        microbatches=microbatches,
        parameters=parameters,
        operations=operations,
        allocations=recorder.storages.allocations,
        passes=passes.noted,
        step_began=step_began,
        update_began=update_began,
    )


def _name_what_lasts(recorder: Recorder, chunks: list[Any]) -> None:
    """Parameters and main gradients, also where Megatron keeps them in one buffer."""
    for chunk in chunks:
        for parameter in chunk.module.parameters():
            for lifetime, tensor in (
                (PARAMETER, parameter),
                (MAIN_GRADIENT, getattr(parameter, "main_grad", None)),
            ):
                allocation = None if tensor is None else recorder.storages.of(tensor)
                if allocation is not None:
                    allocation.lifetime = lifetime
                    allocation.is_weight = lifetime == PARAMETER


def _run_passes(
    job: Job, chunks: list[Any], optimizer: Any, recorder: Recorder, microbatches: int
) -> None:
    """Zero the gradients and run the schedule, as Megatron-LM's `train_step` does."""
    layout = job.layout
    length = layout.seq_length // layout.context_parallel_size
    with recorder.during(BUILD):
        tokens = torch.zeros(layout.micro_batch_size, length, dtype=torch.long)
        positions = torch.arange(length).expand(layout.micro_batch_size, -1)
        loss_mask = torch.ones(layout.micro_batch_size, length)
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()

    def forward_step(_: Any, model: Any) -> tuple[Any, Any]:
        return model(tokens, positions, None, labels=tokens, loss_mask=loss_mask), mean_loss

    with recorder.during(None):
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=[None] * len(chunks) if len(chunks) > 1 else None,
            model=chunks,
            num_microbatches=microbatches,
            seq_length=layout.seq_length,
            micro_batch_size=layout.micro_batch_size,
            forward_only=False,
        )


def _message_shape(job: Job) -> list[int]:
    """[sequence of one rank, micro-batch, hidden], what one stage sends to the next."""
    layout = job.layout
    length = layout.seq_length // layout.context_parallel_size
    if layout.sequence_parallel:
        length //= layout.tensor_model_parallel_size
    return [length, layout.micro_batch_size, job.architecture.hidden_size]


def mean_loss(token_losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """The sum over tokens and their number, which Megatron divides by."""
    return token_losses.float().sum(), torch.tensor(token_losses.numel(), dtype=torch.int), {}
