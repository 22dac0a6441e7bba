"""What the engine needs and whether it is here, found without importing any of it.

Importing torch and megatron-core takes seconds; a verb that will refuse must not pay that first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from steptally.errors import MissingPartError

MEGATRON_CORE_VERSION = "0.16.1"
INSTALL_COMMAND = "pip install 'steptally[engine]' (in a checkout: pip install '.[engine]')"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """Versions of what is installed (None: not installed), and whether ranks would use CUDA."""

    torch: str | None
    megatron_core: str | None
    transformer_engine: str | None = None
    apex: str | None = None
    cuda: bool = False


def find_parts() -> EngineParts:
    """Look for the engine's parts in this environment; imports none of them."""
    torch_version = _version("torch", "torch")
    return EngineParts(
        torch=torch_version,
        megatron_core=_version("megatron.core", "megatron-core"),
        transformer_engine=_version("transformer_engine", "transformer_engine"),
        apex=_version("apex", "apex"),
        cuda=torch_version is not None and "+cpu" not in torch_version and _sees_nvidia_device(),
    )


def require_engine(parts: EngineParts) -> None:
    """Raise `MissingPartError` where torch or the pinned megatron-core is not installed."""
    missing = [
        name
        for name, version in (("torch", parts.torch), ("megatron-core", parts.megatron_core))
        if version is None
    ]
    if missing:
        raise MissingPartError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: "
            f"real ranks are Megatron-Core's own code. Install the engine: {INSTALL_COMMAND}."
        )
    if parts.megatron_core != MEGATRON_CORE_VERSION:
        raise MissingPartError(
            f"megatron-core {parts.megatron_core} is installed: steptally is written and tested "
            f"against exactly {MEGATRON_CORE_VERSION}, whose private names it uses. Install that "
            f"one: {INSTALL_COMMAND}."
        )


def _version(module: str, distribution: str) -> str | None:
    """The version of an importable module; `unknown` where it carries no metadata."""
    try:
        if util.find_spec(module) is None:
            return None
    except ModuleNotFoundError:  # the parent package of a dotted name is absent
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def _sees_nvidia_device() -> bool:
    """Whether the NVIDIA driver is loaded and its devices are not hidden from this process."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and Path("/dev/nvidiactl").exists()
