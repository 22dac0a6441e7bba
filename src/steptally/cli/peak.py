"""The dense peak that the ranks of a run had between them: what MFU and HFU divide by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steptally.errors import InputError

if TYPE_CHECKING:
    from steptally.job.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """FLOP/s of all devices of a run together, dense, and the sentence that says whose.

    `remedy` is what to do where a run appears to exceed it.
    """

    flops_per_s: float
    origin: str
    remedy: str


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
        return _peak_of_this_machine(manifest.get("machine") or {}, ranks, dtype)
    return _peak_of_gpus(names, dtype)


def _peak_of_this_machine(
    recorded_on: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], dtype: str
) -> Peak:
    from steptally.job.calibration import load_calibration

    hosts = sorted({str(rank.get("host")) for rank in ranks})
    if len(hosts) > 1:
        raise InputError(
            f"CPU ranks ran on {len(hosts)} hosts ({', '.join(hosts[:4])}): only the peak of one "
            f"machine is measured"
        )
    calibration = load_calibration()
    _require_same_machine(recorded_on, calibration.machine)
    machine = calibration.device
    peak = machine.dense_peak_flops_per_s.get(dtype)
    if peak is None:
        raise InputError(f"{machine.name} has no measured {dtype} peak: run `steptally calibrate`")
    sharing = f"the whole machine's, shared by {len(ranks)} ranks"
    return Peak(
        flops_per_s=peak,
        origin=f"{dtype} peak {peak / 1e9:.1f} GFLOP/s of {machine.name}, {sharing}; "
        f"{machine.source}",
        remedy="Measure it again while the machine is idle: steptally calibrate.",
    )


def _require_same_machine(recorded_on: Mapping[str, Any], calibrated: Machine) -> None:
    """A run directory copied from elsewhere has not this machine's peak."""
    for name, known in (("cpu_model", calibrated.cpu_model), ("usable_cores", calibrated.cores)):
        if recorded_on.get(name) not in (None, known):
            raise InputError(
                f"the run was recorded on a machine whose {name} is {recorded_on[name]!r}, this "
                f"one's is {known!r}: run `steptally calibrate` and `steptally report` there"
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
    return Peak(
        flops_per_s=total,
        origin="; ".join(origins),
        remedy="Check the device and the dtype that the run used.",
    )
