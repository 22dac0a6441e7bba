"""The matrix products of linear layers and of core attention, in every phase, for one micro-batch.

C[m,n] = A[m,k] · B[k,n]. Forward, the gradient of the input (dgrad) and of the weight (wgrad) are
the products that `LinearWithGradAccumulationAndAsyncCommunication` and autograd's `baddbmm` run
(megatron-core 0.16.1, tensor_parallel/layers.py and transformer/dot_product_attention.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from steptally.job.job import Job
from steptally.predict.attention_kernel import UNFUSED, attention_kernel
from steptally.predict.attention_pairs import visible_pairs
from steptally.predict.layers import LayerKind
from steptally.predict.linears import (
    COLUMN,
    DUPLICATED,
    EXPERT_COLUMN,
    EXPERT_ROW,
    ROW,
    Linear,
)
from steptally.predict.microbatch import sequence_shards
from steptally.predict.ranks import coordinates

FORWARD, DGRAD, WGRAD, RECOMPUTE = "forward", "dgrad", "wgrad", "recompute"
CORE_ATTENTION = ("core_attn",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """`calls` equal batched products of one micro-batch of one layer.

    `flops` of one call: 2·m·n·k·batch, or fewer where a kernel skips masked pairs. `cuts` names the
    parallel axis that made each dimension smaller. `on_chip` names the operand (A, B or C) that a
    fused attention kernel never writes to memory: the scores. `precision` as in `Linear`.
    """

    name: str
    phase: str
    m: int
    n: int
    k: int
    batch: int
    calls: int
    flops: int
    cuts: str = ""
    on_chip: str = ""
    precision: str = "linear"
    modules: tuple[str, ...] = ()


def linear_products(job: Job, linear: Linear) -> list[Product]:
    """Forward, dgrad and wgrad of a linear layer; 2·rows·inputs·outputs·batch FLOPs each."""
    rows, inputs, outputs = linear.rows, linear.inputs, linear.outputs
    cut = _cut_axes(job, linear)
    split = linear.parallel.startswith("expert") and job.layout.expert_model_parallel_size > 1
    shared = {"experts": ("ep",)} if split else {}
    shapes = (
        (FORWARD, (rows, outputs, inputs), ("rows", "outputs", "inputs")),
        (DGRAD, (rows, inputs, outputs), ("rows", "inputs", "outputs")),
        (WGRAD, (outputs, inputs, rows), ("outputs", "inputs", "rows")),
    )
    return [
        Product(
            name=linear.name,
            phase=phase,
            m=m,
            n=n,
            k=k,
            batch=linear.batch,
            calls=linear.calls,
            flops=2 * m * n * k * linear.batch,
            cuts=_cuts({**dict(zip("mnk", (cut[side] for side in sides), strict=True)), **shared}),
            precision=linear.precision,
            modules=linear.modules,
        )
        for phase, (m, n, k), sides in shapes
    ]


def attention_products(job: Job, kind: LayerKind, rank: int) -> list[Product]:
    """QKᵀ and PV forward, and the four (flash: five) products of their backward.

    Unfused attention multiplies the whole square; flash attention the visible pairs only, and QKᵀ a
    second time in backward. Q's rows are those of the rank's context-parallel part, K's all.
    """
    if kind.mixer == "mla":
        query_channels, value_channels = _latent_channels(job)
    else:
        query_channels = value_channels = job.architecture.kv_channels
    heads, queries = local_heads(job), _local_queries(job)
    keys = job.layout.seq_length
    fused = attention_kernel(job) != UNFUSED
    pairs = rank_pairs(job, kind, rank) if fused else queries * keys
    score, value = query_channels, value_channels
    # Name, phase, m × n × k, channels of its FLOPs, and which operand holds scores.
    shapes = [
        ("qk", FORWARD, (queries, keys, score), score, "C"),
        ("pv", FORWARD, (queries, value, keys), value, "A"),
        ("pv", DGRAD, (queries, keys, value), value, "C"),
        ("pv", DGRAD, (keys, value, queries), value, "A"),
        ("qk", DGRAD, (queries, score, keys), score, "A"),
        ("qk", DGRAD, (score, keys, queries), score, "B"),
    ]
    if fused:
        shapes.append(("qk", DGRAD, (queries, keys, score), score, "C"))
    batch = job.layout.micro_batch_size * heads
    return [
        Product(
            name=f"core_attention.{name}",
            phase=phase,
            m=m,
            n=n,
            k=k,
            batch=batch,
            calls=1,
            flops=2 * pairs * batch * channels,
            cuts=_attention_cuts(job),
            on_chip=scores if fused else "",
            precision="high",
            modules=CORE_ATTENTION,
        )
        for name, phase, (m, n, k), channels, scores in shapes
    ]


def local_heads(job: Job) -> int:
    """Attention heads of a rank: cut by tp, and by cp where it exchanges heads (a2a)."""
    layout = job.layout
    heads = job.architecture.num_attention_heads // layout.tensor_model_parallel_size
    return heads // layout.context_parallel_size if layout.cp_comm_type == "a2a" else heads


def rank_pairs(job: Job, kind: LayerKind, rank: int) -> int:
    """Visible pairs of one head on one rank.

    Context parallelism cuts the sequence into 2·cp chunks of which rank r takes the r-th and the
    r-th from the end: equal work for causal attention, not for windows. The pairs of the queries
    before t are those of a sequence of length t.
    """
    layout = job.layout
    parts = layout.context_parallel_size
    if parts == 1 or layout.cp_comm_type == "a2a":
        return visible_pairs(kind, (layout.seq_length,))
    chunk = layout.seq_length // (2 * parts)
    first = coordinates(layout, rank).cp
    total = 0
    for index in (first, 2 * parts - 1 - first):
        total += visible_pairs(kind, ((index + 1) * chunk,))
        total -= visible_pairs(kind, (index * chunk,))
    return total


def _local_queries(job: Job) -> int:
    layout = job.layout
    if layout.cp_comm_type == "a2a":
        return layout.seq_length
    return layout.seq_length // layout.context_parallel_size


def _latent_channels(job: Job) -> tuple[int, int]:
    architecture = job.architecture
    return architecture.qk_head_dim + architecture.qk_pos_emb_head_dim, architecture.v_head_dim


def _cut_axes(job: Job, linear: Linear) -> dict[str, tuple[str, ...]]:
    """Which parallel axes cut the rows, inputs and outputs of a linear layer."""
    layout = job.layout
    sizes = {
        "cp": layout.context_parallel_size,
        "tp": layout.tensor_model_parallel_size,
        "etp": layout.expert_tensor_parallel_size,
        "sp": sequence_shards(job),
    }
    cut_sides: dict[str, dict[str, tuple[str, ...]]] = {
        COLUMN: {"rows": ("cp",), "outputs": ("tp",)},
        ROW: {"rows": ("cp",), "inputs": ("tp",)},
        DUPLICATED: {"rows": ("cp", "sp")},
        EXPERT_COLUMN: {"rows": ("cp", "sp"), "outputs": ("etp",)},
        EXPERT_ROW: {"rows": ("cp", "sp"), "inputs": ("etp",)},
    }
    sides = cut_sides[linear.parallel]
    return {
        side: tuple(axis for axis in sides.get(side, ()) if sizes[axis] > 1)
        for side in ("rows", "inputs", "outputs")
    }


def _attention_cuts(job: Job) -> str:
    layout = job.layout
    heads = ["tp"] if layout.tensor_model_parallel_size > 1 else []
    if layout.context_parallel_size > 1 and layout.cp_comm_type == "a2a":
        heads.append("cp")
    queries = layout.context_parallel_size > 1 and layout.cp_comm_type != "a2a"
    return _cuts({"batch": tuple(heads), "queries": ("cp",) if queries else ()})


def _cuts(axes: dict[str, tuple[str, ...]]) -> str:
    """As text: `m/cp, n/tp`."""
    return ", ".join(f"{side}/{'·'.join(cut)}" for side, cut in axes.items() if cut)
