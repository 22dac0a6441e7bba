"""docs/stragglers-inputs.md: its commands, names and bounds are those of the readers."""

import re
from pathlib import Path

import pytest

from steptally.measure.stragglers.conclusions import CAUSE_COVERAGE, CRITICAL_SHARE, WARN_SHARE
from steptally.measure.stragglers.phase_comparison import SMALLEST_BOUND, TOGETHER
from steptally.measure.stragglers.phase_file import is_phase_table, read_phase_table
from steptally.measure.stragglers.phase_table import section_kind
from steptally.measure.stragglers.series import FEWEST_POINTS
from steptally.measure.stragglers.series_levels import SHIFT_FACTOR
from steptally.measure.stragglers.side_files import dcgm, nic, nvidia_csv
from steptally.measure.stragglers.side_files.experts import EXPERT_EXCESS, RANK_EXCESS
from steptally.measure.stragglers.side_files.throttle import NAMES

PAGE = (Path(__file__).parents[3] / "docs" / "stragglers-inputs.md").read_text()


def blocks():
    return re.findall(r"```\w*\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_a_table_is_read():
    example = next(block for block in blocks() if is_phase_table(block))
    assert read_phase_table(example, "docs").times["ms"].to_list() == [101.2, 303.9]


@pytest.mark.parametrize("kind", ["data", "synchronous", "whole", "setup"])
def test_names_of_sections_have_the_kinds_that_the_page_says(kind):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |"))
    names = re.findall(r"`([^`]+)`", row.split("|")[3])
    assert names
    assert {section_kind(name.replace("…", "x")) for name in names} == {kind}


def test_every_column_of_the_nvidia_smi_command_is_read():
    columns = re.search(r"--query-gpu=(\S+)", PAGE)[1].split(",")
    known = {*nvidia_csv.MEASURES, *nvidia_csv.PLACES, *nvidia_csv.INDICES, *nvidia_csv.BUSES}
    assert set(columns) <= known


def test_the_nic_script_writes_the_header_that_is_recognised():
    header = re.search(r"echo (time,\S+) > nic.csv", PAGE)[1]
    assert nic.is_nic_csv(header.split(","))


def test_dmon_has_a_short_name_for_each_field_of_its_command():
    # Ids of dcgm_fields.h: 100 SM clock, 112 reasons, 150 temperature, 155 power, 164 enforced
    # power limit, 202 PCIe replays, 203 utilization, 230 Xid.
    assert "dcgmi dmon -e 100,112,150,155,164,202,203,230" in PAGE
    assert {"SMCLK", "DVCCTR", "TMPTR", "POWER", "EPLMT", "RPCTR", "GPUTL", "XIDER"} <= set(
        dcgm.SHORT
    )


def test_bits_of_reasons_are_those_of_the_table():
    table = PAGE[PAGE.index("| reason | bit |") :]
    stated = {int(bits, 16) for bits in re.findall(r"0x[0-9a-f]+", table.split("\n\n")[0])}
    assert stated == set(NAMES)


def test_bounds_are_those_of_the_code():
    assert (WARN_SHARE, CRITICAL_SHARE, CAUSE_COVERAGE) == (0.10, 0.20, 0.80)
    assert (SMALLEST_BOUND, TOGETHER, FEWEST_POINTS, SHIFT_FACTOR) == (3.5, 0.2, 15, 6.66)
    assert (RANK_EXCESS, EXPERT_EXCESS) == (1.10, 2.0)
    for words in (
        "Below 10 %", "from 20 % critical", "explain 80 % of the wait",
        "3.5 robust standard deviations", "within 20 % of the wait", "At least 15 points",
        "6.66 σ/√n", "1.10x the mean is notable; by expert, 2x",
    ):  # fmt: skip
        assert words in PAGE.replace("\n", " ").replace("  ", " ")
