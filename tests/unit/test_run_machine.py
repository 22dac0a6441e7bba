"""What the manifest says of the machine, and what it must never say."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from steptally.run.machine import describe_git, describe_machine, peak_resident_bytes, usable_cores
from steptally.run.privacy import allowed_environment, is_secret, without_secrets


def test_the_machine_is_described_without_torch():
    code = (
        "import sys; from steptally.run import launch, machine, manifest; "
        "machine.describe_machine(); machine.describe_versions(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cores_and_memory_are_those_of_the_operating_system():
    machine = describe_machine()
    assert machine["logical_cores"] == os.cpu_count()
    assert 1 <= usable_cores() <= os.cpu_count()
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine["memory_bytes"] == pages


def test_peak_memory_is_this_processs_own_and_not_its_parents():
    # The parent, this test, touches 300 MiB first; ru_maxrss of the child would show them.
    ballast = bytearray(300 * 2**20)
    code = "from steptally.run.machine import peak_resident_bytes as peak; print(peak())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < len(ballast) < peak_resident_bytes()


def test_a_checkout_is_dirty_once_a_tracked_file_differs(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    assert describe_git(tmp_path) is None
    (tmp_path / "file").write_text("1")
    git("init", "-q")
    git("add", "file")
    git("commit", "-qm", "one")
    assert describe_git(tmp_path)["dirty"] is False
    Path(tmp_path / "file").write_text("2")
    assert describe_git(tmp_path)["dirty"] is True


def test_only_variables_that_can_change_a_step_are_written_down():
    environment = {
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_JWT": "secret",
        "HF_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "TORCH_HUB_TOKEN": "secret",
        "NVTE_LICENSE_KEY": "secret",
        "HOME": "/root",
    }
    assert set(allowed_environment(environment)) == {
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "SLURM_JOB_ID",
    }


def test_a_tokenizer_is_no_token_and_a_vocabulary_no_key():
    assert not any(map(is_secret, ["tokenizer_type", "tokens_per_step", "keyword", "vocab_file"]))
    assert all(map(is_secret, ["HF_TOKEN", "api-key", "wandb_api_key", "db_password"]))


@given(st.text(alphabet="abcdefghij0123456789", min_size=12, max_size=20))
def test_the_value_of_an_option_with_a_secret_name_never_survives(value):
    command = ["train.py", "--hf-token", value, f"--api-key={value}", "--lr", "1e-3"]
    shown = without_secrets(command)
    assert not any(value in word for word in shown)
    assert shown[-2:] == ["--lr", "1e-3"]
