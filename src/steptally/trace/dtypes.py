"""The spellings of a dtype in traces, to torch's Python name and the bytes of one element."""

from __future__ import annotations

# Kineto writes C++ types in operators ("c10::BFloat16", "long int"), NCCL's events and steptally's
# tags write c10's ScalarType ("BFloat16", "Long").
_NAMES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "bfloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "char": "int8",
    "unsigned char": "uint8",
    "byte": "uint8",
    "bool": "bool",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
}

ELEMENT_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}

# As Megatron-LM's flags spell them.
_SHORT = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def short_dtype(name: str) -> str | None:
    """Megatron-LM's word for a dtype, torch's where it has none; None for no dtype.

    >>> short_dtype("bfloat16"), short_dtype("int64"), short_dtype("")
    ('bf16', 'int64', None)
    """
    return _SHORT.get(name, name) or None


def dtype_name(spelled: str) -> str:
    """torch's Python name; empty for what is no dtype, or several at once.

    >>> dtype_name("c10::BFloat16"), dtype_name("Float"), dtype_name("torch.int64")
    ('bfloat16', 'float32', 'int64')
    """
    name = spelled.removeprefix("torch.").removeprefix("c10::").lower()
    return name if name in ELEMENT_BYTES else _NAMES.get(name, "")
