"""Whether a job can have the faults that were asked for. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.errors import InputError
from steptally.job import Job, Layout
from steptally.run.faults.fault import (
    DataStall,
    Fault,
    ImbalancedExperts,
    Pause,
    SlowLink,
    SlowRank,
    SlowStage,
)


def check_faults(faults: Sequence[Fault], job: Job, *, cuda: bool, steps: int) -> None:
    """Raise `InputError` for the first fault that this job, on this machine, cannot have."""
    if faults and cuda:
        raise InputError(
            "--inject acts on CPU ranks over gloo, and CUDA is available here: a delay of the host "
            "would not make a kernel longer. Hide the GPUs: CUDA_VISIBLE_DEVICES=''."
        )
    for fault in faults:
        _check(fault, job, steps)


def _check(fault: Fault, job: Job, steps: int) -> None:
    if isinstance(fault, SlowRank | DataStall | Pause) and fault.rank is not None:
        _check_rank(fault, fault.rank, job.layout)
    if isinstance(fault, SlowStage):
        _check_stage(fault, job.layout)
    if isinstance(fault, SlowRank | SlowStage):
        _check_phases_are_apart(fault, job)
    if isinstance(fault, DataStall | Pause) and fault.every > steps:
        raise InputError(
            f"--inject {fault.spec} acts in every {fault.every}th step, and the run has {steps}: "
            f"it would do nothing. Use a smaller every=N, or more --steps."
        )
    if isinstance(fault, SlowLink):
        _check_link(fault, job)
    if isinstance(fault, ImbalancedExperts):
        _check_experts(fault, job)


def _check_rank(fault: Fault, rank: int, layout: Layout) -> None:
    if rank >= layout.world_size:
        raise InputError(
            f"--inject {fault.spec} names rank {rank}, and the job has {layout.world_size} ranks: "
            f"name one of 0 to {layout.world_size - 1}."
        )


def _check_stage(fault: SlowStage, layout: Layout) -> None:
    stages = layout.pipeline_model_parallel_size
    if fault.stage >= stages:
        raise InputError(
            f"--inject {fault.spec} names pipeline stage {fault.stage}, and the job has "
            f"{stages}: name one of 0 to {stages - 1}, or use --set "
            f"pipeline_model_parallel_size=N."
        )


def _check_phases_are_apart(fault: SlowRank | SlowStage, job: Job) -> None:
    """That schedule runs layers of one micro-batch's forward amid another's backward."""
    if job.recipe.overlap_moe_expert_parallel_comm:
        raise InputError(
            f"--inject {fault.spec} needs forward and backward apart, and "
            f"overlap_moe_expert_parallel_comm mixes them: use --set "
            f"overlap_moe_expert_parallel_comm=false."
        )


def _check_link(fault: SlowLink, job: Job) -> None:
    layout = job.layout
    if fault.ranks is not None:
        _check_no_reduce_scatter(fault, _check_pair(fault, fault.ranks, layout), job)
        return
    sizes = {
        "tp": layout.tensor_model_parallel_size,
        "dp": layout.data_parallel_size * layout.context_parallel_size,
        "ep": layout.expert_model_parallel_size,
        "cp": layout.context_parallel_size,
        "pp": layout.pipeline_model_parallel_size,
    }
    if sizes[str(fault.axis)] == 1:
        raise InputError(
            f"--inject {fault.spec} slows the communication of {fault.axis}, which joins one rank "
            f"in this job: name an axis of more than one."
        )
    if fault.axis == "pp" and fault.factor is not None:
        raise InputError(f"--inject {fault.spec} {_NO_FACTOR}")
    _check_no_reduce_scatter(fault, str(fault.axis), job)


_NO_FACTOR = (
    "gives a factor, and how long a message takes is not known before it is there: gloo ends it "
    "inside the wait. Give a time, as 5ms."
)


def _check_no_reduce_scatter(fault: SlowLink, axis: str, job: Job) -> None:
    """gloo runs it as an all-reduce of its own, on whose end nothing can be hung."""
    stated = {
        "tp": ("sequence_parallel", job.layout.sequence_parallel),
        "dp": ("use_distributed_optimizer", job.recipe.use_distributed_optimizer),
    }
    setting, scatters = stated.get(axis, ("", False))
    if scatters:
        raise InputError(
            f"--inject {fault.spec} slows {axis}, whose collectives are reduce-scatters with "
            f"{setting}: gloo gives no hold on the end of one, and a host that waits is no slow "
            f"link. Use --set {setting}=false."
        )


def _check_pair(fault: SlowLink, ranks: tuple[int, int], layout: Layout) -> str:
    """The axis that a link between two ranks belongs to."""
    for rank in ranks:
        _check_rank(fault, rank, layout)
    if fault.factor is not None:
        raise InputError(f"--inject {fault.spec} {_NO_FACTOR}")
    axis = _axis_of_link(*ranks, layout)
    if axis is None:
        raise InputError(
            f"--inject {fault.spec} names two ranks that send each other no message and are no "
            f"group of two: what a larger group does over one link is not gloo's to tell. Name "
            f"neighbours of a pipeline, or an axis, as slow-link=dp:5ms."
        )
    return axis


def _axis_of_link(one: int, other: int, layout: Layout) -> str | None:
    """`pp` for neighbours of a pipeline; tp, cp or dp for two that are alone in that group."""
    a, b = coordinates(one, layout), coordinates(other, layout)
    apart = [axis for axis in a if a[axis] != b[axis]]
    if len(apart) != 1:
        return None
    if apart == ["pp"]:
        stages = layout.pipeline_model_parallel_size
        return "pp" if abs(a["pp"] - b["pp"]) in (1, stages - 1) else None
    return apart[0] if _sizes(layout)[apart[0]] == 2 else None


def _sizes(layout: Layout) -> dict[str, int]:
    """The axes with their sizes, innermost first."""
    inner = {
        "tp": layout.tensor_model_parallel_size,
        "cp": layout.context_parallel_size,
    }
    dp = {"dp": layout.data_parallel_size}
    pp = {"pp": layout.pipeline_model_parallel_size}
    return inner | (pp | dp if layout.use_tp_pp_dp_mapping else dp | pp)


def coordinates(rank: int, layout: Layout) -> dict[str, int]:
    """A rank's place on each axis, as Megatron numbers ranks (`Layout.order`)."""
    place = {}
    for axis, size in _sizes(layout).items():
        rank, place[axis] = divmod(rank, size)
    return place


def _check_experts(fault: ImbalancedExperts, job: Job) -> None:
    experts, recipe = job.architecture.num_experts, job.recipe
    if not experts:
        raise InputError(
            f"--inject {fault.spec} needs experts, and the job has none (num_experts)."
        )
    if fault.expert >= experts:
        raise InputError(
            f"--inject {fault.spec} names expert {fault.expert}, and the job has {experts}: name "
            f"one of 0 to {experts - 1}."
        )
    if job.architecture.moe_router_topk >= experts:
        raise InputError(
            f"--inject {fault.spec} cannot change anything: moe_router_topk "
            f"{job.architecture.moe_router_topk} sends every token to each of {experts} experts."
        )
    dropping = recipe.moe_expert_capacity_factor is not None
    if recipe.moe_token_dispatcher_type != "alltoall" or dropping:
        raise InputError(
            f"--inject {fault.spec} needs moe_token_dispatcher_type alltoall and no "
            f"moe_expert_capacity_factor, so that the expert's products really grow: the job has "
            f"{recipe.moe_token_dispatcher_type} and {recipe.moe_expert_capacity_factor}."
        )
    if recipe.moe_router_load_balancing_type == "sinkhorn":
        raise InputError(
            f"--inject {fault.spec} needs a top-k router: moe_router_load_balancing_type sinkhorn "
            f"balances whatever it is given."
        )
