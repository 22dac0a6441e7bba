"""A world of ranks of which only one exists, and tensors that have shapes and no memory.

torch's fake process group takes every other rank for a copy of this one. Nothing outlives the
context: what Megatron keeps in globals and caches would be fake tensors of another world.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import megatron.core.tensor_parallel.random as megatron_random
import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from torch._C._distributed_c10d import FakeWork
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from steptally.engine.cpu import Replacement, megatron_on_cpu, replaced
from steptally.engine.groups import initialize_groups
from steptally.job import Job
from steptally.rehearse.dispatchers import routing_replacements
from steptally.rehearse.recorder import Recorder
from steptally.rehearse.routing import Routing
from steptally.rehearse.standins import (
    DuplicatedLinear,
    FusedWeightGradient,
    fused_rms_norm,
    general_gemm,
)
from steptally.rehearse.substitutions import Rehearsable

# Forms of c10d's operators that torch's own fake collectives leave out.
COALESCED = (
    "allreduce_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)

# Local layers have the router's product too where Transformer Engine is installed: not assumed.
ROUTER_PRODUCT = Replacement(
    "megatron.core.transformer.moe.moe_utils", "te_general_gemm", general_gemm
)


@contextlib.contextmanager
def fake_world(
    rehearsable: Rehearsable, rank: int, recorder: Recorder, routing: Routing
) -> Iterator[None]:
    """Be `rank` of the job's world; operators of the body are fake and recorded.

    One world at a time, in a process of its own. Raises what `megatron_on_cpu` raises.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_attention_variables())
        stack.enter_context(megatron_on_cpu())
        replacements = _replacements(rehearsable.job, recorder)
        for replacement in (*replacements, *routing_replacements(recorder, routing)):
            stack.enter_context(replaced(replacement))
        if rehearsable.stand_ins.router_product:
            stack.enter_context(replaced(ROUTER_PRODUCT))
        stack.enter_context(_one_rank_of(rehearsable.job, rank))
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(recorder.storages.resizing_followed(mode))
        stack.enter_context(recorder.places.followed())
        stack.enter_context(recorder)
        yield


@contextlib.contextmanager
def _without_attention_variables() -> Iterator[None]:
    """Megatron sets NVTE_FLASH_ATTN and others where it builds a model, and refuses others'."""
    before = {name: value for name, value in os.environ.items() if name.startswith("NVTE_")}
    for name in before:
        del os.environ[name]
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("NVTE_")]:
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _one_rank_of(job: Job, rank: int) -> Iterator[None]:
    world_size = job.layout.world_size
    _define_coalesced()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        initialize_groups(job)
        yield
    finally:
        MTPLossLoggingHelper.tracker.clear()
        get_moe_layer_wise_logging_tracker().clear()
        RotaryEmbedding.forward.cache_clear()
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_global_memory_buffer()
        dist.destroy_process_group()
        gc.collect()


def _define_coalesced() -> None:
    """Once a process: what the coalesced collectives do on fake tensors, which is nothing."""
    if _DEFINED:
        return
    _DEFINED.append(torch.library.Library("c10d", "IMPL"))
    for name in COALESCED:
        _DEFINED[0].impl(name, lambda *_, **__: FakeWork().boxed(), "Meta")


_DEFINED: list[torch.library.Library] = []


def _replacements(job: Job, recorder: Recorder) -> Iterator[Replacement]:
    """Names of Megatron that would read values, or that only Transformer Engine and Apex bring."""
    random = "megatron.core.tensor_parallel.random"
    pipeline = "megatron.core.pipeline_parallel.p2p_communication"
    layers = "megatron.core.tensor_parallel.layers"
    latent = "megatron.core.transformer.multi_latent_attention"
    experts = "megatron.core.transformer.moe.moe_layer"
    # A world of 16,384 ranks has as many groups; only this rank's are ever used.
    yield Replacement("megatron.core.parallel_state", "create_group", _own_groups_only)
    # Random states are bytes that Megatron compares and copies; nothing here is random.
    tracker = f"{random}:CudaRNGStatesTracker"
    yield Replacement(tracker, "fork", lambda *_, **__: contextlib.nullcontext())
    yield Replacement(random, "_get_all_rng_states", lambda: ())
    yield Replacement(random, "_set_all_rng_states", lambda *_: None)
    yield Replacement(random, "_fork_rng", contextlib.nullcontext)
    # On a GPU dropout keeps a mask of one byte an element; on a CPU torch keeps a product.
    yield Replacement("torch.nn.functional", "dropout", _dropout)
    # So is RMSNorm one kernel there, which keeps its input and one number a token.
    yield Replacement("torch.nn.functional", "rms_norm", fused_rms_norm)
    # Every rank is a copy of this one; the objects would travel as bytes of tensors.
    gather = _gather_copies(job)
    yield Replacement("torch.distributed", "all_gather_object", gather)
    # On a GPU one kernel over all gradients; the portable form reads each norm back.
    yield Replacement(
        "megatron.core.optimizer.clip_grads",
        "l2_norm_impl",
        lambda *_: (torch.ones(1), None),
    )
    # Which pass a message belongs to, and what is recomputation.
    for name in ("_p2p_ops", "_batched_p2p_ops"):
        yield Replacement(pipeline, name, _announcing(name, recorder))
    yield Replacement("megatron.core.tensor_parallel", "checkpoint", _checkpoint(recorder))
    yield Replacement(
        f"{random}:CheckpointWithoutOutput",
        "checkpoint",
        _checkpoint_without_output(recorder),
    )
    yield Replacement(latent, "TELinear", DuplicatedLinear)
    yield Replacement(latent, "HAVE_TE", False)
    yield Replacement(experts, "TELinear", DuplicatedLinear, may_be_absent=True)
    yield Replacement(experts, "HAVE_TE", True)
    yield Replacement(layers, "_grad_accum_fusion_available", True)
    yield Replacement(
        layers, "fused_weight_gradient_mlp_cuda", FusedWeightGradient, may_be_absent=True
    )


def _dropout(
    tensor: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    return tensor if p == 0 or not training else torch.native_dropout(tensor, p, True)[0]


def _own_groups_only(ranks: list[int] | None = None, *args: Any, **kwargs: Any) -> Any:
    if ranks is not None and dist.get_rank() not in ranks:
        return dist.GroupMember.NON_GROUP_MEMBER
    return _CREATE_GROUP(ranks, *args, **kwargs)


_CREATE_GROUP = parallel_state.create_group


def _gather_copies(job: Job) -> Callable[..., None]:
    """Every rank answers as this one does, and some hold experts where the job has any.

    What Megatron-Core gathers are the kinds of parameters that ranks hold, (overrides, of experts):
    an optimizer for experts is on every rank as soon as it is on one.
    """

    def gather(gathered: list[Any], mine: Any, group: Any = None) -> None:
        gathered[:] = [mine] * len(gathered)
        if job.layout.expert_model_parallel_size > 1:
            experts = [(overrides, True) for overrides, _ in mine if not overrides]
            gathered[-1] = list(dict.fromkeys([*mine, *experts]))

    return gather


def _announcing(name: str, recorder: Recorder) -> Callable[..., Any]:
    import megatron.core.pipeline_parallel.p2p_communication as owner

    original = getattr(owner, name)

    def send_and_receive(**tensors: Any) -> Any:
        recorder.announce("forward", tensors["tensor_send_next"], tensors["tensor_recv_prev"])
        recorder.announce("backward", tensors["tensor_send_prev"], tensors["tensor_recv_next"])
        return original(**tensors)

    return send_and_receive


def _checkpoint(recorder: Recorder) -> Callable[..., Any]:
    apply = megatron_random.CheckpointFunction.apply

    def checkpoint(function: Callable[..., Any], distribute: bool, *args: Any) -> Any:
        return apply(recorder.recomputing(function), distribute, *args)

    return checkpoint


def _checkpoint_without_output(recorder: Recorder) -> Callable[..., Any]:
    original = megatron_random.CheckpointWithoutOutput.checkpoint

    def checkpoint(self: Any, function: Callable[..., Any], *args: Any) -> Any:
        self.fp8 = False  # 0.16.1 tests `fp8 is not None`, and then needs Transformer Engine
        return original(self, recorder.recomputing(function), *args)

    return checkpoint
