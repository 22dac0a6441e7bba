"""MFU and HFU are results only where work and peak fit together."""

import pytest

from steptally.cli.peak import Peak
from steptally.cli.run_mfu import flops_utilization, run_mfu
from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.tally import Figure

JOB = job_from_settings(
    {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 32,
        "vocab_size": 128,
        "global_batch_size": 4,
    }
)


def figure(value):
    return Figure(value=value, unit="", basis="measured", convention="exact-causal")


def summary(tokens=128):
    return {
        "step_time_s": figure(0.5),
        "tokens_per_step": figure(tokens),
        "flops_per_step_useful": figure(10**9),
        "flops_per_step_executed": figure(2 * 10**9),
    }


def peak(flops_per_s):
    return Peak(flops_per_s=flops_per_s, origin="a peak", remedy="measure again")


def test_flops_utilization_of_gpt3_is_the_papers():
    # Korthikanti et al. 2022, table 5: 175B on 64 A100 (312 TFLOP/s), 13.75 s a step, MFU 51.4 %;
    # 1.411e17 FLOPs a step by their formula.
    assert flops_utilization(141_100_000_000_000_000, 13.75, 64 * 312e12) == pytest.approx(
        0.514, abs=5e-4
    )


def test_mfu_divides_useful_and_hfu_executed_flops_by_what_the_devices_could_do():
    figures = run_mfu(summary(), JOB, peak(1e10))
    assert figures["mfu"].value == pytest.approx(0.2)
    assert figures["hfu"].value == pytest.approx(0.4)
    assert "a peak" in figures["mfu"].convention


def test_more_than_the_peak_is_refused_with_what_to_do():
    with pytest.raises(InputError, match=r"HFU would be 133 %.*measure again"):
        run_mfu(summary(), JOB, peak(3e9))


def test_a_run_of_another_batch_than_its_jobs_has_no_mfu():
    with pytest.raises(InputError, match="recorded 256 tokens a step and its job has 128"):
        run_mfu(summary(tokens=256), JOB, peak(1e10))
