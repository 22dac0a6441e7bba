"""Tokens: the same global batch for every layout, and clear words for a text that will not do."""

from collections import Counter
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.run.data import CORPUS, RANDOM, micro_batches, open_source

BASE = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 16,
    "vocab_size": 256,
}


def rows_of_a_step(job, data=CORPUS, seed=1, step=1):
    """The inputs of all replicas' micro-batches, micro-batch by micro-batch."""
    source = open_source(data, job)
    replicas = [
        list(micro_batches(source, job.layout, seed=seed, step=step, dp_rank=rank))
        for rank in range(job.layout.data_parallel_size)
    ]
    return np.concatenate(
        [batch.tokens for round_ in zip(*replicas, strict=True) for batch in round_]
    )


@given(
    replicas=st.integers(1, 4),
    micro_batch_size=st.integers(1, 3),
    count=st.integers(1, 3),
    step=st.integers(1, 100),
)
def test_the_global_batch_is_the_same_for_every_layout(replicas, micro_batch_size, count, step):
    size = replicas * micro_batch_size * count
    whole = job_from_settings(BASE | {"global_batch_size": size})
    split = job_from_settings(
        BASE
        | {
            "global_batch_size": size,
            "micro_batch_size": micro_batch_size,
            "world_size": replicas,
        }
    )
    expected = rows_of_a_step(whole, step=step)
    assert (rows_of_a_step(split, step=step) == expected).all()


def test_labels_are_the_next_tokens():
    job = job_from_settings(BASE)
    (batch,) = micro_batches(open_source(CORPUS, job), job.layout, seed=1, step=1, dp_rank=0)
    assert batch.tokens.shape == batch.labels.shape == (1, 16)
    assert (batch.tokens[:, 1:] == batch.labels[:, :-1]).all()


@pytest.mark.parametrize(("seed", "step"), [(1, 2), (2, 1)])
def test_another_step_or_seed_draws_another_batch(seed, step):
    job = job_from_settings(BASE | {"global_batch_size": 8})
    assert (rows_of_a_step(job, seed=seed, step=step) != rows_of_a_step(job)).any()


def test_random_tokens_stay_within_the_vocabulary():
    job = job_from_settings(BASE | {"vocab_size": 50, "global_batch_size": 16})
    tokens = rows_of_a_step(job, data=RANDOM)
    assert 0 <= tokens.min() < tokens.max() < 50


def test_a_text_file_is_read_byte_by_byte(tmp_path):
    text = tmp_path / "text"
    text.write_bytes("é, a sentence of bytes.".encode())
    rows = rows_of_a_step(job_from_settings(BASE), data=str(text))
    assert bytes(rows[0].tolist()) in text.read_bytes()


@pytest.mark.parametrize(
    ("values", "content", "words"),
    [
        ({}, b"short", "holds 5 bytes: one sequence needs seq_length \\+ 1 = 17"),
        ({"vocab_size": 100}, b"x" * 99, "vocab_size is 100: the byte tokenizer .* needs 256"),
        ({}, None, "cannot be read .*'corpus', 'random' or the path of a text file"),
    ],
)
def test_a_text_that_will_not_do_is_refused(tmp_path, values, content, words):
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(InputError, match=words):
        open_source(str(text), job_from_settings(BASE | values))


def test_the_packages_text_is_long_plain_and_never_repeats_a_line():
    text = resources.files("steptally.run").joinpath("corpus.txt").read_text(encoding="ascii")
    assert len(text) >= 20_000
    lines = Counter(line for line in text.splitlines() if line)
    assert set(lines.values()) == {1}


@pytest.mark.parametrize("data", ["/dev/zero", "a\0b", ""])
def test_what_is_no_file_is_refused_before_it_is_read(data):
    with pytest.raises(InputError, match="cannot be read"):
        open_source(data, job_from_settings(BASE))


def test_an_empty_text_suggests_no_sequence_length(tmp_path):
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"Use a longer text\.$"):
        open_source(str(tmp_path / "empty.txt"), job_from_settings(BASE))
