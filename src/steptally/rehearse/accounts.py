"""What one rank's program comes to: its products, collectives and memory, as rows of a tally."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steptally.job import Job
from steptally.rehearse.lifetimes import (
    Held,
    anywhere,
    as_in_a_later_step,
    held_storages,
    in_flight,
    live_bytes,
    peak,
)
from steptally.rehearse.phases import BACKWARD
from steptally.tally import GemmRow, GroupRow, MemoryMomentRow, MemoryRow, TrafficRow

if TYPE_CHECKING:
    from steptally.rehearse.program import Rehearsal
    from steptally.rehearse.recorder import Operation

DGRAD, WGRAD = "dgrad", "wgrad"


@dataclass(frozen=True, slots=True)
class ProductKey:
    """Products that are alike: where, when, and C[m,n] = A[m,k] · B[k,n] in which dtype."""

    name: str
    phase: str
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    flops: int


@dataclass(frozen=True, slots=True)
class CollectiveKey:
    """Collectives that are alike; `size_bytes` is of the full tensor."""

    group: str
    ranks: tuple[int, ...]
    collective: str
    phase: str
    size_bytes: int
    dtype: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one rank in a step: its peaks, what is alive at them, and every pass."""

    peak_bytes: int
    first_step_peak_bytes: int
    event: str
    in_flight: tuple[int, ...]
    held: Mapping[tuple[str, str, int | None], int]  # bytes by lifetime, name and chunk
    moments: Sequence[tuple[str, int, int, int, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a rehearsal of some micro-batches comes to."""

    rank: int
    microbatches: int
    parameters: int
    operators: int
    products: Mapping[ProductKey, int]
    collectives: Mapping[CollectiveKey, int]
    memory: Memory


def count(rehearsal: Rehearsal) -> Counts:
    """Add up a rehearsal."""
    return Counts(
        rank=rehearsal.rank,
        microbatches=rehearsal.microbatches,
        parameters=sum(elements for _, elements in rehearsal.parameters),
        operators=len(rehearsal.operations),
        products=count_products(rehearsal.operations),
        collectives=count_collectives(rehearsal.operations),
        memory=measure_memory(rehearsal),
    )


def count_products(operations: Iterable[Operation]) -> Counter[ProductKey]:
    """How often each product runs. Backward's are gradients of an input or of a weight.

    The gradient of an input is a product with the weight, that of the weight is not; products of
    two activations, as in attention, have gradients of inputs only.
    """
    counts: Counter[ProductKey] = Counter()
    with_weight: set[str] = set()
    for operation in operations:
        product, path = operation.product, operation.place.module
        if product is None:
            continue
        phase = operation.phase
        if phase == BACKWARD:
            phase = WGRAD if path in with_weight and not product.by_weight else DGRAD
        elif product.by_weight:
            with_weight.add(path)
        key = ProductKey(
            anywhere(path),
            phase,
            product.m,
            product.n,
            product.k,
            product.batch,
            product.dtype,
            product.flops,
        )
        counts[key] += 1
    return counts


def count_collectives(operations: Iterable[Operation]) -> Counter[CollectiveKey]:
    """How often each collective is called."""
    return Counter(
        CollectiveKey(
            one.group,
            one.ranks,
            one.collective,
            operation.phase,
            one.size_bytes,
            one.dtype,
            anywhere(operation.place.module),
        )
        for operation in operations
        if (one := operation.collective) is not None
    )


def measure_memory(rehearsal: Rehearsal) -> Memory:
    """The peaks of the passes in a first and in a later step, and each pass of the latter."""
    began, ended = rehearsal.step_began, rehearsal.update_began
    first = held_storages(rehearsal)
    later = as_in_a_later_step(first, began)
    highest = peak(later, began, ended)
    update = peak(first, ended, _end_of(first))
    held: Counter[tuple[str, str, int | None]] = Counter()
    for each in highest.held:
        held[each.lifetime, each.name, each.chunk] += each.size_bytes
    return Memory(
        peak_bytes=highest.size_bytes,
        first_step_peak_bytes=max(peak(first, began, ended).size_bytes, update.size_bytes),
        event=_event(rehearsal, highest.moment),
        in_flight=in_flight(rehearsal.passes, highest.moment),
        held=held,
        moments=[
            (
                each.kind,
                each.chunk,
                each.microbatch,
                live_bytes(later, each.began),
                peak(later, each.began, each.ended).size_bytes,
                live_bytes(later, each.ended),
            )
            for each in rehearsal.passes
        ],
    )


def _end_of(held: Iterable[Held]) -> int:
    return max((max(each.made, each.freed or 0) for each in held), default=0)


def _event(rehearsal: Rehearsal, moment: int) -> str:
    for each in rehearsal.passes:
        if each.began <= moment <= each.ended:
            return f"{each.kind} of micro-batch {each.microbatch}"
    return "between passes"


def gemm_rows(counts: Counts) -> list[GemmRow]:
    """One row a kind of product, in the order of the program."""
    return [
        GemmRow(
            name=key.name,
            phase=key.phase,
            m=key.m,
            n=key.n,
            k=key.k,
            batch=key.batch,
            calls=calls,
            flops=calls * key.flops,
            rank=counts.rank,
            dtype=key.dtype,
        )
        for key, calls in counts.products.items()
    ]


def traffic_rows(job: Job, counts: Counts) -> list[TrafficRow]:
    """One row a kind of collective, in the order of the program."""
    return [
        TrafficRow(
            group=key.group,
            group_size=len(key.ranks),
            collective=key.collective,
            phase=key.phase,
            calls_per_step=calls,
            bytes_per_call=key.size_bytes,
            rank=counts.rank,
            scope=_scope(job, key.ranks),
            name=key.name,
            dtype=key.dtype,
            bytes_per_step=calls * key.size_bytes,
        )
        for key, calls in counts.collectives.items()
    ]


def group_rows(job: Job, counts: Counts) -> list[GroupRow]:
    """The process groups in which the rank communicates."""
    groups = dict.fromkeys((key.group, key.ranks) for key in counts.collectives)
    return [
        GroupRow(
            group=group,
            group_size=len(ranks),
            ranks=ranks,
            nodes=len(_nodes(job, ranks)),
            scope=_scope(job, ranks),
            rank=counts.rank,
        )
        for group, ranks in groups
    ]


def memory_rows(counts: Counts, pp: int) -> list[MemoryRow]:
    """What is alive at the peak, largest first within each lifetime."""
    memory = counts.memory
    chunks = {chunk for _, _, chunk in memory.held if chunk is not None}
    ordered = sorted(memory.held.items(), key=lambda item: (item[0][0], -item[1]))
    return [
        MemoryRow(
            rank=counts.rank,
            lifetime=lifetime,
            name=name,
            bytes=size,
            pp=pp,
            vpp=chunk if len(chunks) > 1 else None,
            peak_bytes=memory.peak_bytes,
        )
        for (lifetime, name, chunk), size in ordered
    ]


def moment_rows(counts: Counts) -> list[MemoryMomentRow]:
    """Every pass of a later step: bytes before, at most during, and after it."""
    return [
        MemoryMomentRow(
            rank=counts.rank,
            position=position,
            step="later",
            event=kind,
            before_bytes=before,
            peak_bytes=most,
            after_bytes=after,
            microbatch=microbatch,
            vpp=chunk,
        )
        for position, (kind, chunk, microbatch, before, most, after) in enumerate(
            counts.memory.moments
        )
    ]


def _scope(job: Job, ranks: Sequence[int]) -> str:
    return "intra-node" if len(_nodes(job, ranks)) == 1 else "inter-node"


def _nodes(job: Job, ranks: Sequence[int]) -> set[int]:
    return {rank // job.cluster.devices_per_node for rank in ranks}
