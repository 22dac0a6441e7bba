"""Shapes that pipeline stages tell each other, where multi-token prediction has a stage of its own.

Behind that stage a message holds the hidden states of the model and of every depth. Megatron-Core
then sends each tensor's shape ahead of it (`P2PCommunicator._communicate_shapes`); fake tensors
have no values, so what would arrive is worked out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator
from megatron.core.pipeline_parallel.schedules import get_schedule_table
from megatron.core.transformer.enums import LayerType

from steptally.engine.cpu import Replacement, replaced
from steptally.rehearse.phases import BACKWARD, FORWARD
from steptally.rehearse.recorder import Recorder

Shape = list[int]


def announced_shapes(
    config: Any, microbatches: int, plain: Shape, recorder: Recorder
) -> Replacement:
    """Shapes arrive as the schedule deals micro-batches to chunks; `plain` is without predictions.

    The k-th tensor that a rank receives belongs to the k-th micro-batch and chunk of the schedule
    that are not the first stage, and the k-th gradient to those that are not the last.
    """
    chunks = config.virtual_pipeline_model_parallel_size or 1
    group = config.microbatch_group_size_per_vp_stage or microbatches
    order = [chunk for _, chunk in get_schedule_table(microbatches, chunks, group)]
    activations = _shapes(config, order, plain, backward=False)
    gradients = _shapes(config, [chunks - 1 - chunk for chunk in order], plain, backward=True)
    original = P2PCommunicator._communicate_shapes

    def communicate(self: Any, to_next: Any, to_prev: Any, prev: bool, following: bool) -> Any:
        # In Megatron's order of the messages.
        there = (to_prev is not None, prev, to_next is not None, following)
        phases = list(compress((BACKWARD, FORWARD, FORWARD, BACKWARD), there))
        with replaced(_announcing(recorder, phases)):
            original(self, to_next, to_prev, prev, following)
        nothing = [0, 0, 0]
        return (
            next(activations) if prev else nothing,
            next(gradients) if following else nothing,
        )

    owner = "megatron.core.pipeline_parallel.p2p_communication:P2PCommunicator"
    return Replacement(owner, "_communicate_shapes", communicate)


def _announcing(recorder: Recorder, phases: list[str]) -> Replacement:
    """Say of each message that is sent or received together which pass it belongs to."""
    original = torch.distributed.batch_isend_irecv

    def exchange(messages: list[Any]) -> Any:
        for message, phase in zip(messages, phases, strict=True):
            recorder.announce(phase, message.tensor)
        return original(messages)

    return Replacement("torch.distributed", "batch_isend_irecv", exchange)


def _shapes(config: Any, order: list[int], plain: Shape, *, backward: bool) -> Iterator[Shape]:
    """Of each tensor that arrives from the stage before, or from the one behind in backward."""
    stages = config.pipeline_model_parallel_size
    layout = config.pipeline_model_parallel_layout.layout
    rank = parallel_state.get_pipeline_model_parallel_rank()
    predicting = next(pp for pp in range(stages) if LayerType.mtp in layout[pp][-1])
    last = (config.virtual_pipeline_model_parallel_size or 1) - 1
    end = (stages - 1, last) if backward else (0, 0)
    all_depths = [(1 + config.mtp_num_layers) * plain[0], *plain[1:]]
    for chunk in order:
        if (rank, chunk) != end:
            behind = rank >= predicting if backward else rank > predicting
            yield all_depths if chunk == last and behind else plain
