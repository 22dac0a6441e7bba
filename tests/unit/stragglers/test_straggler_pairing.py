"""Which collectives are paired, by number or by order, and which are refused and why."""

import polars as pl
import pytest
from tests.straggler_recordings import TP, recording, recordings, row, train

from steptally.measure.stragglers.clock import align, raw_clocks
from steptally.measure.stragglers.instances import Refusal, pair
from steptally.measure.stragglers.one_clock import on_one_clock
from steptally.measure.stragglers.pairing_support import supported, without_shifted
from steptally.trace.schema import UNATTRIBUTED

PP = "PIPELINE_MODEL_PARALLEL_GROUP"
US = 1_000


def refusals(pairing):
    return [one.sentence() for one in pairing.refused]


def test_recorded_numbers_pair_what_order_would_not():
    one = [row(TP, (0, 1), 100 * n, 100 * n + 50, sequence=n) for n in (4, 5, 6)]
    other = [row(TP, (0, 1), 100 * n + 9, 100 * n + 51, sequence=n) for n in (5, 6)]
    found = pair([recording(0, one), recording(1, other)])
    assert found.members.select("instance", "rank", "row", "sequence").rows() == [
        (0, 0, 1, 5),
        (0, 1, 0, 5),
        (1, 0, 2, 6),
        (1, 1, 1, 6),
    ]
    reason = "no other of the 2 ranks read has recorded 1 of them"
    assert refusals(found) == [
        f"collectives of {TP} (rank 0) are not paired: {reason}",
    ]


def test_several_kernels_of_one_number_are_paired_in_their_order():
    # A coalesced call runs several kernels with one number.
    one = [row(TP, (0, 1), 100 * n, 100 * n + 50, sequence=0) for n in range(3)]
    found = pair([recording(0, one), recording(1, one)])
    assert found.members["row"].to_list() == [0, 0, 1, 1, 2, 2]


def test_groups_of_one_name_and_other_members_are_other_groups():
    def of(*members):
        return [row(TP, members, 100, 150, sequence=0)]

    found = pair([recording(rank, of(rank // 2 * 2, rank // 2 * 2 + 1)) for rank in range(4)])
    assert [part["rank"].to_list() for part in found.members.partition_by("instance")] == [
        [0, 1],
        [2, 3],
    ]


def test_a_member_whose_record_is_lost_is_missing_from_its_instance():
    job = train(4, 4, steps=1, each_step=2)
    found = pair(recordings(job, lost={(2, 1)}))
    sizes = found.members.group_by("instance", maintain_order=True).agg(
        pl.len(), pl.col("size").first()
    )
    assert sizes.rows() == [(0, 4, 4), (1, 3, 4), (2, 4, 4)]


def test_messages_are_paired_by_sender_receiver_and_order():
    ends = {"source_rank": 0, "destination_rank": 1}
    back = {"source_rank": 1, "destination_rank": 0}
    first = [
        row(PP, (0, 1), 100, 110, kind="send", **ends),
        row(PP, (0, 1), 120, 200, kind="recv", **back),
        row(PP, (0, 1), 210, 220, kind="send", **ends),
    ]
    second = [
        row(PP, (0, 1), 90, 112, kind="recv", **ends),
        row(PP, (0, 1), 190, 195, kind="send", **back),
        row(PP, (0, 1), 200, 221, kind="recv", **ends),
    ]
    found = pair([recording(0, first), recording(1, second)])
    paired = found.members.sort("rank", "row").select("rank", "row", "instance").rows()
    assert [instance for rank, _, instance in paired if rank == 0] == [
        instance for rank, _, instance in paired if rank == 1
    ]
    assert not found.refused


def test_order_pairs_within_a_step_and_refuses_the_step_where_counts_differ():
    job = train(2, 2, steps=3, each_step=2)
    found = pair(recordings(job, numbered=False, lost={(1, 4)}))  # the second of step 1
    assert found.members["step"].unique().sort().to_list() == [0, 1, 2]
    kept = found.members.filter(pl.col("group") == TP)
    assert kept["step"].unique().sort().to_list() == [0, 2]
    reason = "rank 1 recorded 1, another rank 2: records are lost"
    (refused,) = refusals(found)
    assert refused == f"collectives of {TP} (ranks 0–1) in step 1 are not paired: {reason}"


def test_order_refuses_what_differs_in_kind():
    one = [row(TP, (0, 1), 0, 9, kind=kind) for kind in ("all-reduce", "all-gather")]
    other = [row(TP, (0, 1), 0, 9, kind=kind) for kind in ("all-gather", "all-reduce")]
    (refused,) = pair([recording(0, one), recording(1, other)]).refused
    assert refused.reason == "their members recorded different ones: records are lost"


def test_without_groups_ranks_with_the_same_collectives_are_paired_stream_by_stream():
    def rows(first_stream, second_stream, count=2):
        made = [row(None, None, 100 * n, 100 * n + 50, lane=first_stream) for n in range(count)]
        return [*made, row(None, None, 130, 190, lane=second_stream)]

    # Stream numbers differ from rank to rank, and the device is part of a lane.
    given = [rows("0:20", "0:24"), rows("1:7", "1:33"), rows("2:20", "2:24", count=1)]
    found = pair([recording(rank, own) for rank, own in enumerate(given)])
    assert found.members["group"].unique().to_list() == [UNATTRIBUTED]
    parts = found.members.partition_by("group_id", "instance", maintain_order=True)
    # Rank 2 lacks one in its first stream, and only there.
    assert sorted(tuple(part["rank"]) for part in parts) == [(0, 1), (0, 1), (0, 1, 2)]
    assert found.members["group_id"].n_unique() == 2
    reason = "no group is recorded, and no other rank has the same 1 collective in a stream"
    (refused,) = refusals(found)
    assert refused == (f"collectives of unattributed (rank 2) in step 0 are not paired: {reason}")


def test_streams_of_other_groups_are_refused_each_by_its_own_ends():
    # Stream 20 joins all four ranks, stream 24 pairs of them; nothing names the groups.
    job = train(4, 2, steps=2, each_step=4)
    made = []
    for one in recordings(job, offsets={2: 10**9}):
        rows = one.communications.to_dicts()
        for each in rows:
            each["lane"] = "0:20" if each["group"] == "default_pg" else "0:24"
            each |= {"group": None, "members": None, "sequence": None}
        made.append(recording(one.rank, rows))
    together = on_one_clock(made)
    assert together.pairing.members["rank"].unique().to_list() == [0, 1, 2, 3]
    assert together.pairing.instances == 2  # that of all ranks, in each step
    assert len(together.pairing.refused) == 1


def test_what_order_pairs_across_different_collectives_is_refused_by_its_ends():
    # Two pairs of ranks, each with collectives of its own, and nothing that names the groups.
    one = train(2, 2, steps=1, each_step=6, seed=1)
    other = train(2, 2, steps=1, each_step=6, seed=2)
    first = recordings(one, named=False)
    second = [recording(r.rank + 2, r.communications.rows(named=True)) for r in recordings(
        other, named=False
    )]  # fmt: skip
    together = on_one_clock([*first, *second])
    assert together.pairing.instances == 0
    (refused,) = together.pairing.refused
    assert refused.ranks == (0, 1, 2, 3)
    assert "had left before another entered" in refused.reason or "lie" in refused.reason


def test_ends_that_fit_better_one_along_are_refused_without_any_clock():
    job = train(2, 2, steps=1, each_step=9, seed=3)
    made = recordings(job, offsets={1: 10**12}, numbered=False, lost={(0, 0), (1, 8)})
    frames = [r.communications.filter(pl.col("group") == TP) for r in made]
    paired = pair([recording(rank, frame.to_dicts()) for rank, frame in enumerate(frames)])
    assert paired.instances == 8  # as many on both, and none of them right
    found = without_shifted(paired)
    assert found.instances == 0
    (refused,) = found.refused
    assert refused.reason == (
        "rank 1's ends fit those of the others better 1 later: records are lost"
    )


def test_only_the_group_that_its_ends_contradict_is_refused():
    job = train(4, 2, steps=4, each_step=6, seed=5)
    made = recordings(job, numbered=False, stepped=False)
    # Ranks 2 and 3 lose one tensor-parallel collective each, at different places.
    rows = [r.communications.to_dicts() for r in made]
    for rank, place in ((2, 0), (3, 12)):
        mine = [n for n, one in enumerate(rows[rank]) if one["group"] == TP]
        del rows[rank][mine[place]]
    together = on_one_clock([recording(rank, own) for rank, own in enumerate(rows)])
    assert [(one.group, one.ranks) for one in together.pairing.refused] == [(TP, (2, 3))]
    assert together.pairing.members.filter(pl.col("group") == TP)["rank"].unique().to_list() == [
        0,
        1,
    ]


def test_a_collective_that_one_left_before_another_entered_is_refused_alone():
    rows = [row(TP, (0, 1), n * 1000 * US, (n * 1000 + 100) * US, sequence=n) for n in range(20)]
    late = [dict(one) for one in rows]
    late[7] |= {"enter_ns": rows[7]["leave_ns"] + 300 * US, "leave_ns": 7_900 * US}
    made = [recording(0, rows), recording(1, late)]
    paired = pair(made)
    found = supported(paired, align(made, paired))
    assert found.instances == 19
    reason = "the times of 1 of them do not fit together; the others are kept"
    assert refusals(found) == [f"collectives of {TP} (ranks 0–1) are not paired: {reason}"]


def test_a_message_that_arrived_before_it_was_sent_contradicts_its_pairing():
    ends = {"source_rank": 0, "destination_rank": 1}
    sent = [row(PP, (0, 1), 500 * US, 510 * US, kind="send", **ends)]
    received = [row(PP, (0, 1), 100 * US, 200 * US, kind="recv", **ends)]
    made = [recording(0, sent), recording(1, received)]
    paired = pair(made)
    assert paired.instances == 1
    assert supported(paired, raw_clocks(made)).instances == 0


def test_a_message_may_be_sent_long_before_it_is_received():
    ends = {"source_rank": 0, "destination_rank": 1}
    sent = [row(PP, (0, 1), 100 * US, 110 * US, kind="send", **ends)]
    received = [row(PP, (0, 1), 500 * US, 510 * US, kind="recv", **ends)]
    made = [recording(0, sent), recording(1, received)]
    assert supported(pair(made), raw_clocks(made)).instances == 1


def test_members_that_were_not_read_are_said():
    job = train(4, 2, steps=1, each_step=2)
    made = [one for one in recordings(job) if one.rank in (0, 1)]
    found = pair(made)
    assert [(one.group, one.ranks) for one in found.refused] == [("DATA_PARALLEL_GROUP", (0, 1))]
    assert found.members["size"].unique().sort().to_list() == [2, 4]


def test_copies_to_another_device_are_nobodys_collective():
    rows = [row(None, None, 100 * n, 100 * n + 50, kind="copy") for n in range(4)]
    found = pair([recording(rank, rows) for rank in range(2)])
    assert (found.instances, found.refused) == (0, ())


def test_exchanges_of_a_pipeline_that_do_not_name_their_peers_are_refused():
    # NCCL's kernels without arguments: stage 1 of 3 exchanges with both neighbours.
    counts = {0: 4, 1: 8, 2: 4}
    made = [
        recording(
            rank,
            [row(PP, (0, 1, 2), 100 * n, 100 * n + 50, kind="send-recv") for n in range(count)],
        )
        for rank, count in counts.items()
    ]
    found = pair(made)
    assert found.instances == 0
    (refused,) = found.refused
    assert refused.reason == (
        "their SendRecv kernels do not say whom they join, and members differ in them"
    )


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (None, "collectives of tp (ranks 0–3) are not paired: because"),
        (5, "collectives of tp (ranks 0–3) in step 5 are not paired: because"),
    ],
)
def test_a_refusal_is_a_sentence(step, expected):
    refusal = Refusal(group="tp", ranks=(0, 1, 2, 3), reason="because", step=step)
    assert refusal.sentence() == expected


def test_nothing_to_pair_is_nothing_paired():
    assert pair([]).instances == 0
    assert pair([recording(0, [])]).instances == 0
    together = on_one_clock([recording(0, []), recording(1, [])])
    assert together.pairing.instances == 0
    assert [row.connected for row in together.clocks.rows.values()] == [False, False]
