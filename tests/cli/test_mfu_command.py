"""`steptally mfu`: from a log to tokens/s, MFU, HFU and the convention of its TFLOP/s."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError

SHARED_LOGS = Path(__file__).parents[3] / "shared" / "traces" / "logs"
# NVIDIA/Megatron-LM#756: Mixtral 8x7B on 16 H100, sequences of 2,048, in April 2024.
MIXTRAL = [
    (71, 9088, 5361.6, 243.6),
    (72, 9216, 5470.7, 238.7),
    (73, 9344, 5829.9, 224.0),
]


@pytest.fixture
def mixtral_log(tmp_path):
    path = tmp_path / "mixtral.log"
    path.write_text(
        "".join(
            f" [2024-04-06 03:02:12] iteration {iteration}/ 100 | consumed samples: {samples} | "
            f"elapsed time per iteration (ms): {duration} | throughput per GPU (TFLOP/s/GPU): "
            f"{tflops} | global batch size: 128 | lm loss: 1.8E+00 |\n"
            for iteration, samples, duration, tflops in MIXTRAL
        )
    )
    return path


def mfu(*words):
    return CliRunner().invoke(app, ["mfu", *map(str, words)])


def tally(*words):
    result = mfu(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_convention_of_the_time_reproduces_the_logged_figure(mixtral_log):
    # M109-03, NVIDIA/Megatron-LM#756: 163.241 TFLOP a sample is S² at 2,048 tokens.
    job = ["--job", "mixtral-8x7b", "--world-size", 16, "--set", "seq_length=2048"]
    found = tally(mixtral_log, *job, "--device", "h100-sxm-80")
    assert found["summary"]["logged_convention"] == "megatron-2024"
    assert found["summary"]["mfu"] < found["summary"]["logged_tflops_per_device"] / 989.4
    # 128 · 2,048 tokens over 16 devices, in the median of the steady lines, 5.6503 s.
    rate = 128 * 2048 / 16 * (1 / 5.4707 + 1 / 5.8299) / 2
    assert found["summary"]["tokens_per_s_per_device"] == pytest.approx(rate)
    assert found["summary"]["warmup_iterations"] == 1


def test_a_job_that_is_not_the_logs_is_noticed_and_what_would_fit_is_named(mixtral_log):
    # M109-03: who takes the sequence for 4,096 tokens is told the one that fits.
    job = ["--job", "mixtral-8x7b", "--world-size", 16, "--set", "seq_length=4096"]
    found = tally(mixtral_log, *job)
    assert found["summary"]["logged_convention"] is None
    assert "megatron-2024 with seq_length 2048" in found["warnings"][-1]


def test_a_missing_world_size_is_asked_for(mixtral_log):
    result = mfu(mixtral_log, "--job", "mixtral-8x7b")
    assert isinstance(result.exception, InputError)
    assert "pass --world-size N" in str(result.exception)


def test_a_world_size_too_small_is_over_the_peak(mixtral_log):
    job = ["--job", "mixtral-8x7b", "--world-size", 1, "--device", "h100-sxm-80"]
    result = mfu(mixtral_log, *job)
    assert isinstance(result.exception, InputError)
    assert "no device exceeds its peak" in str(result.exception)


def test_a_log_without_a_job_asks_for_it(mixtral_log):
    result = mfu(mixtral_log)
    assert isinstance(result.exception, InputError)
    assert "argument dump" in str(result.exception)


def test_the_loss_stands_against_tokens_time_and_flops(mixtral_log):
    job = ["--job", "mixtral-8x7b", "--world-size", 16, "--set", "seq_length=2048"]
    rows = tally(mixtral_log, *job)["accounts"]["loss"]
    assert [row["iteration"] for row in rows] == [71, 72, 73]
    assert rows[-1]["tokens"] == 9344 * 2048
    assert rows[-1]["wall_time_s"] == pytest.approx((5361.6 + 5470.7 + 5829.9) / 1e3)


def test_the_table_names_what_was_set_apart(mixtral_log):
    job = ["--job", "mixtral-8x7b", "--world-size", 16, "--set", "seq_length=2048"]
    result = mfu(mixtral_log, *job)
    assert result.exit_code == 0
    assert "warmup iterations" in result.output
    assert "Which convention reproduces the log" in result.output


@pytest.mark.skipif(not SHARED_LOGS.exists(), reason="../shared is not here")
def test_a_real_log_with_its_argument_dump_needs_nothing_else():
    log = SHARED_LOGS / "meg_gpt2_base_n8_dp1_tp4_pp8-1809562.log"
    found = tally(log, "--device", "v100-sxm2-32")
    assert found["job"]["layout"]["world_size"] == 32
    # Lines are means of 10 iterations; 4 sequences of 1,024 tokens in a median of 1.6183 s.
    assert found["summary"]["tokens_per_s_per_device"] == pytest.approx(4096 / 1.6183 / 32)
    assert found["summary"]["skipped_iterations"] == 9
    assert found["summary"]["steady_iterations"] == 170
