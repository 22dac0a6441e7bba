"""What each layer of the model is made of: its mixer (attention, MLA, Mamba) and its MLP.

Every account walks the same list, so that FLOPs, matrix shapes and memory agree on what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from steptally.errors import InputError
from steptally.job import Architecture, Job

# Megatron-Core's letters (ssm/mamba_hybrid_layer_allocation.py): one sublayer a letter.
HYBRID_LETTERS: Mapping[str, tuple[str, str]] = {
    "M": ("mamba", "none"),
    "*": ("attention", "none"),
    "-": ("none", "dense"),
    "E": ("none", "moe"),
}


class LayerKind(NamedTuple):
    """One kind of decoder layer.

    `mixer` is `attention`, `mla`, `mamba` or `none`; `mlp` is `dense`, `moe` or `none`. `window`
    is the number of keys that a query sees, itself included, and `chunk` the length of the blocks
    that attention stays inside; None means the whole prefix.
    """

    mixer: str
    mlp: str
    window: int | None = None
    chunk: int | None = None


def layer_kinds(job: Job) -> tuple[LayerKind, ...]:
    """The kind of each of the `num_layers` decoder layers, in order; MTP layers are apart.

    Raises `InputError` where a pattern does not have `num_layers` entries.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings(
    ...     {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
    ...      "vocab_size": 128, "num_experts": 4, "moe_layer_freq": 2})
    >>> [kind.mlp for kind in layer_kinds(job)]
    ['moe', 'dense']
    """
    return architecture_layers(job.architecture)


def mtp_layer_kinds(job: Job) -> tuple[LayerKind, ...]:
    """The kind of the transformer layer inside each multi-token-prediction module.

    Megatron-Core builds them from the spec of the last decoder layer (`get_gpt_mtp_block_spec`).
    """
    architecture = job.architecture
    return (layer_kinds(job)[-1],) * (architecture.mtp_num_layers or 0)


@lru_cache(maxsize=64)
def architecture_layers(architecture: Architecture) -> tuple[LayerKind, ...]:
    """`layer_kinds` of an architecture."""
    if architecture.hybrid_override_pattern is not None:
        return _hybrid_layers(architecture)
    mixer = "mla" if architecture.multi_latent_attention else "attention"
    experts = moe_pattern(architecture)
    local = local_attention_pattern(architecture)
    return tuple(
        LayerKind(
            mixer=mixer,
            mlp="moe" if experts[index] else "dense",
            window=architecture.window_size if local[index] else None,
            chunk=architecture.attention_chunk_size if local[index] else None,
        )
        for index in range(architecture.num_layers)
    )


@lru_cache(maxsize=64)
def count_layer_kinds(architecture: Architecture) -> Mapping[LayerKind, int]:
    """How many decoder layers there are of each kind."""
    return Counter(architecture_layers(architecture))


def moe_pattern(architecture: Architecture) -> tuple[bool, ...]:
    """Which layers hold experts: every `moe_layer_freq`-th from the first, or a list of 0 and 1."""
    if architecture.num_experts is None:
        return (False,) * architecture.num_layers
    frequency = architecture.moe_layer_freq
    if isinstance(frequency, int):
        return tuple(index % frequency == 0 for index in range(architecture.num_layers))
    _require_length("moe_layer_freq", len(frequency), architecture.num_layers)
    return tuple(bool(entry) for entry in frequency)


def local_attention_pattern(architecture: Architecture) -> tuple[bool, ...]:
    """Which layers see a window or chunk only.

    `window_attn_skip_freq` n leaves every n-th layer its whole prefix (`is_layer_window_attention`
    in Megatron-Core counts layers from 1); a list says it for each layer; None: all are local.
    """
    frequency, layers = architecture.window_attn_skip_freq, architecture.num_layers
    if architecture.window_size is None and architecture.attention_chunk_size is None:
        return (False,) * layers
    if frequency is None:
        return (True,) * layers
    if isinstance(frequency, int):
        return tuple(number % frequency != 0 for number in range(1, layers + 1))
    _require_length("window_attn_skip_freq", len(frequency), layers)
    return tuple(bool(entry) for entry in frequency)


def _hybrid_layers(architecture: Architecture) -> tuple[LayerKind, ...]:
    pattern = architecture.hybrid_override_pattern or ""
    unknown = sorted(set(pattern) - set(HYBRID_LETTERS))
    if unknown:
        raise InputError(
            f"hybrid_override_pattern {pattern!r} holds {unknown[0]!r}: its letters are M (Mamba), "
            f"* (attention), - (MLP) and E (experts)."
        )
    _require_length("hybrid_override_pattern", len(pattern), architecture.num_layers)
    if "E" in pattern and architecture.num_experts is None:
        raise InputError(
            f"hybrid_override_pattern {pattern!r} holds E (experts) but num_experts is not set: "
            f"state num_experts."
        )
    return tuple(
        LayerKind(
            mixer=mixer,
            mlp=mlp,
            window=architecture.window_size if mixer == "attention" else None,
            chunk=architecture.attention_chunk_size if mixer == "attention" else None,
        )
        for mixer, mlp in (HYBRID_LETTERS[letter] for letter in pattern)
    )


def _require_length(name: str, found: int, num_layers: int) -> None:
    if found != num_layers:
        raise InputError(
            f"{name} has {found} entries and num_layers is {num_layers}: it needs one for each "
            f"layer."
        )
