"""Own times as the cells of heat maps: against peers, and stages against each other."""

from pathlib import Path

import polars as pl
import pytest

from pipelines import Pipeline, op_table
from steptally.measure.stragglers.op_tables import program_of_tables
from steptally.measure.stragglers.peer_rows import ALL_OWN_WORK, peer_rows
from steptally.measure.stragglers.verdicts import judge


def ratios(pipeline, against):
    """The ratio of each (rank, stage), all own work, the median over the steps."""
    situation = judge(program_of_tables([(Path("ops.parquet"), op_table(pipeline))])).situation
    return {
        (row.rank, row.coordinates["pp"]): row.ratio
        for row in peer_rows(situation)
        if (row.against, row.operation, row.step) == (against, ALL_OWN_WORK, None)
    }


def longer_last_stage(step, dp, stage, microbatch):
    return 1.5 if stage == 2 else 1.0


def test_a_longer_stage_shows_against_the_others_and_not_against_peers():
    longer = longer_last_stage
    pipeline = Pipeline(dp=2, pp=3, forward=longer, backward=longer, noise=0.0)
    assert set(ratios(pipeline, "peers").values()) == {1.0}
    # 4 micro-batches of 20 + 40 ms, of 30 + 60 ms in the last stage, and 4 ms of optimizer.
    usual, long = 244, 364
    for (_, stage), ratio in ratios(pipeline, "stages").items():
        expected = long / usual if stage == 2 else usual / ((usual + long) / 2)
        assert ratio == pytest.approx(expected)


def test_one_stage_has_no_others():
    assert ratios(Pipeline(dp=4, pp=1), "stages") == {}


def test_a_stage_without_times_is_none_of_the_others():
    longer = longer_last_stage
    table = op_table(Pipeline(dp=2, pp=3, forward=longer, backward=longer, noise=0.0))
    own = pl.col("optype").str.contains("compute") | (pl.col("optype") == "optimizer")
    table = table.filter(~own | (pl.col("stage") != 1))
    situation = judge(program_of_tables([(Path("ops.parquet"), table)])).situation
    long_ns = 364_000_000
    found = {
        row.peers_ns
        for row in peer_rows(situation)
        if (row.against, row.operation, row.rank) == ("stages", ALL_OWN_WORK, 0)
    }
    assert found == {long_ns}


def test_work_of_one_stage_alone_has_no_others():
    table = op_table(Pipeline(dp=2, pp=2, noise=0.0))
    optimizer = (pl.col("stage") == 1) & (pl.col("optype") == "optimizer")
    situation = judge(
        program_of_tables([(Path("ops.parquet"), table.filter(~optimizer))])
    ).situation
    (found,) = {
        (row.peers_ns, row.ratio)
        for row in peer_rows(situation)
        if (row.against, row.operation) == ("stages", "optimizer")
    }
    assert found == (None, None)
