"""What holds for any recording of a device: sums, bounds, and a slow count of every nanosecond."""

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from steptally.measure.gaps import covered_ns, find_gaps, gap_shares
from steptally.measure.overlap import device_row, device_step_rows
from steptally.trace.intervals import merge

END = 60
KINDS = ("compute", "communication", "copy", "memset", "graph")
WORK = {
    "kind": pl.Enum(KINDS),
    "group": pl.String,
    "collective": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "step": pl.Int64,
}

pieces = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from("ab"),
    st.integers(0, END - 1),
    st.integers(1, 15),
    st.integers(1, 3),
)


def work_of(rows):
    return pl.DataFrame(
        [
            (kind, group if kind == "communication" else None, None, start, start + length, step)
            for kind, group, start, length, step in rows
        ],
        schema=WORK,
        orient="row",
    )


def bits(work, *kinds, group=None):
    found = np.zeros(END + 16, dtype=bool)
    for kind, of, _, start, end, _ in work.iter_rows():
        if kind in kinds and (group is None or of == group):
            found[start:end] = True
    return found


@given(st.lists(pieces, min_size=1, max_size=14))
def test_every_share_is_a_count_of_nanoseconds(rows):
    work = work_of(rows)
    row = device_row(work, rank=0, step=0)
    compute, communication = bits(work, "compute"), bits(work, "communication")
    copies, graphs = bits(work, "copy", "memset"), bits(work, "graph")
    busy = compute | communication | copies | graphs
    assert row.span_ns == work["end_ns"].max() - work["start_ns"].min()
    assert (row.busy_ns, row.idle_ns) == (busy.sum(), row.span_ns - busy.sum())
    assert (row.compute_ns, row.communication_ns) == (compute.sum(), communication.sum())
    assert row.overlap_ns == (compute & communication).sum()
    assert row.exposed_ns + row.overlap_ns == row.communication_ns
    assert (row.copies_ns, row.graph_ns) == (copies.sum(), graphs.sum())
    assert row.copies_overlap_ns == (copies & communication).sum()
    for group in row.groups:
        own = bits(work, "communication", group=group.group)
        assert group.communication_ns == own.sum()
        assert group.exposed_ns == (own & ~compute).sum()
    both = bits(work, "communication", group="a") & bits(work, "communication", group="b")
    assert sum(pair.overlap_ns for pair in row.pairs) == both.sum()


@given(st.lists(pieces, min_size=1, max_size=20))
def test_rows_computed_side_by_side_are_those_computed_alone(rows):
    work = work_of(rows)
    steps = sorted(work["step"].unique())
    together = device_step_rows(work, steps, rank=3)
    alone = [device_row(work.filter(step=step), rank=3, step=step) for step in steps]
    assert together == alone


@given(st.lists(pieces, min_size=1, max_size=20))
def test_steps_add_up_to_the_recording_but_for_what_they_share(rows):
    work = work_of(rows)
    whole = device_row(work, rank=0, step=0)
    steps = device_step_rows(work, [1, 2, 3], rank=0)
    for name in ("busy_ns", "compute_ns", "communication_ns", "copies_ns"):
        parts = [getattr(row, name) for row in steps]
        assert max(parts) <= getattr(whole, name) <= sum(parts)
    instances = sum(group.instances for row in steps for group in row.groups)
    assert instances == sum(group.instances for group in whole.groups)
    assert instances == (work["kind"] == "communication").sum()


LAUNCHED = {
    "device": pl.Int64,
    "stream": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
    "kind": pl.String,
    "correlation": pl.Int64,
    "launch_start_ns": pl.Int64,
    "launch_end_ns": pl.Int64,
    "launch_name": pl.String,
    "thread": pl.Int64,
}


@st.composite
def launched_work(draw):
    rows = []
    for number in range(draw(st.integers(1, 12))):
        start, length = draw(st.integers(0, END)), draw(st.integers(1, 9))
        call = draw(st.one_of(st.none(), st.integers(-9, END)))
        kind = draw(st.sampled_from(("compute", "communication", "copy")))
        name = draw(st.sampled_from(("cudaLaunchKernel", "cudaGraphLaunch")))
        told = (None, None, None, None) if call is None else (call, call + 1, name, 1)
        stream = draw(st.integers(7, 8))
        rows.append((0, stream, start, start + length, "k", kind, number + 1, *told))
    work = pl.DataFrame(rows, schema=LAUNCHED, orient="row")
    return work.sort("start_ns", "end_ns")


EVENTS = pl.DataFrame(schema={"kind": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})
waits = st.lists(st.tuples(st.integers(-9, END), st.integers(1, 30)), max_size=4)


@given(launched_work(), waits, waits)
def test_the_causes_of_idle_time_add_up_to_it(work, synchronisations, collectives):
    calls = [
        (start, start + length, "cudaDeviceSynchronize", 1, 1000 + i)
        for i, (start, length) in enumerate(synchronisations)
    ]
    names = ("launch_start_ns", "launch_end_ns", "launch_name", "thread", "correlation")
    launches = pl.concat(
        (
            work.select(names).drop_nulls("launch_start_ns"),
            pl.DataFrame(calls, schema={name: LAUNCHED[name] for name in names}, orient="row"),
        )
    )
    host = [("transfer", start, start + length) for start, length in collectives]
    events = pl.DataFrame(host, schema=EVENTS.schema, orient="row")
    gaps = find_gaps(work)
    shares = gap_shares(gaps, work, events, launches)
    busy = np.zeros(2 * END, dtype=bool)
    for start, end in work.select("start_ns", "end_ns").iter_rows():
        busy[start:end] = True
    span = work["end_ns"].max() - work["start_ns"].min()
    assert gaps.length_ns.sum() == span - busy.sum()
    parts = (
        shares.host, shares.communication, shares.dependency, shares.no_work, shares.untold,
    )  # fmt: skip
    for part in (*parts, shares.turnaround):
        assert (part >= 0).all()
    assert (sum(parts) == gaps.length_ns).all()
    assert (shares.turnaround <= shares.dependency).all()


@given(
    st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=8),
    st.lists(st.integers(-5, END + 5), min_size=1),
)
def test_the_covered_time_before_a_moment_is_a_count(intervals, moments):
    times = merge([start for start, _ in intervals], [end for _, end in intervals])
    found = np.zeros(END + 1, dtype=bool)
    for start, end in intervals:
        found[start:end] = True
    expected = [found[: max(0, moment)].sum() for moment in moments]
    assert covered_ns(times, np.array(moments)).tolist() == expected
