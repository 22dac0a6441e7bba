"""Sends a share of all tokens to one expert, by what the router sees.

The router's logits of each micro-batch are changed and nothing else: Megatron's own top-k, its
dispatcher and the experts then do what they do, on more tokens for that expert and fewer for the
others. The number of copies of tokens, and with it all FLOPs of the job, stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.transformer.moe.router import TopKRouter

from steptally.engine.cpu import Replacement, replaced
from steptally.run.faults.fault import ImbalancedExperts

ROUTER = "megatron.core.transformer.moe.router:TopKRouter"


@contextmanager
def imbalanced_experts(fault: ImbalancedExperts) -> Iterator[None]:
    """Send `fault.share` of every router's tokens to `fault.expert` until the block ends."""
    original = TopKRouter.routing

    def routing(router: Any, logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        changed = preferring(logits, fault.expert, fault.share)
        return original(router, changed, *args, **kwargs)

    with replaced(Replacement(ROUTER, "routing", routing)):
        yield


def preferring(logits: torch.Tensor, expert: int, share: float) -> torch.Tensor:
    """Logits [..., experts] in which `expert` is first for a share of the tokens, else last.

    The tokens are spread evenly: as many as `share` of them, rounded down. A margin of 10 above or
    below the others outweighs the balancing bias of a sigmoid router too.

    >>> preferring(torch.zeros(4, 3), 1, 0.5).argmax(dim=-1).tolist()
    [0, 1, 0, 1]
    """
    flat = logits.reshape(-1, logits.shape[-1])
    counts = torch.floor(torch.arange(len(flat) + 1, dtype=torch.float64) * share)
    chosen = (counts[1:] > counts[:-1]).to(flat.device)
    highest, lowest = flat.max(dim=-1).values + 10, flat.min(dim=-1).values - 10
    changed = flat.clone()
    changed[:, expert] = torch.where(chosen, highest, lowest).detach()
    return changed.reshape(logits.shape)
