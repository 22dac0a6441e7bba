"""What a machine was measured to do at best, and whether those figures belong to this machine.

`steptally calibrate` measures and saves a calibration (`run.calibrate`); everything that needs a
machine's peak loads it here, without torch.
"""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from steptally import strict_json
from steptally.errors import InputError
from steptally.job.device import Device
from steptally.job.machine import Machine, this_machine

FORMAT = "steptally-machine/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One quantity measured several times in one way; every sample is kept.

    `quantity` groups the ways (`matmul fp32`), `case` is one of them (`n = 512, A·Bᵀ`),
    `unit` is `FLOP/s`, `byte/s` or `s`.
    """

    quantity: str
    case: str
    unit: str
    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples or not all(0 < sample < math.inf for sample in self.samples):
            raise ValueError(f"samples must be positive and at least one, got {self.samples}")

    @property
    def best(self) -> float:
        """The highest rate, or the shortest time."""
        return min(self.samples) if self.unit == "s" else max(self.samples)

    @property
    def median(self) -> float:
        """The middle sample: the figure that is used."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """(best − median) / median, without its sign: small on a quiet machine."""
        return abs(self.best - self.median) / self.median


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One calibration of one machine.

    `device` holds the median of each quantity's best way: of the whole machine on a CPU (all cores,
    shared by its ranks), of one GPU under CUDA. `threads` computed at once; `created` is in UTC.
    """

    machine: Machine
    device: Device
    created: str
    threads: int
    torch_version: str
    duration_s: float
    load_average: float | None
    measurements: tuple[Samples, ...]
    warnings: tuple[str, ...] = ()

    def best_of(self, quantity: str) -> Samples | None:
        """The way with the best median of a quantity (`matmul fp32`); None if not measured."""
        ways = [samples for samples in self.measurements if samples.quantity == quantity]
        if not ways:
            return None
        choose = min if ways[0].unit == "s" else max
        return choose(ways, key=lambda samples: samples.median)

    def quantities(self) -> list[str]:
        """What was measured, in order."""
        return list(dict.fromkeys(samples.quantity for samples in self.measurements))

    def as_json(self) -> dict[str, object]:
        """What the file holds and `--json` prints."""
        content = asdict(self)
        content["device"]["dense_peak_flops_per_s"] = dict(self.device.dense_peak_flops_per_s)
        return {"format": FORMAT, **content}


def calibration_path(hostname: str | None = None) -> Path:
    """Where a machine's calibration is kept: `$XDG_CACHE_HOME` (or `~/.cache`) `/steptally/`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = (hostname or this_machine().hostname).replace("/", "_")
    return Path(root) / "steptally" / f"machine-{name}.json"


def load_calibration(path: Path | None = None, *, machine: Machine | None = None) -> Calibration:
    """This machine's calibration; raises `InputError` where there is none that belongs to it.

    `machine` is the machine it has to be of: this one, unless a run was recorded on another.
    """
    machine = machine or this_machine()
    path = path or calibration_path(machine.hostname)
    calibration = _parsed(_read(path), path)
    _require_same(calibration.machine, machine, path)
    return calibration


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(
            f"{path} is not there: this machine's peak is not known. Run `steptally calibrate` "
            f"once (about 20 seconds)."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}): run `steptally calibrate` again."
        ) from error


def _parsed(text: str, path: Path) -> Calibration:
    try:
        content = strict_json.decode(text)
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON ({error}): run `steptally calibrate` again."
        ) from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise InputError(
            f"{path} has format {found!r}: this steptally reads {FORMAT!r}. Run `steptally "
            f"calibrate` again."
        )
    try:
        return msgspec.convert(content, Calibration)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path} is damaged ({error}): run `steptally calibrate` again."
        ) from error


def _require_same(measured: Machine, wanted: Machine, path: Path) -> None:
    for name, words in (
        ("cpu_model", "CPU model"),
        ("cpu_revision", "CPU revision"),
        ("cores", "number of usable cores"),
    ):
        found, needed = getattr(measured, name), getattr(wanted, name)
        if found != needed:
            raise InputError(
                f"{path} was measured on another machine: its {words} is {found!r}, this one's "
                f"is {needed!r}. A peak holds for its own machine only: run `steptally calibrate`."
            )
