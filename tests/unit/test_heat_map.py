"""Which heat maps a search's peers make, and what is joined or left out where there is no room."""

from dataclasses import replace

import pytest
from tests.synthetic_stragglers import OPERATIONS, peer_rows, places, slow_worker_tally

from steptally.report.heat_map import (
    AS_PEERS,
    NO_PEERS,
    HeatMap,
    level,
    marked,
    with_columns,
)
from steptally.report.peer_maps import peer_maps
from steptally.tally import PeerRow, Tally, VerdictRow


def maps_of(rows: list[PeerRow], most_rows: int = 24) -> list[HeatMap]:
    return peer_maps(Tally(basis="measured", accounts={"peers": rows}), most_rows=most_rows)


def test_ranks_stand_in_the_order_of_their_coordinates_stage_first():
    by_operation, _ = peer_maps(slow_worker_tally(), most_rows=24)
    # Rank = dp · 2 + pp: stage 0 has the even ranks.
    assert by_operation.heads == ("pp", "dp", "rank")
    assert [labels[-1] for labels in by_operation.labels] == list("02461357")


def test_a_cell_is_the_row_of_its_rank_and_operation():
    by_operation, _ = peer_maps(slow_worker_tally(), most_rows=24)
    cell = by_operation.cells[0][by_operation.columns.index("backward-compute")]
    assert (cell.own_ns, cell.peers_ns, cell.ratio) == (800_000_000, 400_000_000, 2.0)
    assert cell.words == (
        "pp 0, dp 0 · rank 0, backward-compute: 2.00× its peers' time, 800.0 ms against 400.0 ms"
    )


def test_a_step_is_all_its_operations_together():
    _, by_step = peer_maps(slow_worker_tally(), most_rows=24)
    # Stage 0: 200 + 400 + 30 ms, and twice that on rank 0.
    assert (by_step.columns, by_step.ordinal) == (("0", "1", "2", "3"), True)
    assert by_step.cells[0][3].own_ns == 2 * by_step.cells[0][3].peers_ns == 1_260_000_000


def test_of_several_rows_only_those_with_peers_are_held_against_them():
    with_peers, without = peer_rows({0: {}}, slow={0: 1.5}, steps=0, operations=OPERATIONS[:2])
    without = replace(without, operation=with_peers.operation, peers_ns=None, ratio=None)
    ((cell,),) = maps_of([with_peers, without])[0].cells
    assert (cell.own_ns, cell.peers_ns, cell.ratio) == (300_000_000, 200_000_000, 1.5)


def against_stages(rows: list[PeerRow]) -> list[PeerRow]:
    """The same ranks against other stages, the last of which takes a quarter longer."""
    return [
        replace(row, against="stages", peers_ns=row.own_ns, ratio=1.25 if last else 1.0)
        for row in rows
        for last in (row.coordinates["pp"] == 1,)
    ]


def test_ranks_are_held_against_other_stages_where_a_stage_is_to_blame():
    rows = peer_rows(places(pp=2, dp=2), slow={}, steps=0)
    accounts = {"peers": [*rows, *against_stages(rows)]}
    (unblamed,) = peer_maps(Tally(basis="measured", accounts=accounts), most_rows=24)
    assert unblamed.title == "Own time over peers', by operation"
    accounts["verdicts"] = [VerdictRow(verdict="stage-imbalance", coordinates={"pp": 1})]
    peers, stages = peer_maps(Tally(basis="measured", accounts=accounts), most_rows=24)
    assert peers == unblamed
    assert stages.title == "Own time over the other stages', by operation"
    assert [cells[0].ratio for cells in stages.cells] == [1.0, 1.0, 1.25, 1.25]
    assert "1.25× the other stages' time" in stages.cells[2][0].words


def test_ranks_that_have_no_peers_are_held_against_other_stages_alone():
    rows = peer_rows(places(pp=2), slow={}, steps=0)
    alone = [replace(row, peers_ns=None, ratio=None) for row in rows]
    (stages,) = maps_of([*alone, *against_stages(rows)])
    assert stages.title == "Own time over the other stages', by operation"


def test_an_axis_that_all_ranks_share_is_no_heading():
    rows = peer_rows(places(pp=1, dp=3), slow={})
    assert maps_of(rows)[0].heads == ("dp", "rank")


def test_ranks_without_coordinates_are_told_by_their_number():
    rows = peer_rows({3: {}, 1: {}}, slow={})
    assert maps_of(rows)[0].heads == ("rank",)
    assert maps_of(rows)[0].labels == (("1",), ("3",))


def test_one_step_makes_no_map_by_step():
    assert [heat.across for heat in maps_of(peer_rows(places(dp=3), slow={}, steps=1))] == [
        "operation"
    ]


def test_of_many_ranks_the_two_axes_that_differ_most_are_mapped_first():
    # All tensor-parallel ranks of stage 2 and replica 5 are slow: pp × dp tells them from others.
    coordinates = places(tp=4, pp=4, dp=8)
    slow = {rank: 1.5 for rank, at in coordinates.items() if (at["pp"], at["dp"]) == (2, 5)}
    axes, by_operation, by_step = maps_of(peer_rows(coordinates, slow=slow))
    assert (axes.heads, axes.across) == (("pp",), "dp")
    assert [
        (line, column)
        for line, cells in enumerate(axes.cells)
        for column, cell in enumerate(cells)
        if cell.level > AS_PEERS
    ] == [(2, 5)]
    assert "of all pairs of axes, these two differ most" in axes.note
    for heat in (by_operation, by_step):
        assert {int(labels[-1]) for labels in heat.labels} == set(slow)
        assert heat.note.startswith("4 of 128 ranks, the furthest from their peers")


def test_many_ranks_without_coordinates_are_one_row_of_ranks():
    rows = peer_rows({rank: {} for rank in range(1000)}, slow={777: 3.0}, steps=0)
    ranks, _ = maps_of(rows)
    assert (len(ranks.cells), len(ranks.columns)) == (1, 1000)
    joined = with_columns(ranks, 40)
    assert joined.columns[:2] == ("0–24", "25–49")
    assert joined.note.endswith("each column is the slowest of 25")
    assert [cell.place for cell in joined.cells[0] if cell.level > AS_PEERS] == ["rank 777"]


def test_rows_that_are_joined_show_the_slowest_of_them():
    coordinates = places(pp=64, dp=64)
    axes = maps_of(peer_rows(coordinates, slow={64 * 9 + 49: 2.0}, steps=0), most_rows=16)[0]
    assert [labels for (labels,) in axes.labels][:2] == ["0–3", "4–7"]
    ((row, column, cell),) = marked(axes)
    assert (axes.labels[row], axes.columns[column], cell.ratio) == (("48–51",), "9", 2.0)


def test_operations_without_room_are_those_that_differ_least():
    operations = tuple((f"op {number}", 10_000_000, 10_000_000) for number in range(9))
    rows = peer_rows(places(dp=3), slow={}, steps=0, operations=operations)
    rows = [
        replace(row, own_ns=30_000_000, ratio=3.0)
        if (row.rank, row.operation) == (2, "op 7")
        else row
        for row in rows
    ]
    kept = with_columns(maps_of(rows)[0], 2)
    assert "op 7" in kept.columns
    assert (len(kept.columns), kept.left_out) == (2, 7)


def test_a_slow_rank_is_marked_once_a_map_where_it_loses_most():
    by_operation, by_step = peer_maps(slow_worker_tally(), most_rows=24)
    ((row, column, _),) = marked(by_operation)
    assert (row, by_operation.columns[column]) == (0, "backward-compute")
    assert len(marked(by_step)) == 1


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, 0), (0.95, 0), (0.96, 1), (1.05, 1), (1.051, 2), (1.2, 3), (1.5, 4), (1.51, 5)],
)
def test_levels_rise_with_the_ratio(ratio, expected):
    assert level(ratio) == expected


def test_a_rank_without_peers_has_a_level_of_its_own():
    row = replace(peer_rows({0: {}}, slow={}, steps=0)[0], peers_ns=None, ratio=None)
    ((cell,),) = maps_of([row])[0].cells
    assert cell.level == NO_PEERS
    assert cell.words == "rank 0, forward-compute: 200.0 ms, no peers to hold it against"


def test_no_map_has_more_rows_than_asked_for():
    for heat in maps_of(peer_rows(places(tp=8, pp=8, dp=4), slow={9: 2.0}), most_rows=6):
        assert len(heat.labels) <= 6
