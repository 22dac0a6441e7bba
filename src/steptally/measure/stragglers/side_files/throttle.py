"""Why a GPU's clocks are held down: NVML's bits and the names of nvidia-smi and DCGM.

Bits: NVML API reference, NvmlClocksEventReasons (formerly NvmlClocksThrottleReasons); DCGM's
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS maps to them one to one (DCGM API, field constants). New drivers
say `event` where old ones say `throttle`; the bits are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

IDLE = 0x1
APPLICATIONS_CLOCKS = 0x2
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SYNC_BOOST = 0x10
SW_THERMAL = 0x20
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
DISPLAY_CLOCKS = 0x100

NAMES: Mapping[int, str] = {
    IDLE: "idle",
    APPLICATIONS_CLOCKS: "applications clocks setting",
    SW_POWER_CAP: "SW power cap",
    HW_SLOWDOWN: "HW slowdown",
    SYNC_BOOST: "sync boost",
    SW_THERMAL: "SW thermal slowdown",
    HW_THERMAL: "HW thermal slowdown",
    HW_POWER_BRAKE: "HW power brake",
    DISPLAY_CLOCKS: "display clock setting",
}
# The hardware halves the clock or worse: a fault of cooling or power supply.
HARDWARE = HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE

# Columns of `nvidia-smi --query-gpu`, behind `clocks_event_reasons.` or `clocks_throttle_reasons.`.
COLUMNS: Mapping[str, int] = {
    "gpu_idle": IDLE,
    "applications_clocks_setting": APPLICATIONS_CLOCKS,
    "sw_power_cap": SW_POWER_CAP,
    "hw_slowdown": HW_SLOWDOWN,
    "sync_boost": SYNC_BOOST,
    "sw_thermal_slowdown": SW_THERMAL,
    "hw_thermal_slowdown": HW_THERMAL,
    "hw_power_brake_slowdown": HW_POWER_BRAKE,
}
# Lines of the block of `nvidia-smi -q`.
LINES: Mapping[str, int] = {
    "idle": IDLE,
    "applications clocks setting": APPLICATIONS_CLOCKS,
    "sw power cap": SW_POWER_CAP,
    "hw slowdown": HW_SLOWDOWN,
    "sync boost": SYNC_BOOST,
    "sw thermal slowdown": SW_THERMAL,
    "hw thermal slowdown": HW_THERMAL,
    "hw power brake slowdown": HW_POWER_BRAKE,
    "display clock setting": DISPLAY_CLOCKS,
}


def reason_names(bits: int) -> str:
    """The reasons of a mask as text.

    >>> reason_names(0x44)
    'SW power cap, HW thermal slowdown'
    """
    return ", ".join(name for bit, name in NAMES.items() if bits & bit) or "none"
