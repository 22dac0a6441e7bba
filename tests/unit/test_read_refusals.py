"""What a source or an override says twice, or cannot mean, is refused and never guessed."""

import os

import pytest

from steptally.errors import InputError
from steptally.job import read_job

JOB = """\
num_layers: 2
hidden_size: 32
num_attention_heads: 4
vocab_size: 256
seq_length: 16
"""
JSON = (
    '{"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 256, '
    '"seq_length": 16, %s}'
)


def refusal(tmp_path, content, *overrides, name="job.yaml"):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as refused:
        read_job(str(tmp_path / name), overrides)
    return str(refused.value)


@pytest.mark.parametrize(
    "content",
    [JOB + "num_layers: 3\n", JSON % '"num_layers": 3', "layout:\n  a: 1\n  a: 1\n" + JOB],
)
def test_a_key_that_stands_twice_is_refused(tmp_path, content):
    assert "twice: keep one" in refusal(tmp_path, content)


def test_a_key_that_overrides_a_merged_one_is_stated_once(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("architecture:\n  <<: {num_layers: 9}\n  num_layers: 4\n" + JOB[14:])
    assert read_job(str(path)).architecture.num_layers == 4


def test_two_names_of_a_setting_may_agree_and_may_not_differ(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB + "encoder_num_layers: '2'\n")
    assert read_job(str(path)).architecture.num_layers == 2
    told = refusal(tmp_path, JOB + "encoder_num_layers: 3\n")
    assert "num_layers" in told
    assert "encoder_num_layers" in told


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["num_layers=3", "num-layers=4"], "gives num_layers twice"),
        (["num_layers=3", "encoder_num_layers=4"], "stated twice"),
        (["bogus.num_layers=3"], "'bogus' is no part of a job"),
    ],
)
def test_overrides_that_contradict_or_lead_nowhere_are_refused(tmp_path, overrides, words):
    assert words in refusal(tmp_path, JOB, *overrides)


@pytest.mark.parametrize(
    "setting",
    [
        "lr=-1",
        "seed=-1",
        "hidden_dropout=1.5",
        "attention_dropout=-0.1",
        "adam_beta1=2",
        "weight_decay=-5",
        "clip_grad=-1",
        "rotary_base=0",
        "rotary_percent=2",
        "init_method_std=-1",
        "ddp_bucket_size=0",
        "num_layers=1000000000",
        "num_experts=1000000000",
        "world_size=1000000000000",
    ],
)
def test_a_number_that_its_setting_cannot_have_is_refused_with_the_bound(tmp_path, setting):
    told = refusal(tmp_path, JOB, setting)
    assert told.startswith(setting.partition("=")[0])
    assert any(words in told for words in ("at least", "at most", "more than"))


def test_a_number_beyond_every_model_is_not_called_no_number(tmp_path):
    assert "at most 10^18" in refusal(tmp_path, JOB.replace("2", "1" + "0" * 30, 1))


def test_nan_is_no_whole_number(tmp_path):
    assert "num_layers is nan" in refusal(tmp_path, (JSON % '"lr": 1').replace("2", "NaN", 1))


def test_a_name_that_is_no_word_is_refused(tmp_path):
    assert "name holds a list" in refusal(tmp_path, JOB + "name: [1, 2]\n")


def test_a_pipe_is_refused_before_it_is_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe or a device"):
        read_job(str(tmp_path / "pipe"))
