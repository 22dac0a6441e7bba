"""JSON that somebody wrote: every kind of damage is one kind of error."""

import pytest

from steptally import strict_json


def test_integers_of_any_size_stay_exact():
    assert strict_json.decode(f"[{2**80 + 1}]") == [2**80 + 1]


@pytest.mark.parametrize("text", ["", "{", "NaN", "[-Infinity]", "1e999", "[" * 100_000])
def test_what_no_json_can_hold_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"Expecting|JSON has not|nests"):
        strict_json.decode(text)
