"""What context parallelism exchanges around a core attention, and the tiles that it multiplies.

The sequence is cut into 2·cp pieces; rank r holds the r-th and the r-th from the end, so that
causal work is equal. With `a2a` a rank gets whole sequences of fewer heads instead. Source:
Transformer Engine 2.x, attention/dot_product_attention/context_parallel.py:
`AttnFuncWithCPAndKVP2P`, `AttnFuncWithCPAndKVAllGather`, `AttnFuncWithCPAndQKVOA2A`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from steptally.rehearse.visible import Visible

# Megatron-LM's names of `cp_comm_type`, and Transformer Engine's of the same.
RING, GATHERED, BY_HEADS = ("p2p",), ("allgather", "all_gather"), ("a2a",)


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of scores: `pairs` of its queries × keys are visible, in each of `heads` heads."""

    queries: int
    keys: int
    heads: int
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParallel:
    """How a core attention splits the sequence. `group` is None, or of one rank, where it is not.

    `comm_type` is `cp_comm_type`.
    """

    group: Any
    comm_type: str
    visible: Visible

    @property
    def parts(self) -> int:
        """Ranks that share a sequence."""
        return 1 if self.group is None else int(self.group.size())


def forward_tiles(
    cp: ContextParallel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Iterator[Tile]:
    """The tiles of the forward pass, with the collectives before, between and after them."""
    if cp.parts == 1:
        yield from _whole(cp, query)
    elif cp.comm_type in RING:
        yield from _ring(cp, query, key, value, backward=False)
    elif cp.comm_type in GATHERED:
        kept = [_gather(cp, tensor) for tensor in (key, value)]
        yield from _against_prefix(cp, query)
        del kept
    else:
        inputs = [_exchange(cp, tensor) for tensor in (query, key, value)]
        yield from _of_some_heads(cp, query)
        _exchange(cp, _output(query, value))
        del inputs


def backward_tiles(
    cp: ContextParallel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Iterator[Tile]:
    """The tiles of the backward pass, with its collectives."""
    if cp.parts == 1:
        yield from _whole(cp, query)
    elif cp.comm_type in RING:
        yield from _ring(cp, query, key, value, backward=True)
    elif cp.comm_type in GATHERED:
        kept = [_gather(cp, tensor) for tensor in (key, value)]
        yield from _against_prefix(cp, query)
        for tensor in kept:
            _scatter(cp, torch.empty_like(tensor))
    else:
        kept = [_exchange(cp, _output(query, value)) for _ in ("O", "dO")]
        yield from _of_some_heads(cp, query)
        for tensor in (query, key, value):
            _exchange(cp, torch.empty_like(tensor))
        del kept


def _whole(cp: ContextParallel, query: torch.Tensor) -> Iterator[Tile]:
    length, _, heads, _ = query.shape
    yield Tile(length, length, heads, cp.visible.pairs(0, length, 0, length))


def _ring(
    cp: ContextParallel,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    backward: bool,
) -> Iterator[Tile]:
    """K and V go round cp − 1 times while each rank multiplies those that it has.

    In backward dK and dV follow one step behind: the first message holds K and V, the last dK and
    dV, those between all four.
    """
    size = key.numel() + value.numel()
    for step in range(cp.parts):
        arriving = None
        if step < cp.parts - 1:
            arriving = _pass_on(cp, key.new_empty(2 * size if backward and step else size))
        yield from _ring_tile(cp, query, step)
        del arriving
    if backward:
        _pass_on(cp, key.new_empty(size))


def _ring_tile(cp: ContextParallel, query: torch.Tensor, step: int) -> Iterator[Tile]:
    """The rank's queries against the keys of the rank that stands `step` before it.

    Of another rank's two pieces of keys only the first is before both pieces of queries (where that
    rank is earlier in the ring), or both are before the second piece of queries.
    """
    length, _, heads, _ = query.shape
    piece, rank = length // 2, cp.group.rank()
    source = (rank - step) % cp.parts
    pairs = sum(
        cp.visible.pairs(i * piece, (i + 1) * piece, j * piece, (j + 1) * piece)
        for i in _pieces(cp, rank)
        for j in _pieces(cp, source)
    )
    if not pairs:
        return
    queries = length if source <= rank else piece
    keys = length if source >= rank else piece
    yield Tile(queries, keys, heads, pairs)


def _against_prefix(cp: ContextParallel, query: torch.Tensor) -> Iterator[Tile]:
    """Each of the rank's two pieces of queries against all keys up to its own end."""
    length, _, heads, _ = query.shape
    piece = length // 2
    for i in _pieces(cp, cp.group.rank()):
        end = (i + 1) * piece
        yield Tile(piece, end, heads, cp.visible.pairs(i * piece, end, 0, end))


def _of_some_heads(cp: ContextParallel, query: torch.Tensor) -> Iterator[Tile]:
    """Whole sequences, of the rank's share of the heads."""
    length, heads = query.shape[0] * cp.parts, query.shape[2] // cp.parts
    yield Tile(length, length, heads, cp.visible.pairs(0, length, 0, length))


def _pieces(cp: ContextParallel, rank: int) -> tuple[int, int]:
    return rank, 2 * cp.parts - 1 - rank


def _output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return query.new_empty(*query.shape[:3], value.shape[-1])


def _pass_on(cp: ContextParallel, message: torch.Tensor) -> torch.Tensor:
    """Send to the next rank of the ring, receive as much from the one before."""
    rank, received = cp.group.rank(), torch.empty_like(message)
    dist.isend(message, group=cp.group, group_dst=(rank + 1) % cp.parts)
    dist.irecv(received, group=cp.group, group_src=(rank - 1) % cp.parts)
    return received


def _gather(cp: ContextParallel, tensor: torch.Tensor) -> torch.Tensor:
    gathered = tensor.new_empty(cp.parts * tensor.shape[0], *tensor.shape[1:])
    dist.all_gather_into_tensor(gathered, tensor, group=cp.group)
    return gathered


def _scatter(cp: ContextParallel, tensor: torch.Tensor) -> torch.Tensor:
    scattered = tensor.new_empty(tensor.shape[0] // cp.parts, *tensor.shape[1:])
    dist.reduce_scatter_tensor(scattered, tensor, group=cp.group)
    return scattered


def _exchange(cp: ContextParallel, tensor: torch.Tensor) -> torch.Tensor:
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor, group=cp.group)
    return received
