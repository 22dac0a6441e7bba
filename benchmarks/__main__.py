"""`make bench`: run every benchmark in this folder, or those named: `python -m benchmarks flops`.

A benchmark is a module with `run() -> list[Result]`. Speed is printed, never a gate: machines are
shared and noisy. Each timing is the median of several runs, with the fastest and slowest beside it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.timing import Result

PARTS = ("__main__", "timing", "kineto_file")  # no benchmarks, but used by them


def main(names: list[str]) -> None:
    found = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    chosen = names or [name for name in found if name not in PARTS]
    for name in chosen:
        print(f"\n{name}")
        for result in importlib.import_module(f"benchmarks.{name}").run():
            print(f"  {line(result)}")


def line(result: Result) -> str:
    return (
        f"{result.name:<52} {result.median:>12,.4g} {result.unit:<12}"
        f" ({result.low:,.4g} to {result.high:,.4g}, n={result.count})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
