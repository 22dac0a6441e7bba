"""Ask the installed megatron-core for its own answers, in a subprocess (tests stay torch-free)."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MEGATRON_PROGRAMS = Path(__file__).parent / "oracles"


def ask_megatron(program: str, cases: list) -> list:
    """Run `tests/oracles/PROGRAM.py` with JSON cases on stdin; skip where torch is absent."""
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("megatron.core")):
        pytest.skip("needs torch and megatron-core")
    # Megatron-Core sets these where a model is built in this process, and refuses to find them.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NVTE_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(MEGATRON_PROGRAMS / f"{program}.py")],
        input=json.dumps(cases),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
