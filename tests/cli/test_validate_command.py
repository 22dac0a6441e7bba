"""`steptally validate`: published rows, their agreement, and those that cannot be compared."""

import json
from pathlib import Path

import pytest
from tests.unit.test_published import LLAMA
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError

PUBLISHED = Path(__file__).parents[3] / "shared" / "published" / "published.yaml"


def validate(*words):
    return CliRunner().invoke(app, ["validate", *map(str, words)])


@pytest.fixture
def own_rows(tmp_path):
    path = tmp_path / "rows.yaml"
    path.write_text(LLAMA + LLAMA.replace("id: llama", "id: other").replace("tflops", "x"))
    return path


def test_json_has_the_totals_and_every_row(own_rows):
    found = json.loads(validate(own_rows, "--json").stdout)
    assert (found["compared"], found["within_0_3pct"], found["within_1pct"]) == (1, 1, 1)
    first, second = found["per_row"]
    assert first["error"] == pytest.approx(first["predicted"] / first["measured"] - 1)
    assert first["convention"] == "bridge"
    assert second["error"] is None
    assert "neither TFLOP/s nor MFU" in second["reason"]


def test_the_table_lists_what_was_not_compared(own_rows):
    result = validate(own_rows)
    assert result.exit_code == 0
    assert "1 of 2 rows compared" in " ".join(result.output.split())
    assert "not compared" in result.output


def test_an_unknown_account_is_refused(own_rows):
    result = validate(own_rows, "--account", "flop")
    assert isinstance(result.exception, InputError)
    assert "did you mean 'flops'" in str(result.exception)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="../shared is not here")
def test_published_rows_agree_under_their_sources_conventions():
    found = json.loads(validate(PUBLISHED, "--json").stdout)
    assert found["compared"] >= 270
    assert found["within_0_3pct"] / found["compared"] >= 0.85
    assert found["within_1pct"] / found["compared"] >= 0.97
    assert all(row["error"] is not None or row["reason"] for row in found["per_row"])
    large = [row for row in found["per_row"] if row["error"] and abs(row["error"]) > 0.01]
    assert all(row["note"] for row in large)
