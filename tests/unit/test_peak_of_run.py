"""A run is measured against the peak of the machine that it ran on, or against none."""

import pytest
from tests.unit.test_calibration import calibration

from steptally.cli.peak import peak_of_run
from steptally.errors import InputError
from steptally.job.machine import this_machine
from steptally.run.calibrate import save_calibration


@pytest.fixture(autouse=True)
def calibrated(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    save_calibration(calibration(machine=this_machine()))


def manifest(**machine) -> dict:
    return {"ranks": [{"rank": 0, "host": "node7", "device": "cpu"}], "machine": machine}


def test_a_run_of_this_machine_has_its_measured_peak():
    here = this_machine()
    peak = peak_of_run(manifest(cpu_model=here.cpu_model, usable_cores=here.cores), "fp32")
    assert peak.flops_per_s == 1.36e11


@pytest.mark.parametrize("machine", [{"cpu_model": "another CPU"}, {"usable_cores": 4096}])
def test_a_run_copied_from_another_machine_is_refused_this_ones_peak(machine):
    with pytest.raises(InputError, match="recorded on a machine"):
        peak_of_run(manifest(**machine), "fp32")


def test_a_dtype_that_was_not_measured_has_no_peak():
    with pytest.raises(InputError, match="no measured fp8 peak"):
        peak_of_run(manifest(), "fp8")
