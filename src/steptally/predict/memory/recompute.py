"""What recomputation keeps instead of activations, and what it needs while it runs them again.

Sources: `CheckpointFunction` and `CheckpointWithoutOutput` (tensor_parallel/random.py) and where
`TransformerLayer`, `Attention`, `MoELayer` and `TEGroupedMLP` of megatron-core 0.16.1 use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from steptally.errors import InputError, did_you_mean
from steptally.predict.count import Count
from steptally.predict.layers import LayerKind
from steptally.predict.memory import core_attention
from steptally.predict.memory.attention import ROTARY
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.operation import Footprint, Operation, footprint, larger

Operations = list[Operation]


def checkpointed(
    name: str, operations: Sequence[Operation], stored: Count, gradient: Count
) -> Operation:
    """Operations that run without keeping anything but `stored`, and again in backward.

    Running again keeps what a first run would have kept, while `gradient`, that of their output,
    waits. Their own backward follows at once, beside the second output, of the same size, which
    `CheckpointFunction.backward` still holds.
    """
    inner = footprint(operations)
    return Operation(
        name,
        stored,
        running_peak(operations),
        gradient + larger(inner.forward_peak, inner.backward_peak),
    )


def running_peak(operations: Sequence[Operation]) -> Count:
    """The peak of operations that keep nothing: of one at a time, with what it would have kept.

    Core attention counts as one: its variables keep all of it alive until it returns.
    """
    peak: Count = 0
    for inside, run in groupby(operations, lambda one: one.name.startswith(core_attention.NAME)):
        if inside:
            peak = larger(peak, footprint(run).forward_peak)
        else:
            for operation in run:
                peak = larger(peak, operation.forward + operation.saved)
    return peak


def checkpointed_layers(dimensions: Dimensions, operations: Sequence[Operation]) -> Footprint:
    """Whole layers of full recomputation: keeps their input, or 1/tp of it (distributed).

    The input that running again keeps is the stored one, unless that had to be gathered.
    """
    stream = dimensions.hidden_bytes
    if dimensions.layout.distribute_saved_activations:
        stored, again = stream // dimensions.tp, 0
    else:
        stored, again = stream, stream
    whole = checkpointed("layer", operations, stored, stream)
    return footprint([whole._replace(backward=whole.backward - again)])


def selectively_recomputed(
    dimensions: Dimensions, kind: LayerKind, operations: Operations
) -> Operations:
    """The operations of a layer under `recompute_modules`; a module it lacks changes nothing."""
    layout = dimensions.layout
    if layout.recompute_granularity != "selective":
        return operations
    for module in layout.recompute_modules:
        if module not in TRANSFORMS:
            raise InputError(
                f"recompute_modules holds {module!r}{did_you_mean(module, TRANSFORMS)}: "
                f"Megatron-Core knows {', '.join(TRANSFORMS)}."
            )
    # In one order, whatever the user's: outputs are discarded of what is left to run once.
    for module, transform in TRANSFORMS.items():
        if module in layout.recompute_modules:
            operations = transform(dimensions, kind, operations)
    return operations


def _core_attention(dimensions: Dimensions, kind: LayerKind, operations: Operations) -> Operations:
    """Keeps Q, K, V as they are passed: V as a view holds the whole QKV output.

    With flash attention this saves the log-sum-exp only and keeps more than without it.
    """
    if kind.mixer == "mla":
        stored = next(
            operation.saved - 4 * dimensions.heads * dimensions.tokens
            for operation in operations
            if operation.name.startswith(core_attention.NAME)
        )
    else:
        mixed = dimensions.query_bytes + 2 * dimensions.key_bytes
        rotates = dimensions.architecture.position_embedding_type in ROTARY
        stored = mixed + (dimensions.query_bytes + dimensions.key_bytes if rotates else 0)
    return _as_one(operations, core_attention.NAME, stored, dimensions.hidden_bytes)


def _mlp(dimensions: Dimensions, kind: LayerKind, operations: Operations) -> Operations:
    """A dense MLP: keeps its input. Transformer Engine's norm belongs to it and runs again too."""
    if kind.mlp != "dense":
        return operations
    stream = dimensions.hidden_bytes
    if not dimensions.transformer_engine:
        return _as_one(operations, "mlp.", stream, stream)
    renamed = [
        operation._replace(name="mlp.norm") if operation.name == "pre_mlp_layernorm" else operation
        for operation in operations
    ]
    return _as_one(renamed, "mlp.", stream, stream)


def _moe(dimensions: Dimensions, kind: LayerKind, operations: Operations) -> Operations:
    """A whole expert layer: keeps its input, the norm's output."""
    if kind.mlp != "moe":
        return operations
    return _as_one(operations, "mlp.", dimensions.hidden_bytes, dimensions.hidden_bytes)


def _shared_experts(dimensions: Dimensions, kind: LayerKind, operations: Operations) -> Operations:
    """The shared experts: their input is kept by the router anyway."""
    return _as_one(operations, "mlp.shared_experts", 0, dimensions.hidden_bytes)


def _expert_activation(
    dimensions: Dimensions, kind: LayerKind, operations: Operations
) -> Operations:
    """The experts' activation: its output is discarded, and made again and copied in backward."""

    def discard(operation: Operation) -> Operation:
        if operation.name != "mlp.experts.linear_fc2":
            return operation
        again = 2 * operation.saved
        return operation._replace(saved=0, backward=operation.backward + again)

    return [discard(operation) for operation in operations]


def _layer_norm(dimensions: Dimensions, kind: LayerKind, operations: Operations) -> Operations:
    """Norms that are modules of their own: their outputs are discarded and made again.

    Before MLA and experts always; Transformer Engine joins all others to the linear layer, where
    nothing is discarded. The output is back for the whole backward of what reads it.
    """
    local = not dimensions.transformer_engine
    prefixes = []
    if kind.mixer == "mla" or (local and kind.mixer == "attention"):
        prefixes.append("self_attention.")
    if kind.mlp == "moe" or (local and kind.mlp == "dense"):
        prefixes.append("mlp.")
    stream = dimensions.hidden_bytes
    # A linear layer in FP8 keeps a copy of its own, which is not discarded.
    readers = WHOLE_READERS if dimensions.quantized else (*WHOLE_READERS, *LINEAR_READERS)
    for prefix in prefixes:
        operations = [
            operation._replace(
                saved=operation.saved - (stream if operation.name in readers else 0),
                backward=operation.backward + stream,
            )
            if f"{operation.name}.".startswith(prefix)
            else operation
            for operation in operations
        ]
    return operations


def _up_projection(dimensions: Dimensions, kind: LayerKind, operations: Operations) -> Operations:
    """MLA's up projections and rotary embedding: Q, K and V are discarded and made again.

    The latents stay, kept by their norms; the norms' outputs, inside the up projections, do not.
    """
    stored = [
        operation for operation in operations if operation.name.startswith(core_attention.NAME)
    ]
    if kind.mixer != "mla" or not stored:
        return operations
    value = dimensions.tokens * dimensions.heads * dimensions.architecture.v_head_dim
    discarded = {stored[0].name: stored[0].saved}  # Q, K and, of a fused kernel, V
    if len(stored) > 1:  # an unfused product with V keeps it apart, beside the probabilities
        discarded[stored[-1].name] = value * dimensions.element
    again = sum(discarded.values())

    def discard(operation: Operation) -> Operation:
        if operation.name.endswith("_up_proj"):
            return operation._replace(saved=0, backward=operation.backward + operation.saved)
        if operation in stored:
            saved = operation.saved - discarded.get(operation.name, 0)
            return operation._replace(saved=saved, backward=operation.backward + 2 * again)
        return operation

    return [discard(operation) for operation in operations]


def _as_one(operations: Operations, prefix: str, stored: Count, gradient: Count) -> Operations:
    """Replace the operations whose names start with `prefix` by one that is checkpointed."""
    inside = [operation for operation in operations if operation.name.startswith(prefix)]
    if not inside:
        return operations
    first = operations.index(inside[0])
    one = checkpointed(prefix.rstrip("."), inside, stored, gradient)
    outside = [operation for operation in operations if not operation.name.startswith(prefix)]
    return [*outside[:first], one, *outside[first:]]


# The operations that keep a norm's output, by which a discarded output is no longer counted.
LINEAR_READERS = (
    "self_attention.linear_qkv",
    "self_attention.linear_q_proj",
    "self_attention.linear_q_down_proj",
    "mlp.linear_fc1",
)
WHOLE_READERS = ("mlp.router", "mlp")

TRANSFORMS: dict[str, Callable[[Dimensions, LayerKind, Operations], Operations]] = {
    "core_attn": _core_attention,
    "mlp": _mlp,
    "moe": _moe,
    "shared_experts": _shared_experts,
    "moe_act": _expert_activation,
    "layernorm": _layer_norm,
    "mla_up_proj": _up_projection,
}
