"""Clocks that differ change nothing but their offsets: waits stay, within the stated bound."""

import random

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.straggler_recordings import EPOCH, recordings, train, true_last, true_waits

from steptally.measure.stragglers.clock import raw_clocks
from steptally.measure.stragglers.one_clock import on_one_clock
from steptally.measure.stragglers.waits import last_to_enter, waits

HOUR = 3_600 * 10**9
seeds = st.integers(0, 10**6)
layouts = st.sampled_from([(2, 1), (4, 2), (6, 3), (8, 2)])


def waits_of(recorded, together):
    """Each rank's waits, in order of its own collectives."""
    rows = waits(recorded, together.pairing, together.clocks).sort("rank", "row")
    parts = rows.partition_by("rank", as_dict=True)
    return {rank: part["wait_ns"].to_list() for (rank,), part in parts.items()}


def within_bounds(found, true, bounds):
    """Whether no wait is off by more than its own clock's bound and the last one's."""
    most = max(bounds.values())
    return all(
        abs(one - other) <= bounds[rank] + most
        for rank in true
        for one, other in zip(found[rank], true[rank], strict=True)
    )


@settings(max_examples=30)
@given(seeds, layouts, st.booleans(), st.lists(st.integers(-HOUR, HOUR), min_size=8, max_size=8))
def test_aligned_clocks_restore_waits_within_the_stated_bound(seed, layout, numbered, shifts):
    job = train(*layout, steps=6, seed=seed)
    recorded = recordings(job, offsets=dict(enumerate(shifts)), numbered=numbered)
    together = on_one_clock(recorded)
    assert not together.pairing.refused
    assert all(row.connected for row in together.clocks.rows.values())
    assert within_bounds(waits_of(recorded, together), true_waits(job), together.clocks.bounds())


@settings(max_examples=20)
@given(seeds, st.integers(-200, 200), st.integers(-HOUR, HOUR))
def test_a_clock_that_drifts_is_followed_within_the_stated_bound(seed, parts_per_million, shift):
    job = train(4, 2, steps=12, seed=seed)
    drifts = {1: parts_per_million / 1e6}
    recorded = recordings(job, offsets={1: shift}, drifts=drifts)
    together = on_one_clock(recorded)
    assert not together.pairing.refused
    assert within_bounds(waits_of(recorded, together), true_waits(job), together.clocks.bounds())


@settings(max_examples=15)
@given(seeds, st.integers(0, 7), st.integers(-HOUR, HOUR))
def test_shifting_one_clock_shifts_its_offset_and_nothing_else(seed, rank, shift):
    job = train(8, 2, steps=4, seed=seed)
    before = on_one_clock(recordings(job))
    after = on_one_clock(recordings(job, offsets={rank: shift}))
    for other, row in after.clocks.rows.items():
        moved = row.offset_ns - before.clocks.rows[other].offset_ns
        # Offsets are whole, and which clock is the median one may change.
        expected = after.clocks.rows[0 if rank else 1].offset_ns
        expected -= before.clocks.rows[0 if rank else 1].offset_ns
        assert abs(moved - expected + (shift if other == rank else 0)) <= 2
        assert abs(row.bound_ns - before.clocks.rows[other].bound_ns) <= 2


@settings(max_examples=15)
@given(seeds, st.booleans(), st.randoms())
def test_the_order_of_the_files_changes_nothing(seed, named, mixing):
    recorded = recordings(train(6, 6 if not named else 2, steps=3, seed=seed), named=named)
    mixed = list(recorded)
    mixing.shuffle(mixed)
    one, other = on_one_clock(recorded), on_one_clock(mixed)
    assert one.clocks == other.clocks
    assert one.pairing.members.equals(other.pairing.members)
    assert waits(recorded, one.pairing, one.clocks).equals(
        waits(mixed, other.pairing, other.clocks)
    )


def pairs_of_different_collectives(recorded, job, together, offsets):
    """How many instances hold members of more than one true collective."""
    starts = {
        (rank, one.enter[rank]): number for number, one in enumerate(job) for rank in one.members
    }
    rows = together.pairing.members.select("instance", "rank", "enter_ns")
    whose = {}
    for instance, rank, enter in rows.iter_rows():
        number = starts[rank, enter - EPOCH - offsets.get(rank, 0)]
        whose.setdefault(instance, set()).add(number)
    return sum(len(numbers) > 1 for numbers in whose.values())


@settings(max_examples=25)
@given(seeds, st.booleans(), st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 17))
def test_a_lost_record_shifts_no_pairing_silently(seed, numbered, named, stepped, rank, number):
    job = train(4, 2, steps=3, seed=seed)
    offsets = {0: 0, 1: 7 * 10**8, 2: -(10**9), 3: 40_000}
    recorded = recordings(
        job, offsets=offsets, numbered=numbered, named=named, stepped=stepped,
        lost={(rank, number)},
    )  # fmt: skip
    together = on_one_clock(recorded)
    assert pairs_of_different_collectives(recorded, job, together, offsets) == 0
    rows = waits(recorded, together.pairing, together.clocks)
    assert together.pairing.refused or (rows["missing"] > 0).any()
    # Who was last is only said where all that took part are there.
    sizes = {(rank, one.enter[rank]): len(one.members) for one in job for rank in one.members}
    for part in rows.filter(pl.col("missing") == 0).partition_by("instance"):
        rank, place = part.row(0, named=True)["rank"], part.row(0, named=True)["row"]
        enter = recorded[rank].communications["enter_ns"][place] - EPOCH - offsets[rank]
        assert len(part) == sizes[rank, enter]


@settings(max_examples=25)
@given(seeds, st.booleans(), st.integers(0, 35), st.integers(0, 35))
def test_equal_numbers_of_lost_records_are_seen_in_the_ends(seed, stepped, first, second):
    # Rank 0 loses one record and rank 1 another: what order pairs in between is shifted by one.
    job = train(2, 2, steps=6, each_step=5, seed=seed)
    offsets = {1: 10**9}
    recorded = recordings(
        job, offsets=offsets, numbered=False, stepped=stepped, lost={(0, first), (1, second)}
    )
    together = on_one_clock(recorded)
    assert pairs_of_different_collectives(recorded, job, together, offsets) == 0


@settings(max_examples=20)
@given(seeds, st.integers(0, 7))
def test_on_clocks_that_agree_the_last_to_enter_are_counted_exactly(seed, slow):
    job = train(8, 4, steps=3, seed=seed, slow=slow)
    recorded = recordings(job)
    together = on_one_clock(recorded)
    rows = waits(recorded, together.pairing, raw_clocks(recorded))
    assert last_to_enter(rows) == true_last(job)
    by_rank = rows.group_by("rank").agg(pl.col("wait_ns").sum())
    true = {rank: sum(each) for rank, each in true_waits(job).items()}
    assert dict(by_rank.iter_rows()) == true


@settings(max_examples=15)
@given(seeds)
def test_wait_and_transfer_are_the_time_in_the_collective_and_their_exposed_parts_no_more(seed):
    drawn = random.Random(seed)
    recorded = recordings(train(4, 2, seed=seed), offsets={2: drawn.randint(-HOUR, HOUR)})
    together = on_one_clock(recorded)
    rows = waits(recorded, together.pairing, together.clocks)
    whole = rows["leave_ns"] - rows["enter_ns"]
    assert (rows["wait_ns"] + rows["transfer_ns"] == whole).all()
    assert (rows["wait_ns"] >= 0).all()
    assert rows["exposed_wait_ns"].is_between(0, rows["wait_ns"]).all()
    assert rows["exposed_transfer_ns"].is_between(0, rows["transfer_ns"]).all()
