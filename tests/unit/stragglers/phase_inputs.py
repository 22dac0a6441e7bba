"""Inputs that tests on stragglers write: logs with timers as Megatron prints them, phase tables."""

from steptally.measure.stragglers.phase_file import read_phase_table
from steptally.measure.stragglers.timer_log import read_timer_log


def iteration_line(iteration, ms):
    return (
        f" [2026-11-29 10:00:00] iteration {iteration:8d}/     100 | consumed samples: "
        f"{iteration * 8:12d} | elapsed time per iteration (ms): {ms:.1f} | lm loss: 1.0E+00 |"
    )


def timer_block(sections):
    """A block of `--timing-log-option all`; sections map a name to the times of ranks, in ms."""
    lines = ["times across ranks (ms):"]
    for name, times in sections.items():
        lines.append(f"  {name}:")
        lines += [f"     rank {rank:2d}: {ms:.2f}" for rank, ms in enumerate(times) if ms > 0]
    return lines


def range_block(sections):
    """A block of `--timing-log-option minmax`; sections map a name to (min, max) in ms."""
    lines = ["(min, max) time across ranks (ms):"]
    for name, (low, high) in sections.items():
        lines.append(f"    {(name + ' ').ljust(48, '.')}: ({low:.2f}, {high:.2f})")
    return lines


def timers(*blocks, step_ms=1000.0):
    """A log of one iteration line and one block for each of `blocks`."""
    lines = []
    for number, block in enumerate(blocks, 1):
        lines += [iteration_line(number, step_ms), *timer_block(block)]
    return read_timer_log(lines, "train.log")


def phases(*rows):
    """A table of (rank, section, ms)."""
    lines = ["rank,section,ms", *(f"{rank},{section},{ms}" for rank, section, ms in rows)]
    return read_phase_table("\n".join(lines), "phases.csv")
