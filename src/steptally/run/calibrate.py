"""Measures what this machine can do at best, and keeps it.

On a CPU the figures are the whole machine's, all cores together: its ranks share them. Under CUDA
they are one GPU's, timed with CUDA events; that path has not run on a GPU yet.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steptally.errors import InputError, MissingPartError, RunError
from steptally.job.calibration import Calibration, Samples, calibration_path
from steptally.job.device import Device
from steptally.job.machine import Machine, memory_bytes, this_machine
from steptally.run.gloo_rate import gloo_rates
from steptally.run.matmul_rate import DTYPES, matmul_rates
from steptally.run.memory_rate import memory_rates
from steptally.trace.run_directory import write_atomically

# A median this far from the best says that something else was running.
NOISY_SPREAD = 0.10
BUSY_LOAD_PER_CORE = 0.5


def measure_machine(tell: Callable[[str], None] = lambda _: None) -> Calibration:
    """Measure matrix products per dtype, memory and gloo: about 20 seconds.

    `tell` is called with what is measured next. Raises `MissingPartError` without torch.
    """
    torch = _torch()
    start = time.monotonic()
    # Before this process adds to it.
    load_average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    machine, on_cuda = this_machine(), torch.cuda.is_available()
    created = datetime.now(UTC)
    measurements: list[Samples] = []
    with _torch_threads(1):  # a product a core
        for dtype in DTYPES:
            tell(f"matrix products in {dtype}")
            measurements += matmul_rates(dtype, cores=machine.cores, on_cuda=on_cuda)
    with _torch_threads(machine.cores):
        tell("memory bandwidth")
        measurements += memory_rates(on_cuda=on_cuda)
    tell("gloo between two processes")
    failures = []
    try:
        measurements += gloo_rates()
    except RunError as error:  # the peaks are good without it
        failures.append(str(error))
    device = _device(machine, measurements, created, on_cuda)
    calibration = Calibration(
        machine=machine,
        device=device,
        created=created.isoformat(timespec="seconds"),
        threads=machine.cores,
        torch_version=str(torch.__version__),
        duration_s=round(time.monotonic() - start, 3),
        load_average=load_average,
        measurements=tuple(measurements),
    )
    return replace(calibration, warnings=(*failures, *noise_warnings(calibration)))


def save_calibration(calibration: Calibration, path: Path | None = None) -> Path:
    """Write a calibration whole, where `load_calibration` finds it; returns the path."""
    path = path or calibration_path(calibration.machine.hostname)
    try:
        write_atomically(path, json.dumps(calibration.as_json(), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise InputError(
            f"{error} For calibrations, XDG_CACHE_HOME names another directory."
        ) from error
    return path


def noise_warnings(calibration: Calibration) -> list[str]:
    """Sentences that say why a calibration should be made again, and how."""
    warnings = []
    best = [calibration.best_of(quantity) for quantity in calibration.quantities()]
    # Two processes that exchange messages depend on the scheduler, and always vary.
    noisy = [
        f"{samples.quantity} {100 * samples.spread:.0f} %"
        for samples in best
        if samples and not samples.quantity.startswith("gloo") and samples.spread > NOISY_SPREAD
    ]
    if noisy:
        warnings.append(
            f"The best sample lies more than {100 * NOISY_SPREAD:.0f} % from the median "
            f"({', '.join(noisy)}): the machine was busy or its clock varies. Run `steptally "
            f"calibrate` again when it is idle."
        )
    load, cores = calibration.load_average, calibration.machine.cores
    if load is not None and load > BUSY_LOAD_PER_CORE * cores:
        warnings.append(
            f"The load average was {load:.2f} on {cores} cores when calibration began: other work "
            f"took part of the memory and gloo bandwidth. Run `steptally calibrate` again when the "
            f"machine is idle."
        )
    return warnings


def _device(
    machine: Machine, measurements: list[Samples], created: datetime, on_cuda: bool
) -> Device:
    torch = _torch()

    def best(prefix: str) -> float:
        return max(
            samples.median for samples in measurements if samples.quantity.startswith(prefix)
        )

    properties = torch.cuda.get_device_properties(0) if on_cuda else None
    return Device(
        name=properties.name if properties else f"{machine.cpu_model}, {machine.cores} cores",
        dense_peak_flops_per_s={dtype: best(f"matmul {dtype}") for dtype in DTYPES},
        memory_bytes=int(properties.total_memory) if properties else memory_bytes(),
        memory_bandwidth_bytes_per_s=best("memory "),
        source=f"measured by steptally calibrate on {created:%Y-%m-%d}",
    )


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """Let torch compute with this many threads, whatever OMP_NUM_THREADS says."""
    torch = _torch()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingPartError(
            "torch is not installed, and calibration measures torch's own matrix products: run "
            "`pip install 'steptally[engine]'`."
        ) from error
    return torch
