"""A Hugging Face `config.json`, read into Megatron-LM's settings.

It describes a model and neither batch nor parallelism; the sequence length is not in it either.
"""

from __future__ import annotations

from collections.abc import Mapping

from steptally.errors import InputError, did_you_mean
from steptally.job.coerce import shown, whole_number
from steptally.job.readers.huggingface_families import (
    FAMILIES,
    HARMLESS,
    NAMES,
    SAME_AS,
    Family,
)
from steptally.job.readers.reading import Reading

ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function")
Settings = dict[str, object]
Config = Mapping[str, object]


def is_config(content: Config) -> bool:
    """Whether a JSON object looks like a model's `config.json`."""
    inner = _text_part(content)
    shape = any(key in inner for key in ("num_hidden_layers", "n_layer", "n_layers"))
    return shape and any(key in content for key in ("model_type", "architectures"))


def read_config(content: Config, source: str, name: str) -> Reading:
    """Read a model; raises `InputError` for a `model_type` whose shape steptally does not know."""
    config = _text_part(content)
    kind = _model_type(content, config, source)
    family = FAMILIES[kind]
    notes: list[str] = []
    if config is not content:
        notes.append(f"{source}: only the language model is read, not its encoders.")
    values: Settings = dict(family.settings)
    for own, keys in NAMES.items():
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if value is not None:
            values[own] = value
    assumed: dict[str, str] = {}
    _sizes(values, config, family, kind)
    _embeddings(values, config, family)
    _biases(values, config, notes)
    _window(values, config, family)
    _experts(values, config, family, kind)
    _precision(values, config, assumed)
    _sequence(values, assumed)
    mapped = {key for keys in NAMES.values() for key in keys} | HARMLESS
    others = {key: value for key, value in config.items() if key not in mapped}
    return Reading(
        values={**values, **{str(key): value for key, value in others.items()}},
        name=name,
        assumed=assumed,
        notes=tuple(notes),
        ignored={key: config[key] for key in config if key in HARMLESS},
        names=(name, str(content.get("_name_or_path", ""))),
    )


def _text_part(content: Config) -> Config:
    """The language model of a multimodal configuration."""
    for key in ("text_config", "llm_config", "language_config"):
        inner = content.get(key)
        if isinstance(inner, dict):
            return inner
    return content


def _model_type(content: Config, config: Config, source: str) -> str:
    stated = config.get("model_type") or content.get("model_type")
    if stated is None:
        classes = content.get("architectures")
        first = str(classes[0]) if isinstance(classes, list) and classes else ""
        stated = first.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
    kind = str(stated)
    kind = SAME_AS.get(kind, kind)
    if kind not in FAMILIES:
        raise InputError(
            f"{source} has model_type {shown(stated)}{did_you_mean(kind, FAMILIES)}, whose layers "
            f"steptally does not know; it reads {', '.join(FAMILIES)}. Describe the model in a "
            f"job file with Megatron-LM's names instead."
        )
    return kind


def _number(config: Config, key: str, default: int = 0) -> int:
    value = config.get(key)
    return default if value is None else whole_number(key, value)


def _sizes(values: Settings, config: Config, family: Family, kind: str) -> None:
    """Head size, key-value heads, and the activation."""
    if "kv_channels" not in values and family.head_dim is not None:
        values["kv_channels"] = family.head_dim
    if kind in ("deepseek_v2", "deepseek_v3", "kimi_k2"):
        values.pop("num_query_groups", None)  # heads share a latent, not keys and values
        values.pop("kv_channels", None)
    if config.get("multi_query") is True:
        values["num_query_groups"] = 1
    stated = (config.get(key) for key in ACTIVATION_KEYS)
    activation = next((name for name in stated if name), "silu")
    gates = any(values.get(name) for name in ("quick_geglu", "swiglu", "geglu"))
    if family.gated and not gates:
        values["swiglu" if str(activation) in ("silu", "swish") else "geglu"] = True


def _embeddings(values: Settings, config: Config, family: Family) -> None:
    tied = config.get("tie_word_embeddings")
    values["untie_embeddings_and_output_weights"] = not (family.tied if tied is None else tied)
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_theta") is not None:
        values.setdefault("rotary_base", rope["rope_theta"])
    if isinstance(rope, dict) and rope.get("partial_rotary_factor") is not None:
        values.setdefault("rotary_percent", rope["partial_rotary_factor"])


def _biases(values: Settings, config: Config, notes: list[str]) -> None:
    """Bias of the attention's projections, and of everything where both parts have one."""
    attention, mlp = config.get("attention_bias"), config.get("mlp_bias")
    if attention and mlp:
        values["add_bias_linear"] = True
    elif attention and not values.get("add_bias_linear"):
        values["add_qkv_bias"] = True
        notes.append("attention_bias is read as a bias of the query, key and value projections.")
    if config.get("use_qk_norm") is True:
        values["qk_layernorm"] = True


def _window(values: Settings, config: Config, family: Family) -> None:
    """Layers that see the last `sliding_window` keys only, by list, by rule, or by flag."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    layers = _number(config, "num_hidden_layers")
    if isinstance(kinds, list) and kinds:
        unknown = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
        if unknown:
            raise InputError(
                f"layer_types holds {shown(unknown[0])}: the kinds that an account knows are "
                f"sliding_attention and full_attention."
            )
        if window is not None and "sliding_attention" in kinds:
            values["window_size"] = window
            values["window_attn_skip_freq"] = [int(kind == "sliding_attention") for kind in kinds]
        return
    if window is None or not family.window:
        return
    if family.window == "flagged":
        first = _number(config, "max_window_layers", layers)
        if not config.get("use_sliding_window") or first >= layers:
            return
        values["window_attn_skip_freq"] = [int(layer >= first) for layer in range(layers)]
    elif isinstance(family.window, int):
        pattern = config.get("sliding_window_pattern", config.get("_sliding_window_pattern"))
        values["window_attn_skip_freq"] = pattern or family.window
    values["window_size"] = window


def _experts(values: Settings, config: Config, family: Family, kind: str) -> None:
    """Which layers hold experts, how wide they are, and the shared expert."""
    if "num_experts" not in values:
        return
    width = config.get(family.moe_width)
    if width is not None:
        values["moe_ffn_hidden_size"] = width
    shared = config.get("shared_expert_intermediate_size")
    shared = config.get("moe_shared_expert_intermediate_size", shared)
    count = _number(config, "n_shared_experts")
    if shared is None and count:
        shared = count * _number(config, family.moe_width)
    if shared:
        values["moe_shared_expert_intermediate_size"] = shared
    if kind != "nemotron_h":
        values["moe_layer_freq"] = _expert_layers(config)


def _expert_layers(config: Config) -> list[int]:
    """1 for each layer with experts: after the first dense ones, at the given step."""
    layers = _number(config, "num_hidden_layers")
    dense_first = _number(config, "first_k_dense_replace")
    frequency = max(1, _number(config, "moe_layer_freq", 1))
    step = max(1, _number(config, "decoder_sparse_step", 1))
    listed = config.get("mlp_only_layers")
    dense = set(listed) if isinstance(listed, list) else set()
    if layers > 100_000:
        raise InputError(f"num_hidden_layers is {layers}: no model has so many.")
    return [
        int(
            layer >= dense_first
            and layer % frequency == 0
            and (layer + 1) % step == 0
            and layer not in dense
        )
        for layer in range(layers)
    ]


def _precision(values: Settings, config: Config, assumed: dict[str, str]) -> None:
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    if stated == "float16":
        values["fp16"] = True
    elif stated != "float32":
        values["bf16"] = True
        if stated != "bfloat16":
            assumed["bf16"] = "True (config.json states no precision; bf16 is the usual one)"


def _sequence(values: Settings, assumed: dict[str, str]) -> None:
    """config.json has no training sequence: its longest position stands in, and says so."""
    longest = values.get("max_position_embeddings")
    if longest is not None:
        values["seq_length"] = longest
        assumed["seq_length"] = f"{longest} (max_position_embeddings; pass --set seq_length=N)"
