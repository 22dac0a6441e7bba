"""Start-up and whole-verb times of the command line, each in a fresh process."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import Result, duration

COMMANDS = (
    ("--help",),
    ("count", "llama-3-8b", "--json"),
    ("memory", "llama-3-8b", "--json"),
)


def run() -> list[Result]:
    return [duration("steptally " + " ".join(words), _call(words)) for words in COMMANDS]


def _call(words: tuple[str, ...]):
    command = [sys.executable, "-m", "steptally", *words]
    return lambda: subprocess.run(command, check=True, capture_output=True)
