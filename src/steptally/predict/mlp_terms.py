"""The products of a dense MLP and of a mixture of experts."""

from __future__ import annotations

from steptally.job import Job
from steptally.predict.count import Count
from steptally.predict.routing import expert_loads
from steptally.predict.terms import Batch, Term, linear_flops, linear_term

DENSE_MLP = ("mlp",)
MOE = ("moe",)
SHARED_EXPERTS = ("moe", "shared_experts")


def dense_mlp_terms(job: Job, batch: Batch) -> list[Term]:
    """Up (and gate) projection and down projection."""
    architecture = job.architecture
    return [
        linear_term(
            "linear_fc1",
            batch,
            architecture.hidden_size,
            up_projection_size(job, architecture.ffn_hidden_size),
            DENSE_MLP,
        ),
        linear_term(
            "linear_fc2",
            batch,
            architecture.ffn_hidden_size,
            architecture.hidden_size,
            DENSE_MLP,
        ),
    ]


def up_projection_size(job: Job, width: Count) -> Count:
    """Outputs of the first MLP matrix: twice the width where there is a gate."""
    return 2 * width if job.architecture.gated_linear_unit else width


def moe_terms(job: Job, batch: Batch) -> list[Term]:
    """Router, routed experts, shared experts, and the latent projections around the experts.

    Useful: `moe_router_topk` experts a token. Executed: the slots that are filled or padded
    (`executed_expert_slots`). With `moe_latent_size` the experts work on that width.
    """
    architecture = job.architecture
    hidden, experts = architecture.hidden_size, architecture.num_experts or 0
    copies = duplicated_copies(job)
    return [
        linear_term("router", batch, hidden, experts, MOE, copies),
        *_latent_terms(job, batch, copies),
        *_expert_terms(job, batch),
        *_shared_expert_terms(job, batch, copies),
    ]


def duplicated_copies(job: Job) -> Count:
    """How many ranks run a layer that tensor parallelism does not split, on the same tokens.

    With sequence parallelism each rank takes its own tokens: 1; without it tp. (In arithmetic, for
    arrays of layouts.)
    """
    tp = job.layout.tensor_model_parallel_size
    return tp - (tp - 1) * job.layout.sequence_parallel


def _latent_terms(job: Job, batch: Batch, copies: Count) -> list[Term]:
    hidden, latent = job.architecture.hidden_size, job.architecture.moe_latent_size
    if latent is None:
        return []
    return [
        linear_term("fc1_latent_proj", batch, hidden, latent, MOE, copies),
        linear_term("fc2_latent_proj", batch, latent, hidden, MOE, copies),
    ]


def _expert_terms(job: Job, batch: Batch) -> list[Term]:
    architecture = job.architecture
    inputs = architecture.moe_latent_size or architecture.hidden_size
    width = expert_width(job)
    useful_slots = batch.useful_tokens * architecture.moe_router_topk
    executed_slots = executed_expert_slots(job, batch)
    terms = []
    for name, rows, columns in (
        ("experts.linear_fc1", inputs, up_projection_size(job, width)),
        ("experts.linear_fc2", width, inputs),
    ):
        executed = linear_flops(executed_slots, rows, columns)
        useful = linear_flops(useful_slots, rows, columns)
        terms.append(Term(name, useful, executed, 2 * executed, MOE))
    return terms


def expert_width(job: Job) -> int:
    """`moe_ffn_hidden_size`; Megatron takes `ffn_hidden_size` where it is not set."""
    return job.architecture.moe_ffn_hidden_size or job.architecture.ffn_hidden_size


def executed_expert_slots(job: Job, batch: Batch) -> Count:
    """Rows that the routed experts of one layer multiply in a step, over all ranks.

    Each token's `moe_router_topk` slots, unless a capacity factor drops or pads them, or FP8 pads
    the rows of each expert (`predict.routing`, which takes routing to be balanced).
    """
    recipe, layout = job.recipe, job.layout
    if recipe.moe_expert_capacity_factor is None and recipe.fp8 is None:
        return batch.tokens * job.architecture.moe_router_topk
    rows = sum(load.experts * load.rows for load in expert_loads(job))
    ranks = layout.world_size // layout.pipeline_model_parallel_size
    # The etp ranks of one expert each multiply all of its rows, by their part of its width.
    return rows * ranks * layout.num_microbatches // layout.expert_tensor_parallel_size


def _shared_expert_terms(job: Job, batch: Batch, copies: Count) -> list[Term]:
    architecture = job.architecture
    hidden, width = architecture.hidden_size, architecture.moe_shared_expert_intermediate_size
    if width is None:
        return []
    up = up_projection_size(job, width)
    terms = [
        linear_term("shared_experts.linear_fc1", batch, hidden, up, SHARED_EXPERTS),
        linear_term("shared_experts.linear_fc2", batch, width, hidden, SHARED_EXPERTS),
    ]
    if architecture.moe_shared_expert_gate:
        terms.append(linear_term("shared_experts.gate", batch, hidden, 1, SHARED_EXPERTS, copies))
    return terms
