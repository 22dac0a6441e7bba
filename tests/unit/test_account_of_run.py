"""The account of a run: its job must be the one that ran, and a disk that is full hides nothing."""

import json
import shutil

import pytest

from recordings import DATA
from steptally.cli.account import account_for_run, save
from steptally.errors import InputError
from steptally.job import read_job
from steptally.trace.run_directory import RunDirectory

JOB = """\
num_layers: 1
hidden_size: 32
num_attention_heads: 4
vocab_size: 128
seq_length: 16
"""


@pytest.fixture
def run(tmp_path):
    shutil.copytree(DATA / "tp2_dp2", tmp_path / "run")
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    return str(tmp_path / "job.yaml")


def test_a_job_that_leaves_its_ranks_open_takes_those_of_the_run(run, job):
    tally = account_for_run(run, job=read_job(job))
    assert tally.job["layout"]["world_size"] == 4


def test_a_job_of_another_number_of_ranks_is_refused(run, job):
    with pytest.raises(InputError, match="states world_size 8, and the run had 4 ranks"):
        account_for_run(run, job=read_job(job, ["world_size=8"]))


@pytest.mark.parametrize("change", [{"world_size": 8, "nodes": 1}, {"num_layers": -1}])
def test_a_recorded_job_that_cannot_be_is_a_refusal_beside_what_was_measured(run, change):
    manifest = json.loads(run.manifest.read_text())
    manifest["settings"] |= change
    run.manifest.write_text(json.dumps(manifest))
    tally = account_for_run(run)
    assert "step_time_s" in tally.summary
    assert any(text.startswith("useful FLOPs, MFU, HFU:") for text in tally.refusals)


def test_an_account_that_cannot_be_saved_is_a_warning(run, capsys):
    tally = account_for_run(run)
    run.tally.mkdir()
    save(run, tally)
    assert "tally.json cannot be written" in capsys.readouterr().err
    assert not list(run.path.glob(".tally.json.*"))
