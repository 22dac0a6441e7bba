"""megatron-core's token dispatchers, made to read stated counts where tokens would choose experts.

A dispatcher computes its splits from a routing map; here it gets a real one, small and of the
stated shape, while the tokens themselves stay fake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from megatron.core.transformer.moe.moe_utils import get_capacity
from megatron.core.transformer.moe.token_dispatcher import (
    MoEAllGatherTokenDispatcher,
    MoEAlltoAllTokenDispatcher,
)
from torch._subclasses.fake_tensor import unset_fake_temporarily

from steptally.engine.cpu import Replacement
from steptally.rehearse.recorder import Recorder
from steptally.rehearse.routing import Routing

DISPATCHERS = "megatron.core.transformer.moe.token_dispatcher"


def routing_replacements(recorder: Recorder, routing: Routing) -> tuple[Replacement, ...]:
    """What makes megatron-core's dispatchers read the stated counts."""
    to_all, gathering = MoEAlltoAllTokenDispatcher, MoEAllGatherTokenDispatcher
    return (
        Replacement(
            f"{DISPATCHERS}:MoEAlltoAllTokenDispatcher",
            "__init__",
            _with_real_indices(to_all.__init__, recorder),
        ),
        Replacement(
            f"{DISPATCHERS}:MoEAlltoAllTokenDispatcher",
            "preprocess",
            _with_real_splits(to_all.preprocess, recorder, routing),
        ),
        Replacement(
            f"{DISPATCHERS}:MoEAlltoAllTokenDispatcher",
            "combine_postprocess",
            _selecting_what_was_sent(to_all.combine_postprocess, recorder),
        ),
        Replacement(
            f"{DISPATCHERS}:MoEAlltoAllTokenDispatcher",
            "dispatch_preprocess",
            _selecting_what_was_sent(to_all.dispatch_preprocess, recorder),
        ),
        Replacement(
            f"{DISPATCHERS}:MoEAllGatherTokenDispatcher",
            "dispatch_postprocess",
            _selecting_local_tokens(gathering.dispatch_postprocess, recorder, routing),
        ),
    )


def copies_per_expert(config: Any, routing: Routing, tokens: int) -> tuple[int, ...]:
    """Token copies that one rank sends to each expert; its capacity bounds them."""
    experts, topk = config.num_moe_experts, config.moe_router_topk
    counts = routing.tokens_per_expert(
        tokens * topk, experts, tokens, config.expert_model_parallel_size
    )
    factor = config.moe_expert_capacity_factor
    if factor is None:
        return counts
    capacity = get_capacity(tokens * topk, experts, factor)
    if config.moe_pad_expert_input_to_capacity:
        return (capacity,) * experts
    return tuple(min(count, capacity) for count in counts)


def routing_map(counts: Sequence[int], tokens: int) -> torch.Tensor:
    """A real [tokens, experts] map with `counts[e]` tokens at expert e."""
    return torch.arange(tokens).unsqueeze(1) < torch.tensor(list(counts)).unsqueeze(0)


def _with_real_indices(original: Callable[..., None], recorder: Recorder) -> Callable[..., None]:
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        with _real_values(recorder):
            original(self, *args, **kwargs)
            _read_back(self, "sort_input_by_local_experts", "restore_output_by_local_experts")

    return construct


def _with_real_splits(
    original: Callable[..., Any], recorder: Recorder, routing: Routing
) -> Callable[..., Any]:
    def preprocess(self: Any, fake_map: torch.Tensor) -> Any:
        tokens = fake_map.shape[0]
        counts = copies_per_expert(self.config, routing, tokens)
        with _real_values(recorder):
            local_tokens = original(self, routing_map(counts, tokens)).numpy()
            _read_back(
                self,
                "input_splits",
                "output_splits",
                "output_splits_tp",
                "num_global_tokens_per_local_expert",
            )
        self.num_out_tokens = recorder.selected = sum(counts)
        return local_tokens

    return preprocess


def _selecting_what_was_sent(
    original: Callable[..., Any], recorder: Recorder
) -> Callable[..., Any]:
    """Masks of the routing map let through as many token copies as the rank sends."""

    def run(self: Any, *args: Any) -> Any:
        with _selection(recorder, self.num_out_tokens if hasattr(self, "num_out_tokens") else None):
            return original(self, *args)

    return run


def _selecting_local_tokens(
    original: Callable[..., Any], recorder: Recorder, routing: Routing
) -> Callable[..., Any]:
    """After the all-gather, masks let through what the rank's own experts get from all ranks."""

    def run(self: Any, hidden_states: torch.Tensor, probs: torch.Tensor) -> Any:
        senders = self.tp_size * self.ep_size
        counts = copies_per_expert(self.config, routing, hidden_states.shape[0] // senders)
        local = [counts[expert] * senders for expert in self.local_expert_indices]
        with _selection(recorder, sum(local)):
            states, _, local_probs = original(self, hidden_states, probs)
        return states, np.array(local), local_probs

    return run


@contextlib.contextmanager
def _selection(recorder: Recorder, elements: int | None) -> Iterator[None]:
    before, recorder.selected = recorder.selected, elements
    try:
        yield
    finally:
        recorder.selected = before


@contextlib.contextmanager
def _real_values(recorder: Recorder) -> Iterator[None]:
    with recorder.paused(), unset_fake_temporarily():
        yield


def _read_back(dispatcher: Any, *names: str) -> None:
    """What Megatron copies to the host, as arrays: under fake tensors, real ones turn fake."""
    for name in names:
        value = getattr(dispatcher, name, None)
        if isinstance(value, torch.Tensor):
            setattr(dispatcher, name, value.numpy())
