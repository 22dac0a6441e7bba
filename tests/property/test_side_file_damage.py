"""Damaged side files, logs and tables: findings, losses or one InputError, no other error."""

import random

import pytest
from tests.unit.stragglers.phase_inputs import iteration_line, range_block, timer_block
from tests.unit.stragglers.side_file_texts import ALL

from steptally.errors import InputError
from steptally.measure.stragglers.side_files.read import read_side_files
from steptally.measure.stragglers.sources import conclude_from_file

JUNK = (b"\0", b"\xff\xfe", b",", b'"', b"\n", b"NaN", b"-1", b"9" * 400, b"{", b"}", b":", b"\t")

LOG = "\n".join(
    [
        iteration_line(1, 1000.0),
        *timer_block({"forward-compute": [1, 2, 3], "batch-generator": [3, 4, 5]}),
        *range_block({"forward-backward": (1, 2)}),
        iteration_line(2, 1000.0),
        "| MnRtt/Rnk: 10.0ms/8 | MxRtt/Rnk: 12.0ms/0 | MnDRtt/Rnk: 1ms/8 | MxDRtt/Rnk: 2.0ms/0",
        "GPU relative performance:",
        "  Rank=0 Node=a Score=0.5",
    ]
)
TABLE = "step,rank,section,ms,kind,host\n" + "\n".join(
    f"{step},{rank},{section},{rank + step + 0.5},,n{rank}"
    for step in range(3)
    for rank in range(4)
    for section in ("forward", "nccl", "data")
)


def mutated(text, generator):
    data = bytearray(text.encode())
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(data) + 1)
        kind = generator.randrange(4)
        if kind == 0:
            data[at:at] = generator.choice(JUNK)
        elif kind == 1:
            del data[at : at + generator.randint(1, 40)]
        elif kind == 2:
            data = data[:at] or bytearray(b" ")
        else:
            data[at : at + 1] = bytes([generator.randrange(256)])
    return bytes(data)


@pytest.mark.parametrize("name", ALL)
def test_a_damaged_file_is_read_as_far_as_it_goes_or_refused(name, tmp_path):
    generator = random.Random(name)
    path = tmp_path / "file"
    for _ in range(120):
        path.write_bytes(mutated(ALL[name], generator))
        try:
            found = read_side_files([path])
        except InputError:  # any other error fails the test
            continue
        assert all(finding.sentence for finding in found.findings)


@pytest.mark.parametrize("text", [LOG, TABLE], ids=["log", "table"])
def test_a_damaged_log_or_table_gives_conclusions_or_is_refused(text, tmp_path):
    generator = random.Random(text[:20])
    path = tmp_path / "file"
    for _ in range(150):
        path.write_bytes(mutated(text, generator))
        try:
            found = conclude_from_file(path)
        except InputError:
            continue
        assert found.verdicts or found.notes
