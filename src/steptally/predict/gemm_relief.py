"""What would raise a product's expected efficiency: less tensor or expert splitting, more tokens.

Each change is tried by predicting the changed job's products, so that every side effect of it (a
wider layer, another head count, fewer rows an expert) is in the answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from steptally.errors import InputError
from steptally.job.device import Device
from steptally.job.job import Job
from steptally.job.layout import Layout
from steptally.job.rules import check
from steptally.predict.gemms import predict_gemms
from steptally.predict.ranks import coordinates, rank_at
from steptally.predict.roofline import LAUNCH_S
from steptally.tally.rows import GemmRow

# Products below this part of the dense peak are worth a change; one that gains less is not shown.
WORTH_A_CHANGE = 0.85
LEAST_GAIN = 0.05

Product = tuple[str, str]  # name and phase


def with_relief(
    rows: Sequence[GemmRow], job: Job, rank: int, device: Device, *, launch_s: float = LAUNCH_S
) -> list[GemmRow]:
    """The rows, with `restore` naming the change that helps each slow one most.

    Changes: `micro_batch_size` doubled; tp, etp or ep halved over the same ranks.
    """
    now = _efficiency(rows)
    best: dict[Product, tuple[float, str]] = {}
    for words, changed in changed_jobs(job):
        pp = coordinates(job.layout, rank).pp
        there = rank_at(changed.layout, pp=pp)
        then = _efficiency(predict_gemms(changed, there, device, launch_s=launch_s))
        for product in now.keys() & then.keys():
            best[product] = max(best.get(product, (0.0, "")), (then[product], words))
    return [replace(row, restore=_words(row, now, best)) for row in rows]


def changed_jobs(job: Job) -> Iterator[tuple[str, Job]]:
    """Jobs that Megatron would run, one setting away from this one, over the same ranks."""
    for name, layout in _changes(job.layout):
        changed = replace(job, layout=layout)
        try:
            check(changed)
        except InputError:
            continue
        yield f"{name} {getattr(layout, name)}", changed


def _changes(layout: Layout) -> Iterator[tuple[str, Layout]]:
    doubled = 2 * layout.micro_batch_size
    if layout.global_batch_size % (doubled * layout.data_parallel_size) == 0:
        yield "micro_batch_size", replace(layout, micro_batch_size=doubled)
    for name in (
        "tensor_model_parallel_size",
        "expert_tensor_parallel_size",
        "expert_model_parallel_size",
    ):
        size = getattr(layout, name)
        if size % 2 == 0:
            changes: dict[str, int | bool] = {name: size // 2}
            if name == "tensor_model_parallel_size" and size == 2:
                changes["sequence_parallel"] = False
            yield name, replace(layout, **changes)  # type: ignore[arg-type]


def _efficiency(rows: Iterable[GemmRow]) -> Mapping[Product, float]:
    """Expected part of the peak by product: FLOPs over FLOPs/efficiency, over its shapes."""
    ideal: dict[Product, float] = defaultdict(float)
    spent: dict[Product, float] = defaultdict(float)
    for row in rows:
        if row.efficiency:
            ideal[row.name, row.phase] += row.flops
            spent[row.name, row.phase] += row.flops / row.efficiency
    return {product: ideal[product] / spent[product] for product in ideal}


def _words(
    row: GemmRow, now: Mapping[Product, float], best: Mapping[Product, tuple[float, str]]
) -> str | None:
    product = (row.name, row.phase)
    if product not in best or now[product] >= WORTH_A_CHANGE:
        return None
    then, words = best[product]
    if then < now[product] + LEAST_GAIN:
        return None
    return f"{words}: {100 * then:.0f} %"
