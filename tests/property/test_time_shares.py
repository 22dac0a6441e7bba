"""The identities between the shares of a step hold for any recording."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steptally.measure.shares import Activity, time_row
from steptally.trace.intervals import merge, unite

END = 50
pairs = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=8)


@st.composite
def activities(draw):
    def times():
        chosen = draw(pairs)
        return merge([start for start, _ in chosen], [end for _, end in chosen])

    groups = draw(st.sets(st.sampled_from("abc")))
    return Activity(
        compute=times(), communication={group: times() for group in groups}, copies=times()
    )


def bits(intervals):
    found = np.zeros(END, dtype=bool)
    for start, end in intervals:
        found[start:end] = True
    return found


def row_of(activity):
    return time_row(activity, {}, 0, END, rank=0, step=0)


@given(activities())
def test_every_nanosecond_of_the_span_is_counted_once(activity):
    row = row_of(activity)
    compute, copies = bits(activity.compute), bits(activity.copies)
    communication = bits(unite(*activity.communication.values()))
    copies_alone = int((copies & ~compute & ~communication).sum())
    assert row.busy_ns + row.idle_ns == row.span_ns
    assert row.compute_ns + row.exposed_ns + copies_alone + row.idle_ns == row.span_ns
    assert row.overlap_ns + row.exposed_ns == row.communication_ns


@given(activities())
def test_groups_add_up_to_the_rank_when_shared_time_is_counted_once(activity):
    row = row_of(activity)
    alone = sum(group.exposed_alone_ns for group in row.groups)
    exposed = sum(group.exposed_ns for group in row.groups)
    assert alone <= row.exposed_ns <= exposed or (alone == row.exposed_ns == exposed)
    for group in row.groups:
        assert group.overlap_ns + group.exposed_ns == group.communication_ns
        assert group.exposed_alone_ns <= group.exposed_ns <= row.exposed_ns


@given(activities(), st.integers(0, END))
def test_the_parts_of_a_window_add_up_to_the_whole(activity, cut):
    whole = row_of(activity)
    parts = [
        time_row(activity.within(start, end), {}, start, end, rank=0, step=0)
        for start, end in ((0, cut), (cut, END))
    ]
    for name in ("span_ns", "busy_ns", "compute_ns", "communication_ns", "exposed_ns", "idle_ns"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
