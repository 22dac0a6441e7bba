"""Values become a setting's type or are refused with the rule; patterns are only parsed."""

import pytest

from steptally.errors import InputError
from steptally.job.coerce import coerce, settings
from steptally.job.pattern import evaluate_pattern


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("hidden_size", "4_096", 4096),
        ("hidden_size", 4096.0, 4096),
        ("train_samples", "1e6", 1_000_000),
        ("moe_layer_freq", "2", 2),
        ("moe_layer_freq", "[0, 1, 1]", (0, 1, 1)),
        ("moe_layer_freq", "([0]*1+[1]*2)", (0, 1, 1)),
        ("recompute_modules", "['core_attn', 'moe_act']", ("core_attn", "moe_act")),
        ("recompute_modules", "mlp", ("mlp",)),
        ("rampup_batch_size", "32 32 1000", (32, 32, 1000)),
        ("bf16", "yes", True),
        ("window_size", "None", None),
        ("cuda_graph_impl", "none", "none"),
    ],
)
def test_texts_and_numbers_become_the_settings_type(name, value, expected):
    assert coerce(settings()[name], value) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", "4096.5"),
        ("hidden_size", "nan"),
        ("hidden_size", True),
        ("hidden_size", [4096]),
        ("hidden_size", 10**30),
        ("lr", "inf"),
        ("bf16", "maybe"),
        ("optimizer", "sgdm"),
        ("moe_layer_freq", "[0]*"),
        ("fp4", {"a": 1}),
        ("num_layers", None),
    ],
)
def test_what_has_another_form_is_refused_by_name(name, value):
    with pytest.raises(InputError, match=name):
        coerce(settings()[name], value)


# Megatron-LM's own examples, in the docstring of moe_freq_type (megatron/training/arguments.py).
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("([0]+[1]*23)", (0, *[1] * 23)),
        ("([1]*3+[0]*2)*2", (1, 1, 1, 0, 0) * 2),
        ("[0,1]", (0, 1)),
        ("3*[1]", (1, 1, 1)),
        (" [ 0 ] * 2 + [ 1 ] ", (0, 0, 1)),
    ],
)
def test_patterns_have_pythons_meaning(text, expected):
    assert evaluate_pattern("moe_layer_freq", text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[1",
        "[1]]",
        "1",
        "[1]+1",
        "[1]*[1]",
        "__import__('os')",
        "[1]*999999999",
        "(" * 9999,
    ],
)
def test_other_texts_are_refused_quickly(text):
    with pytest.raises(InputError, match="moe_layer_freq"):
        evaluate_pattern("moe_layer_freq", text)
