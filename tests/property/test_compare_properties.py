"""What holds for any two tallies laid side by side."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.synthetic_tally import DEMO_JOB, recorded_tally

from steptally.tally import (
    Figure,
    FlopsRow,
    GemmRow,
    MemoryRow,
    Tally,
    TrafficRow,
    compare_tallies,
    tally_from_json,
)

counts = st.integers(min_value=0, max_value=10**21)
sizes = st.integers(min_value=1, max_value=3)
ranks = st.integers(min_value=0, max_value=2)
bases = st.sampled_from(("predicted", "rehearsed", "measured"))

flops_rows = st.builds(
    FlopsRow,
    name=st.sampled_from(("mlp", "head", "qkv")),
    phase=st.sampled_from(("forward", "backward", "recompute", "step")),
    useful=counts,
    executed=counts,
)
gemm_rows = st.builds(
    GemmRow,
    name=st.sampled_from(("mm", "linear_qkv")),
    phase=st.sampled_from(("forward", "backward", "dgrad", "wgrad", "recompute")),
    m=sizes,
    n=sizes,
    k=sizes,
    batch=st.just(1),
    calls=sizes,
    flops=counts,
    bytes=st.none() | sizes,
    rank=ranks,
)
traffic_rows = st.builds(
    TrafficRow,
    group=st.sampled_from(("TENSOR", "DATA")),
    group_size=sizes,
    collective=st.sampled_from(("all_gather", "send")),
    phase=st.sampled_from(("forward", "backward", "gradients", "outside autograd", "unknown")),
    calls_per_step=sizes,
    bytes_per_call=sizes,
    rank=ranks,
    name=st.sampled_from(("", "input", "output")),
)
memory_rows = st.builds(
    MemoryRow,
    rank=ranks,
    lifetime=st.sampled_from(("resident", "transient")),
    name=st.sampled_from(("parameters", "loss")),
    bytes=counts,
    vpp=st.none() | ranks,
)
figures = st.builds(
    Figure,
    value=st.none() | st.booleans() | counts | st.floats(allow_nan=False, allow_infinity=False),
    unit=st.sampled_from(("FLOP", "s")),
    basis=bases,
    convention=st.sampled_from(("", "palm")),
)
tallies = st.builds(
    Tally,
    basis=bases,
    job=st.sampled_from(
        (DEMO_JOB, {**DEMO_JOB, "layout": {**DEMO_JOB["layout"], "world_size": 3}}, {})
    ),
    convention=st.sampled_from(("exact-causal", "palm")),
    summary=st.dictionaries(st.sampled_from(("x", "y", "z")), figures),
    accounts=st.fixed_dictionaries(
        {
            "flops": st.lists(flops_rows, max_size=6),
            "gemms": st.lists(gemm_rows, max_size=6),
            "traffic": st.lists(traffic_rows, max_size=6),
            "memory": st.lists(memory_rows, max_size=6),
        }
    ),
)


@given(tallies)
def test_a_tally_differs_from_itself_in_nothing(tally):
    comparison = compare_tallies(tally, tally)
    assert not comparison.beyond(0)
    assert not comparison.settings
    assert not any(line.only_in or line.difference for line in comparison.lines)


def test_a_recorded_run_is_equal_to_itself_in_every_line():
    comparison = compare_tallies(recorded_tally(), recorded_tally())
    assert all(line.equal for line in comparison.lines)


@given(tallies, tallies)
def test_from_the_other_side_every_difference_has_the_other_sign(a, b):
    there, back = compare_tallies(a, b), compare_tallies(b, a)
    swapped = {"A": "B", "B": "A", "": ""}

    def told(lines, sign, swap):
        return Counter(
            repr(
                (
                    line.account,
                    line.quantity,
                    sorted(line.key.items(), key=str),
                    line.difference and sign * line.difference,
                    line.share,
                    bool(line.refused),
                    swapped[line.only_in] if swap else line.only_in,
                    (line.b, line.a) if swap else (line.a, line.b),
                )
            )
            for line in lines
        )

    assert told(there.lines, 1, False) == told(back.lines, -1, True)


@given(tallies, tallies)
def test_lines_add_up_to_the_totals(a, b):
    for section in compare_tallies(a, b).sections:
        for total in section.totals:
            lines = [line for line in section.lines if line.quantity == total.quantity]
            if total.refused:
                continue
            assert sum(line.a or 0 for line in lines) == total.a
            assert sum(line.b or 0 for line in lines) == total.b
            assert total.difference == total.b - total.a


@given(tallies, tallies)
def test_nothing_of_an_account_is_lost_but_the_ranks_that_one_side_lacks(a, b):
    for section in compare_tallies(a, b, accounts=["flops"]).sections:
        if not section.refused:
            for side, tally in (("a", a), ("b", b)):
                executed = [row.executed for row in tally.accounts["flops"]]
                told = [getattr(x, side) or 0 for x in section.lines if x.quantity == "executed"]
                assert sum(told) == sum(executed)


@given(tallies, tallies)
def test_a_difference_is_exact_and_relative_to_a(a, b):
    for line in compare_tallies(a, b).lines:
        if line.compared and isinstance(line.a, int) and isinstance(line.b, int):
            if isinstance(line.a, bool) or isinstance(line.b, bool):
                continue
            assert line.difference == line.b - line.a
            assert (line.relative is None) == (line.a == 0)


@given(tallies, tallies)
def test_a_comparison_of_what_was_written_is_that_of_what_was_counted(a, b):
    from_text = [tally_from_json(tally.dumps()) for tally in (a, b)]
    assert compare_tallies(*from_text).as_json() == compare_tallies(a, b).as_json()


@given(tallies, tallies, st.integers(min_value=0, max_value=300))
def test_a_wider_limit_finds_no_more(a, b, percent):
    comparison = compare_tallies(a, b)
    narrow, wide = comparison.beyond(percent), comparison.beyond(percent + 1)
    assert len(wide) <= len(narrow)


@given(tallies)
def test_the_order_of_rows_does_not_matter(tally):
    turned = replace(
        tally, accounts={name: list(rows)[::-1] for name, rows in tally.accounts.items()}
    )
    comparison = compare_tallies(tally, turned)
    assert not comparison.beyond(0)
