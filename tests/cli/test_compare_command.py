"""`steptally compare`: two tallies in, lines out, and a sentence for whatever is not a tally."""

import io
import json
import sys
from dataclasses import replace

import pytest
from tests.synthetic_tally import DEMO_JOB, predicted_tally, recorded_tally

from device_traces import kernel, write_trace
from steptally.cli import main as cli
from steptally.cli.compare import read_percent
from steptally.errors import InputError
from steptally.tally import COMPARISON_SCHEMA


@pytest.fixture
def steptally(monkeypatch, capsys):
    """Run a command line in this process: (status, standard output, standard error)."""

    def run(*arguments, stdin=b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["steptally", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return run


@pytest.fixture
def predicted(tmp_path):
    path = tmp_path / "predicted.json"
    path.write_text(predicted_tally().dumps(), encoding="utf-8")
    return path


@pytest.fixture
def run_directory(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "tally.json").write_text(recorded_tally().dumps(), encoding="utf-8")
    return directory


@pytest.fixture
def other(tmp_path):
    """The recorded run, but for 2 % more FLOPs in one term."""
    tally = recorded_tally()
    first, *rest = tally.accounts["flops"]
    more = replace(first, executed=first.executed * 51 // 50)
    path = tmp_path / "other.json"
    accounts = {**tally.accounts, "flops": [more, *rest]}
    path.write_text(replace(tally, accounts=accounts).dumps(), encoding="utf-8")
    return path


def test_a_file_against_a_run_directory(steptally, predicted, run_directory):
    status, out, err = steptally("compare", predicted, run_directory)
    assert (status, err) == (0, "")
    assert out.startswith("steptally compare · ")
    assert "FLOPs by term" in out
    assert "figures in B alone" in out


def test_its_tally_file_and_standard_input_give_the_same_lines(steptally, predicted, run_directory):
    named = json.loads(steptally("compare", predicted, run_directory / "tally.json", "--json")[1])
    piped = json.loads(
        steptally("compare", "-", run_directory, "--json", stdin=predicted.read_bytes())[1]
    )
    assert piped.pop("a")["source"] == "-"
    assert (named.pop("a") and named.pop("b")) != piped.pop("b")
    assert piped == named


def test_json_holds_every_line_with_its_integers_exact(steptally, predicted, other):
    status, out, _ = steptally("compare", predicted, other, "--json")
    content = json.loads(out)
    assert status == 0
    assert content["schema"] == COMPARISON_SCHEMA
    assert content["a"]["basis"] == "predicted"
    (section,) = content["accounts"]["flops"]
    assert section["matched_by"] == ["phase", "name"]
    assert len(section["lines"]) == 2 * len(predicted_tally().accounts["flops"])
    first = section["lines"][0]
    # 2 % of 4,294,967,296, in whole FLOPs.
    assert first["difference"] == 4_294_967_296 * 51 // 50 - 4_294_967_296
    assert content["summary"]["lines_different"] == 1


class TestFailOn:
    @pytest.mark.parametrize(("percent", "status"), [("0", 1), ("1.9%", 1), ("2.1 %", 0)])
    def test_the_status_says_whether_a_line_differs_by_more(
        self, steptally, run_directory, other, percent, status
    ):
        found, out, _ = steptally("compare", run_directory, other, "--fail-on", percent)
        assert found == status
        assert ("no lines differ by more" in out) == (status == 0)

    def test_equal_tallies_pass_at_zero(self, steptally, run_directory):
        status, out, _ = steptally("compare", run_directory, run_directory, "--fail-on", "0")
        assert (status, out.splitlines()[-1]) == (0, "no lines differ by more than 0 %")

    def test_only_the_accounts_named_are_judged(self, steptally, run_directory, other):
        options = ("--fail-on", "0", "--account", "gemms", "--account", "traffic")
        assert steptally("compare", run_directory, other, *options)[0] == 0

    def test_a_line_that_one_side_lacks_counts(self, steptally, run_directory, tmp_path):
        tally = recorded_tally()
        fewer = {**tally.accounts, "gemms": tally.accounts["gemms"][1:]}
        path = tmp_path / "fewer.json"
        path.write_text(replace(tally, accounts=fewer).dumps(), encoding="utf-8")
        options = ("--account", "gemms", "--fail-on", "500%")
        assert steptally("compare", run_directory, path, *options)[0] == 1

    def test_json_says_how_many_lines(self, steptally, run_directory, other):
        status, out, _ = steptally("compare", run_directory, other, "--fail-on", "1", "--json")
        assert status == 1
        assert json.loads(out)["fail_on"] == {"percent": 1.0, "lines": 1}

    @pytest.mark.parametrize("percent", ["three", "-1", "nan", "inf", "", "%", "1e400", "3%%"])
    def test_what_is_no_percentage_is_refused(self, steptally, run_directory, percent):
        status, _, err = steptally("compare", run_directory, run_directory, "--fail-on", percent)
        assert status == 2
        assert "must be a percentage of 0 or more" in err

    def test_a_limit_is_taken_as_written(self):
        # 0.1 as a float is a little more than a tenth.
        assert read_percent("0.1 %") * 10 == 1

    def test_a_check_that_looked_at_nothing_has_not_passed(self, steptally, tmp_path, predicted):
        path = tmp_path / "nothing.json"
        path.write_text(replace(predicted_tally(), accounts={}, summary={}).dumps())
        status, _, err = steptally("compare", predicted, path, "--fail-on", "3%")
        assert status == 2
        assert "--fail-on has nothing to judge in these two tallies" in err

    def test_an_account_of_which_nothing_is_compared_has_not_passed(
        self, steptally, run_directory, tmp_path
    ):
        tally = recorded_tally()
        moved = [replace(row, rank=9) for row in tally.accounts["gemms"]]
        path = tmp_path / "moved.json"
        path.write_text(replace(tally, accounts={**tally.accounts, "gemms": moved}).dumps())
        options = ("--fail-on", "3", "--account", "flops", "--account", "gemms")
        status, _, err = steptally("compare", run_directory, path, *options)
        assert status == 2
        assert "nothing to judge in gemms (gemms: no rank is in both: A has" in err


class TestUnequalWork:
    @pytest.fixture
    def longer(self, tmp_path):
        job = {**DEMO_JOB, "layout": {**DEMO_JOB["layout"], "seq_length": 512}}
        path = tmp_path / "longer.json"
        path.write_text(replace(recorded_tally(), job=job).dumps(), encoding="utf-8")
        return path

    def test_times_are_shown_and_get_no_ratio(self, steptally, run_directory, longer):
        _, out, _ = steptally("compare", run_directory, longer, "--account", "summary")
        line = next(x for x in out.splitlines() if x.startswith("step time"))
        assert "1.209 s" in line
        assert "%" not in line
        assert "seq_length (tokens): 256 against 512" in " ".join(out.split())

    def test_what_is_counted_is_compared_all_the_same(self, steptally, run_directory, longer):
        status, out, _ = steptally("compare", run_directory, longer, "--json")
        content = json.loads(out)
        assert status == 0
        assert content["unequal_work"] == ["seq_length (tokens): 256 against 512"]
        by_name = {line["quantity"]: line for line in content["figures"]}
        assert by_name["flops_per_step_executed"]["difference"] == 0
        assert by_name["mfu"]["refused"] == "not the same work"

    @pytest.mark.parametrize("options", [(), ("--account", "time"), ("--account", "summary")])
    def test_a_check_of_times_has_not_passed(self, steptally, run_directory, longer, options):
        status, _, err = steptally("compare", run_directory, longer, *options, "--fail-on", "5%")
        assert status == 2
        assert "cannot judge times and rates" in err
        assert "seq_length (tokens): 256 against 512" in err

    def test_what_is_counted_is_judged_where_it_is_named(self, steptally, run_directory, longer):
        options = ("--account", "flops", "--fail-on", "0")
        assert steptally("compare", run_directory, longer, *options)[0] == 0


class TestBadInput:
    def refused(self, steptally, *arguments, stdin=b""):
        status, out, err = steptally("compare", *arguments, stdin=stdin)
        assert status == 2
        assert out == ""
        assert "Traceback" not in err
        return err

    def test_a_file_that_is_not_there(self, steptally, predicted, tmp_path):
        err = self.refused(steptally, predicted, tmp_path / "gone.json")
        assert "gone.json is not there: name what a verb printed with --json" in err

    def test_a_directory_without_a_tally(self, steptally, predicted, tmp_path):
        (tmp_path / "empty").mkdir()
        err = self.refused(steptally, predicted, tmp_path / "empty")
        assert "holds no tally.json" in err
        assert f"`steptally report {tmp_path / 'empty'}`" in err

    def test_standard_input_twice(self, steptally):
        assert "standard input can be read once" in self.refused(steptally, "-", "-")

    @pytest.mark.parametrize(
        "text", [b"", b"no json", b"[1, 2]", b"null", b"{}", b"\xff\xfe", b"7"]
    )
    def test_what_is_no_tally(self, steptally, predicted, tmp_path, text):
        path = tmp_path / "other.json"
        path.write_bytes(text)
        assert str(path) in self.refused(steptally, predicted, path)
        assert "standard input" in self.refused(steptally, predicted, "-", stdin=text)

    def test_another_schema_is_named(self, steptally, predicted, tmp_path):
        path = tmp_path / "newer.json"
        path.write_text(json.dumps({**predicted_tally().as_json(), "schema": "steptally/9"}))
        err = self.refused(steptally, predicted, path)
        assert "has schema 'steptally/9': this steptally reads 'steptally/1'" in err

    @pytest.mark.parametrize(
        "change",
        [
            {"summary": {"mfu": [1]}},
            {"figures": {}},
            {"accounts": {"flops": [{"name": "mlp"}]}},
            {"accounts": {"flops": {"name": "mlp"}}},
            {"accounts": 3},
            {"job": "demo"},
            {"basis": None},
            {"warnings": {}},
        ],
    )
    def test_a_damaged_tally(self, steptally, predicted, tmp_path, change):
        path = tmp_path / "damaged.json"
        path.write_text(json.dumps({**predicted_tally().as_json(), **change}))
        assert str(path) in self.refused(steptally, path, predicted)

    def test_the_json_of_a_verb_that_prints_no_tally(self, steptally, predicted, tmp_path):
        path = tmp_path / "validated.json"
        path.write_text('{"schema": "steptally/1", "basis": "predicted", "per_row": []}')
        err = self.refused(steptally, predicted, path)
        assert "is no whole tally, it lacks 'figures'" in err

    def test_a_comparison_itself(self, steptally, predicted, tmp_path):
        path = tmp_path / "comparison.json"
        path.write_text(steptally("compare", predicted, predicted, "--json")[1])
        assert "steptally-compare/1" in self.refused(steptally, predicted, path)

    @pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
    def test_a_name_that_no_file_has(self, steptally, predicted, name):
        assert "cannot be read as a tally" in self.refused(steptally, predicted, name)

    def test_an_account_that_is_not_known(self, steptally, predicted):
        err = self.refused(steptally, predicted, predicted, "--account", "flop")
        assert "did you mean 'flops'?" in err

    def test_no_lines_at_all(self, steptally, predicted):
        assert "--most" in self.refused(steptally, predicted, predicted, "--most", "0")

    def test_a_job_whose_parts_are_not_what_they_should_be(self, steptally, predicted, tmp_path):
        path = tmp_path / "odd.json"
        job = {"layout": 3, "architecture": [], "name": {"x": 1}, "recipe": {"bf16": {}}}
        path.write_text(json.dumps({**predicted_tally().as_json(), "job": job}))
        status, _, err = steptally("compare", path, predicted)
        assert (status, err) == (0, "")


def test_the_lines_of_an_account_are_limited_and_the_rest_counted(steptally, predicted, tmp_path):
    tally = predicted_tally()
    row = tally.accounts["flops"][0]
    paths = []
    for side in (1, 2):
        rows = [
            replace(row, name=f"term {i}", executed=side * i + 7, useful=0) for i in range(1000)
        ]
        paths.append(tmp_path / f"{side}.json")
        paths[-1].write_text(replace(tally, accounts={"flops": rows}).dumps(), encoding="utf-8")
    _, short, _ = steptally("compare", *paths)
    _, long, _ = steptally("compare", *paths, "--most", 1000)
    assert steptally("compare", *paths, "--all")[1] == long
    assert sum("term " in line for line in short.splitlines()) == 16
    assert "983 more rows: see --json" in short  # term 0 is equal
    assert sum("term " in line for line in long.splitlines()) == 999


def test_standard_input_that_is_closed_is_refused(steptally, predicted, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    from steptally.cli.compare import read_side

    with pytest.raises(InputError, match="standard input cannot be read"):
        read_side("-")


def test_two_traces_are_measured_and_compared(steptally, tmp_path):
    # The same step, in which B's add takes 8 µs instead of 4, and a kernel of A's is gone.
    for side, length, names in (("a", 4, ("gemm", "add", "relu")), ("b", 8, ("gemm", "add"))):
        (tmp_path / side).mkdir()
        kernels = [
            kernel(name, 20 * i, 20 * i + (length if name == "add" else 5), launched=20 * i - 3)
            for i, name in enumerate(names)
        ]
        write_trace(tmp_path / side / "rank0.json", *kernels)
    sides = (tmp_path / "a", tmp_path / "b" / "rank0.json", "--account", "kernels", "--json")
    status, out, err = steptally("compare", *sides)
    assert (status, err) == (0, "")
    found = lines_of(out)
    assert (found["add", "total_ns"]["a"], found["add", "total_ns"]["b"]) == (4_000, 8_000)
    # Nothing says that both did the same work: times are shown, and no ratio is made.
    assert found["add", "total_ns"]["refused"] == "not the same work"
    assert found["relu", "count"]["only_in"] == "A"
    found = lines_of(steptally("compare", *sides, "--job", "llama-3-8b")[1])
    assert found["add", "total_ns"]["relative"] == 1.0


def test_a_job_for_tallies_is_refused(steptally, predicted, other):
    status, _, err = steptally("compare", predicted, other, "--job", "llama-3-8b")
    assert status == 2
    assert "neither A nor B is a trace" in err


def lines_of(out):
    (section,) = json.loads(out)["accounts"]["kernels"]
    return {(line["key"]["name"], line["quantity"]): line for line in section["lines"]}
