"""One group of peers: who is waited for, or works longest, and what explains it.

Every verdict passes three gates: the difference costs 10 % of the step, it is beyond noise, and
noise is known. docs/stragglers-inputs.md gives the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from steptally.measure.stragglers.conclusions import (
    CAUSE_COVERAGE,
    WARN_SHARE,
    Conclusions,
    impact_word,
    percent,
    section_names,
)
from steptally.measure.stragglers.phase_matrix import Floats, PhaseMatrix, over_iterations
from steptally.tally.straggler_rows import VerdictRow

# The largest of many ranks is large by chance: the bound on noise is at this level over all ranks.
FALSE_ALARM = 0.01
SMALLEST_BOUND = 3.5
# A spread needs this many peers or iterations to be known.
FEWEST_PEERS = 3
FEWEST_ITERATIONS = 4
TO_SIGMA = 1.4826  # of the median absolute deviation, for a normal distribution
MEDIAN_ERROR = 1.2533  # the standard error of a median over that of a mean
# Ranks this close to the culprit, in shares of the wait, are late with it.
TOGETHER = 0.2


def compare_by_wait(matrix: PhaseMatrix, members: Sequence[int]) -> Conclusions:
    """The culprit waits least; what it did instead must explain the others' wait."""
    waiting = matrix.total(matrix.visible)[:, members]
    middle = over_iterations(waiting)
    order = np.argsort(middle, kind="stable")
    culprit, victim = int(order[0]), int(order[len(order) // 2])
    cost = float(middle[victim] - middle[culprit])
    together = [at for at in order if middle[at] <= middle[culprit] + TOGETHER * cost]
    others = [at for at in range(len(members)) if at not in together]
    bound = _noise(middle[others], waiting[:, victim] - waiting[:, culprit], len(members))
    names = section_names(matrix.visible)
    ranks = tuple(sorted(matrix.ranks[members[at]] for at in together))
    facts = (
        f"{_ranks(ranks)} {_verb(ranks, 'spends', 'spend')} {middle[culprit]:.2f} ms in {names}, "
        f"rank {matrix.ranks[members[victim]]} {middle[victim]:.2f} ms: the one that waits least "
        f"is waited for"
    )
    gate = _gate(matrix, cost, bound, facts, ranks)
    if gate is not None:
        return gate
    cause = _cause(matrix, [members[at] for at in together], [members[at] for at in others], cost)
    verdict, factor, why = cause
    row = VerdictRow(
        verdict=verdict,
        ranks=ranks,
        factor=factor,
        detectable=_detectable(matrix, bound),
        evidence=(f"{facts}.", _impact(matrix, cost), why),
    )
    return Conclusions(verdicts=(row,), detectable=row.detectable)


def compare_by_own_work(matrix: PhaseMatrix, members: Sequence[int]) -> Conclusions:
    """The rank whose own work takes longest, and those as slow, against the others' median."""
    work = matrix.total(matrix.work)[:, members]
    middle = over_iterations(work)
    worst = int(np.argmax(middle))
    first = float(middle[worst] - np.median(np.delete(middle, worst)))
    slow = [at for at in range(len(members)) if middle[at] >= middle[worst] - TOGETHER * first]
    slow = slow if len(slow) < len(members) else [worst]
    others = [at for at in range(len(members)) if at not in slow]
    peers = float(np.median(middle[others]))
    taken = float(np.median(middle[slow]))
    excess = taken - peers
    gaps = work[:, worst] - np.median(work[:, others], axis=1)
    bound = _noise(middle[others], gaps, len(members))
    ranks = tuple(sorted(matrix.ranks[members[at]] for at in slow))
    times = f" ({taken / peers:.2f}x)" if peers > 0 else ""
    facts = (
        f"{_ranks(ranks)} {_verb(ranks, 'spends', 'spend')} {taken:.2f} ms in "
        f"{section_names(matrix.work)}, {_verb(ranks, 'its', 'their')} peers {peers:.2f} ms{times}"
    )
    gate = _gate(matrix, excess, bound, facts, ranks)
    if gate is not None:
        return gate
    verdict, factor, why = _cause(
        matrix, [members[at] for at in slow], [members[at] for at in others], excess
    )
    row = VerdictRow(
        verdict=verdict,
        ranks=ranks,
        factor=factor,
        detectable=_detectable(matrix, bound),
        evidence=(f"{facts}.", _impact(matrix, excess), why),
    )
    return Conclusions(verdicts=(row,), detectable=row.detectable)


def _gate(
    matrix: PhaseMatrix, cost: float, bound: float | None, facts: str, ranks: tuple[int, ...]
) -> Conclusions | None:
    """Why a difference makes no verdict: of no impact, within noise, or noise unknown."""
    detectable = _detectable(matrix, bound)
    if cost < WARN_SHARE * matrix.step_ms:
        noise = "" if bound is None else f"; {bound:.2f} ms could be told from noise"
        note = f"no straggler: {facts}. {_impact(matrix, cost)[:-1]}{noise}."
        return Conclusions(notes=(note,), detectable=detectable, peers_compared=True)
    if bound is None:
        row = VerdictRow(
            verdict="not-identifiable",
            ranks=ranks,
            evidence=(
                f"{facts}.",
                (
                    f"{_impact(matrix, cost)} Noise is unknown from {matrix.iterations} "
                    f"iteration(s) of {len(matrix.ranks)} ranks: record {FEWEST_ITERATIONS} or "
                    "more."
                ),
            ),
        )
        return Conclusions(verdicts=(row,))
    if cost <= bound:
        note = (
            f"no straggler: {facts}. The difference of {cost:.2f} ms is within the noise "
            f"({bound:.2f} ms)."
        )
        return Conclusions(notes=(note,), detectable=detectable, peers_compared=True)
    return None


def _cause(
    matrix: PhaseMatrix, culprits: Sequence[int], others: Sequence[int], cost: float
) -> tuple[str, float | None, str]:
    """Class, factor and sentence of what explains the wait; named from 80 % of it on."""
    excess = {
        name: float(np.median(m[culprits]) - np.median(m[others]))
        for name, m in ((name, over_iterations(v)) for name, v in matrix.work.items())
    }
    if not excess:
        why = (
            "What makes it late is not recorded: look at its clocks and temperature (give "
            "nvidia-smi or DCGM files), or record its phases or a trace."
        )
        return "slow-worker", None, why
    total = over_iterations(matrix.total(matrix.work))
    peers = float(np.median(total[others]))
    factor = float(np.median(total[culprits])) / peers if peers > 0 else None
    name = max(excess, key=lambda name: excess[name])
    coverage, together = excess[name] / cost, sum(excess.values()) / cost
    if coverage >= CAUSE_COVERAGE:
        verdict = "data-loading" if name in matrix.data else "slow-worker"
        why = f"`{name}` takes {excess[name]:.2f} ms longer: {percent(min(1.0, coverage))} of it."
        return verdict, factor, why
    if together >= CAUSE_COVERAGE:
        why = (
            f"Its own phases explain {percent(min(1.0, together))} of it together, none of them "
            f"{CAUSE_COVERAGE:.0%} alone (`{name}` {percent(max(0.0, coverage))}).".replace(
                "0% alone", "0 % alone"
            )
        )
        return "slow-worker", factor, why
    why = (
        f"No cause is named: its recorded phases explain {percent(max(0.0, together))} of it, and "
        "80 % is needed. The rest is work that no phase times (launching, the host): record a "
        "trace of this rank."
    )
    return "slow-worker", factor, why


def _noise(peers: Floats, gaps: Floats, ranks: int) -> float | None:
    """The least difference beyond noise, from the peers' spread and from iterations, in ms.

    None where neither is known. The level is `FALSE_ALARM` over all ranks.
    """
    known = gaps[~np.isnan(gaps)]
    sigmas = []
    if len(peers) >= FEWEST_PEERS:
        sigmas.append(_sigma(peers))
    if len(known) >= FEWEST_ITERATIONS:
        sigmas.append(MEDIAN_ERROR * _sigma(known) / float(np.sqrt(len(known))))
    if not sigmas:
        return None
    return max(SMALLEST_BOUND, NormalDist().inv_cdf(1 - FALSE_ALARM / ranks)) * max(sigmas)


def _sigma(values: Floats) -> float:
    return TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _detectable(matrix: PhaseMatrix, bound: float | None) -> float | None:
    """The least factor on the step that a verdict could have: by noise, and by impact."""
    if bound is None or not matrix.step_ms:
        return None
    return 1 + max(bound / matrix.step_ms, WARN_SHARE)


def _impact(matrix: PhaseMatrix, cost: float) -> str:
    share = cost / matrix.step_ms if matrix.step_ms else 0.0
    return (
        f"It costs {cost:.2f} ms, {percent(share)} of the step of {matrix.step_ms:.2f} ms "
        f"({matrix.step_is}): {impact_word(share)}."
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _verb(ranks: tuple[int, ...], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many
