"""A missing or wrong engine part is named, with the command that installs it."""

import subprocess
import sys

import pytest

from steptally.engine.availability import EngineParts, find_parts, require_engine
from steptally.errors import MissingPartError

PINNED = "0.16.1"


def test_the_pinned_engine_is_accepted():
    require_engine(EngineParts(torch="2.13.0", megatron_core=PINNED))


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        (EngineParts(torch=None, megatron_core=PINNED), "torch is not installed"),
        (EngineParts(torch="2.13.0", megatron_core=None), "megatron-core is not installed"),
        (EngineParts(torch=None, megatron_core=None), "torch and megatron-core are not installed"),
    ],
)
def test_a_missing_part_is_named_with_the_install_command(parts, missing):
    with pytest.raises(MissingPartError) as raised:
        require_engine(parts)
    assert missing in str(raised.value)
    assert "pip install 'steptally[engine]'" in str(raised.value)


def test_another_megatron_core_is_refused_with_both_versions():
    with pytest.raises(MissingPartError, match=r"megatron-core 0\.15\.0 .* exactly 0\.16\.1"):
        require_engine(EngineParts(torch="2.13.0", megatron_core="0.15.0"))


def test_looking_for_parts_imports_none_of_them():
    code = (
        "import sys; from steptally.engine.availability import find_parts; find_parts(); "
        "print(sorted({'torch', 'megatron.core', 'numpy'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stdout.strip() == "[]", finished.stderr


def test_preflight_and_adaptation_import_no_torch():
    code = (
        "import sys; import steptally.run.preflight, steptally.engine.adapt; "
        "print('torch' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stdout.strip() == "False", finished.stderr


def test_hidden_gpus_do_not_count(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_parts().cuda is False
