"""A job that Megatron could not run is refused with both numbers and the nearest valid values."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings

SMALL = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 6,
    "kv_channels": 16,
    "seq_length": 32,
    "vocab_size": 128,
}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_model_parallel_size": 4}, ("num_attention_heads 6", "size 4", "3 or 6")),
        ({"pipeline_model_parallel_size": 3}, ("num_layers 4", "= 3", "2 or 4")),
        (
            {"world_size": 2, "global_batch_size": 5, "micro_batch_size": 2},
            ("global_batch_size 5", "= 4", "4 or 8"),
        ),
        (
            {"tensor_model_parallel_size": 2, "sequence_parallel": True, "seq_length": 33},
            ("seq_length 33", "32 or 34"),
        ),
        ({"tensor_model_parallel_size": 2, "world_size": 3}, ("world_size 3", "2 or 4")),
    ],
)
def test_a_layout_that_does_not_divide_names_both_numbers_and_what_would(settings, words):
    with pytest.raises(InputError) as raised:
        job_from_settings({**SMALL, **settings})
    for word in words:
        assert word in str(raised.value)


def test_zero_sizes_are_refused():
    with pytest.raises(InputError, match="hidden_size is 0"):
        job_from_settings({**SMALL, "hidden_size": 0})


def test_what_a_source_leaves_open_takes_megatrons_default_and_is_listed():
    job = job_from_settings(SMALL)
    assert job.architecture.num_query_groups == 6
    assert "num_query_groups" in job.assumed
    assert "kv_channels" not in job.assumed


def test_the_padded_vocabulary_is_a_multiple_of_128_per_tensor_parallel_rank():
    # Megatron-LM's own example: GPT-2's 50257 becomes 50304 with TP1 and 51200 with TP8.
    for tp, padded in ((1, 50304), (8, 51200)):
        job = job_from_settings(
            {
                **SMALL,
                "num_attention_heads": 8,
                "vocab_size": 50257,
                "tensor_model_parallel_size": tp,
            }
        )
        assert job.padded_vocab_size == padded
