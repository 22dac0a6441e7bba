"""Activations of a mixture-of-experts layer, by operation, with balanced routing.

Sources: `MoELayer`, `TopKRouter`, the token dispatchers, `TEGroupedMLP` and `SequentialMLP` of
megatron-core 0.16.1; the permutation kernels of Transformer Engine 2.11.
"""

from __future__ import annotations

from typing import NamedTuple

from steptally.predict.count import Count
from steptally.predict.memory.attention import bias_dropout_add
from steptally.predict.memory.dimensions import Dimensions
from steptally.predict.memory.mlp import activation, feed_forward, fuses_activation
from steptally.predict.memory.operation import Operation, held, larger, norm, weight_gradient
from steptally.predict.memory.weights import expert_ffn

NAME = "mlp"


def expert_operations(dimensions: Dimensions) -> list[Operation]:
    """Norm, shared experts, router, dispatch, experts, combine, residual add."""
    hidden = dimensions.architecture.hidden_size
    branch = [
        norm(dimensions, "pre_mlp_layernorm", dimensions.own_tokens, hidden),
        *shared_experts(dimensions),
        router(dimensions),
        *latent_projection(dimensions, "fc1_latent_proj"),
        dispatch(dimensions),
        *routed_experts(dimensions),
        combine(dimensions),
        *latent_projection(dimensions, "fc2_latent_proj"),
    ]
    return [*held(branch, dimensions.hidden_bytes), bias_dropout_add(dimensions, "mlp_bda")]


def shared_experts(dimensions: Dimensions) -> list[Operation]:
    """An MLP that every token passes. The router keeps the input that both read.

    Its output waits for that of the routed experts, and the sum's gradient goes to both.
    """
    size = dimensions.architecture.moe_shared_expert_intermediate_size
    if not size:
        return []
    width = size // dimensions.tp
    return feed_forward(dimensions, f"{NAME}.shared_experts", width, saves_input=False)


def router(dimensions: Dimensions) -> Operation:
    """Logits, scores, top-k and the auxiliary loss on [own_tokens, experts].

    Keeps the layer's input. Of each logit: the softmax in fp32, the probabilities and their mask;
    with an auxiliary loss its own scores in fp32; of each choice the index (int64) and value.
    """
    architecture, recipe = dimensions.architecture, dimensions.recipe
    experts, tokens = architecture.num_experts or 0, dimensions.own_tokens
    logit = {None: dimensions.element, "fp32": 4, "fp64": 8}[recipe.moe_router_dtype]
    a_logit = 4 + logit + 1
    if recipe.moe_aux_loss_coeff:
        a_logit += 4 + 1
    if recipe.moe_expert_capacity_factor is not None:
        a_logit += logit + 1
    saved = tokens * (experts * a_logit + architecture.moe_router_topk * (8 + logit))
    stream = dimensions.hidden_bytes
    shared = stream if architecture.moe_shared_expert_intermediate_size else 0
    logits = tokens * experts * (4 + logit)
    return Operation(f"{NAME}.router", stream + saved, 3 * logits + shared, 2 * stream + 3 * logits)


def latent_projection(dimensions: Dimensions, name: str) -> list[Operation]:
    """hidden ↔ moe_latent_size around the routed experts, whole on every rank."""
    architecture = dimensions.architecture
    latent, hidden = architecture.moe_latent_size, architecture.hidden_size
    if not latent:
        return []
    inputs, outputs = (hidden, latent) if name.startswith("fc1") else (latent, hidden)
    read = dimensions.own_tokens * inputs
    made = dimensions.own_tokens * outputs * dimensions.element
    kept = dimensions.linear_input_bytes(read) if name.startswith("fc2") else 0
    gradients = made + read * dimensions.element + weight_gradient(dimensions, inputs, outputs)
    return [Operation(f"{NAME}.{name}", kept, made, gradients)]


def expert_width(dimensions: Dimensions) -> int:
    """Channels of a token on its way to an expert: hidden, or the latent size."""
    architecture = dimensions.architecture
    return architecture.moe_latent_size or architecture.hidden_size


class Routed(NamedTuple):
    """Bytes of a layer's tokens on their way to the experts and back, on one rank.

    `sent` and `received` are the copies that leave and arrive, `sorted` the arrived ones again
    where several local experts make a sort necessary, `gathered` every token of the expert group
    (`allgather` dispatcher). `waiting` is what the layer's own variables keep alive in forward
    while the experts run, beside what autograd keeps: the copies before and after the all-to-all.
    """

    sent: Count
    received: Count
    sorted: Count
    gathered: Count
    waiting: Count


def routed_bytes(dimensions: Dimensions) -> Routed:
    """The sizes of dispatch and combine, by the dispatcher's type."""
    architecture, recipe = dimensions.architecture, dimensions.recipe
    row = expert_width(dimensions) * dimensions.element
    sent, received = dimensions.sent_rows * row, dimensions.expert_rows * row
    if recipe.moe_token_dispatcher_type == "allgather":
        group = dimensions.ep * dimensions.etp
        return Routed(0, received, 0, dimensions.own_tokens * group * row, 0)
    exchanges, gathers = dimensions.ep > 1, dimensions.etp > 1
    sorts = (architecture.num_experts or 0) // dimensions.ep > 1
    if recipe.moe_pad_expert_input_to_capacity:
        sorts = sorts & (exchanges | gathers)  # from one rank, equal parts arrive in order
    arrived = received // dimensions.etp
    before = (sorts | exchanges | gathers) * sent
    after = exchanges * (sorts | gathers) * arrived
    return Routed(exchanges * sent, received, sorts * received, 0, before + after)


def dispatch(dimensions: Dimensions) -> Operation:
    """Permute, all-to-all (and gather over expert tensor parallelism), sort by expert.

    The experts' first product keeps the sorted tokens; this keeps the maps back, and the
    probability of each received copy. `allgather` gathers into a lasting buffer instead.
    """
    architecture, recipe = dimensions.architecture, dimensions.recipe
    sent, received = dimensions.sent_rows, dimensions.expert_rows
    if recipe.moe_permute_fusion:
        maps = 4 * dimensions.own_tokens * (2 * (architecture.num_experts or 0) + 1) + 4 * received
    else:
        maps = 8 * sent
    probability = {None: dimensions.element, "fp32": 4, "fp64": 8}[recipe.moe_router_dtype]
    routed, shared = routed_bytes(dimensions), _waiting_shared_output(dimensions)
    return Operation(
        f"{NAME}.token_dispatcher.dispatch",
        maps + received * probability,
        routed.waiting + routed.received + shared,
        routed.received + larger(routed.sorted, routed.sent) + routed.gathered + shared,
    )


def routed_experts(dimensions: Dimensions) -> list[Operation]:
    """The experts' MLP on `expert_rows` tokens: two products and the weighted activation.

    The activation multiplies by the router's probability: fused it keeps its input and that
    probability; unfused also the unweighted product.
    """
    architecture, element = dimensions.architecture, dimensions.element
    rows, width = dimensions.expert_rows, expert_ffn(architecture) // dimensions.etp
    channels = expert_width(dimensions)
    up = 2 * width if architecture.gated_linear_unit else width
    experts = (architecture.num_experts or 0) // dimensions.ep
    shared = _waiting_shared_output(dimensions)
    unit = rows * width * element
    activated = activation(dimensions, f"{NAME}.experts.activation_func", rows, width)
    if not fuses_activation(dimensions):
        activated = activated._replace(saved=activated.saved + unit)
    operations = [
        _expert_linear(dimensions, f"{NAME}.experts.linear_fc1", channels, up, experts),
        activated,
        _expert_linear(dimensions, f"{NAME}.experts.linear_fc2", width, channels, experts),
    ]
    waiting = shared + routed_bytes(dimensions).waiting
    return [
        operation._replace(
            forward=operation.forward + waiting, backward=operation.backward + shared
        )
        for operation in operations
    ]


def combine(dimensions: Dimensions) -> Operation:
    """Unsort, reduce-scatter and all-to-all back, unpermute, add the shared experts' output."""
    routed = routed_bytes(dimensions)
    kept = 0 if dimensions.recipe.moe_permute_fusion else 8 * dimensions.sent_rows
    scattered = (dimensions.etp > 1) * routed.received // dimensions.etp
    moved = routed.received + larger(routed.sorted + scattered, routed.sent) + routed.gathered
    last = routed.sent + dimensions.hidden_bytes
    return Operation(
        f"{NAME}.token_dispatcher.combine",
        kept,
        routed.waiting + larger(moved, last) + _waiting_shared_output(dimensions),
        moved,
    )


def _expert_linear(
    dimensions: Dimensions, name: str, inputs: Count, outputs: Count, experts: Count
) -> Operation:
    """[expert_rows, inputs] → [expert_rows, outputs], each expert its own weight."""
    rows, element = dimensions.expert_rows, dimensions.element
    one_by_one = weight_gradient(dimensions, inputs, outputs)
    weights = one_by_one * experts if dimensions.recipe.moe_grouped_gemm else one_by_one
    return Operation(
        name,
        dimensions.linear_input_bytes(rows * inputs),
        rows * outputs * element,
        rows * (outputs + inputs) * element + weights,
    )


def _waiting_shared_output(dimensions: Dimensions) -> Count:
    """The shared experts' output in forward, and the sum's gradient for them in backward."""
    has_shared = dimensions.architecture.moe_shared_expert_intermediate_size
    return dimensions.hidden_bytes if has_shared else 0
