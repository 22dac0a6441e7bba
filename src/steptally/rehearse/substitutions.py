"""What is rehearsed in place of what a job states, and which accounts that leaves standing.

Kernels of Transformer Engine, Apex and CUDA do not run on fake CPU tensors. Each gives way to an
equivalent of Megatron-Core's own, or to a stand-in of `rehearse`; the row says for FLOPs, traffic
and memory whether the account stands, is bounded (`at most`, `at least`) or is void.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from steptally.errors import InputError
from steptally.job import Job
from steptally.tally import SubstitutionRow

STANDS, AT_MOST, AT_LEAST, VOID = "stands", "at most", "at least", "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """Modules that stand where Transformer Engine's would."""

    fused_attention: bool
    duplicated_projections: bool
    router_product: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsable:
    """A job that megatron-core runs on fake tensors, and what was changed to make it one."""

    job: Job
    stand_ins: StandIns
    substitutions: tuple[SubstitutionRow, ...]


def make_rehearsable(job: Job) -> Rehearsable:
    """Substitute what cannot run here.

    Raises `InputError` where nothing of megatron-core's own can bound what the job does.
    """
    _refuse(job)
    stand_ins = StandIns(
        fused_attention=_has_fused_attention(job),
        duplicated_projections=_uses_transformer_engine(job)
        and job.architecture.multi_latent_attention,
        router_product=_uses_transformer_engine(job),
    )
    found = [row for rule in STAND_IN_RULES for row in rule(job)]
    for rule in SETTING_RULES:
        for change in rule(job):
            section, name = change.section, change.name
            stated = getattr(getattr(job, section), name)
            if stated == change.value:
                continue
            job = _with(job, section, name, change.value)
            if change.row is not None:
                found.append(dataclasses.replace(change.row, setting=name, stated=_text(stated)))
    return Rehearsable(job=job, stand_ins=stand_ins, substitutions=tuple(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that is rehearsed with another value; no row where no account depends on it."""

    section: str
    name: str
    value: Any
    row: SubstitutionRow | None = None


def _row(
    rehearsed: str,
    why: str,
    *,
    setting: str = "",
    stated: str = "",
    flops: str = STANDS,
    traffic: str = STANDS,
    memory: str = STANDS,
) -> SubstitutionRow:
    return SubstitutionRow(
        setting=setting,
        stated=stated,
        rehearsed=rehearsed,
        flops=flops,
        traffic=traffic,
        memory=memory,
        why=why,
    )


def _uses_transformer_engine(job: Job) -> bool:
    return job.recipe.transformer_impl == "transformer_engine"


def _has_fused_attention(job: Job) -> bool:
    """Megatron-Core's own attention is unfused; only Transformer Engine's splits the sequence."""
    fused = job.recipe.attention_backend not in ("unfused", "local")
    return _uses_transformer_engine(job) and (fused or job.layout.context_parallel_size > 1)


def _attention(job: Job) -> Iterator[SubstitutionRow]:
    if not _has_fused_attention(job):
        return
    stated = job.recipe.attention_backend
    yield _row(
        "a stand-in with the products of flash attention",
        "it multiplies the visible pairs, QKᵀ again in backward, and keeps Q, K, V, output and row "
        "statistics; workspaces of the kernel are not counted",
        setting="attention_backend",
        stated=stated,
        memory=AT_LEAST,
    )


def _projections(job: Job) -> Iterator[SubstitutionRow]:
    if _uses_transformer_engine(job) and job.architecture.multi_latent_attention:
        yield _row(
            "torch.nn.functional.linear",
            "TELinear, duplicated on tensor-parallel ranks",
            setting="linear_q_down_proj, linear_kv_down_proj",
            stated="TELinear",
        )
    if job.architecture.moe_latent_size is not None:
        yield _row(
            "torch.nn.functional.linear",
            "TELinear, duplicated on tensor-parallel ranks",
            setting="fc1_latent_proj, fc2_latent_proj",
            stated="TELinear",
        )


def _weight_gradients(job: Job) -> Iterator[SubstitutionRow]:
    if job.recipe.gradient_accumulation_fusion:
        yield _row(
            "a stand-in that makes no weight gradient of its own",
            "Apex's kernel adds it to the main gradient inside the product",
            setting="gradient_accumulation_fusion",
            stated="true",
        )


def _layers(job: Job) -> Iterator[Change]:
    row = _row(
        "local",
        "Transformer Engine fuses norms with the layer behind them and keeps less of them",
        memory=AT_MOST,
    )
    if _uses_transformer_engine(job):
        yield Change(section="recipe", name="transformer_impl", value="local", row=row)
    yield Change(section="recipe", name="attention_backend", value="auto")


def _low_precision(job: Job) -> Iterator[Change]:
    row = _row(
        f"none: {job.recipe.params_dtype}",
        "products are the same, in another dtype; activations, gathered parameters and some "
        "messages have 8 or 4 bits an element; rows of experts that quantisation pads are not "
        "counted",
        flops=AT_LEAST if job.architecture.num_experts else STANDS,
        traffic=AT_MOST,
        memory=AT_MOST,
    )
    yield Change(section="recipe", name="fp8", value=None, row=row)
    yield Change(section="recipe", name="fp4", value=None, row=row)
    yield Change(section="recipe", name="fp8_param_gather", value=False)
    yield Change(section="recipe", name="fp8_recipe", value="delayed")


def _fusions(job: Job) -> Iterator[Change]:
    unfused = _row("false", "the unfused operators keep more between them", memory=AT_MOST)
    for name in ("apply_rope_fusion", "masked_softmax_fusion", "moe_permute_fusion"):
        needless = name == "masked_softmax_fusion" and _has_fused_attention(job)
        yield Change(section="recipe", name=name, value=False, row=None if needless else unfused)
    if job.recipe.cross_entropy_loss_fusion and job.recipe.cross_entropy_fusion_impl != "native":
        native = _row(
            "native",
            "the other kernels keep fewer copies of the logits, and gather three numbers a token "
            "instead of reducing them",
            traffic=AT_LEAST,
            memory=AT_MOST,
        )
        yield Change(section="recipe", name="cross_entropy_fusion_impl", value="native", row=native)


def _as_megatron_lm_derives(job: Job) -> Iterator[Change]:
    """What `validate_args` sets, and fusions of which there is no kernel to lose."""
    architecture = job.architecture
    biased = architecture.add_bias_linear and architecture.num_experts is None
    if not biased or architecture.squared_relu or architecture.quick_geglu:
        yield Change(section="recipe", name="bias_gelu_fusion", value=False)


def _experts(job: Job) -> Iterator[Change]:
    if job.architecture.num_experts is None:
        return
    one_by_one = _row("false: one product an expert", "the same products, launched one by one")
    yield Change(section="recipe", name="moe_grouped_gemm", value=False, row=one_by_one)
    if job.recipe.moe_token_dispatcher_type == "flex":
        row = _row(
            "alltoall",
            "DeepEP and HybridEP send a token once to a rank, however many of its experts it needs",
            traffic=AT_MOST,
            memory=AT_MOST,
        )
        yield Change(section="recipe", name="moe_token_dispatcher_type", value="alltoall", row=row)
    if job.architecture.add_bias_linear:
        row = _row(
            "false",
            "megatron-core 0.16.1 adds an expert's bias to a view, which autograd refuses",
            flops=STANDS,
            traffic=AT_LEAST,
            memory=AT_LEAST,
        )
        yield Change(section="architecture", name="add_bias_linear", value=False, row=row)
    modules = tuple(m for m in job.layout.recompute_modules if m != "moe_act")
    if modules != job.layout.recompute_modules:
        row = _row("without moe_act", "only grouped products recompute it", memory=AT_MOST)
        yield Change(section="layout", name="recompute_modules", value=modules, row=row)
        if not modules and job.layout.recompute_granularity == "selective":
            yield Change(section="layout", name="recompute_granularity", value=None)


def _overlap(job: Job) -> Iterator[Change]:
    buffers = _row("false", "user buffers carry the same bytes in pieces", memory=AT_LEAST)
    yield Change(section="recipe", name="tp_comm_overlap", value=False, row=buffers)
    order = _row("false", "the same work, in Megatron's plain order")
    yield Change(section="recipe", name="overlap_moe_expert_parallel_comm", value=False, row=order)
    yield Change(section="recipe", name="delay_wgrad_compute", value=False, row=order)
    graphs = _row("none", "graphs replay the same work; their pools are not counted", memory=VOID)
    yield Change(section="recipe", name="cuda_graph_impl", value="none", row=graphs)


def _optimizer(job: Job) -> Iterator[Change]:
    row = _row("false: state in fp32", "Transformer Engine's Adam keeps it", memory=AT_MOST)
    recipe = job.recipe
    yield Change(section="recipe", name="use_precision_aware_optimizer", value=False, row=row)
    if recipe.use_precision_aware_optimizer:
        for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
            yield Change(section="recipe", name=name, value="fp32")
    if recipe.optimizer not in ("adam", "sgd"):
        row = _row(
            "adam",
            "megatron-core 0.16.1 takes it from a package of its own; its products in the "
            "optimizer step are not counted",
            flops=AT_LEAST,
            traffic=AT_LEAST,
            memory=VOID,
        )
        yield Change(section="recipe", name="optimizer", value="adam", row=row)
    offload = _row("false", "the state is counted on the device", memory=AT_MOST)
    yield Change(section="recipe", name="optimizer_cpu_offload", value=False, row=offload)


def _positions(job: Job) -> Iterator[Change]:
    if job.architecture.position_embedding_type in ("yarn", "mrope", "relative"):
        row = _row("rope", "positions move no product and no message")
        yield Change(section="architecture", name="position_embedding_type", value="rope", row=row)
    norms = _row(
        "false", "megatron-core 0.16.1 builds no such norm", traffic=AT_LEAST, memory=AT_LEAST
    )
    yield Change(section="architecture", name="post_layer_norms", value=False, row=norms)


STAND_IN_RULES: tuple[Callable[[Job], Iterator[SubstitutionRow]], ...] = (
    _attention,
    _projections,
    _weight_gradients,
)
SETTING_RULES: tuple[Callable[[Job], Iterator[Change]], ...] = (
    _low_precision,
    _fusions,
    _as_megatron_lm_derives,
    _experts,
    _overlap,
    _optimizer,
    _positions,
    _layers,
)


def _refuse(job: Job) -> None:
    if job.architecture.hybrid_override_pattern is not None:
        raise InputError(
            f"{job.source} states hybrid_override_pattern: Mamba layers come from mamba_ssm's CUDA "
            f"kernels, which have no equivalent here. `steptally count`, `gemms`, `traffic` and "
            f"`memory` predict such a job."
        )
    if job.layout.cp_comm_type == "a2a+p2p" and job.layout.context_parallel_size > 1:
        raise InputError(
            f"{job.source} states cp_comm_type a2a+p2p, which needs "
            f"hierarchical_context_parallel_sizes: a job does not hold them; use p2p, allgather "
            f"or a2a."
        )


def _with(job: Job, section: str, name: str, value: Any) -> Job:
    part = dataclasses.replace(getattr(job, section), **{name: value})
    return dataclasses.replace(job, **{section: part})


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
