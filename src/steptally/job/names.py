"""Every spelling of a setting, turned into the name that a job uses.

Megatron-LM's flags and the names behind them, Megatron-Core's configuration fields
(`TransformerConfig`, `DistributedDataParallelConfig`, `OptimizerConfig`) and names of earlier
releases. Nothing is computed here: `job.derive` does what takes more than a new name.
"""

from __future__ import annotations

from collections.abc import Mapping

from steptally.errors import InputError
from steptally.job.catalog.options import options_by_flag, options_by_name
from steptally.job.coerce import coerce, settings, shown, truth

# What may stand before the dot in `--set part.name=value`: a job's groups, Megatron-Bridge's.
PARTS_OF_A_NAME = (
    *("architecture", "layout", "recipe", "cluster"),
    *("model", "train", "optimizer", "ddp", "comm_overlap", "mixed_precision"),
)

ALIASES: Mapping[str, str] = {
    # Megatron-Core's fields.
    "num_moe_experts": "num_experts",
    "layernorm_epsilon": "norm_epsilon",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "overlap_p2p_comm": "overlap_p2p_communication",
    "fp8_param": "fp8_param_gather",
    "bucket_size": "ddp_bucket_size",
    "average_in_collective": "ddp_average_in_collective",
    "grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "nope_layer_interval": "no_rope_freq",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    # Earlier releases of Megatron-LM.
    "model_parallel_size": "tensor_model_parallel_size",
    "batch_size": "micro_batch_size",
    "encoder_num_layers": "num_layers",
    "encoder_seq_length": "seq_length",
    "transformer_pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "distribute_checkpointed_activations": "distribute_saved_activations",
    "cuda_graph_scope_deprecated": "cuda_graph_modules",
}


def canonical(values: Mapping[str, object]) -> dict[str, object]:
    """The same settings under the names of a job; what nobody knows keeps its name.

    A value of None says that an option was not given (argument dumps print it) and is dropped.
    Raises `InputError` where a source states a setting under two names with different values.

    >>> canonical({"disable_bias_linear": True, "num_moe_experts": 8, "lr": None})
    {'add_bias_linear': False, 'num_experts': 8}
    """
    stated = {name: value for name, value in values.items() if value not in (None, "None")}
    found: dict[str, object] = {}
    for name, value in stated.items():
        own, own_value = _own(name, value)
        if own in found and not _agree(own, found[own], own_value):
            raise InputError(
                f"{own} is stated twice, under two of its names: as {shown(found[own])} and, by "
                f"{name}, as {shown(own_value)}. Keep one."
            )
        found.setdefault(own, own_value)
    return found


def _agree(name: str, one: object, other: object) -> bool:
    """Whether two statements of a setting mean the same."""
    setting = settings().get(name)
    if setting is None:
        return str(one) == str(other)
    try:
        return coerce(setting, one) == coerce(setting, other)
    except InputError:
        return str(one) == str(other)


def _own(name: str, value: object) -> tuple[str, object]:
    """The job's name and value for one statement."""
    if name in ALIASES:
        return ALIASES[name], value
    if name == "share_embeddings_and_output_weights":
        return "untie_embeddings_and_output_weights", not truth(name, value)
    if name in settings() or name in options_by_name():
        return name, value
    option = options_by_flag().get(f"--{name.replace('_', '-')}")
    if option is None:
        return name, value
    if option.action in ("true", "false"):
        value = truth(name, value) == (option.action == "true")
    return ALIASES.get(option.dest, option.dest), value


def parse_overrides(overrides: tuple[str, ...] | list[str]) -> dict[str, object]:
    """Turn `name=value` texts into settings; hyphens, a leading `--` and `part.name` are accepted.

    >>> parse_overrides(["--num-layers=4", "layout.seq-length=32"])
    {'num_layers': '4', 'seq_length': '32'}
    """
    values: dict[str, object] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        part, _, plain = name.strip().lstrip("-").replace("-", "_").rpartition(".")
        if not equals or not plain:
            raise InputError(f"--set got {shown(text)}: it must be name=value, as num_layers=4.")
        if part and part not in PARTS_OF_A_NAME:
            raise InputError(
                f"--set got {shown(text)}: {shown(part)} is no part of a job; write {plain}=…, or "
                f"one of {', '.join(PARTS_OF_A_NAME)} before the dot."
            )
        value = "none" if value == "None" else value  # unsays what the source states
        if values.setdefault(plain, value) != value:
            raise InputError(
                f"--set gives {plain} twice, as {shown(values[plain])} and as {shown(value)}: "
                f"keep one."
            )
    return values
