"""What each layer is made of."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.layers import layer_kinds, mtp_layer_kinds

SMALL = {
    "num_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 128,
}


def job(**settings):
    return job_from_settings({**SMALL, **settings})


@pytest.mark.parametrize(
    ("frequency", "pattern"),
    [(1, "EEEEEE"), (2, "E-E-E-"), (3, "E--E--"), ([0, 1, 1, 0, 1, 1], "-EE-EE")],
)
def test_moe_layer_freq_places_experts_from_the_first_layer(frequency, pattern):
    kinds = layer_kinds(job(num_experts=4, moe_layer_freq=frequency))
    assert "".join("E" if kind.mlp == "moe" else "-" for kind in kinds) == pattern


def test_window_attn_skip_freq_counts_layers_from_one():
    # Megatron-Core's is_layer_window_attention: layer_number % freq != 0, layer_number from 1.
    kinds = layer_kinds(job(window_size=8, window_attn_skip_freq=3))
    assert [kind.window for kind in kinds] == [8, 8, None, 8, 8, None]


def test_a_hybrid_pattern_names_one_sublayer_a_letter():
    kinds = layer_kinds(job(hybrid_override_pattern="M-M*ME", num_experts=4))
    mixers = ["mamba", "none", "mamba", "attention", "mamba", "none"]
    assert [kind.mixer for kind in kinds] == mixers
    assert [kind.mlp for kind in kinds] == ["none", "dense", "none", "none", "none", "moe"]


def test_mtp_layers_are_apart_and_like_the_last_layer():
    with_mtp = job(num_experts=4, moe_layer_freq=[1, 1, 1, 1, 1, 0], mtp_num_layers=2)
    assert len(layer_kinds(with_mtp)) == 6
    assert [kind.mlp for kind in mtp_layer_kinds(with_mtp)] == ["dense", "dense"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_experts": 4, "moe_layer_freq": [1, 0]}, "moe_layer_freq has 2 entries"),
        ({"hybrid_override_pattern": "M*"}, "hybrid_override_pattern has 2 entries"),
        ({"hybrid_override_pattern": "MMMMMX"}, "'X'"),
        ({"hybrid_override_pattern": "MMMMME"}, "num_experts is not set"),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        layer_kinds(job(**settings))
