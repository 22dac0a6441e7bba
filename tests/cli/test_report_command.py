"""`steptally report`: one tally in three forms, and a sentence for whatever is not one."""

import json

import pytest
from tests.synthetic_tally import recorded_tally

from steptally.cli import main as cli
from steptally.tally import tally_from_json


@pytest.fixture
def steptally(monkeypatch, capsys):
    """Run a command line in this process: (status, standard output, standard error)."""

    def run(*arguments) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["steptally", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return run


@pytest.fixture
def run_directory(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "tally.json").write_text(recorded_tally().dumps(), encoding="utf-8")
    return directory


def test_a_run_directory_is_printed_for_people(steptally, run_directory):
    status, out, err = steptally("report", run_directory, "--width", 80)
    assert (status, err) == (0, "")
    assert out.startswith("steptally · demo · measured")
    assert "MFU" in out


def test_its_tally_file_alone_gives_the_same(steptally, run_directory):
    from_directory = steptally("report", run_directory, "--width", 100)
    assert steptally("report", run_directory / "tally.json", "--width", 100) == from_directory


def test_json_is_the_whole_tally(steptally, run_directory):
    status, out, _ = steptally("report", run_directory, "--json")
    assert status == 0
    assert tally_from_json(out) == tally_from_json(recorded_tally().dumps())


def test_html_is_one_file_at_the_place_asked_for(steptally, run_directory, tmp_path):
    page = tmp_path / "new" / "page.html"
    status, out, _ = steptally("report", run_directory, "--html", page)
    assert (status, out) == (0, f"wrote {page}\n")
    assert page.read_text(encoding="utf-8").lstrip().startswith("<!DOCTYPE html>")


def test_two_forms_at_once_are_refused(steptally, run_directory):
    status, _, err = steptally("report", run_directory, "--json", "--html", "x.html")
    assert status == 2
    assert "drop one of them" in err


def test_a_path_that_is_not_there_is_named(steptally, tmp_path):
    status, _, err = steptally("report", tmp_path / "gone")
    assert status == 2
    assert "gone is not there: name a run directory" in err


def test_a_directory_that_is_no_run_is_refused(steptally, tmp_path):
    status, _, err = steptally("report", tmp_path)
    assert status == 2
    assert "is not a run directory" in err


def test_a_job_cannot_be_given_for_a_file_alone(steptally, run_directory):
    status, _, err = steptally("report", run_directory / "tally.json", "--job", "job.yaml")
    assert status == 2
    assert "no run directory" in err


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "steptally/0"},
        {"summary": {"mfu": [1]}},
        {"accounts": {"time": [{"rank": 0}]}},
        {"accounts": {"steps": [{"step": "one"}]}},
        {"accounts": []},
        {"warnings": [3]},
        {"job": None},
        {"figures": {}},
        {"accounts": {"parameters": [{"name": "x", "count": "\ud800", "active": 1}]}},
    ],
)
def test_a_damaged_tally_is_one_sentence_and_no_traceback(steptally, run_directory, change):
    path = run_directory / "tally.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    status, _, err = steptally("report", run_directory)
    assert status == 2
    assert err.startswith(f"steptally: {path} ")
    assert "Traceback" not in err


def test_a_file_that_is_not_text_is_refused(steptally, tmp_path):
    path = tmp_path / "tally.json"
    path.write_bytes(b"\x1f\x8b\x08\xff")
    status, _, err = steptally("report", path)
    assert status == 2
    assert "cannot be read as a tally" in err


def test_a_page_that_cannot_be_written_is_refused(steptally, run_directory, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = steptally("report", run_directory, "--html", tmp_path / "file" / "page.html")
    assert status == 2
    assert "cannot be written" in err


def test_a_width_that_no_table_fits_is_refused(steptally, run_directory):
    status, _, err = steptally("report", run_directory, "--width", 59)
    assert status == 2
    assert "60" in err
