"""Which events share a row of a drawing: none that would hide another.

Viewers draw the complete events ("X") of one track as a stack of calls: of two that overlap
without one holding the other, Perfetto drops one (google/perfetto#4280), which makes kernels of
programmatic dependent launches vanish. So each goes to the first lane that is free for it.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def flat_lanes(start: Int64s, end: Int64s) -> Int64s:
    """The lane of each event such that no two of a lane overlap; as few lanes as can be.

    For the work of a stream, which holds no calls. Starts must be sorted.

    >>> flat_lanes(np.array([0, 5, 10]), np.array([8, 9, 20])).tolist()
    [0, 1, 0]
    """
    lanes = np.zeros(start.size, dtype=np.int64)
    if not _overlap(start, end):
        return lanes
    free: list[int] = []  # lanes that are free again
    busy: list[tuple[int, int]] = []  # end and lane of those that are not
    for row, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begins:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (ends, lane))
        lanes[row] = lane
    return lanes


def nested_lanes(start: Int64s, end: Int64s) -> Int64s:
    """The lane of each event such that any two of a lane are apart, or one holds the other.

    For the calls of a thread. Starts must be sorted, and of equal starts the longest come first.

    >>> nested_lanes(np.array([0, 2, 5]), np.array([8, 4, 12])).tolist()
    [0, 0, 1]
    """
    lanes = np.zeros(start.size, dtype=np.int64)
    if not _overlap(start, end):
        return lanes
    stacks: list[list[int]] = []  # the ends of the open events of each lane, innermost last
    for row, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for lane in range(len(stacks) + 1):
            if lane == len(stacks):
                stacks.append([])
            stack = stacks[lane]
            while stack and stack[-1] <= begins:
                stack.pop()
            if not stack or stack[-1] >= ends:
                break
        stack.append(ends)
        lanes[row] = lane
    return lanes


def _overlap(start: Int64s, end: Int64s) -> bool:
    return bool((start[1:] < np.maximum.accumulate(end)[:-1]).any())
