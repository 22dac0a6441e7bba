"""Lines of other straggler detectors: NVRx scores, and Megatron-LM's `--log-straggler`."""

import pytest

from steptally.measure.stragglers.detector_scores import conclude_from_scores, read_scores
from steptally.measure.stragglers.straggler_line import (
    conclude_from_straggler_lines,
    read_straggler_lines,
)

# The line of Megatron-LM's megatron/core/README_STRAGGLER.md.
README_LINE = (
    " 0: INFO:megatron.core.utils:[2024-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: "
    "3468.20ms/0 | MnPwr/Rnk: 601796W/8 | MxPwr/Rnk: 683801W/18 | MnTmp/Rnk: 52C/0 | MxTmp/Rnk: "
    "65C/21 | MnUtl/Rnk: 97%/8 | MxUtl/Rnk: 100%/6 | MnClk/Rnk: 1950MHz/28 | MxClk/Rnk: 1980MHz/0 "
    "| MnDRtt/Rnk: 14.27ms/23 | MxDRtt/Rnk: 34.65ms/3 | MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: "
    "297.32TF/8"
)


def line(low, high, rank, data=(1.0, 2.0, 9), clock=(1900, 1980, 7)):
    return (
        f"[t] | MnRtt/Rnk: {low:.2f}ms/1 | MxRtt/Rnk: {high:.2f}ms/{rank} | MnClk/Rnk: "
        f"{clock[0]:.2f}MHz/{clock[2]} | MxClk/Rnk: {clock[1]:.2f}MHz/0 | MnDRtt/Rnk: "
        f"{data[0]:.2f}ms/0 | MxDRtt/Rnk: {data[1]:.2f}ms/{data[2]}"
    )


def conclude(*lines):
    return conclude_from_straggler_lines(read_straggler_lines(lines))


def test_the_readmes_line_is_read_with_its_ranks():
    (report,) = read_straggler_lines([README_LINE])
    assert set(report) == {"Rtt", "DRtt", "Pwr", "Tmp", "Utl", "Clk", "Etpt"}
    assert (report["Rtt"].most, report["Rtt"].most_rank) == (3468.2, 0)
    assert (report["DRtt"].most, report["DRtt"].most_rank) == (34.65, 3)
    assert (report["Clk"].least, report["Clk"].least_rank) == (1950.0, 28)


def test_the_readmes_line_shows_no_straggler():
    # 15.12 ms of 3468.20 ms are 0.4 %.
    found = conclude(README_LINE)
    assert found.verdicts == ()
    assert "a difference of 0.4 %" in found.notes[0]
    assert "34.65 ms, 1.0 % of the traced operations" in found.notes[1]


def test_the_same_rank_slowest_in_every_report_is_a_slow_worker_with_its_clock():
    found = conclude(*(line(1000, 1300 + i, 5, clock=(1200, 1980, 5)) for i in range(5)))
    (row,) = found.verdicts
    assert (row.verdict, row.ranks) == ("slow-worker", (5,))
    assert row.factor == pytest.approx(1.302, abs=0.001)
    assert row.evidence[1] == "It also has the lowest clock (1200 of 1980 MHz)."


def test_get_batch_that_explains_the_difference_is_data_loading():
    found = conclude(*(line(1000, 1300, 3, data=(10.0, 290.0, 3)) for _ in range(3)))
    assert [(row.verdict, row.ranks) for row in found.verdicts] == [("data-loading", (3,))]


def test_a_slowest_rank_that_changes_is_not_identifiable():
    found = conclude(*(line(1000, 1300, rank) for rank in (1, 2, 3, 2)))
    assert [row.verdict for row in found.verdicts] == ["not-identifiable"]


def test_a_damaged_line_gives_nothing_and_no_traceback():
    assert read_straggler_lines(["| MnRtt/Rnk: 1.2.3ms/8 | MxRtt/Rnk: ms/"]) == []
    assert conclude_from_straggler_lines([]).verdicts == ()
    assert conclude(line(0.0, 0.0, 3)).verdicts == ()


def test_a_score_below_the_threshold_is_a_slow_worker_on_its_node():
    text = ["GPU relative performance:", "  Rank=0 Node=a Score=1.0", "  Rank=1 Node=b Score=0.5"]
    (row,) = conclude_from_scores(read_scores(text)).verdicts
    assert (row.verdict, row.ranks, row.host, row.factor) == ("slow-worker", (1,), "b", 2.0)


def test_individual_scores_alone_conclude_nothing():
    text = ["GPU individual performance:", "  Rank=0 Node=a Score=0.1"]
    found = conclude_from_scores(read_scores(text))
    assert (found.verdicts, found.notes) == ((), ())


def test_single_nan_scores_are_counted_and_left_out():
    text = ["GPU relative performance:", "  Rank=0 Node=a Score=nan", "  Rank=1 Node=b Score=0.9"]
    found = conclude_from_scores(read_scores(text))
    assert found.lost == ("1 of 2 relative scores are NaN, and are left out",)
    assert found.verdicts == ()
