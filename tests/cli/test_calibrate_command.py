"""`steptally calibrate`: measured once, kept, and printed for people or as JSON."""

import json

import pytest
from tests.unit.test_calibration import calibration
from typer.testing import CliRunner

from steptally.cli.calibrate import calibrated_machine
from steptally.cli.main import app
from steptally.job.calibration import load_calibration
from steptally.job.machine import this_machine


@pytest.fixture(autouse=True)
def measured(monkeypatch, tmp_path):
    """Calibrations of this machine that take no time; the list holds those made."""
    made = []

    def measure_machine(tell=None):
        # The first one is made on a busy machine.
        warnings = () if made else ("the machine was busy",)
        made.append(calibration(machine=this_machine(), warnings=warnings))
        return made[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("steptally.run.calibrate.measure_machine", measure_machine)
    return made


def test_the_table_shows_best_median_spread_and_how():
    result = CliRunner().invoke(app, ["calibrate"])
    assert result.exit_code == 0
    line = next(line for line in result.output.splitlines() if line.startswith("matmul fp32"))
    assert line.split()[2:9] == ["134.0", "GFLOP/s", "136.0", "GFLOP/s", "1.5", "%", "n"]
    assert "! the machine was busy" in result.output
    assert "saved as" in result.output


def test_json_is_what_was_saved(measured):
    result = CliRunner().invoke(app, ["calibrate", "--json"])
    assert json.loads(result.output)["measurements"][0]["samples"] == [1.30e11, 1.36e11, 1.34e11]
    assert load_calibration() == measured[0]


def test_a_machine_is_calibrated_again_until_it_was_idle_and_then_kept(measured, capsys):
    assert calibrated_machine() == measured[0].device
    assert "the machine was busy" in capsys.readouterr().err
    assert calibrated_machine() == calibrated_machine() == measured[1].device
    assert len(measured) == 2
    assert capsys.readouterr().err == ""
