"""Every matrix product of one rank in one optimizer step: the `gemms` account.

The FLOPs of all ranks add up to the executed FLOPs of `predict_flops`, exactly.

>>> from steptally.job import job_from_settings
>>> job = job_from_settings({"num_layers": 1, "hidden_size": 64, "num_attention_heads": 4,
...     "seq_length": 32, "vocab_size": 128, "transformer_impl": "local"})
>>> row = predict_gemms(job)[0]
>>> row.name, row.phase, row.m, row.n, row.k, row.calls, row.flops
('linear_qkv', 'forward', 32, 192, 64, 1, 786432)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from steptally.job.device import Device
from steptally.job.job import Job
from steptally.predict.layers import LayerKind, layer_kinds, mtp_layer_kinds
from steptally.predict.linears import layer_linears, mtp_linear, output_linear
from steptally.predict.mamba_products import mamba_products
from steptally.predict.precision import gradient_dtype, size_bytes
from steptally.predict.products import (
    FORWARD,
    RECOMPUTE,
    WGRAD,
    Product,
    attention_products,
    linear_products,
)
from steptally.predict.ranks import coordinates
from steptally.predict.reruns import layer_runs_again, mtp_runs_again, selective_reruns
from steptally.predict.roofline import LAUNCH_S, bound_product, product_dtype
from steptally.predict.stages import Chunk, chunks_of_stage
from steptally.predict.tiling import misaligned
from steptally.tally.rows import GemmRow


def predict_gemms(
    job: Job, rank: int = 0, device: Device | None = None, *, launch_s: float = LAUNCH_S
) -> list[GemmRow]:
    """Rows of equal products, in the order of the model and of the phases.

    With a `device`, each row also tells its tiles, waves and expected bound; `launch_s` is the time
    in seconds below which a kernel is bound by its launch. Raises `InputError` for a rank that the
    job does not have, or a device that lacks what this needs.
    """
    calls: Counter[Product] = Counter()
    for chunk in chunks_of_stage(job, coordinates(job.layout, rank).pp):
        for product, times in chunk_products(job, chunk, rank):
            calls[replace(product, calls=1)] += times * product.calls
    microbatches = job.layout.num_microbatches
    return [
        _row(job, product, count * microbatches, rank, device, launch_s)
        for product, count in calls.items()
    ]


def chunk_products(job: Job, chunk: Chunk, rank: int) -> Iterator[tuple[Product, int]]:
    """The products of one chunk and micro-batch, each with how often it happens."""
    kinds = layer_kinds(job)
    layers = Counter(
        (kinds[number], layer_runs_again(job, chunk, position))
        for position, number in enumerate(chunk.layers)
    )
    for (kind, again), count in layers.items():
        yield from _with_reruns(job, _layer_products(job, kind, rank), count, again)
    for kind in mtp_layer_kinds(job)[: chunk.mtp_layers]:
        inside = _of_mtp(_layer_products(job, kind, rank))
        products = [*linear_products(job, mtp_linear(job)), *inside]
        yield from _with_reruns(job, products, 1, mtp_runs_again(job))
    if chunk.head:
        yield from _head_products(job)


def _head_products(job: Job) -> Iterator[tuple[Product, int]]:
    """The LM head, and once more for the token of each multi-token-prediction depth."""
    head = linear_products(job, output_linear(job))
    yield from ((product, 1) for product in head)
    depths = job.architecture.mtp_num_layers or 0
    if depths:
        yield from ((product, depths) for product in _of_mtp(head))


def _of_mtp(products: Iterable[Product]) -> list[Product]:
    """The same products under the name that they have inside multi-token prediction."""
    return [replace(product, name=f"mtp.{product.name}") for product in products]


def _layer_products(job: Job, kind: LayerKind, rank: int) -> list[Product]:
    """Linear layers and, between input and output projection, core attention or a scan."""
    linears = [p for linear in layer_linears(job, kind) for p in linear_products(job, linear)]
    if kind.mixer == "none":
        return linears
    between = mamba_products(job) if kind.mixer == "mamba" else attention_products(job, kind, rank)
    last = "mamba.out_proj" if kind.mixer == "mamba" else "linear_proj"
    position = next(i for i, product in enumerate(linears) if product.name == last)
    return [*linears[:position], *between, *linears[position:]]


def _with_reruns(
    job: Job, products: Iterable[Product], count: int, again: bool
) -> Iterator[tuple[Product, int]]:
    """Each product `count` times, and its forward as often as recomputation runs it again."""
    for product in products:
        yield product, count
        reruns = again + selective_reruns(job, product.modules)
        if product.phase == FORWARD and reruns:
            yield replace(product, phase=RECOMPUTE), count * reruns


def _row(
    job: Job, product: Product, calls: int, rank: int, device: Device | None, launch_s: float
) -> GemmRow:
    dtype = product_dtype(job, product.precision, product.phase)
    size = product_bytes(job, product, dtype)
    row = GemmRow(
        name=product.name,
        phase=product.phase,
        m=product.m,
        n=product.n,
        k=product.k,
        batch=product.batch,
        calls=calls,
        flops=calls * product.flops,
        bytes=size,
        rank=rank,
        dtype=dtype,
        intensity=product.flops / size,
        cuts=product.cuts,
        misaligned=misaligned(product.m, product.n, product.k, dtype),
    )
    if device is None:
        return row
    bound = bound_product(
        device,
        m=product.m,
        n=product.n,
        batch=product.batch,
        flops=product.flops,
        size_bytes=size,
        dtype=dtype,
        launch_s=launch_s,
        fused=bool(product.on_chip),
    )
    capability = device.compute_capability
    row = replace(
        row,
        misaligned=misaligned(product.m, product.n, product.k, dtype, capability),
        bound=bound.bound,
        efficiency=bound.efficiency,
    )
    if bound.tiling is None:
        return row
    return replace(
        row,
        tile="×".join(map(str, bound.tiling.tile)),
        waves=bound.tiling.waves,
        tail_efficiency=bound.tiling.tail_efficiency,
    )


def product_bytes(job: Job, product: Product, dtype: str) -> int:
    """Bytes that one call moves at least: each operand read and the result written once.

    A weight gradient that is added to the main gradient in the same kernel
    (`gradient_accumulation_fusion`) reads and writes that one. Scores of a fused attention kernel
    stay on the chip.
    """
    elements = {
        "A": product.m * product.k,
        "B": product.k * product.n,
        "C": product.m * product.n,
    }
    if product.phase == WGRAD and job.recipe.gradient_accumulation_fusion:
        result = 2 * size_bytes(elements["C"], gradient_dtype(job))
    else:
        result = size_bytes(elements["C"], job.recipe.params_dtype)
    sizes = {
        "A": size_bytes(elements["A"], dtype),
        "B": size_bytes(elements["B"], dtype),
        "C": result,
    }
    return product.batch * sum(size for name, size in sizes.items() if name != product.on_chip)
