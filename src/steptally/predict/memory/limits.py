"""What the memory account takes for granted, and what it refuses."""

from __future__ import annotations

from steptally.errors import InputError
from steptally.job import Job
from steptally.predict.attention_kernel import attention_kernel_assumption

FSDP_FLAGS = ("use_megatron_fsdp", "use_torch_fsdp2")
MASK_WORTH_SAYING_BYTES = 2**26


def refuse_unmodelled(job: Job) -> None:
    """Raise `InputError` for a job whose memory is laid out in a way that is not modelled."""
    for flag in FSDP_FLAGS:
        if _stated(job, flag) == "true":
            raise InputError(
                f"{flag} shards parameters and gathers them layer by layer: the memory account "
                f"knows the distributed optimizer only. Leave the flag out to see what the job "
                f"needs without it."
            )


def memory_warnings(job: Job) -> tuple[str, ...]:
    """What the figures rest on that the job does not state."""
    found = (_kernel(job), _mask(job), _routing(job), _eight_bits(job), _graphs(job), _loss(job))
    return tuple(sentence for sentence in found if sentence is not None)


def _kernel(job: Job) -> str | None:
    if attention_kernel_assumption(job) is None:
        return None
    return (
        "attention_backend is auto: flash (or cuDNN's fused) attention is assumed, which keeps no "
        "scores; with --set attention_backend=unfused they are counted."
    )


def _mask(job: Job) -> str | None:
    """Megatron-LM's data loader sends a mask [b, 1, s, s] of one byte a pair to every rank."""
    layout = job.layout
    size = layout.micro_batch_size * layout.seq_length**2
    if _stated(job, "create_attention_mask_in_dataloader") == "false":
        return None
    if size < MASK_WORTH_SAYING_BYTES:
        return None
    return (
        f"not counted: the attention mask that Megatron-LM's data loader makes by default, "
        f"{size / 2**20:.0f} MiB a micro-batch; --no-create-attention-mask-in-dataloader drops it."
    )


def _routing(job: Job) -> str | None:
    recipe = job.recipe
    if job.architecture.num_experts is None:
        return None
    if recipe.moe_expert_capacity_factor is not None and recipe.moe_pad_expert_input_to_capacity:
        return None
    return (
        "experts are assumed to get equally many tokens: a router that is not balanced, as in the "
        "first steps, needs more on the ranks of its hot experts."
    )


def _eight_bits(job: Job) -> str | None:
    if job.recipe.fp8 is None and job.recipe.fp4 is None:
        return None
    return (
        "FP8 and FP4 tensors follow the rules of Transformer Engine 2.11 and have not been held "
        "against a measured run."
    )


def _graphs(job: Job) -> str | None:
    if job.recipe.cuda_graph_impl == "none":
        return None
    return (
        f"cuda_graph_impl is {job.recipe.cuda_graph_impl}: the private pools of CUDA graphs are "
        f"not counted."
    )


def _loss(job: Job) -> str | None:
    recipe = job.recipe
    if not (recipe.cross_entropy_loss_fusion and recipe.cross_entropy_fusion_impl == "linear"):
        return None
    return (
        "cross_entropy_fusion_impl linear never makes all logits at once: the figures keep them, "
        "as impl te does, and are too high by them."
    )


def _stated(job: Job, flag: str) -> str:
    return str({**job.ignored, **job.unknown}.get(flag)).lower()
