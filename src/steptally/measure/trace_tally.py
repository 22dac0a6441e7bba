"""The accounts of many traces as one tally: rows of every rank, and figures over all of them.

Ranks are added one by one as they are measured, in any order; what is kept of each is small.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from steptally.job.device import Device
from steptally.measure.kernel_merge import KernelMerge, merged_families, merged_fusion
from steptally.measure.kernels import on_device
from steptally.measure.trace_account import TraceAccount
from steptally.measure.trace_figures import trace_figures
from steptally.measure.trust import subset_trust
from steptally.tally import FamilyRow, FusionRow, Row, Tally
from steptally.tally.ranges import number_ranges

NOT_APPLICABLE = "not applicable"
MOST_FUSION = 50


@dataclass(slots=True)
class TraceMerge:
    """The accounts added so far, without what is merged at once: kernels, members of groups.

    `members` are the ranks of all process groups of each name, as far as the traces tell them.
    """

    accounts: list[TraceAccount] = field(default_factory=list)
    kernels: KernelMerge = field(default_factory=KernelMerge)
    families: dict[str, FamilyRow] = field(default_factory=dict)
    fusion: dict[tuple[str, ...], FusionRow] = field(default_factory=dict)
    members: dict[str, set[int]] = field(default_factory=dict)

    def add(self, account: TraceAccount) -> None:
        """Take one rank's account."""
        self.kernels.add(account.kernels)
        merged_families(self.families, account.families)
        merged_fusion(self.fusion, account.fusion)
        for name, facts in account.groups.items():
            self.members.setdefault(name, set()).update(facts.ranks)
        self.accounts.append(replace(account, kernels=(), families=(), fusion=(), groups={}))


def trace_tally(
    merge: TraceMerge,
    *,
    device: Device | None = None,
    job: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    warnings: Sequence[str] = (),
) -> Tally:
    """The tally of the traces merged; `device` places kernels on its roofline.

    `world_size` is a job's; without one the largest that a trace tells.
    """
    accounts = sorted(merge.accounts, key=lambda account: account.rank)
    kernels = merge.kernels.rows()
    refusals: list[str] = []
    if device is not None:
        kernels, refusals = on_device(kernels, device)
    told = [account.source.world_size for account in accounts if account.source.world_size]
    ranks = subset_trust(
        [account.rank for account in accounts],
        world_size or max(told, default=None),
        merge.members,
    )
    figures = trace_figures(accounts)
    rows: dict[str, Sequence[Row]] = {
        "sources": [account.source for account in accounts],
        "recording": [
            account.times.recording for account in accounts if account.times.recording is not None
        ],
        "time": [row for account in accounts for row in account.times.steps],
        "partial_steps": [row for account in accounts for row in account.times.partial],
        "gaps": [account.gaps for account in accounts if account.gaps is not None],
        "kernel_families": _shared(merge.families),
        "kernels": kernels,
        "fusion": sorted(merge.fusion.values(), key=lambda row: -row.total_ns)[:MOST_FUSION],
        "contention": [row for account in accounts for row in account.contention.rows],
        "net_gain": [
            account.contention.net_gain
            for account in accounts
            if account.contention.net_gain is not None
        ],
        "trust": [ranks, *(row for account in accounts for row in account.trust)],
    }
    return Tally(
        basis="measured",
        job=dict(job or {}),
        summary=figures.figures,
        accounts={name: found for name, found in rows.items() if found},
        warnings=[
            *warnings,
            *_by_ranks((one.rank, text) for one in accounts for text in one.warnings),
        ],
        refusals=[
            *figures.refusals,
            *_by_ranks((one.rank, why) for one in accounts if (why := one.contention.refusal)),
            *refusals,
        ],
    )


def rank_objects(tally: Tally) -> list[dict[str, Any]]:
    """The key `ranks` of `steptally trace --json`: each rank's accounts in one object.

    `docs/schema.md` lists the keys. `hidden_share` is `not applicable` without communication.
    """
    objects = {}
    for row in tally.accounts.get("recording", ()):
        whole = _flat(row, "step", "partial")
        objects[whole["rank"]] = {
            **whole,
            "hidden_share": _hidden_share(whole),
            "source": None,
            "steps": [],
            "gaps": None,
            "net_gain": None,
            "trust": [],
        }
    for account in ("partial_steps", "time"):
        for row in tally.accounts.get(account, ()):
            step = _flat(row)
            objects[step.pop("rank")]["steps"].append({**step, "hidden_share": _hidden_share(step)})
    for account, key in (("gaps", "gaps"), ("net_gain", "net_gain"), ("sources", "source")):
        for row in tally.accounts.get(account, ()):
            one = _flat(row)
            if one["rank"] in objects:
                objects[one.pop("rank")][key] = one
    for row in tally.accounts.get("trust", ()):
        test = _flat(row)
        if test["rank"] in objects:
            objects[test.pop("rank")]["trust"].append(test)
    for one in objects.values():
        one["steps"].sort(key=lambda step: step["step"])
    return list(objects.values())


def _flat(row: Any, *without: str) -> dict[str, Any]:
    content = dataclasses.asdict(row)
    for name in without:
        del content[name]
    return content


def _hidden_share(row: Mapping[str, Any]) -> float | str:
    if not row["communication_ns"]:
        return NOT_APPLICABLE
    return float(row["overlap_ns"] / row["communication_ns"])


def _shared(families: Mapping[str, FamilyRow]) -> list[FamilyRow]:
    whole_ns = sum(row.total_ns for row in families.values())
    rows = [
        replace(row, share=row.total_ns / whole_ns if whole_ns else 0.0)
        for row in families.values()
    ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.family))


def _by_ranks(told: Iterable[tuple[int, str]]) -> list[str]:
    """Sentences with the ranks that they are of; what several ranks say is said once."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, text in told:
        ranks[text].append(rank)
    return [f"rank {number_ranges(of)}: {text}" for text, of in ranks.items()]
