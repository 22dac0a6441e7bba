"""Replays a program: when would each step end, had its operations taken other times?

    graph = replay_graph(program)
    durations = recorded(graph)
    step_ns = graph.step_times(durations)          # as measured
    step_ns = graph.step_times(changed(durations)) # as it would be

The model is that of what-if analysis (Lin et al. 2025, arXiv:2505.05713, section 3): an operation
starts when all that precede it on its rank have ended, plus its launch delay; own work ends after
its duration; the members of a collective or message end when the last has entered, plus each one's
transfer. A step is then a longest path, and all steps of all ranks are computed level by level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from steptally.errors import InputError
from steptally.measure.stragglers.program import Integers, Program

Booleans = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """What each operation takes, in ns: before it starts, and from then on.

    `work` is an own operation's duration, and a member's transfer: from the last member's entering
    to its own leaving. `delay` is from when it could start to when it did.
    """

    work: Integers
    delay: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayGraph:
    """A program as levels of nodes, each the latest of those before it plus its own weight.

    Nodes are the operations' ends (by row), then members' entries, then instances' gates.
    `order` lists the nodes level by level, `levels` the bounds of each in it; `sources` the nodes
    before, in the same order, and `first_source` where a node's begin. `heads` have none before:
    they start with their step.
    """

    program: Program
    count: int  # of nodes
    member: Booleans  # by operation: is it a member of an instance?
    entry: Integers  # by operation: the node of its entering; −1 for own work
    order: Integers
    levels: Integers
    sources: Integers
    first_source: Integers
    step_of: Integers  # by operation: index into program.steps
    heads: Booleans  # by operation: does it wait for none? Its delay is older than the recording

    def ends(self, durations: Durations) -> Integers:
        """When each operation ends, in ns after its step, or the first that it continues, began."""
        return self._values(durations)[: len(self.member)]

    def step_times(self, durations: Durations) -> Integers:
        """Each step's time in ns: from its begin until the last rank's last operation ends.

        A step that continues another begins where that one ends.
        """
        times = np.zeros(len(self.program.steps), dtype=np.int64)
        np.maximum.at(times, self.step_of, self.ends(durations))
        return np.diff(times, prepend=0) if self.program.continued else times

    def _values(self, durations: Durations) -> Integers:
        weight = np.zeros(self.count, dtype=np.int64)
        own = ~self.member
        weight[: own.size] = durations.work
        weight[: own.size][own] += durations.delay[own]
        weight[self.entry[self.member]] = durations.delay[self.member]
        value = weight  # in place: a node is read only after its own level
        for first, last in zip(self.levels[1:-1], self.levels[2:], strict=True):
            nodes = self.order[first:last]
            begin, end = self.first_source[first], self.first_source[last]
            latest = np.maximum.reduceat(
                value[self.sources[begin:end]], self.first_source[first:last] - begin
            )
            value[nodes] += latest
        return value


def replay_graph(program: Program) -> ReplayGraph:
    """The levels of a program. Raises `InputError` where operations wait for each other."""
    table = program.operations
    instance = table["instance"].fill_null(-1).to_numpy()
    member = instance >= 0
    rows = np.arange(len(table))
    entry = np.full(len(table), -1, dtype=np.int64)
    entry[member] = len(table) + np.arange(member.sum())
    names, gate = np.unique(instance[member], return_inverse=True)
    gate = gate + len(table) + member.sum()
    gate_of = np.full(len(table), -1, dtype=np.int64)
    gate_of[member] = gate
    begins = np.where(member, entry, rows)  # the node that waits for what comes before
    left, right = program.fused
    source = np.concatenate((program.before, entry[member], gate, gate_of[left], gate_of[right]))
    target = np.concatenate((begins[program.after], gate, rows[member], right, left))
    count = len(table) + int(member.sum()) + len(names)
    order, levels = _levels(source, target, count)
    if order.size < count:
        raise InputError(
            f"{count - order.size:,} of {count:,} operations wait for each other in a circle, as "
            "no program does: clocks of ranks differ by more than an operation takes, operations "
            "are missing, or collectives are paired wrongly. Record whole steps on one clock, or "
            "name the process groups of traces with --job."
        )
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    by_target = np.argsort(place[target], kind="stable")
    sizes = np.bincount(place[target], minlength=count)
    return ReplayGraph(
        program=program,
        count=count,
        member=member,
        entry=entry,
        order=order,
        levels=levels,
        sources=source[by_target],
        first_source=np.concatenate(([0], np.cumsum(sizes))),
        step_of=np.searchsorted(program.steps, table["step"].to_numpy()),
        heads=~np.isin(rows, program.after),
    )


def recorded(graph: ReplayGraph) -> Durations:
    """What the operations took in the recording.

    Where clocks or the order are not exact, an operation may start before it could: its delay is
    then 0, and its end what it was.
    """
    table = graph.program.operations
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    ready = _ready(graph, start, end)
    delay = np.maximum(start - ready, 0)
    entered = _last_entered(graph, start)
    work = np.where(graph.member, np.maximum(end - entered, 0), end - start)
    return Durations(work=work.astype(np.int64), delay=delay.astype(np.int64))


def undelayed(graph: ReplayGraph, durations: Durations) -> Durations:
    """The same, each operation launched as soon as it can be; heads start when they did."""
    return replace(durations, delay=np.where(graph.heads, durations.delay, 0))


def measured_step_times(program: Program) -> Integers:
    """Each step's time as recorded, in ns: first start to last end of any rank.

    A step that continues another begins where that one ends.
    """
    spans = program.operations.group_by("step").agg(
        pl.col("start_ns").min(), pl.col("end_ns").max()
    )
    start, end = (spans.sort("step")[name].to_numpy() for name in ("start_ns", "end_ns"))
    if program.continued:
        start = np.concatenate((start[:1], end[:-1]))
    return np.asarray(end - start, dtype=np.int64)


def _ready(graph: ReplayGraph, start: Integers, end: Integers) -> Integers:
    """When each operation could have started: all before it had ended, or its step had begun."""
    program = graph.program
    begin = np.full(len(program.steps), np.iinfo(np.int64).max)
    np.minimum.at(begin, graph.step_of, start)
    if program.continued:
        begin[:] = begin[0]
    ready = np.full(start.size, np.iinfo(np.int64).min)
    np.maximum.at(ready, program.after, end[program.before])
    return np.where(ready == np.iinfo(np.int64).min, begin[graph.step_of], ready)


def _last_entered(graph: ReplayGraph, start: Integers) -> Integers:
    """By operation: when the last member of its instance, or of one fused with it, entered."""
    instance = graph.program.operations["instance"].fill_null(-1).to_numpy()
    names, index = np.unique(instance, return_inverse=True)
    last = np.full(names.size, np.iinfo(np.int64).min)
    np.maximum.at(last, index, start)
    entered = last[index]
    left, right = graph.program.fused
    alone = entered.copy()
    np.maximum.at(entered, left, alone[right])
    np.maximum.at(entered, right, alone[left])
    return entered


def _levels(source: Integers, target: Integers, count: int) -> tuple[Integers, Integers]:
    """Nodes in an order in which all sources come first, and the bounds of each level in it.

    Fewer nodes than `count` come back where some wait in a circle.
    """
    waiting = np.bincount(target, minlength=count)
    by_source = np.argsort(source, kind="stable")
    targets = target[by_source]
    first = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=count))))
    level = np.flatnonzero(waiting == 0)
    order, bounds = [level], [0, level.size]
    while level.size:
        reached = targets[_ranges(first[level], first[level + 1])]
        np.subtract.at(waiting, reached, 1)
        level = np.unique(reached[waiting[reached] == 0])
        if level.size:
            order.append(level)
            bounds.append(bounds[-1] + level.size)
    return np.concatenate(order), np.array(bounds, dtype=np.int64)


def _ranges(begin: Integers, end: Integers) -> Integers:
    """begin[0], …, end[0]−1, begin[1], … in one array."""
    sizes = end - begin
    jumps = np.repeat(begin - np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes)
    return jumps + np.arange(sizes.sum())
