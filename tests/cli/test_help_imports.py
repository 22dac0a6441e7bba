"""`--help` answers at once: it imports nothing heavy."""

import subprocess
import sys

import pytest

from steptally.cli.main import VERBS

HEAVY = ("polars", "torch", "numpy", "jinja2", "megatron")
PROGRAM = """
import sys
from steptally.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    assert not ended.code, ended.code
print("imported:", *sorted(name for name in sys.modules if "." not in name))
"""


@pytest.mark.parametrize("arguments", [[], *([verb] for verb in VERBS)])
def test_help_imports_nothing_heavy(arguments):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    usage, _, imported = done.stdout.partition("imported:")
    assert "Usage:" in usage
    assert not set(HEAVY) & set(imported.split())
