"""The table of what makes rows the same line covers every account and every field."""

from dataclasses import fields

import pytest

from steptally.tally import GroupTime
from steptally.tally.identities import IDENTITIES
from steptally.tally.rows import ROW_TYPES


def declared(identity):
    names = (*identity.keys, *identity.names, *identity.sizes, *identity.words, *identity.left_out)
    return [*names, *(quantity.name for quantity in identity.quantities)]


def test_every_account_has_its_lines_declared():
    assert IDENTITIES.keys() == ROW_TYPES.keys()


SEVERAL = ("time", "recording", "steps")


@pytest.mark.parametrize("account", [name for name in ROW_TYPES if name not in SEVERAL])
def test_every_field_of_a_row_is_declared_once(account):
    (identity,) = IDENTITIES[account]
    assert sorted(declared(identity)) == sorted(field.name for field in fields(ROW_TYPES[account]))


@pytest.mark.parametrize("place", [0, 1])
def test_every_field_of_a_step_is_declared_in_both_of_its_kinds(place):
    names = declared(IDENTITIES["steps"][place])
    assert sorted(names) == sorted(field.name for field in fields(ROW_TYPES["steps"]))


def test_every_field_of_a_traced_step_and_of_its_groups_is_declared():
    steps, groups = IDENTITIES["time"]
    assert sorted(declared(steps)) == sorted(field.name for field in fields(ROW_TYPES["time"]))
    own = [field.name for field in fields(GroupTime)]
    assert sorted(declared(groups)) == sorted([*own, "rank", "step"])


@pytest.mark.parametrize("account", ROW_TYPES)
def test_what_a_difference_is_held_against_is_a_quantity_of_the_same_lines(account):
    for identity in IDENTITIES[account]:
        names = {quantity.name for quantity in identity.quantities}
        assert {one.share_of for one in identity.quantities if one.share_of} <= names
