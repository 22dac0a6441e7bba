"""The worked example of docs/formulas/stragglers.md: three ranks in three all-reduces.

Rank 1's clock is 5 ms ahead. Times in the tables are microseconds on the true clock.
"""

from tests.straggler_recordings import TP, recording, row

from steptally.trace.intervals import merge

US = 1_000
AHEAD = 5_000
ENTERED = [(100, 400, 250), (900, 700, 820), (1300, 1500, 1210)]
LEFT = [(440, 442, 441), (940, 941, 942), (1541, 1540, 1542)]
COMPUTED_UNTIL = 130  # by rank 0, on another stream, while it waits in the first


def example():
    """Each rank's recording on its own clock."""
    made = []
    for rank in range(3):
        ahead = AHEAD if rank == 1 else 0
        rows = [
            row(
                TP,
                (0, 1, 2),
                (entered[rank] + ahead) * US,
                (left[rank] + ahead) * US,
                sequence=number,
            )
            for number, (entered, left) in enumerate(zip(ENTERED, LEFT, strict=True))
        ]
        compute = merge([0], [COMPUTED_UNTIL * US]) if rank == 0 else merge([], [])
        made.append(recording(rank, rows, compute=compute))
    return made
