"""What must hold between settings before any account makes sense.

Each rule is a short function that raises `InputError` with both numbers and the nearest values
that would do. They are Megatron's own divisibility rules (Megatron-LM's `validate_args`,
Megatron-Core's `initialize_model_parallel` and `TransformerConfig.__post_init__`).
"""

from __future__ import annotations

from steptally.errors import InputError
from steptally.job.job import Job


def check(job: Job) -> None:
    """Raise `InputError` for the first rule that the job breaks."""
    for rule in RULES:
        rule(job)


def nearest_divisors(number: int, near: int) -> str:
    """The divisors of `number` on either side of `near`, as words.

    >>> nearest_divisors(12, 5)
    '4 or 6'
    """
    reach = 10_000  # sizes that a layout divides by are small; a mistyped number may be huge
    below = (d for d in range(near - 1, max(0, near - reach), -1) if number % d == 0)
    above = (d for d in range(near + 1, min(number, near + reach) + 1) if number % d == 0)
    found = [d for d in (next(below, 1), next(above, number)) if d != near]
    return " or ".join(map(str, sorted(set(found))))


def nearest_multiples(step: int, near: int) -> str:
    """The positive multiples of `step` on either side of `near`, as words.

    >>> nearest_multiples(8, 20)
    '16 or 24'
    """
    below = near // step * step
    return " or ".join(str(multiple) for multiple in (below, below + step) if multiple > 0)


def world_holds_whole_replicas(job: Job) -> None:
    """world_size = tp · pp · cp · dp."""
    layout = job.layout
    if layout.world_size % layout.model_parallel_size:
        raise InputError(
            f"world_size {layout.world_size} is not a multiple of tp {_tp(job)} · pp {_pp(job)} · "
            f"cp {layout.context_parallel_size} = {layout.model_parallel_size} ranks: use "
            f"{nearest_multiples(layout.model_parallel_size, layout.world_size)} ranks."
        )


def batch_divides(job: Job) -> None:
    """The global batch is whole micro-batches on every replica."""
    layout = job.layout
    per_round = layout.micro_batch_size * layout.data_parallel_size
    if layout.global_batch_size % per_round:
        raise InputError(
            f"global_batch_size {layout.global_batch_size} is not a multiple of micro_batch_size "
            f"{layout.micro_batch_size} · data parallel size {layout.data_parallel_size} = "
            f"{per_round}: use {nearest_multiples(per_round, layout.global_batch_size)}."
        )


def tensor_parallel_divides(job: Job) -> None:
    """Tensor parallelism splits heads, query groups and the MLP evenly."""
    tp, architecture = _tp(job), job.architecture
    for name in ("num_attention_heads", "ffn_hidden_size"):
        size = getattr(architecture, name)
        if size % tp:
            raise InputError(
                f"{name} {size} is not divisible by tensor_model_parallel_size {tp}: use "
                f"tensor_model_parallel_size {nearest_divisors(size, tp)}, or {name} "
                f"{nearest_multiples(tp, size)}."
            )
    groups = architecture.num_query_groups
    if groups % tp and tp % groups:
        raise InputError(
            f"num_query_groups {groups} and tensor_model_parallel_size {tp}: one must divide the "
            f"other; use tensor_model_parallel_size {nearest_divisors(groups, tp)}."
        )
    if job.padded_vocab_size % tp:
        raise InputError(
            f"padded_vocab_size {job.padded_vocab_size} is not divisible by "
            f"tensor_model_parallel_size {tp}: use {nearest_multiples(tp, job.padded_vocab_size)}."
        )


def query_groups_divide_heads(job: Job) -> None:
    """Each query group serves the same number of heads."""
    heads, groups = job.architecture.num_attention_heads, job.architecture.num_query_groups
    if heads % groups:
        raise InputError(
            f"num_attention_heads {heads} is not divisible by num_query_groups {groups}: use "
            f"num_query_groups {nearest_divisors(heads, groups)}."
        )


def pipeline_divides(job: Job) -> None:
    """Every stage (and every virtual stage) holds the same number of layers, unless told how."""
    layout, layers = job.layout, job.architecture.num_layers
    if layout.pipeline_model_parallel_layout or _uneven(job):
        return
    counted = layers + layout.account_for_embedding_in_pipeline_split
    counted += layout.account_for_loss_in_pipeline_split
    virtual = layout.virtual_pipeline_model_parallel_size or 1
    stages = _pp(job) * virtual
    if counted % stages:
        name = "num_layers" if counted == layers else "num_layers with embedding and loss counted"
        split = "pipeline_model_parallel_size"
        if virtual > 1:
            split += " · virtual_pipeline_model_parallel_size"
        raise InputError(
            f"{name} {counted} is not divisible by {split} = {stages}: use "
            f"{nearest_divisors(counted, stages)} stages, {nearest_multiples(stages, counted)} "
            f"layers, or state decoder_first_pipeline_num_layers."
        )


def uneven_pipeline_divides(job: Job) -> None:
    """With a first or last stage of its own size, the stages between share the rest evenly."""
    layout = job.layout
    if not _uneven(job):
        return
    ends = [
        layers
        for layers in (
            layout.decoder_first_pipeline_num_layers,
            layout.decoder_last_pipeline_num_layers,
        )
        if layers is not None
    ]
    middle_layers = job.architecture.num_layers - sum(ends)
    middle_stages = _pp(job) - len(ends)
    if middle_layers < 0 or middle_stages < 0 or (middle_layers > 0 and middle_stages == 0):
        raise InputError(
            f"num_layers {job.architecture.num_layers} cannot be split with "
            f"{' and '.join(map(str, ends))} layers in the first and last of {_pp(job)} stages: "
            f"{middle_layers} layers are left for {middle_stages} stages between them."
        )
    virtual = layout.virtual_pipeline_model_parallel_size or 1
    chunks = middle_stages * virtual
    if chunks and middle_layers % chunks:
        raise InputError(
            f"{middle_layers} layers are left for the {middle_stages} middle stages"
            f"{f' of {virtual} chunks' if virtual > 1 else ''}: they do not divide; use a first "
            f"and last stage that leave {nearest_multiples(chunks, middle_layers)}."
        )


def sequence_divides(job: Job) -> None:
    """Sequence and context parallelism split the sequence evenly."""
    layout = job.layout
    per_context_rank = layout.seq_length // layout.context_parallel_size
    if layout.context_parallel_size > 1 and layout.seq_length % (2 * layout.context_parallel_size):
        step = 2 * layout.context_parallel_size
        raise InputError(
            f"seq_length {layout.seq_length} is not a multiple of 2 · context_parallel_size = "
            f"{step} (each rank takes two slices, for balance): use "
            f"{nearest_multiples(step, layout.seq_length)}."
        )
    if layout.sequence_parallel and _tp(job) > 1 and per_context_rank % _tp(job):
        step = _tp(job) * layout.context_parallel_size
        raise InputError(
            f"seq_length {layout.seq_length} is not a multiple of tp · cp = {step}, which "
            f"sequence_parallel needs: use {nearest_multiples(step, layout.seq_length)}."
        )


def experts_divide(job: Job) -> None:
    """Expert parallelism splits the experts and the world evenly."""
    layout, experts = job.layout, job.architecture.num_experts
    ep, etp = layout.expert_model_parallel_size, layout.expert_tensor_parallel_size
    if experts is None:
        if ep > 1:
            raise InputError(
                f"expert_model_parallel_size is {ep} but num_experts is not set: state num_experts "
                f"or leave expert_model_parallel_size at 1."
            )
        return
    if experts % ep:
        raise InputError(
            f"num_experts {experts} is not divisible by expert_model_parallel_size {ep}: use "
            f"{nearest_divisors(experts, ep)}."
        )
    if job.architecture.moe_router_topk > experts:
        raise InputError(
            f"moe_router_topk {job.architecture.moe_router_topk} is more than num_experts "
            f"{experts}: a token cannot go to more experts than there are."
        )
    ranks = ep * etp * _pp(job)
    if layout.world_size % ranks:
        raise InputError(
            f"world_size {layout.world_size} is not a multiple of etp {etp} · ep {ep} · pp "
            f"{_pp(job)} = {ranks}: use {nearest_multiples(ranks, layout.world_size)} ranks."
        )


def patterns_fit_the_layers(job: Job) -> None:
    """A list of 0 and 1 for each layer has one entry a layer."""
    architecture = job.architecture
    for name in ("moe_layer_freq", "window_attn_skip_freq"):
        pattern = getattr(architecture, name)
        if not isinstance(pattern, tuple):
            continue
        if len(pattern) != architecture.num_layers:
            raise InputError(
                f"{name} has {len(pattern)} entries and num_layers is {architecture.num_layers}: "
                f"it needs one for each layer, as in [0]*1+[1]*{architecture.num_layers - 1}."
            )
        odd = next((entry for entry in pattern if entry not in (0, 1)), None)
        if odd is not None:
            raise InputError(f"{name} holds {odd}: each entry is 0 or 1, without or with it.")


def positions_reach_the_sequence(job: Job) -> None:
    """Learned positions exist up to max_position_embeddings only."""
    architecture, length = job.architecture, job.layout.seq_length
    positions = architecture.max_position_embeddings
    learned = architecture.position_embedding_type == "learned_absolute"
    if learned and positions is not None and positions < length:
        raise InputError(
            f"seq_length {length} is more than max_position_embeddings {positions}: learned "
            f"positions end there; shorten the sequence or raise max_position_embeddings."
        )


def precision_is_one(job: Job) -> None:
    """bf16 and fp16 exclude each other, and fp8 and fp4."""
    if job.recipe.fp8 and job.recipe.fp4:
        raise InputError("fp8 and fp4 are both set: Megatron-LM trains with one; drop one of them.")
    if job.recipe.bf16 and job.recipe.fp16:
        raise InputError("bf16 and fp16 are both set: a job has one precision; drop one of them.")


def parts_go_together(job: Job) -> None:
    """Settings that Megatron accepts only with another one."""
    layout, recipe = job.layout, job.recipe
    if layout.virtual_pipeline_model_parallel_size is not None and _pp(job) == 1:
        raise InputError(
            f"virtual_pipeline_model_parallel_size is "
            f"{layout.virtual_pipeline_model_parallel_size} but pipeline_model_parallel_size is 1: "
            f"interleaving needs at least 2 stages."
        )
    if recipe.tp_comm_overlap and _tp(job) > 1 and not layout.sequence_parallel:
        raise InputError(
            "tp_comm_overlap needs sequence_parallel (Megatron's own rule): set both or neither."
        )
    if recipe.overlap_param_gather and not recipe.use_distributed_optimizer and not fsdp(job):
        raise InputError(
            "overlap_param_gather needs use_distributed_optimizer: without it no parameters are "
            "gathered. Set it, or drop overlap_param_gather."
        )
    if recipe.overlap_param_gather and not recipe.overlap_grad_reduce:
        raise InputError(
            "overlap_param_gather needs overlap_grad_reduce (Megatron's own rule): set both."
        )
    full = layout.recompute_granularity == "full"
    if full and layout.recompute_method is None:
        raise InputError(
            "recompute_granularity full needs recompute_method uniform or block, and "
            "recompute_num_layers."
        )
    if not full and layout.recompute_method is not None:
        raise InputError(
            f"recompute_method {layout.recompute_method} applies to recompute_granularity full "
            f"only, which is {layout.recompute_granularity or 'not set'}."
        )


def fsdp(job: Job) -> bool:
    """Whether Megatron-FSDP shards parameters, which brings the distributed optimizer with it."""
    return str(job.unknown.get("use_megatron_fsdp", False)).lower() == "true"


def _tp(job: Job) -> int:
    return job.layout.tensor_model_parallel_size


def _pp(job: Job) -> int:
    return job.layout.pipeline_model_parallel_size


def _uneven(job: Job) -> bool:
    layout = job.layout
    return (
        layout.decoder_first_pipeline_num_layers is not None
        or layout.decoder_last_pipeline_num_layers is not None
    )


RULES = (
    world_holds_whole_replicas,
    batch_divides,
    query_groups_divide_heads,
    tensor_parallel_divides,
    pipeline_divides,
    uneven_pipeline_divides,
    sequence_divides,
    experts_divide,
    patterns_fit_the_layers,
    positions_reach_the_sequence,
    precision_is_one,
    parts_go_together,
)
