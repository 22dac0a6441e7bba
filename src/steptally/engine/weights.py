"""Initial weights that do not depend on the layout, so that layouts can be compared by their loss.

Megatron-Core draws a weight from the random state of the rank that holds it: TP2 and PP2 start
from different models. Here every whole parameter is drawn from a seed made of its global name (the
layer and expert counted over the whole model) and the job's seed; a rank keeps its own slice.
The distributions are Megatron's: normal with `init_method_std`, divided by √(2 · num_layers) for
the two projections that write to the residual stream; biases 0 and norms 1 stay as built.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator

import torch
from megatron.core import parallel_state
from torch import nn

LAYER = re.compile(r"(?<=layers\.)\d+(?=\.)")
EXPERT = re.compile(r"(?<=\.experts\.local_experts\.)\d+(?=\.)")
GROUPED_EXPERT = re.compile(r"(\.experts\.linear_fc[12]\.weight)(\d+)$")
RESIDUAL_WRITERS = ("linear_proj.weight", "linear_fc2.weight")
TIED_HEAD, EMBEDDING = "output_layer.weight", "embedding.word_embeddings.weight"


def fill_weights(chunk: nn.Module, *, seed: int) -> None:
    """Overwrite the matrices of a GPTModel chunk with this rank's slices of the global model.

    Needs the process groups. Tied embeddings get the same values on the first and last stage.
    """
    with torch.no_grad():
        for name, parameter in named_globally(chunk):
            if parameter.dim() < 2:
                continue
            whole = _draw(name, _whole_shape(name, parameter), seed, _deviation(name, chunk.config))
            parameter.copy_(_slice_of_this_rank(name, parameter, whole))


def named_globally(chunk: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The chunk's parameters under names that are the same in every layout."""
    layers = chunk.decoder.layers
    tied = chunk.share_embeddings_and_output_weights
    for name, parameter in chunk.named_parameters():
        if tied and name == TIED_HEAD:
            name = EMBEDDING
        name = LAYER.sub(lambda match: str(layers[int(match[0])].layer_number - 1), name)
        yield _with_global_expert(name, chunk.config.num_moe_experts), parameter


def _with_global_expert(name: str, num_experts: int | None) -> str:
    if num_experts is None:
        return name
    local_experts = num_experts // parallel_state.get_expert_model_parallel_world_size()
    first = parallel_state.get_expert_model_parallel_rank() * local_experts
    name = EXPERT.sub(lambda match: str(first + int(match[0])), name)
    return GROUPED_EXPERT.sub(lambda match: f"{match[1]}{first + int(match[2])}", name)


def _shards(name: str) -> tuple[int, int]:
    """Rank and size of the tensor-parallel group that splits this parameter."""
    if ".experts." in name:
        return (
            parallel_state.get_expert_tensor_parallel_rank(),
            parallel_state.get_expert_tensor_parallel_world_size(),
        )
    return (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )


def _is_split(parameter: nn.Parameter) -> bool:
    return bool(getattr(parameter, "tensor_model_parallel", False))


def _whole_shape(name: str, parameter: nn.Parameter) -> list[int]:
    shape = list(parameter.shape)
    if _is_split(parameter):
        shape[parameter.partition_dim] *= _shards(name)[1]
    return shape


def _slice_of_this_rank(name: str, parameter: nn.Parameter, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part; with stride 2 (gate and up stacked) it is a part of each half."""
    if not _is_split(parameter):
        return whole
    rank, size = _shards(name)
    dimension = parameter.partition_dim
    halves = whole.chunk(parameter.partition_stride, dim=dimension)
    return torch.cat([half.chunk(size, dim=dimension)[rank] for half in halves], dim=dimension)


def _deviation(name: str, config: object) -> float:
    std: float = config.init_method_std  # type: ignore[attr-defined]
    if name.endswith(RESIDUAL_WRITERS) or re.search(r"linear_fc2\.weight\d+$", name):
        return std / math.sqrt(2 * config.num_layers)  # type: ignore[attr-defined]
    return std


def _draw(name: str, shape: list[int], seed: int, deviation: float) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.empty(shape).normal_(0.0, deviation, generator=generator)
