"""The dense peak that the ranks of a run had between them: what MFU and HFU divide by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptally.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """FLOP/s of all devices of a run together, dense, and the sentence that says whose."""

    flops_per_s: float
    origin: str


def peak_of_run(manifest: Mapping[str, Any], dtype: str) -> Peak:
    """The peak of the devices in a manifest, for matrix products of `dtype`.

    CPU ranks share one machine, whose peak `steptally calibrate` measured; each GPU rank has a
    device of its own, whose peak is in the catalogue. Raises `InputError` where one is not known.
    """
    ranks = manifest.get("ranks") or []
    names = Counter(str(rank.get("device")) for rank in ranks)
    if not names:
        raise InputError("the manifest names no device: the run ended before its first step")
    if set(names) == {"cpu"}:
        return _peak_of_this_machine(ranks, dtype)
    return _peak_of_gpus(names, dtype)


def _peak_of_this_machine(ranks: Sequence[Mapping[str, Any]], dtype: str) -> Peak:
    from steptally.job.calibration import load_calibration

    hosts = sorted({str(rank.get("host")) for rank in ranks})
    if len(hosts) > 1:
        raise InputError(
            f"CPU ranks ran on {len(hosts)} hosts ({', '.join(hosts[:4])}): only the peak of one "
            f"machine is measured"
        )
    machine = load_calibration().device
    peak = machine.dense_peak_flops_per_s.get(dtype)
    if peak is None:
        raise InputError(f"{machine.name} has no measured {dtype} peak: run `steptally calibrate`")
    sharing = f"the whole machine's, shared by {len(ranks)} ranks"
    return Peak(
        flops_per_s=peak,
        origin=f"{dtype} peak {peak / 1e9:.1f} GFLOP/s of {machine.name}, {sharing}; "
        f"{machine.source}",
    )


def _peak_of_gpus(names: Mapping[str, int], dtype: str) -> Peak:
    from steptally.job.catalog.devices import find_device

    total, origins = 0.0, []
    for name, count in names.items():
        device = find_device(name)
        peak = device.dense_peak_flops_per_s.get(dtype)
        if peak is None:
            raise InputError(f"{device.name} has no {dtype} peak in the catalogue")
        total += count * peak
        origins.append(f"{count} × {dtype} dense peak {peak / 1e12:g} TFLOP/s of {device.name}")
    return Peak(flops_per_s=total, origin="; ".join(origins))
