"""Op tables as people write them: damaged, copied, cut off, or of other types than expected."""

from pathlib import Path

import polars as pl
import pytest

from pipelines import Pipeline, op_table
from steptally.errors import InputError
from steptally.measure.stragglers.op_rows import rows_of_job
from steptally.measure.stragglers.op_tables import is_pipeline_table, program_of_tables
from steptally.measure.stragglers.search import search_tables
from steptally.measure.stragglers.verdicts import judge

PATH = Path("ops.parquet")


def slow(step, dp, stage, microbatch):
    return 2.0 if (dp, stage) == (1, 0) else 1.0


def slow_table():
    return op_table(Pipeline(dp=3, pp=2, forward=slow, backward=slow))


def refusal(*tables, steps=None):
    with pytest.raises(InputError) as refused:
        rows_of_job([(PATH, table) for table in tables], steps)
    return str(refused.value)


def named(*tables):
    program = program_of_tables([(PATH, table) for table in tables])
    return [(one.verdict, dict(one.coordinates), one.ranks) for one in judge(program).verdicts]


@pytest.mark.parametrize("name", ["rank", "dp_rank", "stage", "step", "mb_id"])
@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Float64, pl.UInt64])
def test_whole_numbers_may_be_of_any_type(name, kind):
    table = slow_table().filter(pl.col(name) >= 0) if name == "mb_id" else slow_table()
    column = table[name].cast(pl.String) if kind == pl.Categorical else table[name]
    written = table.with_columns(column.cast(kind))
    assert rows_of_job([(PATH, written)])[0].equals(rows_of_job([(PATH, table)])[0])


@pytest.mark.parametrize("name", ["rank", "dp_rank", "stage", "step"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [("a", "'a'"), (0.5, "0.5"), (-1, "-1"), (2**40, "1099511627776"), (None, "None"), (True, "T")],
)
def test_a_place_that_is_no_whole_number_is_refused_with_the_value(name, value, shown):
    said = refusal(slow_table().with_columns(pl.lit(value).alias(name)))
    assert f"whose {name} is no whole number" in said
    assert f"(the first is {shown}" in said


@pytest.mark.parametrize("name", ["rank", "stage", "step", "optype", "start_ns", "end_ns"])
def test_a_column_of_lists_is_refused(name):
    assert f"{name} " in refusal(slow_table().with_columns(pl.concat_list(name).alias(name)))


def test_lists_of_names_are_no_pipeline():
    assert not is_pipeline_table(slow_table().with_columns(pl.concat_list("optype")))


def test_a_micro_batch_of_no_use_is_unknown():
    rows, _ = rows_of_job([(PATH, slow_table().with_columns(mb_id=pl.lit(2**40)))])
    assert rows["mb_id"].null_count() == len(rows)


def test_a_rank_at_two_places_is_refused():
    assert "rank 0 at two places" in refusal(slow_table().with_columns(rank=pl.lit(0)))


def of_tensor_ranks(table, column=True):
    """Each rank as two tensor-parallel ones that do the same."""
    ranks = [table.with_columns(rank=pl.col("rank") * 2 + i, tp_rank=pl.lit(i)) for i in range(2)]
    return pl.concat(ranks) if column else pl.concat(ranks).drop("tp_rank")


def test_two_ranks_at_one_place_are_refused():
    assert "ranks 0 and 1 at one place" in refusal(of_tensor_ranks(slow_table(), column=False))


@pytest.mark.parametrize("column", ["tp_rank", "cp_rank"])
def test_a_tensor_parallel_group_that_is_slow_is_named_as_one(column):
    # Its ranks wait for each other inside each pass, so that mending one alone brings nothing back.
    table = of_tensor_ranks(slow_table()).rename({"tp_rank": column})
    assert named(table) == [("slow-worker", {"pp": 0, "dp": 1}, (4, 5))]


def test_tables_without_ranks_number_them_by_place_over_all_files():
    whole = of_tensor_ranks(slow_table()).drop("rank")
    parts = whole.partition_by("dp_rank", "stage", "tp_rank")
    assert named(*parts) == named(whole) == [("slow-worker", {"pp": 0, "dp": 1}, (4, 5))]


def test_tables_of_which_only_some_have_ranks_are_refused():
    first, second = slow_table().partition_by("stage")
    assert "only some have the column rank" in refusal(first, second.drop("rank"))


def test_parts_may_have_columns_of_other_types():
    first, second = slow_table().with_columns(loss=pl.lit("x")).partition_by("stage")
    second = second.with_columns(pl.col("rank").cast(pl.String), loss=pl.lit(1.5))
    assert named(first, second) == named(slow_table())


def test_columns_of_the_users_own_may_have_any_name():
    own = {name: pl.lit(7) for name in ("row", "at", "key", "message", "turn", "lane", "real")}
    assert named(slow_table().with_columns(**own)) == named(slow_table())


def test_a_table_that_is_named_twice_is_refused():
    assert "more than once" in refusal(slow_table(), slow_table())


@pytest.mark.parametrize("optype", ["forward-compute", "backward-compute", "forward-send"])
@pytest.mark.parametrize("which", [0, -1])
def test_a_step_that_lacks_an_operation_is_left_out_with_a_note(optype, which):
    numbered = slow_table().with_row_index("number")
    lost = numbered.filter((pl.col("optype") == optype) & (pl.col("step") == 3))["number"][which]
    rows, notes = rows_of_job([(PATH, numbered.filter(pl.col("number") != lost))])
    assert sorted(rows["step"].unique()) == [0, 1, 2, 4, 5]
    assert notes[0].startswith("1 of 6 steps are left out (3)")


def test_a_rank_that_is_missing_everywhere_leaves_no_step_out():
    rows, notes = rows_of_job([(PATH, slow_table().filter(pl.col("rank") != 3))])
    assert (rows["step"].n_unique(), notes) == (6, [])


def test_operations_without_names_or_times_are_counted():
    one = (pl.col("optype") == "optimizer") & (pl.col("rank") == 0) & (pl.col("step") == 0)
    table = slow_table().with_columns(optype=pl.when(~one).then("optype"))
    assert rows_of_job([(PATH, table)])[1][0].startswith("1 operations without a name")


def test_a_table_of_no_usable_time_is_refused():
    swapped = slow_table().rename({"start_ns": "end_ns", "end_ns": "start_ns"})
    assert "no operation with usable times (684 without)" in refusal(swapped)


def test_operations_that_take_no_time_are_refused():
    program = program_of_tables([(PATH, slow_table().with_columns(end_ns="start_ns"))])
    with pytest.raises(InputError, match="start and end at once"):
        judge(program)


def test_steps_are_chosen_in_a_table_without_steps_or_with_text():
    assert "has the steps 0 to 0" in refusal(slow_table().drop("step"), steps=(1, 2))
    text = slow_table().with_columns(pl.col("step").cast(pl.String))
    assert sorted(rows_of_job([(PATH, text)], (2, 3))[0]["step"].unique()) == [2, 3]


def test_steps_that_are_numbered_backwards_are_each_for_itself():
    table = slow_table().with_columns(step=9 - pl.col("step"))
    program = program_of_tables([(PATH, table)])
    assert not program.continued
    assert judge(program).replay_error == pytest.approx(0, abs=0.02)


def test_one_rank_alone_is_not_identifiable():
    (verdict,) = search_tables([(PATH, slow_table().filter(pl.col("rank") == 0))]).verdicts
    assert verdict.verdict == "not-identifiable"
    assert "one rank alone" in verdict.evidence[0]


@pytest.mark.filterwarnings("error")
def test_a_stage_that_lacks_a_step_is_compared_in_the_others():
    table = slow_table().with_columns(
        step=pl.when(pl.col("stage") == 1).then(pl.col("step") + 1).otherwise("step")
    )
    assert ("slow-worker", {"pp": 0, "dp": 1}, (2,)) in named(table)
