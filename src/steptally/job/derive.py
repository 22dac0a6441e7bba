"""What Megatron-LM makes of its own options before it trains: `validate_args`, rule by rule.

Each function takes the settings that a source states, under the job's names, and turns options
that a job does not have into those that it has. Source of the rules: megatron-core 0.19.2,
`megatron/training/arguments.py`. A note says where something that was stated does not take effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from steptally.errors import InputError
from steptally.job.coerce import shown, truth, whole_number
from steptally.job.names import canonical

Settings = dict[str, object]
Notes = list[str]


def derive(values: Mapping[str, object], notes: Notes) -> Settings:
    """Settings under the job's names, with Megatron's rules applied; sentences go to `notes`.

    >>> derive({"bf16": True, "use_flash_attn": True}, [])["attention_backend"]
    'flash'
    """
    found = canonical(values)
    for rule in RULES:
        rule(found, notes)
    return found


def _on(found: Settings, name: str) -> bool:
    """Take a switch out of the settings: whether it is stated and on."""
    return name in found and truth(name, found.pop(name))


# Values that forks and earlier releases spell otherwise, by setting.
SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"},
    "position_embedding_type": {"rotary": "rope", "alibi": "none", "absolute": "learned_absolute"},
    "moe_token_dispatcher_type": {"alltoall_seq": "alltoall"},
}


def spellings(found: Settings, notes: Notes) -> None:
    """`rmsnorm`, `PositionEmbeddingType.alibi`, `alltoall_seq`, `--glu-activation swiglu`."""
    for name, others in SPELLINGS.items():
        if not isinstance(found.get(name), str):
            continue
        word = str(found[name]).rpartition(".")[2]
        if word == "alibi":
            notes.append("ALiBi has no parameters and no FLOPs of note: positions stand as none.")
        found[name] = others.get(word, word)
    activation = str(found.get("glu_activation", ""))
    if activation in ("swiglu", "geglu"):
        found[activation] = True
        del found["glu_activation"]


def precision(found: Settings, notes: Notes) -> None:
    """`--fp8-hybrid` of old, `params_dtype` of dumps, and bf16's fp32 gradient accumulation."""
    for switch, number_format in (("fp8_hybrid", "hybrid"), ("fp8_e4m3", "e4m3")):
        if _on(found, switch):
            found.setdefault("fp8", number_format)
    if found.get("fp8") in (False, "False"):
        del found["fp8"]
    dtype = str(found.pop("params_dtype", "")).removeprefix("torch.")
    if dtype in ("bfloat16", "float16", "half"):
        found.setdefault("bf16" if dtype == "bfloat16" else "fp16", True)
    if _is(found, "grad_reduce_in_bf16"):
        found["accumulate_allreduce_grads_in_fp32"] = False
    elif _is(found, "bf16") and found.get("main_grads_dtype", "fp32") in ("fp32", "torch.float32"):
        found["accumulate_allreduce_grads_in_fp32"] = True
    for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        if str(found.get(name, "")).startswith("torch."):
            found[name] = TORCH_DTYPES.get(str(found[name]), found[name])


TORCH_DTYPES = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.uint8": "fp8",
}


def activation(found: Settings, notes: Notes) -> None:
    """Megatron-Core's `gated_linear_unit` and `activation_func` as the command line's switches."""
    fused = found.pop("bias_activation_fusion", None)  # one switch in Megatron-Core, two here
    for name in ("bias_swiglu_fusion", "bias_gelu_fusion"):
        if fused is not None:
            found.setdefault(name, fused)
    gated = _on(found, "gated_linear_unit")
    function = str(found.pop("activation_func", "")).rpartition(".")[2]
    if function == "squared_relu":
        found.setdefault("squared_relu", True)
    if not gated or any(_is(found, name) for name in ("swiglu", "geglu", "quick_geglu")):
        return
    if function in ("", "silu", "swish"):
        found["swiglu"] = True
    elif "quick" in function:
        found["quick_geglu"] = True
    elif "gelu" in function:
        found["geglu"] = True
    else:
        raise InputError(
            f"gated_linear_unit is set with activation_func {shown(function)}: the gates that an "
            f"account knows are silu (swiglu), gelu (geglu) and quick_gelu (quick_geglu)."
        )


def query_groups(found: Settings, notes: Notes) -> None:
    """`--num-query-groups` counts only beside `--group-query-attention`; alone it does nothing."""
    for fork in ("num_key_value_heads", "num_attention_heads_kv"):  # Megatron-DeepSpeed, -LLM
        if fork in found:
            found["num_query_groups"] = found.pop(fork)
            found.pop("group_query_attention", None)
    if "group_query_attention" not in found:
        return
    if truth("group_query_attention", found.pop("group_query_attention")):
        found.setdefault("num_query_groups", 1)  # Megatron-LM's own default
        return
    groups = found.pop("num_query_groups", None)
    if groups is not None and str(groups) != "1" and not _is(found, "multi_latent_attention"):
        notes.append(
            f"num_query_groups {groups} has no effect: Megatron-LM uses it only with "
            f"--group-query-attention, which is not given, so every head has its own keys and "
            f"values."
        )


def attention(found: Settings, notes: Notes) -> None:
    """Backend and position embedding of old flags, and windows counted in keys."""
    if _on(found, "use_flash_attn") or _on(found, "use_flash_attn_v2"):
        found.setdefault("attention_backend", "flash")
    if "attention_backend" in found:
        found["attention_backend"] = str(found["attention_backend"]).rpartition(".")[2]
    if _on(found, "use_rotary_position_embeddings"):
        found["position_embedding_type"] = "rope"
    if not truth("add_position_embedding", found.pop("add_position_embedding", True)):
        found.setdefault("position_embedding_type", "none")
    if "window_size" in found:
        found["window_size"] = _window_in_keys(found["window_size"])
    kinds = found.get("cp_comm_type")
    if isinstance(kinds, list | tuple | str):
        found["cp_comm_type"] = _same_for_all("cp_comm_type", kinds, notes)


def _window_in_keys(window: object) -> object:
    """Transformer Engine's (left, right): `left` keys before a query, and its own."""
    text = str(list(window) if isinstance(window, list | tuple) else window)
    parts = [part for part in text.strip("()[] ").replace(",", " ").split() if part]
    if len(parts) < 2:
        return window
    left = whole_number("window_size", parts[0])
    return None if left < 0 else left + 1


def _same_for_all(name: str, kinds: list[object] | tuple[object, ...] | str, notes: Notes) -> str:
    """One value for a setting that Megatron takes once, or once for each layer."""
    if isinstance(kinds, str):
        kinds = [word.strip("'\"") for word in kinds.strip("[]() ").replace(",", " ").split()]
    words = [str(kind) for kind in kinds] or ["p2p"]
    if len(set(words)) > 1:
        notes.append(
            f"{name} differs by layer ({' '.join(words)[:60]}): {words[0]} stands for all."
        )
    return words[0]


def recompute(found: Settings, notes: Notes) -> None:
    """Switches of four generations that mean recompute_granularity, method and modules."""
    if _on(found, "recompute_activations"):
        found["recompute_granularity"] = "selective"
    layers = found.pop("checkpoint_num_layers", None)
    method_layers = found.pop("activations_checkpoint_num_layers", layers)
    method = found.pop("activations_checkpoint_method", None)
    if _on(found, "checkpoint_activations") or method is not None:
        found.setdefault("recompute_granularity", "full")
        found.setdefault("recompute_method", method or "uniform")
        found.setdefault("recompute_num_layers", method_layers or 1)
    if _on(found, "moe_layer_recompute"):
        found.setdefault("recompute_granularity", "selective")
        found.setdefault("recompute_modules", ["moe"])


def experts(found: Settings, notes: Notes) -> None:
    """No experts where a dump says 0 or [1]; a list with one router setting is that setting."""
    count = str(found.get("num_experts", "")).strip("[] ")  # Megatron-DeepSpeed prints a list
    if count in ("0", "1"):
        del found["num_experts"]
    elif count:
        found["num_experts"] = count
    for name in ("moe_router_load_balancing_type", "moe_aux_loss_coeff"):
        value = found.get(name)
        if isinstance(value, str):
            value = [word.strip("'\"") for word in value.strip("[] ").replace(",", " ").split()]
        if isinstance(value, list | tuple) and value:
            found[name] = ",".join(map(str, value)) if name.endswith("type") else value[0]


def hybrid(found: Settings, notes: Notes) -> None:
    """`M*M-|M*M-/MM/MM`: `|` ends a pipeline segment, `/` begins the pattern of an MTP depth.

    The number of layers follows from `--hybrid-layer-pattern`; with the older
    `--hybrid-override-pattern` it is stated beside it and must agree.
    """
    newer = found.pop("hybrid_layer_pattern", None)
    pattern = found.get("hybrid_override_pattern", newer)
    found.pop("mtp_hybrid_override_pattern", None)
    if not isinstance(pattern, str) or pattern == "none":
        return
    main, *depths = pattern.split("/")
    segments = main.count("|") + 1
    main = main.replace("|", "")
    found["hybrid_override_pattern"] = main
    layers = found.get("num_layers", len(main))
    if newer is not None and whole_number("num_layers", layers) != len(main):
        notes.append(
            f"num_layers {layers} gives way to the {len(main)} layers of the hybrid pattern, as in "
            f"Megatron-LM."
        )
        layers = len(main)
    found["num_layers"] = layers
    if depths:
        found["mtp_num_layers"] = len(depths)
    stages = whole_number("pipeline_model_parallel_size", _size(found, "pipeline"))
    if segments > stages >= 1 and segments % stages == 0:
        found["virtual_pipeline_model_parallel_size"] = segments // stages


def pipeline(found: Settings, notes: Notes) -> None:
    """Virtual stages from layers per virtual stage or from virtual stages per rank; 1 is none."""
    per_stage = found.pop("num_layers_per_virtual_pipeline_stage", None)
    per_rank = found.pop("num_virtual_stages_per_pipeline_rank", None)
    if per_rank is not None:
        found.setdefault("virtual_pipeline_model_parallel_size", per_rank)
    elif per_stage is not None and "virtual_pipeline_model_parallel_size" not in found:
        found["virtual_pipeline_model_parallel_size"] = _virtual_stages(found, per_stage)
    if str(found.get("virtual_pipeline_model_parallel_size")) == "1":
        del found["virtual_pipeline_model_parallel_size"]
    if str(found.get("mtp_num_layers")) == "0":
        del found["mtp_num_layers"]


def _virtual_stages(found: Settings, per_stage: object) -> int:
    name = "num_layers_per_virtual_pipeline_stage"
    size = whole_number(name, per_stage)
    layers = whole_number("num_layers", found.get("num_layers", 0))
    layers += _is(found, "account_for_embedding_in_pipeline_split")
    layers += _is(found, "account_for_loss_in_pipeline_split")
    stages = whole_number("pipeline_model_parallel_size", _size(found, "pipeline"))
    if size < 1 or stages < 1 or layers % stages or layers // stages % size:
        raise InputError(
            f"{name} {shown(per_stage)} does not divide the layers of a stage: num_layers {layers} "
            f"over pipeline_model_parallel_size {stages}. Use a divisor of their quotient."
        )
    return layers // stages // size


def sequence_parallel(found: Settings, notes: Notes) -> None:
    """Megatron-LM turns sequence parallelism off where there is no tensor parallelism."""
    if _is(found, "sequence_parallel") and str(_size(found, "tensor")) == "1":
        found["sequence_parallel"] = False
        notes.append("sequence_parallel is off: Megatron-LM drops it at tensor parallel size 1.")


def world(found: Settings, notes: Notes) -> None:
    """A dump of one rank prints data_parallel_size; the world is that times one replica."""
    replicas = found.pop("data_parallel_size", None)
    if replicas is None or "world_size" in found:
        return
    size = whole_number("data_parallel_size", replicas)
    for kind in ("tensor", "pipeline"):
        size *= whole_number(f"{kind}_model_parallel_size", _size(found, kind))
    size *= whole_number("context_parallel_size", found.get("context_parallel_size", 1))
    found["world_size"] = size


def switches_that_follow(found: Settings, notes: Notes) -> None:
    """Old names of CUDA graphs, and settings that Megatron keeps in step with another."""
    if _on(found, "enable_cuda_graph"):
        found["cuda_graph_impl"] = "local"
    if _on(found, "external_cuda_graph"):
        found["cuda_graph_impl"] = "transformer_engine"
    if _is(found, "add_bias_linear", default=True):
        found["add_qkv_bias"] = True


def _is(found: Mapping[str, object], name: str, *, default: bool = False) -> bool:
    return truth(name, found.get(name, default))


def _size(found: Mapping[str, object], kind: str) -> object:
    return found.get(f"{kind}_model_parallel_size", 1)


RULES: tuple[Callable[[Settings, Notes], None], ...] = (
    spellings,
    precision,
    activation,
    query_groups,
    attention,
    recompute,
    experts,
    hybrid,
    pipeline,
    sequence_parallel,
    world,
    switches_that_follow,
)
