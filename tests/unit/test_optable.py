"""Traces as parquet: what is written is what is read; tables of other tools are read too."""

import polars as pl
import pytest

from recordings import recorded_trace
from steptally.errors import InputError, WriteError
from steptally.trace.optable import read_table, table_ranks, write_table
from steptally.trace.schema import EVENTS


@pytest.mark.parametrize(("run", "rank"), [("tp2_dp2", 1), ("pp2", 0)])
def test_a_trace_that_is_written_is_read_back_whole(tmp_path, run, rank):
    trace = recorded_trace(run, rank)
    path = tmp_path / "tables" / "rank.parquet"
    write_table(trace, path)
    again = read_table(path)
    for table in ("events", "collectives", "operators"):
        assert getattr(again, table).equals(getattr(trace, table)), table
    for field in ("rank", "world_size", "backend", "groups", "losses", "warnings"):
        assert getattr(again, field) == getattr(trace, field), field
    assert pl.read_parquet(path).height == trace.events.height


def test_a_disk_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        write_table(recorded_trace("pp2", 0), tmp_path / "file" / "x.parquet")


OPS = pl.DataFrame(
    {
        "rank": [0, 0, 4, 4],
        "step": [16, 16, 16, 17],
        "optype": ["forward-compute", "grads-reduce-scatter", "forward-send", "backward-compute"],
        "start_ts": [0.5, 1.0, 0.25, 2.0],
        "duration": [0.25, 0.5, 0.125, -1.0],
    }
)


def test_a_table_of_another_tool_is_read_rank_by_rank(tmp_path):
    path = tmp_path / "ops.parquet"
    OPS.write_parquet(path)
    assert table_ranks(path) == [0, 4]
    trace = read_table(path, rank=0)
    assert dict(trace.events.schema) == dict(EVENTS)
    assert trace.events.select("kind", "start_ns", "end_ns", "step", "group").rows() == [
        ("compute", 500_000_000, 750_000_000, 16, None),
        ("communication", 1_000_000_000, 1_500_000_000, 16, "unattributed"),
    ]
    (loss,) = read_table(path, rank=4).losses
    assert loss.events == 1


def test_whole_nanoseconds_and_kinds_of_a_table_are_kept(tmp_path):
    path = tmp_path / "ops.parquet"
    start = 1_779_782_330_176_752_435  # beyond a double's integers
    pl.DataFrame(
        {"name": ["x"], "start_ns": [start], "end_ns": [start + 1], "kind": ["copy"], "stream": [3]}
    ).write_parquet(path)
    row = read_table(path, rank=2).events.row(0, named=True)
    assert (row["rank"], row["start_ns"], row["end_ns"]) == (2, start, start + 1)
    assert (row["kind"], row["stream"]) == ("copy", 3)


def test_a_rank_that_a_table_has_not_is_refused(tmp_path):
    path = tmp_path / "ops.parquet"
    OPS.write_parquet(path)
    for rank in (None, 3):
        with pytest.raises(InputError, match=r"2 ranks \(0 to 4\)"):
            read_table(path, rank)


@pytest.mark.parametrize("dropped", ["optype", "start_ts", "duration"])
def test_a_table_without_a_needed_column_is_refused_with_its_columns(tmp_path, dropped):
    path = tmp_path / "ops.parquet"
    OPS.drop(dropped).write_parquet(path)
    with pytest.raises(InputError, match="is no op table: it has no column for"):
        read_table(path, 0)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_cut_table_is_refused(tmp_path, share):
    path = tmp_path / "rank0.parquet"
    write_table(recorded_trace("pp2", 0), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"rank0\.parquet cannot be read as parquet"):
        read_table(path)


def test_a_table_of_another_format_version_is_refused(tmp_path):
    path = tmp_path / "rank0.parquet"
    OPS.write_parquet(path, metadata={"steptally": '{"format": "steptally-trace/9"}'})
    with pytest.raises(InputError, match="damaged metadata"):
        read_table(path)


def test_a_rehearsed_order_of_operations_has_no_times_to_read(tmp_path):
    OPS.with_columns(start_ns=pl.lit(None, pl.Int64), end_ns=pl.lit(None, pl.Int64)).write_parquet(
        tmp_path / "ops.parquet"
    )
    with pytest.raises(InputError, match="2 operations without times, as `steptally rehearse"):
        read_table(tmp_path / "ops.parquet", 0)
