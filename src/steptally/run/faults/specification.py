"""Reads `--inject KIND=WHERE:SIZE[:OPTION]` into faults. Imports no torch.

>>> parse_fault("slow-rank=3:1.5x:backward")
SlowRank(spec='slow-rank=3:1.5x:backward', rank=3, factor=1.5, phase='backward')
>>> parse_fault("data-stall=1:200ms").duration_ns
200000000
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NoReturn

from steptally.errors import InputError, did_you_mean
from steptally.run.faults.fault import (
    ANY_RANK,
    AXES,
    PHASES,
    DataStall,
    Fault,
    ImbalancedExperts,
    Pause,
    SlowLink,
    SlowRank,
    SlowStage,
)

FORMS: Mapping[str, str] = MappingProxyType(
    {
        "slow-rank": "slow-rank=RANK:FACTORx[:forward|:backward]",
        "slow-stage": "slow-stage=STAGE:FACTORx[:forward|:backward]",
        "slow-link": "slow-link=AXIS:FACTORx, slow-link=AXIS:TIME or slow-link=RANK-RANK:TIME",
        "data-stall": "data-stall=RANK:TIME[:every=N]",
        "gc-pause": "gc-pause=RANK:TIME[:every=N], RANK being a number or any",
        "imbalanced-experts": "imbalanced-experts=EXPERT:SHARE",
    }
)
MOST_FACTOR = 100.0  # beyond it a run looks hung, and gloo's timeout is near
LONGEST_NS = 60 * 10**9
_UNITS_NS = {"us": 10**3, "ms": 10**6, "s": 10**9}
_NUMBER = r"(\d{1,9}(?:\.\d{1,9})?)"
_FACTOR = re.compile(_NUMBER + "x")
_DURATION = re.compile(_NUMBER + "(us|ms|s)")
_PAIR = re.compile(r"(\d{1,9})-(\d{1,9})")


def parse_faults(specs: Sequence[str]) -> tuple[Fault, ...]:
    """The faults of all `--inject` options. Raises `InputError`, also for one given twice."""
    for spec in specs:
        if specs.count(spec) > 1:
            raise InputError(f"--inject {spec} is given {specs.count(spec)} times: give it once.")
    faults = tuple(map(parse_fault, specs))
    imbalances = [fault.spec for fault in faults if isinstance(fault, ImbalancedExperts)]
    if len(imbalances) > 1:
        raise InputError(f"--inject {' and '.join(imbalances)} exclude each other: give one.")
    return faults


def parse_fault(spec: str) -> Fault:
    """One fault. Raises `InputError` with the form that its kind has."""
    kind, equals, rest = spec.partition("=")
    if kind not in FORMS or not equals:
        raise InputError(
            f"--inject {_cut(spec)} is no fault that is known{did_you_mean(kind, FORMS)}: it must "
            f"be KIND=WHERE:SIZE with a kind of {', '.join(FORMS)}."
        )
    where, size, *options = [*rest.split(":"), ""] if ":" not in rest else rest.split(":")
    if not where or not size or len(options) > 1:
        _refuse(spec, kind, "does not have the parts that it needs")
    return _READERS[kind](spec, where, size, *options)


def _slow_rank(spec: str, where: str, size: str, option: str | None = None) -> Fault:
    phase = _phase(spec, "slow-rank", option)
    rank = _whole(spec, "slow-rank", where, "rank")
    return SlowRank(spec=spec, rank=rank, factor=_factor(spec, "slow-rank", size), phase=phase)


def _slow_stage(spec: str, where: str, size: str, option: str | None = None) -> Fault:
    phase = _phase(spec, "slow-stage", option)
    stage = _whole(spec, "slow-stage", where, "pipeline stage")
    return SlowStage(spec=spec, stage=stage, factor=_factor(spec, "slow-stage", size), phase=phase)


def _slow_link(spec: str, where: str, size: str, option: str | None = None) -> Fault:
    if option is not None:
        _refuse(spec, "slow-link", f"has {option!r} behind its size")
    pair = _PAIR.fullmatch(where)
    if pair is None and where not in AXES:
        _refuse(
            spec, "slow-link", f"names {where!r}, which is neither {', '.join(AXES)} nor a pair"
        )
    by_factor = _FACTOR.fullmatch(size) is not None
    return SlowLink(
        spec=spec,
        axis=where if pair is None else None,
        ranks=None if pair is None else (int(pair[1]), int(pair[2])),
        factor=_factor(spec, "slow-link", size) if by_factor else None,
        duration_ns=None if by_factor else _duration_ns(spec, "slow-link", size),
    )


def _data_stall(spec: str, where: str, size: str, option: str | None = None) -> Fault:
    return DataStall(
        spec=spec,
        rank=_whole(spec, "data-stall", where, "rank"),
        duration_ns=_duration_ns(spec, "data-stall", size),
        every=_every(spec, "data-stall", option),
    )


def _gc_pause(spec: str, where: str, size: str, option: str | None = None) -> Fault:
    return Pause(
        spec=spec,
        rank=None if where == ANY_RANK else _whole(spec, "gc-pause", where, "rank"),
        duration_ns=_duration_ns(spec, "gc-pause", size),
        every=_every(spec, "gc-pause", option),
    )


def _imbalanced_experts(spec: str, where: str, size: str, option: str | None = None) -> Fault:
    kind = "imbalanced-experts"
    share = float(size) if re.fullmatch(_NUMBER, size) else math.nan
    if option is not None or not 0 < share <= 1:
        _refuse(spec, kind, "must have a share of tokens above 0 and at most 1, and nothing more")
    return ImbalancedExperts(spec=spec, expert=_whole(spec, kind, where, "expert"), share=share)


_READERS: Mapping[str, Callable[..., Fault]] = MappingProxyType(
    {
        "slow-rank": _slow_rank,
        "slow-stage": _slow_stage,
        "slow-link": _slow_link,
        "data-stall": _data_stall,
        "gc-pause": _gc_pause,
        "imbalanced-experts": _imbalanced_experts,
    }
)


def _whole(spec: str, kind: str, text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        _refuse(spec, kind, f"names {_cut(text)!r}, which is not the number of a {what}")
    return int(text)


def _factor(spec: str, kind: str, text: str) -> float:
    found = _FACTOR.fullmatch(text)
    if found is None:
        _refuse(spec, kind, f"has the size {_cut(text)!r}, which is not a factor such as 1.5x")
    factor = float(found[1])
    if not 1 < factor <= MOST_FACTOR:
        _refuse(spec, kind, f"has a factor of {factor:g}, which must be above 1 and at most 100")
    return factor


def _duration_ns(spec: str, kind: str, text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        _refuse(spec, kind, f"has the size {_cut(text)!r}, which is not a time such as 200ms")
    duration_ns = round(float(found[1]) * _UNITS_NS[found[2]])
    if not 0 < duration_ns <= LONGEST_NS:
        _refuse(spec, kind, f"has a time of {text}, which must be above 0 and at most 60 s")
    return duration_ns


def _phase(spec: str, kind: str, option: str | None) -> str | None:
    if option is not None and option not in PHASES:
        _refuse(spec, kind, f"ends in {_cut(option)!r}, which is neither {' nor '.join(PHASES)}")
    return option


def _every(spec: str, kind: str, option: str | None) -> int:
    if option is None:
        return 1
    name, _, number = option.partition("=")
    every = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0
    if name != "every" or every < 1:
        _refuse(spec, kind, f"ends in {_cut(option)!r}, which is not every=N with N of 1 or more")
    return every


def _refuse(spec: str, kind: str, found: str) -> NoReturn:
    raise InputError(f"--inject {_cut(spec)} {found}: the form is {FORMS[kind]}.")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}…"
