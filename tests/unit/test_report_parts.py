"""What the report selects from a tally: parts of a bar, points of a run, lines of a table."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.synthetic_tally import killed_tally, predicted_tally, recorded_tally

from steptally.report.glyphs import cells
from steptally.report.job_lines import job_lines, settings
from steptally.report.labels import ordered_figures
from steptally.report.rank_bars import SHARED, rank_bars, shown_bars
from steptally.report.step_points import step_points, thinned
from steptally.report.tables import account_tables
from steptally.tally import Figure, GroupRow, Tally


def test_the_parts_of_a_bar_add_up_to_the_ranks_span():
    for bar in rank_bars(recorded_tally()):
        assert sum(part.duration_ns for part in bar.parts) == bar.span_ns


def test_a_bar_is_the_mean_of_the_ranks_traced_steps():
    # Rank 0 computes 912,000,000 ns in step 19 and 913,000,000 ns in step 20.
    assert rank_bars(recorded_tally())[0].parts[0].duration_ns == 912_500_000


def test_groups_stand_in_the_order_of_their_exposed_time_and_what_they_share_after_them():
    names = [part.name for part in rank_bars(recorded_tally())[0].parts]
    assert names == [
        "compute",
        "exposed TENSOR_MODEL_PARALLEL_GROUP",
        "exposed DATA_PARALLEL_GROUP_WITH_CP",
        SHARED,
        "copies",
        "idle",
    ]


def test_of_many_ranks_the_longest_and_the_shortest_steps_are_shown():
    bars = rank_bars(recorded_tally())
    # Spans by rank: 1298, 1312, 1300, 1314 ms.
    assert [bar.rank for bar in shown_bars(bars, 2)] == [0, 3]
    assert [bar.rank for bar in shown_bars(bars, 4)] == [0, 1, 2, 3]


@given(
    durations=st.lists(st.integers(min_value=0, max_value=10**12), min_size=1, max_size=9),
    spare=st.integers(min_value=0, max_value=10**12),
    width=st.integers(min_value=1, max_value=200),
)
def test_a_bar_fills_its_share_of_the_width_to_half_a_cell(durations, spare, width):
    longest = sum(durations) + spare
    counts = cells(durations, longest, width)
    assert all(count >= 0 for count in counts)
    assert sum(counts) <= width
    if sum(durations):
        assert abs(sum(counts) - sum(durations) * width / longest) <= 0.5


def test_a_steps_wall_is_that_of_its_slowest_rank():
    point = step_points(recorded_tally())[4]
    # Step 5: 1,171 ms + (5 · 7919 mod 23 = 12) · 4.5 ms, and 0.4 ms more a rank; rank 3 is last.
    assert (point.step, point.wall_ns, point.slowest_rank) == (5, 1_226_200_000, 3)


def test_steps_are_told_apart_as_warm_up_traced_and_counted():
    kinds = [point.kind for point in step_points(recorded_tally())]
    assert kinds == ["warm-up"] * 2 + ["counted"] * 16 + ["traced"] * 2


def test_a_step_that_not_every_rank_finished_is_incomplete():
    assert [point.kind for point in step_points(killed_tally())][-2:] == ["counted", "incomplete"]


@given(count=st.integers(min_value=0, max_value=5000), most=st.integers(min_value=1, max_value=99))
def test_thinning_keeps_the_ends_and_stays_small(count, most):
    kept = thinned(range(count), most)
    assert len(kept) <= most + 1
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)


def test_rows_that_differ_in_their_rank_only_are_one_line():
    traffic = account_tables(recorded_tally(), most_rows=50)[0]
    assert len(traffic.rows) == 5  # five kinds, recorded by four ranks each
    assert "ranks 0–3" in traffic.note


def test_a_table_that_is_cut_says_how_many_rows_are_left_out():
    flops = account_tables(predicted_tally(), most_rows=3)[0]
    assert (len(flops.rows), flops.left_out) == (3, 2)
    assert flops.total[-1] == "7.811e10"  # the total is of all rows: 78,114,717,696


def test_a_table_says_what_its_account_rests_on():
    notes = {table.title: table.note for table in account_tables(recorded_tally(), most_rows=9)}
    assert notes["FLOPs by term"].startswith("predicted; ")
    assert notes["Matrix products"].startswith("measured; ")


def test_a_column_that_no_row_fills_is_left_out_and_comes_back_with_its_value():
    bare = recorded_tally().accounts["gemms"]
    full = [replace(row, waves=1.5, efficiency=0.75, bound="memory") for row in bare]
    columns = {}
    for name, rows in (("bare", bare), ("full", full)):
        tally = Tally(basis="predicted", accounts={"gemms": rows})
        (columns[name],) = account_tables(tally, most_rows=9)
    assert {"waves", "of peak"}.isdisjoint(columns["bare"].columns)
    assert columns["full"].columns[-2:] == ("waves", "of peak")
    assert columns["full"].rows[0][-2:] == ("1.500", "75.0 %")
    assert "bound by memory" in columns["full"].note


def test_a_process_group_is_listed_once_though_each_member_has_a_row():
    rows = [
        GroupRow(group="TP", group_size=2, ranks=(0, 1), nodes=1, scope="intra-node", rank=rank)
        for rank in (0, 1)
    ]
    (table,) = account_tables(Tally(basis="predicted", accounts={"groups": rows}), most_rows=9)
    assert table.rows == (("TP", "0–1", "intra-node", "2", "1"),)


def test_an_unknown_figure_stands_beside_the_key_that_it_continues():
    figure = Figure(value=1.0, unit="s", basis="measured")
    keys = ("other", "tokens_per_step", "mfu_of_layer", "mfu")
    order = ordered_figures(Tally(basis="measured", summary=dict.fromkeys(keys, figure)))
    assert [key for key, _ in order] == [
        "mfu",
        "mfu_of_layer",
        "tokens_per_step",
        "other",
    ]


def test_the_jobs_lines_name_its_shape_layout_and_batch():
    lines = dict(job_lines(recorded_tally()))
    assert lines["layout"] == "4 ranks = TP 2 × PP 1 × DP 2 · sequence parallel"
    assert lines["model"].startswith("4 layers · hidden 256 · 8 heads in 4 query groups · FFN 640")
    assert lines["assumed"] == (
        "ffn_hidden_size = 640 · kv_channels = 32 · 2 at Megatron's own defaults"
    )


def test_assumed_settings_carry_their_reason_and_stated_ones_none():
    reasons = {setting.name: setting.why for setting in settings(recorded_tally())}
    assert reasons["kv_channels"] == "32 (hidden_size / num_attention_heads)"
    assert reasons["hidden_size"] == ""


@pytest.mark.parametrize(
    "job",
    [{}, {"architecture": None, "layout": [], "recipe": 3, "assumed": "x", "unknown": None}],
)
def test_a_job_of_another_shape_is_left_out_rather_than_guessed(job):
    assert job_lines(replace(recorded_tally(), job=job)) == []
