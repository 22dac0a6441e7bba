"""Every collective of one rank in one optimizer step: the `traffic` account.

Collectives of groups of one rank move nothing and are left out.

>>> from steptally.job import job_from_settings
>>> job = job_from_settings({"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
...     "seq_length": 32, "vocab_size": 128, "tensor_model_parallel_size": 2, "bf16": True,
...     "sequence_parallel": True})
>>> row = predict_traffic(job)[0]
>>> row.name, row.collective, row.phase, row.calls_per_step, row.bytes_per_call
('embedding output', 'all_reduce', 'forward', 1, 4096)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from steptally.job.job import Job
from steptally.predict.collective import (
    BACKWARD,
    FORWARD,
    RECOMPUTE,
    TENSOR,
    WORLD,
    Collective,
)
from steptally.predict.layers import LayerKind, layer_kinds, mtp_layer_kinds
from steptally.predict.linears import output_linear
from steptally.predict.microbatch import gathered_tokens
from steptally.predict.precision import size_bytes
from steptally.predict.ranks import coordinates, group_ranks
from steptally.predict.reruns import layer_runs_again, mtp_runs_again, selective_reruns
from steptally.predict.stages import Chunk, chunks_of_stage
from steptally.predict.traffic_context import attention_context_collectives
from steptally.predict.traffic_data import step_collectives
from steptally.predict.traffic_expert import moe_collectives
from steptally.predict.traffic_mtp import mtp_boundary_collectives
from steptally.predict.traffic_pipeline import pipeline_collectives
from steptally.predict.traffic_tensor import (
    embedding_collectives,
    layer_tensor_collectives,
    linear_collectives,
    loss_collectives,
    mtp_projection_collectives,
)
from steptally.predict.wire import link_domain, network_bytes, sent_bytes
from steptally.tally.rows import GroupRow, TrafficRow


def predict_traffic(job: Job, rank: int = 0) -> list[TrafficRow]:
    """Rows of equal collectives, model first, then what happens once a step.

    Raises `InputError` for a rank that the job does not have. `traffic_refusals` names what a job
    moves that is not in here.
    """
    microbatches = job.layout.num_microbatches
    calls: Counter[Collective] = Counter()
    for chunk in chunks_of_stage(job, coordinates(job.layout, rank).pp):
        for collective, times in chunk_collectives(job, chunk, rank):
            calls[replace(collective, calls=1)] += times * collective.calls * microbatches
    for collective in pipeline_collectives(job, rank):
        calls[collective] += microbatches
    for collective in step_collectives(job, rank):
        calls[replace(collective, calls=1)] += collective.calls
    members = {c.group: members_of(job, c.group, rank) for c in calls}
    return [
        _row(job, collective, count, rank, members[collective.group])
        for collective, count in calls.items()
        if len(members[collective.group]) > 1
    ]


def predict_groups(job: Job, rank: int = 0) -> list[GroupRow]:
    """The process groups in which a rank communicates, with their members in Megatron's order."""
    names = dict.fromkeys(row.group for row in predict_traffic(job, rank))
    rows = []
    for name in names:
        ranks = members_of(job, name, rank)
        rows.append(
            GroupRow(
                group=name,
                group_size=len(ranks),
                ranks=ranks,
                nodes=len(_nodes(job, ranks)),
                scope=scope_of(job, ranks),
                rank=rank,
            )
        )
    return rows


def traffic_refusals(job: Job) -> list[str]:
    """What the job moves that `predict_traffic` cannot count, and how to have it counted."""
    recipe, layout = job.recipe, job.layout
    found = []
    if job.architecture.num_experts is not None and recipe.moe_token_dispatcher_type == "flex":
        found.append(
            "expert dispatch and combine: moe_token_dispatcher_type flex (DeepEP, HybridEP) sends "
            "each token once to a rank, by kernels that depend on the routing; with "
            "--set moe_token_dispatcher_type=alltoall an upper bound is counted"
        )
    if layout.context_parallel_size > 1 and layout.cp_comm_type == "a2a+p2p":
        found.append(
            "context parallelism: cp_comm_type a2a+p2p needs hierarchical_context_parallel_sizes, "
            "which a job does not hold; use p2p, allgather or a2a"
        )
    hybrid = any(kind.mixer == "mamba" for kind in layer_kinds(job))
    if layout.context_parallel_size > 1 and hybrid:
        found.append(
            "context parallelism of Mamba layers (all-to-all of their heads) is not counted"
        )
    return found


def traffic_warnings(job: Job) -> list[str]:
    """Assumptions behind the rows that a reader must know."""
    found = []
    domains = _tensor_link_domains(job)
    if job.recipe.tp_comm_overlap and domains > 1:
        found.append(
            f"tp_comm_overlap hides nothing: {TENSOR} stands on {domains} nodes, and "
            "Transformer Engine's user buffers need a fast link between all its ranks "
            "(TransformerEngine issue 1071)"
        )
    if job.recipe.fp8 is not None and job.layout.sequence_parallel:
        found.append(
            "fp8: Transformer Engine gathers inputs of column-parallel layers in eight bits with "
            "most recipes; bytes are counted in params_dtype, an upper bound"
        )
    if job.architecture.num_experts is not None:
        found.append("routing is taken to be balanced: every expert gets the same tokens")
    return found


def scope_of(job: Job, ranks: Iterable[int]) -> str:
    """`intra-node` where all ranks stand on one node of `devices_per_node`, else `inter-node`."""
    return "intra-node" if len(_nodes(job, ranks)) == 1 else "inter-node"


def members_of(job: Job, group: str, rank: int) -> tuple[int, ...]:
    """The ranks of a group, torch's default group included."""
    if group == WORLD:
        return tuple(range(job.layout.world_size))
    return group_ranks(job, group, rank)


def chunk_collectives(job: Job, chunk: Chunk, rank: int) -> Iterator[tuple[Collective, int]]:
    """The collectives of one chunk and micro-batch, each with how often it happens."""
    if chunk.embedding:
        yield from ((collective, 1) for collective in embedding_collectives(job))
    kinds = layer_kinds(job)
    layers = Counter(
        (kinds[number], layer_runs_again(job, chunk, position))
        for position, number in enumerate(chunk.layers)
    )
    for (kind, again), count in layers.items():
        yield from _with_reruns(job, _layer_collectives(job, kind, rank), count, again)
    yield from _saved_activations(job, chunk)
    yield from _mtp_collectives(job, chunk, rank)
    if chunk.head:
        depths = job.architecture.mtp_num_layers or 0
        for collective in [*_output_layer(job), *loss_collectives(job)]:
            yield collective, 1 + depths
        yield from ((c, depths) for c in mtp_boundary_collectives(job, rank, labels=True))


def _mtp_collectives(job: Job, chunk: Chunk, rank: int) -> Iterator[tuple[Collective, int]]:
    """Per depth: the shifted tokens and their embedding, the projection, a whole layer."""
    for kind in mtp_layer_kinds(job)[: chunk.mtp_layers]:
        again = mtp_runs_again(job)
        yield from ((c, 1) for c in mtp_boundary_collectives(job, rank, labels=False))
        yield from ((c, 1) for c in embedding_collectives(job))
        yield from _with_reruns(job, mtp_projection_collectives(job), 1, again)
        yield from _with_reruns(job, _layer_collectives(job, kind, rank), 1, again)


def _layer_collectives(job: Job, kind: LayerKind, rank: int) -> list[Collective]:
    return [
        *layer_tensor_collectives(job, kind),
        *attention_context_collectives(job, kind, rank),
        *(moe_collectives(job) if kind.mlp == "moe" else []),
    ]


def _output_layer(job: Job) -> list[Collective]:
    if job.layout.tensor_model_parallel_size == 1:
        return []
    return linear_collectives(job, output_linear(job))


def _with_reruns(
    job: Job, collectives: Iterable[Collective], count: int, again: bool
) -> Iterator[tuple[Collective, int]]:
    """Each collective `count` times, and forward ones as often as recomputation repeats them."""
    for collective in collectives:
        reruns = again + selective_reruns(job, collective.modules)
        if collective.phase != FORWARD or not reruns:
            yield collective, count
            continue
        if not collective.only_with_gradients:
            yield collective, count
        repeats = 1 if collective.only_with_gradients else reruns
        yield replace(collective, phase=RECOMPUTE), count * repeats


def _saved_activations(job: Job, chunk: Chunk) -> Iterator[tuple[Collective, int]]:
    """Inputs of checkpoints that `distribute_saved_activations` cut over the tp ranks."""
    layout = job.layout
    if not layout.distribute_saved_activations or layout.tensor_model_parallel_size == 1:
        return
    layers = sum(layer_runs_again(job, chunk, i) for i in range(len(chunk.layers)))
    group = layout.recompute_num_layers or 1 if layout.recompute_method == "uniform" else 1
    checkpoints = -(-layers // group)
    if mtp_runs_again(job):
        checkpoints += chunk.mtp_layers
    if checkpoints:
        saved = Collective(
            name="saved input of a checkpoint",
            group=TENSOR,
            collective="all_gather",
            phase=BACKWARD,
            elements=gathered_tokens(job) * job.architecture.hidden_size,
            dtype=job.recipe.params_dtype,
        )
        yield saved, checkpoints


def _row(
    job: Job, collective: Collective, calls: int, rank: int, members: tuple[int, ...]
) -> TrafficRow:
    size = size_bytes(collective.elements, collective.dtype)
    ends = members if collective.peer is None else (rank, collective.peer)
    network = network_bytes(job, collective.collective, size, rank, ends)
    return TrafficRow(
        group=collective.group,
        group_size=len(members),
        collective=collective.collective,
        phase=collective.phase,
        calls_per_step=calls,
        bytes_per_call=size,
        rank=rank,
        scope=scope_of(job, ends),
        name=collective.name,
        dtype=collective.dtype,
        bytes_per_step=calls * size,
        overlap_flag=collective.flag,
        overlapped=_hidden(job, collective),
        sent_bytes_per_step=calls * sent_bytes(collective.collective, size, len(members)),
        network_bytes_per_step=None if network is None else calls * network,
    )


def _hidden(job: Job, collective: Collective) -> bool:
    """Whether compute hides it: by its nature, or by a flag that the job sets and that works."""
    flag = collective.flag
    if collective.hidden or flag is None:
        return collective.hidden
    if flag == "tp_comm_overlap" and _tensor_link_domains(job) > 1:
        return False
    return bool(getattr(job.recipe, flag))


def _tensor_link_domains(job: Job) -> int:
    """Over how many nodes (or racks joined by a fast link) the first tensor-parallel group goes."""
    return len({link_domain(job, rank) for rank in group_ranks(job, TENSOR, 0)})


def _nodes(job: Job, ranks: Iterable[int]) -> set[int]:
    return {rank // job.cluster.devices_per_node for rank in ranks}
