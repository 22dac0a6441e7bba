"""The schema's documentation names every key of the accounts that a search for stragglers fills."""

import dataclasses
import re
from pathlib import Path

import pytest

from steptally.tally import VERDICT_CLASSES, MemberTime
from steptally.tally.rows import ROW_TYPES

DOCS = Path(__file__).parents[2] / "docs"
ACCOUNTS = ("verdicts", "replay", "what_if", "peers", "waits", "collectives", "clock")


def line_of(account: str) -> str:
    lines = (DOCS / "schema.md").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"| `{account}` |"))


def names(account: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", line_of(account)))


@pytest.mark.parametrize("account", ACCOUNTS)
def test_every_key_of_an_account_is_documented_and_no_other(account):
    keys = {field.name for field in dataclasses.fields(ROW_TYPES[account])}
    if account == "collectives":
        keys |= {field.name for field in dataclasses.fields(MemberTime)}
    assert names(account) - {account} == keys - {account}


def test_every_class_of_a_verdict_is_documented():
    assert all(verdict in line_of("verdicts") for verdict in VERDICT_CLASSES)


@pytest.mark.parametrize(
    "term", ["wait", "transfer", "straggler", "slowdown S", "share recovered", "peer group"]
)
def test_the_words_of_a_verdict_are_in_the_glossary(term):
    assert f"| **{term}** |" in (DOCS / "glossary.md").read_text(encoding="utf-8")
