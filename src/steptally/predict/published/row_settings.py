"""From a published row to settings in Megatron-LM's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptally.errors import InputError
from steptally.job.catalog.models import find_model
from steptally.predict.published.rows import PublishedRow
from steptally.predict.published.sources import Source, families

STYLES: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "gpt": {},
    "llama": {
        "normalization": "RMSNorm",
        "add_bias_linear": False,
        "position_embedding_type": "rope",
    },
    "plain": {"add_bias_linear": False, "position_embedding_type": "rope"},
}
# The row form's names beside Megatron's.
SIZES = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "ffn": "ffn_hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "vocab": "vocab_size",
    "swiglu": "swiglu",
    "mtp": "mtp_num_layers",
}
LATENT_SIZES = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_head_dim",
    "qk_rope_dim": "qk_pos_emb_head_dim",
    "v_head_dim": "v_head_dim",
}
NEEDED = ("layers", "hidden", "ffn", "heads", "vocab")


def architecture_settings(row: PublishedRow, source: Source | None) -> dict[str, Any]:
    """The architecture and sequence of a row.

    A row without an architecture whose model the catalogue has takes the catalogue's. Raises
    `InputError` that says what is missing.
    """
    settings: dict[str, Any]
    if row.architecture.get("layers"):
        settings = {**STYLES[source.style if source else ""], **_stated(row)}
    else:
        settings = _from_catalogue(row)
    if row.number("seq") is None:
        raise InputError("the row has no seq, the tokens of a sequence")
    settings["seq_length"] = row.values["seq"]
    for family in families():
        if row.model.startswith(family.model):
            settings.update(family.settings)
    settings["padded_vocab_size"] = _vocabulary(row, source, settings)
    if source is not None and source.layers == "multiple of pp":
        settings["num_layers"] = nearest_multiple(settings["num_layers"], row.values.get("pp") or 1)
    return settings


def nearest_multiple(count: int, step: int) -> int:
    """The positive multiple of `step` nearest to `count`, the larger of two equally near.

    >>> nearest_multiple(77, 6)
    78
    """
    return max(1, (2 * count + step) // (2 * step)) * step


def _from_catalogue(row: PublishedRow) -> dict[str, Any]:
    model = find_model(row.model)
    if model is None:
        raise InputError(
            f"the row states no architecture, and model {row.model!r} is not in the catalogue"
        )
    return dict(model.settings)


def _stated(row: PublishedRow) -> dict[str, Any]:
    architecture = row.architecture
    missing = [name for name in NEEDED if not architecture.get(name)]
    if missing:
        raise InputError(f"its arch does not state {', '.join(missing)}")
    settings = {
        megatron: architecture[name]
        for name, megatron in SIZES.items()
        if architecture.get(name) is not None
    }
    settings["untie_embeddings_and_output_weights"] = not architecture.get("tied", False)
    if architecture.get("window"):
        settings["window_size"] = architecture["window"]
        settings["window_attn_skip_freq"] = architecture.get("window_every")
    settings.update(_experts(architecture.get("moe"), architecture["layers"]))
    settings.update(_latent_attention(architecture.get("mla")))
    if settings.get("multi_latent_attention"):
        settings.pop("num_query_groups", None)
    return settings


def _experts(moe: Mapping[str, Any] | None, layers: int) -> dict[str, Any]:
    if not moe:
        return {}
    dense = moe.get("dense_layers") or 0
    return {
        "num_experts": moe.get("experts"),
        "moe_router_topk": moe.get("topk"),
        "moe_ffn_hidden_size": moe.get("ffn"),
        "moe_shared_expert_intermediate_size": moe.get("shared_ffn") or None,
        "moe_layer_freq": [0] * dense + [1] * (layers - dense),
    }


def _latent_attention(mla: Mapping[str, Any] | None) -> dict[str, Any]:
    if not mla:
        return {}
    return {
        "multi_latent_attention": True,
        **{megatron: mla[name] for name, megatron in LATENT_SIZES.items() if name in mla},
    }


def _vocabulary(row: PublishedRow, source: Source | None, settings: Mapping[str, Any]) -> int:
    vocabulary = int(settings["vocab_size"])
    if source is None or source.vocabulary != "padded":
        return vocabulary
    multiple = 128 * int(row.number("tp") or 1)
    return -(-vocabulary // multiple) * multiple
