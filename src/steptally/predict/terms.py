"""What a term is: one matrix product of one layer, with its useful and executed FLOPs.

A term covers one optimizer step over all ranks: sequences, micro-batches and ranks are summed, so
tensor and pipeline parallelism do not appear. Names are Megatron-Core's module names.
Derived in docs/formulas/flops.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steptally.predict.count import Count


def linear_flops(tokens: Count, inputs: Count, outputs: Count) -> Count:
    """2·T·i·o: one multiplication and one addition per token and weight, one direction.

    Backward costs it twice: once for the gradient of the input, once for that of the weight.

    >>> linear_flops(2048, 256, 512)
    536870912
    """
    return 2 * tokens * inputs * outputs


def attention_product_flops(pairs: Count, heads: Count, channels: Count) -> Count:
    """2·P·n·d: one of the two products of attention (QKᵀ or PV) over P query-key pairs a head.

    >>> attention_product_flops(2048 * 2049 // 2, 32, 128)
    17188257792
    """
    return 2 * pairs * heads * channels


class Term(NamedTuple):
    """Forward FLOPs of one product of one layer; `modules` are those whose recompute re-runs it.

    Useful backward is always twice the useful forward; `executed_backward` is what is run.
    """

    name: str
    useful: Count
    executed: Count
    executed_backward: Count
    modules: tuple[str, ...] = ()


class Batch(NamedTuple):
    """The tokens of a step: `sequences` of `seq` tokens each, filled by documents of `lengths`.

    Padding after the last document is executed and of no use: `tokens` go through every linear
    layer, `useful_tokens` are those of documents. `batch_of` makes one.
    """

    sequences: Count
    seq: int
    lengths: Sequence[int]
    tokens: Count
    useful_tokens: Count


def batch_of(sequences: Count, seq: int, lengths: Sequence[int] | None = None) -> Batch:
    """A batch of sequences that each hold the same documents; None: one document fills each.

    >>> batch_of(2, 8, (4, 3)).useful_tokens
    14
    """
    filled = lengths if lengths is not None else (seq,)
    return Batch(sequences, seq, filled, sequences * seq, sequences * sum(filled))


def linear_term(
    name: str,
    batch: Batch,
    inputs: Count,
    outputs: Count,
    modules: tuple[str, ...] = (),
    copies: Count = 1,
) -> Term:
    """A linear layer that every token goes through once; `copies` ranks each run the whole of it.

    Copies other than 1 are layers that tensor parallelism duplicates instead of splitting.
    """
    executed = copies * linear_flops(batch.tokens, inputs, outputs)
    useful = linear_flops(batch.useful_tokens, inputs, outputs)
    return Term(name, useful, executed, 2 * executed, modules)
