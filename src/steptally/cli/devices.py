"""`steptally devices`: the accelerators whose peaks are known, with their sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from steptally.job import Device
    from steptally.report.table import Table as ReportTable

SCHEMA = "steptally/1"
TERA, GIGA, GIB = 1e12, 1e9, 2**30
COLUMNS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")


def devices_command(
    name: Annotated[
        str, typer.Argument(help="Part of a name, or what a driver calls the device. [all]")
    ] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print all fields as JSON.")] = False,
) -> None:
    """List accelerators: dense peaks per dtype, memory, links, and where each figure is from."""
    found = select_devices(name)
    if json_output:
        entries = [device_as_json(device) for device in found]
        typer.echo(json.dumps({"schema": SCHEMA, "devices": entries}, indent=1))
        return
    from rich.console import Console

    if len(found) == 1:
        print_device(found[0], Console())
    else:
        print_devices(found, Console())


def select_devices(name: str) -> list[Device]:
    """Devices whose name or architecture holds every word, else the one that a driver calls so.

    Raises `InputError` where there is none.
    """
    from steptally.errors import InputError
    from steptally.job.catalog.devices import catalogue, find_device

    devices = list(catalogue().values())
    exact = [device for device in devices if device.name == name.lower()]
    found = exact or _holding(name, [(device, device.name) for device in devices])
    found = found or _holding(name, [(device, device.architecture) for device in devices])
    if found:
        return found
    try:
        return [find_device(name)]
    except InputError:
        found = _holding(name, [(one, f"{one.vendor} {one.title}") for one in devices])
        if not found:
            raise
        return found


def _holding(name: str, texts: list[tuple[Device, str]]) -> list[Device]:
    words = name.lower().split()
    return [device for device, text in texts if all(w in text.lower() for w in words)]


def device_as_json(device: Device) -> dict[str, Any]:
    """A device's figures under names with units; docs/cli/devices.md lists the keys."""
    return {
        "name": device.name,
        "title": device.title,
        "vendor": device.vendor,
        "architecture": device.architecture,
        "form": device.form,
        "dense_peak_flops_per_s": dict(device.dense_peak_flops_per_s),
        "accumulate": dict(device.accumulate),
        "formats": list(device.formats),
        "sparsity_factor": max(device.sparsity_factors.values(), default=1.0),
        "sparsity_factors": dict(device.sparsity_factors),
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "multiprocessors": device.multiprocessors,
        "compute_capability": device.compute_capability,
        "link": device.link,
        "link_bandwidth_bytes_per_s": device.link_bandwidth_bytes_per_s,
        "link_domain_size": device.link_domain_size,
        "host_bandwidth_bytes_per_s": device.host_bandwidth_bytes_per_s,
        "devices_per_node": device.devices_per_node,
        "source": device.source,
        "note": device.note,
    }


def print_devices(devices: list[Device], console: Console) -> None:
    """One line a device: dense peaks in TFLOP/s, memory, bandwidths; what the width holds."""
    from rich.table import Table

    from steptally.report.fitting import fit_columns

    fitting, left_out = fit_columns(device_table(devices), console.width)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for place, heading in enumerate(fitting.columns):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in fitting.rows:
        table.add_row(*row)
    console.print(table)
    console.print(
        f"{len(devices)} devices. Peaks are dense, in TFLOP/s; link is one direction. "
        f"`steptally devices NAME` shows one with its sources.",
        style="dim",
    )
    if left_out:
        console.print(f"No room for {', '.join(left_out)}: widen it, or see --json.", style="dim")


def device_table(devices: list[Device]) -> ReportTable:
    """Every figure that the list may show, as text."""
    from steptally.report.table import Table

    return Table(
        title="Devices",
        note="",
        columns=("device", *COLUMNS, "GiB", "GB/s", "link GB/s", "SM/CU"),
        text_columns=1,
        rows=tuple(_device_row(device) for device in devices),
        least_wanted=("SM/CU", "link GB/s", "tf32", "fp32", "fp16"),
    )


def _device_row(device: Device) -> tuple[str, ...]:
    peaks = device.dense_peak_flops_per_s
    return (
        device.name,
        *(f"{peaks[dtype] / TERA:g}" if dtype in peaks else "–" for dtype in COLUMNS),
        f"{(device.memory_bytes or 0) // GIB}",
        f"{(device.memory_bandwidth_bytes_per_s or 0) / GIGA:g}",
        f"{(device.link_bandwidth_bytes_per_s or 0) / GIGA:g}",
        str(device.multiprocessors or "–"),
    )


def print_device(device: Device, console: Console) -> None:
    """Every figure of one device, and who says so."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{device.name}: {device.title}", style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for label, value in device_lines(device):
        table.add_row(Text(label, style="dim"), Text(value))
    console.print(table)


def device_lines(device: Device) -> list[tuple[str, str]]:
    """(label, text) for each figure of a device."""
    lines = [("architecture", f"{device.vendor} {device.architecture}, {device.form}")]
    for dtype, peak in device.dense_peak_flops_per_s.items():
        plain = dtype.partition("_accumulate_")[0].replace("_matrix", " (matrix units)")
        accumulate = device.accumulate.get(dtype)
        unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
        into = f", accumulated in {accumulate}" if accumulate else ""
        lines.append((f"{plain} peak", f"{peak / TERA:g} {unit} dense{into}"))
    lines += [
        ("2:4 sparsity", _sparsity(device)),
        ("formats", ", ".join(device.formats) or "not listed"),
        ("memory", f"{(device.memory_bytes or 0) // GIB} GiB nominal"),
        ("memory bandwidth", _gigabytes(device.memory_bandwidth_bytes_per_s)),
        ("SMs or CUs", str(device.multiprocessors or "not published")),
        ("compute capability", device.compute_capability),
        (device.link or "link", _gigabytes(device.link_bandwidth_bytes_per_s, "one direction")),
        ("reach of the link", f"{device.link_domain_size or 1} devices"),
        ("to the host", _gigabytes(device.host_bandwidth_bytes_per_s, "one direction")),
        ("source", device.source),
    ]
    return [*lines, ("note", device.note)] if device.note else lines


def _sparsity(device: Device) -> str:
    """`×2 (tf32, fp16, bf16), ×1.33 (fp4)`."""
    dtypes: dict[float, list[str]] = {}
    for dtype, factor in device.sparsity_factors.items():
        if "_accumulate_" not in dtype:
            dtypes.setdefault(factor, []).append(dtype)
    found = [f"×{factor:.3g} ({', '.join(names)})" for factor, names in dtypes.items()]
    return ", ".join(found) or "none published"


def _gigabytes(bytes_per_s: float | None, what: str = "") -> str:
    if bytes_per_s is None:
        return "not published"
    return f"{bytes_per_s / GIGA:g} GB/s" + (f" {what}" if what else "")
