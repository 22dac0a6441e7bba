"""Convention megatron-lm against Megatron-LM's own function, on 200 random argument sets.

The file says at which commit the function was evaluated: in exact fractions (`flops`), and as
Python evaluates it (`as_float`), which rounds above 2^53.
"""

import json
from pathlib import Path

import pytest

from steptally.job import job_from_settings
from steptally.predict.conventions import find_convention
from steptally.predict.flops import useful_flops

CASES = json.loads(Path(__file__).with_name("megatron_lm_flops.json").read_text())["cases"]


def test_there_are_200_argument_sets_of_every_kind():
    assert len(CASES) == 200
    named = {name for case in CASES for name in case["settings"]}
    assert {"kv_channels", "num_query_groups", "swiglu", "q_lora_rank", "mtp_num_layers"} <= named
    frequencies = {type(case["settings"].get("moe_layer_freq")) for case in CASES}
    assert {int, list} <= frequencies


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_convention_equals_megatrons_function_to_the_integer(number):
    case = CASES[number]
    counted = useful_flops(job_from_settings(case["settings"]), find_convention("megatron-lm"))
    assert counted == case["flops"]
    assert float(counted) == pytest.approx(case["as_float"], rel=1e-15)
