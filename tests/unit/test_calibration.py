"""A calibration is kept whole, read back equal, and refused for any other machine."""

import json
from dataclasses import replace

import pytest

from steptally.errors import InputError
from steptally.job.calibration import Calibration, Samples, calibration_path, load_calibration
from steptally.job.device import Device
from steptally.job.machine import Machine, this_machine
from steptally.run.calibrate import noise_warnings, save_calibration

MACHINE = Machine(
    hostname="node7", cpu_model="AMD EPYC", cpu_revision="family 25, model 1", cores=2
)
RATES = Samples(
    quantity="matmul fp32",
    case="n = 512, A·Bᵀ",
    unit="FLOP/s",
    samples=(1.30e11, 1.36e11, 1.34e11),  # median 1.34e11
)


def calibration(**changes) -> Calibration:
    values = {
        "machine": MACHINE,
        "device": Device(
            name="AMD EPYC, 2 cores",
            dense_peak_flops_per_s={"fp32": 1.36e11},
            memory_bytes=24 * 1024**3,
            memory_bandwidth_bytes_per_s=2.5e10,
            source="measured by steptally calibrate on 2026-11-29",
        ),
        "created": "2026-11-29T15:00:00+00:00",
        "threads": 2,
        "torch_version": "2.13.0+cpu",
        "duration_s": 11.5,
        "load_average": 0.1,
        "measurements": (RATES,),
    }
    return Calibration(**{**values, **changes})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_calibration_is_kept_under_the_hosts_name_in_the_users_cache(cache):
    path = save_calibration(calibration())
    assert path == cache / "steptally" / "machine-node7.json"
    assert [entry.name for entry in path.parent.iterdir()] == ["machine-node7.json"]


def test_what_is_loaded_equals_what_was_saved_each_time():
    save_calibration(calibration())
    first = load_calibration(machine=MACHINE)
    assert first == load_calibration(machine=MACHINE) == calibration()


def test_without_xdg_cache_home_the_cache_is_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = tmp_path / "home" / ".cache" / "steptally" / "machine-node7.json"
    assert calibration_path("node7") == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cpu_model": "Intel(R) Xeon(R)"}, "CPU model is 'AMD EPYC', this one's is 'Intel"),
        ({"cpu_revision": "family 25, model 17"}, "CPU revision"),
        ({"cores": 64}, "number of usable cores is 2, this one's is 64"),
    ],
)
def test_a_calibration_of_another_machine_is_refused_with_both_values(change, words):
    path = save_calibration(calibration())
    with pytest.raises(InputError, match="measured on another machine") as raised:
        load_calibration(path, machine=replace(MACHINE, **change))
    assert words in str(raised.value)
    assert "steptally calibrate" in str(raised.value)


def test_a_missing_calibration_names_the_command_that_makes_it():
    with pytest.raises(InputError, match="Run `steptally calibrate`"):
        load_calibration(machine=MACHINE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "steptally-machine/99"}, "steptally-machine/99"),
        ({"device": {"name": 3}}, "damaged"),
        ({"threads": "two"}, "damaged"),
        ({"measurements": [{}]}, "damaged"),
        ({"measurements": [{"quantity": "q", "case": "", "unit": "s", "samples": []}]}, "at least"),
    ],
)
def test_a_file_of_another_shape_is_refused(change, words):
    path = save_calibration(calibration())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=r"[Rr]un `steptally calibrate`") as raised:
        load_calibration(machine=MACHINE)
    assert words in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udcff"])
def test_a_file_that_is_no_calibration_is_refused(cache, text):
    path = cache / "steptally" / "machine-node7.json"
    path.parent.mkdir()
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="steptally calibrate"):
        load_calibration(machine=MACHINE)


def test_a_cache_that_cannot_be_written_says_what_to_set(cache):
    (cache / "steptally").write_text("a file where the directory should be")
    with pytest.raises(InputError, match="XDG_CACHE_HOME"):
        save_calibration(calibration())


def test_the_best_of_a_rate_is_the_highest_and_of_a_time_the_shortest():
    assert RATES.best == 1.36e11
    assert replace(RATES, unit="s", samples=(3.0, 1.0, 2.0)).best == 1.0


def test_the_way_with_the_best_median_wins_whatever_a_single_sample_says():
    lucky = replace(RATES, case="lucky once", samples=(1e9, 1e9, 9e11))
    assert calibration(measurements=(lucky, RATES)).best_of("matmul fp32") == RATES
    assert calibration().best_of("matmul bf16") is None


def test_a_quiet_machine_gives_no_warning():
    assert noise_warnings(calibration()) == []


def test_a_median_far_from_the_best_is_called_noise():
    noisy = replace(RATES, samples=(1.0e11, 1.0e11, 1.36e11))
    (warning,) = noise_warnings(calibration(measurements=(noisy,)))
    assert "matmul fp32 36 %" in warning  # 1.36/1.0 − 1
    assert "again when it is idle" in warning


def test_other_work_on_the_machine_is_named_with_its_load():
    (warning,) = noise_warnings(calibration(load_average=3.25))
    assert "load average was 3.25 on 2 cores" in warning


def test_this_machine_has_a_name_a_model_and_cores():
    machine = this_machine()
    assert machine.hostname
    assert machine.cpu_model
    assert machine.cores >= 1
