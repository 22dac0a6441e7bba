"""A search for stragglers as tables: sums over groups, nothing of clocks that were not moved."""

from dataclasses import replace

import pytest
from tests.synthetic_stragglers import (
    clock_rows,
    collective_rows,
    quiet_tally,
    slow_worker_tally,
    wait_rows,
    what_if_rows,
)

from steptally.report.straggler_tables import (
    MOST_TOLD,
    clock_table,
    collective_table,
    replay_table,
    wait_group_table,
    wait_table,
    what_if_table,
)
from steptally.report.table import NOTHING
from steptally.report.tables import account_tables


def test_the_rank_that_others_wait_for_leads_the_waits():
    table = wait_table(wait_rows())
    assert table.rows[0] == ("0", "4", "4", "0 ns", "0 ns", "48.00 ms", "44.00 ms")


def test_a_ranks_groups_are_added_up():
    tensor = [replace(row, group="tp", wait_ns=1_000_000) for row in wait_rows() if row.rank == 2]
    row = next(row for row in wait_table([*wait_rows(), *tensor]).rows if row[0] == "2")
    # 4 steps · 600 ms of dp, 1 ms of tp; 4 · 12 ms of transfer, twice.
    assert (row[2], row[3], row[5]) == ("8", "2.401 s", "96.00 ms")


def test_a_sum_of_which_one_part_is_not_known_is_not_known():
    rows = [replace(row, rank=0, exposed_wait_ns=None if row.rank else 1) for row in wait_rows()]
    assert wait_table(rows).rows[0][4] == NOTHING


def test_a_group_names_the_rank_that_was_most_often_last():
    lines = {row[0]: row for row in wait_group_table(wait_rows()).rows}
    assert lines["dp of pp 0"][2:4] == ("0, 2, 4, 6", "rank 0: 4 of 4")


def test_a_group_in_which_nobody_was_last_names_none():
    rows = [replace(row, last_to_enter=0) for row in wait_rows()]
    assert {row[3] for row in wait_group_table(rows).rows} == {NOTHING}


def test_collectives_stand_in_the_order_of_what_their_members_waited():
    table = collective_table(collective_rows())
    # Three replicas wait for the fourth: 3 · 603 ms in step 3.
    assert [row[4] for row in table.rows] == ["3", "2", "1", "0"]
    assert table.rows[0][7] == "1.809 s"


def test_of_very_many_collectives_the_text_of_few_is_made_and_the_others_are_counted():
    table = collective_table(collective_rows() * 100)
    assert (len(table.rows), table.left_out) == (MOST_TOLD, 400 - MOST_TOLD)


def test_what_recovers_most_leads_the_what_ifs():
    assert what_if_table(what_if_rows()).rows[0] == (
        *("dp", "dp 0", "700.5 ms", "594.5 ms", "99.9 %"),
    )


def test_a_step_that_lost_nothing_has_no_share():
    rows = [replace(row, share_recovered=None) for row in what_if_rows()]
    assert {row[-1] for row in what_if_table(rows).rows} == {NOTHING}


def test_a_step_is_shown_measured_replayed_and_ideal():
    (first, *_) = replay_table(slow_worker_tally().accounts["replay"]).rows
    assert first == ("0", "1.300 s", "1.295 s", "-0.38 %", "700.0 ms", "595.0 ms", "1.850")


def test_clocks_are_shown_where_one_was_moved():
    assert clock_table(clock_rows()).rows[0] == (
        *("0", "yes", "-4.000 ms", "+0 µs/s", "± 9.000 µs", "48"),
    )


def test_clocks_that_are_one_already_have_no_table():
    titles = [table.title for table in account_tables(quiet_tally(), most_rows=9)]
    assert titles == ["Replay of each step"]


@pytest.mark.parametrize("change", [{"bound_ns": 5}, {"connected": False}, {"drift": 1e-9}])
def test_one_clock_that_differs_brings_the_table_back(change):
    still = quiet_tally().accounts["clock"]
    assert len(clock_table([*still, replace(still[0], rank=1, **change)]).rows) == 2
