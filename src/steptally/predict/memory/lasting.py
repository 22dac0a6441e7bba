"""Workspaces that the first step allocates and nothing frees: they are alive at every later peak.

Sources: `get_dummy_wgrad` and `get_cublas_workspace` of Transformer Engine 2.11;
`GlobalMemoryBuffer` and `RotaryEmbedding` of megatron-core 0.16.1;
`getChosenWorkspaceSize` of PyTorch (aten/src/ATen/cuda/CublasHandlePool.cpp).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from steptally.job import Device, Job
from steptally.predict.count import Count
from steptally.predict.memory.attention import ROTARY
from steptally.predict.memory.dimensions import FP8_SCALES, Dimensions
from steptally.predict.memory.operation import larger
from steptally.predict.memory.program import Program
from steptally.predict.memory.resident import Line
from steptally.predict.memory.weights import HEAD, Weight

MIB = 2**20
HOPPER_CUBLAS_BYTES = 32 * MIB  # from compute capability 9.0, in torch and Transformer Engine
OLDER_TORCH_CUBLAS_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8  # ":4096:2:16:8"
OLDER_TE_CUBLAS_BYTES = 4 * MIB
GROUPED_GEMM_STREAMS = 4  # Transformer Engine's `get_num_cublas_streams`


def lasting_lines(
    job: Job,
    dimensions: Dimensions,
    programs: Sequence[Program],
    weights: Sequence[tuple[Count, Sequence[Weight]]],
    device: Device | None,
) -> list[Line]:
    """Every lasting workspace of a rank that runs `programs`, with the tensors `weights`."""
    tensors = [tensor for _, run in weights for tensor in run]
    has_head = any(program.head for program in programs)
    layers = sum(program.layers for program in programs)
    has_layers = any(program.layers or program.mtp_layers for program in programs)
    found = (
        ("dummy weight gradients", dummy_gradients(dimensions, tensors)),
        ("FP8 weight copies", fp8_weight_copies(job, weights, device)),
        (
            "gathered sequence (global memory buffer)",
            global_buffer(dimensions, has_head, has_layers=has_layers),
        ),
        ("rotary embedding", rotary_embedding(dimensions, layers)),
        ("cuBLAS workspaces", cublas_workspaces(job, device)),
    )
    return [Line("transient", f"workspace: {name}", size) for name, size in found]


def dummy_gradients(dimensions: Dimensions, tensors: Iterable[Weight]) -> Count:
    """One gradient nobody reads for each shape of linear weight: it triggers DDP's hooks."""
    if not (dimensions.transformer_engine and dimensions.recipe.gradient_accumulation_fusion):
        return 0
    shapes = {_shape(tensor): tensor.elements for tensor in tensors if tensor.linear}
    return sum(shapes.values()) * dimensions.element


def fp8_weight_copies(
    job: Job, weights: Iterable[tuple[Count, Sequence[Weight]]], device: Device | None
) -> Count:
    """FP8 copies of the layers' linear weights, made once a step for all micro-batches.

    With `fp8_param_gather` they are the parameters themselves. Delayed and tensorwise scaling need
    a transposed copy too, except where the device multiplies FP8 in any layout (from compute
    capability 10.0); block scaling always keeps both directions.
    """
    elements = quantized_elements(job, weights)
    scale_every, scale_bytes = FP8_SCALES[job.recipe.fp8_recipe]
    one_direction = scale_bytes == 0 and _capability(device) >= 10.0
    copies = 1 if one_direction else 2
    return copies * (elements + elements // scale_every * scale_bytes)


def quantized_elements(job: Job, weights: Iterable[tuple[Count, Sequence[Weight]]]) -> Count:
    """Elements of weights that Transformer Engine multiplies in FP8: linear layers but the head."""
    elements: Count = 0
    if job.recipe.fp8 is None or job.recipe.transformer_impl != "transformer_engine":
        return elements
    for repeats, tensors in weights:
        for tensor in tensors:
            if tensor.linear and tensor.name != HEAD:
                elements = elements + repeats * tensor.copies * tensor.elements
    return elements


def global_buffer(dimensions: Dimensions, has_head: bool, *, has_layers: bool = True) -> Count:
    """Megatron-Core's own layers gather the sequence, and make scores, in one lasting buffer.

    Under Transformer Engine only the LM head and the `allgather` token dispatcher do.
    """
    gathered = dimensions.gathered_hidden_bytes * dimensions.gathers
    if not has_layers:
        return gathered if has_head else 0
    experts = dimensions.ep * dimensions.etp > 1
    if dimensions.recipe.moe_token_dispatcher_type != "allgather":
        experts = False
    tokens = experts * dimensions.hidden_bytes * dimensions.ep * dimensions.etp
    if dimensions.transformer_engine:
        return larger(gathered if has_head else 0, tokens)
    pairs = dimensions.heads * dimensions.tokens * dimensions.layout.seq_length
    return larger(larger(gathered, tokens), pairs * dimensions.element)


def rotary_embedding(dimensions: Dimensions, layers: Count) -> Count:
    """The angles of every position in fp32, cached; MLA caches them in every layer."""
    architecture = dimensions.architecture
    if architecture.multi_latent_attention:
        width, copies = architecture.qk_pos_emb_head_dim, layers
    else:
        width, copies = int(architecture.kv_channels * architecture.rotary_percent), 1
    if architecture.position_embedding_type not in ROTARY:
        return 0
    return dimensions.sequence * width * 4 * copies


def cublas_workspaces(job: Job, device: Device | None) -> int:
    """torch's workspace (LM head, router), Transformer Engine's, and its grouped GEMMs'."""
    hopper = _capability(device) >= 9.0
    torch = HOPPER_CUBLAS_BYTES if hopper else OLDER_TORCH_CUBLAS_BYTES
    if job.recipe.transformer_impl != "transformer_engine":
        return torch
    engine = HOPPER_CUBLAS_BYTES if hopper else OLDER_TE_CUBLAS_BYTES
    grouped = job.architecture.num_experts is not None and job.recipe.moe_grouped_gemm
    return torch + engine * (1 + GROUPED_GEMM_STREAMS * grouped)


def _capability(device: Device | None) -> float:
    """The device's compute capability; a Hopper's where none is stated."""
    stated = getattr(device, "compute_capability", "") if device is not None else ""
    return float(stated) if stated else 9.0


def _shape(tensor: Weight) -> tuple[Count, Count]:
    """A key by shape; arrays of many layouts are told apart by name, since shapes rarely agree."""
    if isinstance(tensor.rows, int) and isinstance(tensor.columns, int):
        return tensor.rows, tensor.columns
    return tensor.name, 0
