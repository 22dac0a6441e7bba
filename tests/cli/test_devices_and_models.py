"""`steptally devices` and `steptally models`: tables, details, JSON, and names that fit nothing."""

import json

import pytest
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError


def output(*arguments):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_table_of_devices_shows_dense_peaks():
    lines = output("devices", "h100").splitlines()
    (pcie,) = [line.split() for line in lines if line.startswith("h100-pcie-80")]
    assert pcie[1:6] == ["51.2", "378", "756.5", "756.5", "1513"]


def test_one_device_comes_with_its_source_by_any_name():
    for name in ("b200-sxm-180", "NVIDIA B200"):
        text = output("devices", name)
        assert "2250 TFLOP/s dense, accumulated in fp32" in text
        assert "HGX B200 has 36 PFLOP/s of bf16 with sparsity" in text


def test_devices_as_json_have_units_in_their_keys():
    found = json.loads(output("devices", "mi300x", "--json"))
    assert found["schema"] == "steptally/1"
    (device,) = found["devices"]
    assert device["dense_peak_flops_per_s"]["bf16"] == 1307.4e12
    assert device["memory_bytes"] == 192 * 2**30
    assert device["source"]


def test_the_table_of_models_and_one_model():
    assert "llama-3-8b" in output("models", "llama")
    text = output("models", "Llama-3.1-8B")
    assert "8.03 B as published" in text
    assert "num_query_groups" in text
    assert "arXiv:2407.21783" in text


def test_models_as_json_hold_exact_counts():
    found = json.loads(output("models", "--json"))
    counts = {model["name"]: model["parameters_published"] for model in found["models"]}
    assert counts["deepseek-v3"] == 671_026_404_352


@pytest.mark.parametrize("arguments", [("devices", "H300"), ("models", "llama-9-1b")])
def test_a_name_that_fits_nothing_is_refused_with_the_nearest(arguments):
    with pytest.raises(InputError, match=r"Nearest names|similar names"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_an_ambiguous_driver_name_lists_its_devices():
    text = output("devices", "H100")
    assert all(name in text for name in ("h100-sxm-80", "h100-pcie-80", "h100-nvl-94"))
