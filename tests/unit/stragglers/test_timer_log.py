"""Megatron's timer blocks, read as megatron/core/timers.py (0.16.1) prints them."""

import pytest
from tests.unit.stragglers.phase_inputs import iteration_line, range_block, timer_block

from steptally.errors import InputError
from steptally.measure.stragglers.phase_file import is_phase_table, read_phase_table
from steptally.measure.stragglers.phase_table import section_kind
from steptally.measure.stragglers.sources import conclude_from_file
from steptally.measure.stragglers.timer_log import read_timer_log


def test_a_block_of_all_ranks_belongs_to_the_iteration_line_before_it():
    lines = [
        iteration_line(5, 1200.0),
        "times across ranks (ms):",
        "  forward-compute:",
        "     rank  0: 310.25",
        "     rank  1: 309.75",
        "  backward-compute:",
        "     rank 11: 620.00",
        iteration_line(10, 1300.0),
        *timer_block({"forward-compute": [1.0, 2.0]}),
    ]
    table = read_timer_log(lines, "train.log")
    assert table.times.rows() == [
        (5, "forward-compute", 0, 310.25),
        (5, "forward-compute", 1, 309.75),
        (5, "backward-compute", 11, 620.0),
        (10, "forward-compute", 0, 1.0),
        (10, "forward-compute", 1, 2.0),
    ]
    assert table.step_ms == 1250.0  # the median of both lines


def test_launchers_prefixes_and_lines_of_other_ranks_do_not_hide_a_block():
    lines = [
        "[default7]:times across ranks (ms):",
        "[default7]:  forward-compute:",
        "[default7]:     rank  0: 12.50",
        "WARNING:megatron.core.utils: something else",
        "[default7]:     rank  1: 13.50",
    ]
    assert read_timer_log(lines, "x").times["ms"].to_list() == [12.5, 13.5]


def test_extremes_and_the_slowest_alone_are_read_apart():
    lines = [
        iteration_line(2, 1000.0),
        *range_block({"forward-backward": (900.0, 950.25)}),
        "max time across ranks (ms):",
        "    batch-generator ................................: 12.75",
    ]
    both, slowest = read_timer_log(lines, "x").ranges
    assert (both.iteration, both.section, both.min_ms, both.max_ms) == (
        2,
        "forward-backward",
        900.0,
        950.25,
    )
    assert (slowest.section, slowest.min_ms, slowest.max_ms) == ("batch-generator", None, 12.75)


@pytest.mark.parametrize("damage", ["nan", "-3.0", "1.2.3", ""])
def test_a_damaged_time_is_counted_and_the_others_stay(damage):
    lines = [*timer_block({"forward-compute": [1.0, 2.0]}), f"     rank  2: {damage}"]
    table = read_timer_log(lines, "x")
    assert table.times["rank"].to_list() == [0, 1]
    assert table.lost == ("1 timer lines hold no time that can be read",)


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("forward-compute", "own"),
        ("optimizer-inner-step", "own"),
        ("optimizer-clip-main-grad", "synchronous"),
        ("forward-send-backward-recv", "synchronous"),
        ("non-tensor-parallel-grads-all-reduce", "synchronous"),
        ("params-all-gather", "synchronous"),
        ("batch-generator", "data"),
        ("dataloader", "data"),
        ("forward-backward", "whole"),
        ("train/valid/test-data-iterators-setup", "setup"),
        ("save-checkpoint", "setup"),
    ],
)
def test_sections_are_sorted_by_what_their_time_is_made_of(section, kind):
    assert section_kind(section) == kind


def test_a_table_of_phases_takes_other_units_and_json_lines():
    table = read_phase_table(
        '{"step": 3, "rank": 1, "phase": "fwd", "us": 1500, "host": "n1"}\n'
        '{"step": 3, "rank": 0, "phase": "fwd", "start_ns": 0, "end_ns": 2000000}\n',
        "t.jsonl",
    )
    assert table.times.rows() == [(3, "fwd", 1, 1.5), (3, "fwd", 0, 2.0)]
    assert table.hosts == {1: "n1"}


def test_a_header_without_its_columns_is_no_table():
    assert is_phase_table("rank,section,ms\n")
    assert not is_phase_table("rank,ms\n0,1\n")
    assert not is_phase_table("")
    with pytest.raises(InputError, match="has the columns ms, rank"):
        read_phase_table("rank,ms\n0,1\n", "t.csv")


def test_a_table_without_a_usable_row_and_an_unknown_kind_are_refused():
    with pytest.raises(InputError, match="none of its 1 rows"):
        read_phase_table("rank,section,ms\nx,y,z\n", "t.csv")
    with pytest.raises(InputError, match="a kind is one of own, data"):
        read_phase_table("rank,section,ms,kind\n0,a,1,busy\n", "t.csv")


def test_a_file_that_holds_nothing_of_this_is_refused_with_the_option_that_records_it(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("hello\n")
    with pytest.raises(InputError, match="--timing-log-option all"):
        conclude_from_file(path)
    with pytest.raises(InputError, match="cannot be read"):
        conclude_from_file(tmp_path / "missing.log")


def test_one_log_gives_the_conclusions_of_all_that_it_holds(tmp_path):
    path = tmp_path / "train.log"
    lines = [
        iteration_line(1, 1000.0),
        *timer_block({"nccl": [100.0, 400.0, 401.0, 399.0, 402.0]}),
        "megatron.bridge: GPU relative performance:",
        "  Rank=0 Node=n0 Score=0.55",
        "  Rank=1 Node=n0 Score=1.00",
    ]
    path.write_text("\n".join(lines))
    found = conclude_from_file(path)
    assert [(row.verdict, row.ranks) for row in found.verdicts] == [
        ("slow-worker", (0,)),
        ("slow-worker", (0,)),
    ]
    assert found.verdicts[1].host == "n0"
