"""Sizes of everything that one rank holds of one micro-batch: the inputs of every memory formula.

Each number is an exact int, or a float64 array with one entry a layout (`memory.search`): the
formulas are plain arithmetic and take both. What is a choice rather than a size (which kernel,
which fusion, sequence parallelism) is one value for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptally.job import Architecture, Job, Layout, Recipe
from steptally.predict.attention_kernel import UNFUSED, attention_kernel
from steptally.predict.count import Count
from steptally.predict.precision import ELEMENT_BITS, uses_transformer_engine

# Beside its 1-byte elements a quantized tensor keeps scales: one of so many bytes for so many
# elements (Transformer Engine's block sizes); those for a whole tensor do not count.
FP8_SCALES = {
    "delayed": (1, 0),
    "tensorwise": (1, 0),
    "mxfp8": (32, 1),
    "blockwise": (128, 4),
    "custom": (1, 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """One rank's share of a micro-batch.

    `tokens` are the rows of an activation inside a tensor-parallel region (s / cp · micro-batch),
    `own_tokens` those between regions (/ tp with sequence parallelism). `heads`, `groups`, `ffn`,
    `vocabulary` are per tensor-parallel rank; `expert_rows` are the token copies that reach this
    rank's experts in one layer, `sent_rows` those that it sends. `gathers` says whether sequence
    parallelism gathers tokens, `parallel` whether there is tensor parallelism at all.
    """

    tokens: Count
    own_tokens: Count
    sequence: Count
    micro_batch: Count
    tp: Count
    cp: Count
    ep: Count
    etp: Count
    gathers: Count
    parallel: Count
    heads: Count
    groups: Count
    ffn: Count
    vocabulary: Count
    sent_rows: Count
    expert_rows: Count
    architecture: Architecture
    layout: Layout
    recipe: Recipe
    element: int
    transformer_engine: bool
    unfused_attention: bool

    @property
    def hidden_bytes(self) -> Count:
        """The residual stream of a micro-batch: [own_tokens, hidden]."""
        return self.own_tokens * self.architecture.hidden_size * self.element

    @property
    def gathered_hidden_bytes(self) -> Count:
        """The same, gathered: [tokens, hidden]."""
        return self.tokens * self.architecture.hidden_size * self.element

    @property
    def query_bytes(self) -> Count:
        """All query heads of this rank: [tokens, heads, channels]."""
        return self.tokens * self.heads * self.architecture.kv_channels * self.element

    @property
    def key_bytes(self) -> Count:
        """All key (or value) groups of this rank: [tokens, groups, channels]."""
        return self.tokens * self.groups * self.architecture.kv_channels * self.element

    @property
    def quantized(self) -> bool:
        """Whether linear layers keep their inputs in FP8."""
        return self.recipe.fp8 is not None and self.transformer_engine

    def linear_input_bytes(self, elements: Count) -> Count:
        """What a linear layer keeps of an input of that many elements, for its weight gradient."""
        if not self.quantized:
            return elements * self.element
        scale_every, scale_bytes = FP8_SCALES[self.recipe.fp8_recipe]
        return elements + elements // scale_every * scale_bytes


def dimensions(job: Job) -> Dimensions:
    """The dimensions of any rank of a job: all ranks of a stage have the same."""
    architecture, layout = job.architecture, job.layout
    return layout_dimensions(
        job,
        tp=layout.tensor_model_parallel_size,
        cp=layout.context_parallel_size,
        ep=layout.expert_model_parallel_size,
        etp=layout.expert_tensor_parallel_size,
        micro_batch=layout.micro_batch_size,
        vocabulary=job.padded_vocab_size // layout.tensor_model_parallel_size,
        groups=max(1, architecture.num_query_groups // layout.tensor_model_parallel_size),
    )


def layout_dimensions(
    job: Job,
    *,
    tp: Count,
    cp: Count,
    ep: Count,
    etp: Count,
    micro_batch: Count,
    vocabulary: Count,
    groups: Count,
) -> Dimensions:
    """Dimensions for other parallel sizes than the job's own: ints, or arrays of many layouts."""
    architecture, layout, recipe = job.architecture, job.layout, job.recipe
    tokens = layout.seq_length // cp * micro_batch
    own_tokens = tokens // tp if layout.sequence_parallel else tokens
    sent_rows = _sent_rows(architecture, recipe, own_tokens)
    return Dimensions(
        tokens=tokens,
        own_tokens=own_tokens,
        sequence=layout.seq_length // cp,
        micro_batch=micro_batch,
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        gathers=(tp > 1) * layout.sequence_parallel,
        parallel=(tp > 1) * 1,
        heads=architecture.num_attention_heads // tp,
        groups=groups,
        ffn=architecture.ffn_hidden_size // tp,
        vocabulary=vocabulary,
        sent_rows=sent_rows,
        expert_rows=sent_rows * etp,
        architecture=architecture,
        layout=layout,
        recipe=recipe,
        element=ELEMENT_BITS[recipe.params_dtype] // 8,
        transformer_engine=uses_transformer_engine(job),
        unfused_attention=attention_kernel(job) == UNFUSED,
    )


def _sent_rows(architecture: Architecture, recipe: Recipe, own_tokens: Count) -> Count:
    """Token copies that a rank sends to experts: T · topk, or capacity · E where padded to it.

    Capacity is ⌈T · topk / E · factor⌉ (`get_capacity`); routing is assumed balanced.
    """
    if architecture.num_experts is None:
        return 0
    wanted = own_tokens * architecture.moe_router_topk
    factor = recipe.moe_expert_capacity_factor
    if factor is None or not recipe.moe_pad_expert_input_to_capacity:
        return wanted
    capacity = -(-(wanted * factor) // architecture.num_experts)
    return _whole(capacity) * architecture.num_experts


def _whole(value: Count) -> Count:
    """A float that is a whole number as an int; an array as it is."""
    return int(value) if isinstance(value, float) else value
