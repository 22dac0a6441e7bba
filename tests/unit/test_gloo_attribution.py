"""Each gloo transfer is given to the process group whose threads it ran on."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recordings import recorded_run, recorded_trace
from steptally.trace.kineto import read_kineto
from steptally.trace.run_directory import RunDirectory
from steptally.trace.schema import UNATTRIBUTED

LOOP = Path(__file__).with_name("two_groups_loop.py")
COLLECTIVES_OF_A_RANK = 2 * 4 * 3 * 2  # traced steps x rounds x groups x collectives


def check_against_the_operating_system(directory, rank):
    """Compare a trace's groups with the threads that the loop saw come with each group."""
    truth = json.loads((directory.path / f"threads{rank}.json").read_text())
    trace = read_kineto(directory.trace(rank))
    transfers = trace.events.filter(kind="transfer").drop_nulls("step")
    for thread, group in transfers.select("thread", "group").unique().iter_rows():
        assert group == truth[str(thread)]
    assert transfers["collective"].drop_nulls().n_unique() == COLLECTIVES_OF_A_RANK


@pytest.mark.parametrize("rank", [0, 1])
def test_equal_collectives_of_three_groups_in_flight_go_to_their_own_groups(rank):
    check_against_the_operating_system(recorded_run("two_groups"), rank)


@pytest.mark.processes
def test_equal_collectives_of_real_processes_go_to_their_own_groups(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(LOOP), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        check_against_the_operating_system(RunDirectory(tmp_path / "run"), rank)


@pytest.mark.parametrize(("run", "ranks"), [("tp2_dp2", 4), ("pp2", 2)])
def test_every_collective_of_a_megatron_step_is_served_once(run, ranks):
    for rank in range(ranks):
        events = recorded_trace(run, rank).events.drop_nulls("step")
        tags = events.filter(kind="collective")["collective"]
        served = events.filter(kind="transfer")
        assert set(served["collective"]) == set(tags)
        assert UNATTRIBUTED not in set(served["group"])


def test_a_group_and_its_transfer_agree_on_every_megatron_rank():
    events = recorded_trace("tp2_dp2", 0).events
    tags = events.filter(kind="collective").select("collective", tag_group="group")
    both = events.filter(kind="transfer").join(tags, on="collective")
    assert (both["group"] == both["tag_group"]).all()


def test_the_recorders_own_barriers_stay_unattributed():
    # Two barriers enclose the window; they are issued outside steps and carry no tag.
    transfers = recorded_trace("tp2_dp2", 0).events.filter(kind="transfer", group=UNATTRIBUTED)
    assert set(transfers["name"]) == {"gloo:barrier"}
    assert transfers["step"].is_null().all()


def test_without_tags_nothing_is_guessed(tmp_path):
    content = json.loads(gzip.decompress(recorded_run("tp2_dp2").trace(0).read_bytes()))
    content["traceEvents"] = [
        event for event in content["traceEvents"] if event.get("name") != "steptally::collective"
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(content))
    transfers = read_kineto(path).events.filter(kind="transfer")
    assert set(transfers["group"]) == {UNATTRIBUTED}
    assert transfers["collective"].is_null().all()
