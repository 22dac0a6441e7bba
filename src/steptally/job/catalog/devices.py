"""Load the device catalogue, and find in it what a driver or a person calls a device."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

from steptally.errors import InputError
from steptally.job.device import Device

GIB = 2**30
GIGA = 1e9
TERA = 1e12
# Words that say nothing about which variant a name means.
NOISE = (
    "nvidia",
    "amd",
    "tesla",
    "geforce",
    "quadro",
    "rtx",
    "instinct",
    "gpu",
    "oam",
    "corporation",
)
WITHOUT_SPARSITY = ("fp64", "fp32")  # on ordinary and on matrix units
LARGEST_DEVICE_FILE_BYTES = 1_000_000


@cache
def catalogue() -> Mapping[str, Device]:
    """Every device of the catalogue by its name, in the order of the file."""
    text = Path(__file__).with_name("devices.toml").read_text(encoding="utf-8")
    return devices_from_toml(text, "devices.toml")


def devices_from_toml(text: str, source: str) -> dict[str, Device]:
    """Read device tables in the form of `devices.toml`; raises `InputError` for anything else."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}.") from error
    complete: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InputError(f"{source}: {name} stands outside a [device] table; put it in one.")
        base = complete.get(table.get("like", ""), {})
        complete[name] = {**base, **table}
    return {name: _device(name, table, source) for name, table in complete.items()}


def _device(name: str, table: Mapping[str, Any], source: str) -> Device:
    try:
        return Device(
            name=name,
            title=table["title"],
            vendor=table.get("vendor", "NVIDIA"),
            architecture=table["architecture"],
            family=table["family"],
            form=table["form"],
            source=table["source"],
            note=table.get("note", ""),
            dense_peak_flops_per_s={
                dtype: float(tflops) * TERA for dtype, tflops in table["peak_tflops"].items()
            },
            accumulate={
                dtype: dtype.partition("_accumulate_")[2]
                or ("int32" if dtype == "int8" else "fp32")
                for dtype in table["peak_tflops"]
                if not dtype.startswith("fp64")
            },
            formats=tuple(table["formats"]) if "formats" in table else (),
            sparsity_factors=_sparsity_factors(table),
            memory_bytes=int(table["memory_gib"] * GIB),
            memory_bandwidth_bytes_per_s=table["memory_gb_per_s"] * GIGA,
            multiprocessors=table.get("multiprocessors"),
            compute_capability=table.get("compute_capability", ""),
            link=table.get("link", ""),
            link_bandwidth_bytes_per_s=_one_direction(table.get("link_gb_per_s")),
            link_domain_size=table.get("link_domain"),
            host_bandwidth_bytes_per_s=_one_direction(table.get("host_gb_per_s")),
            devices_per_node=table.get("devices_per_node"),
            name_words=tuple(table.get("words", ())),
            driver_name_is_bare=bool(table.get("bare", False)),
            usual=bool(table.get("usual", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{source}: the table [{name}] is incomplete or damaged: {error!r}."
        ) from error


def _sparsity_factors(table: Mapping[str, Any]) -> dict[str, float]:
    """Sparse over dense peak of each dtype that gains from 2:4 sparsity."""
    usual, stated = float(table.get("sparsity", 1)), table.get("sparse_tflops", {})
    factors = {
        dtype: float(stated[dtype]) / float(dense) if dtype in stated else usual
        for dtype, dense in table["peak_tflops"].items()
        if not dtype.startswith(WITHOUT_SPARSITY)
    }
    return {dtype: factor for dtype, factor in factors.items() if factor > 1}


def _one_direction(total_gb_per_s: float | None) -> float | None:
    """Vendors add both directions; a collective is bound by one."""
    return None if total_gb_per_s is None else total_gb_per_s * GIGA / 2


def find_device(name: str, memory_gib: float | None = None) -> Device:
    """The device that `name` means: a catalogue name, a driver's name, or a `.toml` file of one.

    Case, spaces and hyphens do not matter. `memory_gib` (as the driver reports it) settles only
    between variants of one form factor: boards of different forms share memory sizes. Raises
    `InputError` for a name that fits several devices (they are listed with their peaks) or none.

    >>> find_device("NVIDIA H100 80GB HBM3").name
    'h100-sxm-80'
    """
    if name.lower().endswith(".toml"):
        return _device_from_file(Path(name))
    if name.strip().lower() in catalogue():
        return catalogue()[name.strip().lower()]
    text = _plain(name)
    if not text:
        raise InputError(
            f"device {name!r} names nothing: give a name that `steptally devices` lists."
        )
    candidates = [device for device in catalogue().values() if _tiles(device, text)]
    if not candidates:
        raise _unknown(name)
    meant = _meant(candidates, memory_gib)
    if len(meant) != 1:
        raise _ambiguous(name, memory_gib, candidates)
    return meant[0]


def _meant(candidates: list[Device], memory_gib: float | None) -> list[Device]:
    """Narrow several variants to one where a driver's habit, or memory within a form, tells."""
    one_form = len({device.form for device in candidates}) == 1
    if len(candidates) > 1 and one_form and memory_gib:
        candidates = _of_memory(candidates, memory_gib) or candidates
    if len(candidates) > 1 and one_form:
        candidates = [device for device in candidates if device.usual] or candidates
    if len(candidates) > 1:
        candidates = [device for device in candidates if device.driver_name_is_bare] or candidates
    return candidates


def _device_from_file(path: Path) -> Device:
    try:
        if path.stat().st_size > LARGEST_DEVICE_FILE_BYTES:
            raise InputError(
                f"{path} is {path.stat().st_size} bytes: no device file is that large."
            )
        found = devices_from_toml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a device file: {error}.") from error
    if len(found) != 1:
        raise InputError(f"{path} describes {len(found)} devices: a device file holds one table.")
    return next(iter(found.values()))


def _plain(name: str) -> str:
    """Lower case, letters and digits only, without what stands in parentheses."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*?\)", "", name.lower()))


def _tiles(device: Device, text: str) -> bool:
    """Whether `text` is the device's family name with only its own words around it."""
    words = "|".join(sorted((*device.name_words, *NOISE), key=len, reverse=True))
    return re.fullmatch(f"(?:{words})*{device.family}(?:{words})*", text) is not None


def _of_memory(candidates: list[Device], memory_gib: float) -> list[Device]:
    return [
        device
        for device in candidates
        if device.memory_bytes and abs(device.memory_bytes / GIB / memory_gib - 1) < 0.06
    ]


def _ambiguous(name: str, memory_gib: float | None, candidates: list[Device]) -> InputError:
    listed = ", ".join(f"{device.name} ({_summary(device)})" for device in candidates)
    memory = f" with {memory_gib:g} GiB" if memory_gib else ""
    why = ", and memory does not settle which board it is" if memory_gib else ""
    return InputError(
        f"device {name!r}{memory} is ambiguous{why}: it can be {listed}. Give one of these names."
    )


def _summary(device: Device) -> str:
    dtype = "bf16" if "bf16" in device.dense_peak_flops_per_s else "fp16"
    peak = device.dense_peak_flops_per_s[dtype] / TERA
    return f"{peak:g} TFLOP/s dense {dtype}, {(device.memory_bytes or 0) // GIB} GiB"


def _unknown(name: str) -> InputError:
    text = _plain(name)

    def likeness(device: Device) -> float:
        spellings = (device.family, _plain(device.name), _plain(device.title))
        return max(SequenceMatcher(None, text[:60], spelling).ratio() for spelling in spellings)

    nearest = sorted(catalogue().values(), key=likeness, reverse=True)[:3]
    return InputError(
        f"device {name[:60]!r} is not in the catalogue, so its peak is not known. Nearest names: "
        f"{', '.join(device.name for device in nearest)}; `steptally devices` lists all. For "
        "another device give the path of a .toml file that holds it, in the form of "
        "docs/cli/devices.md."
    )
