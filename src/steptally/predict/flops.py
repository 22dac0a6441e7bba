"""FLOPs of one optimizer step, useful and executed, exact, summed over all ranks.

>>> from steptally.job import job_from_settings
>>> job = job_from_settings(
...     {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
...      "vocab_size": 128, "transformer_impl": "local"})
>>> flops_per_step(job)
StepFlops(useful=21258240, executed=22020096)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from steptally.errors import InputError
from steptally.job import Job
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.count import Count
from steptally.predict.layers import count_layer_kinds, mtp_layer_kinds
from steptally.predict.model_terms import (
    layer_terms,
    mtp_layer_terms,
    output_layer_term,
)
from steptally.predict.recompute import (
    recomputed_layers,
    recomputed_mtp_layers,
)
from steptally.predict.reruns import selective_reruns
from steptally.predict.terms import Batch, Term, batch_of
from steptally.tally import FlopsRow


class StepFlops(NamedTuple):
    """FLOPs of one optimizer step over all ranks."""

    useful: Count
    executed: Count


# A term, how many layers have it, and how often it runs again in backward over all of them.
CountedTerm: TypeAlias = tuple[Term, int, int]


def predict_flops(
    job: Job,
    convention: Convention = EXACT_CAUSAL,
    packed_lengths: Sequence[int] | None = None,
) -> list[FlopsRow]:
    """Rows of useful and executed FLOPs by term and phase: forward, backward, recompute.

    `packed_lengths` are the lengths in tokens of the documents that fill one sequence (attention
    stays inside a document); None means one document of `seq_length`. The convention decides what
    is useful; executed FLOPs are those of the kernels that the job runs. All are exact ints. A
    convention with a formula of its own has one useful row, of the whole step.
    """
    batch = step_batch(job, packed_lengths)
    totals: dict[tuple[str, str], list[Count]] = {("embedding", "forward"): [0, 0]}
    for term, layers, rerun_layers in step_terms(job, convention, batch):
        for phase, useful, executed in (
            ("forward", layers * term.useful, layers * term.executed),
            ("backward", 2 * layers * term.useful, layers * term.executed_backward),
            ("recompute", 0, rerun_layers * term.executed),
        ):
            if executed or phase != "recompute":
                total = totals.setdefault((term.name, phase), [0, 0])
                total[0] += 0 if convention.formula else useful
                total[1] += executed
    by_formula = _useful_beside_terms(job, convention, batch)
    if by_formula:
        totals[("whole step", "step")] = [by_formula, 0]
    return [
        FlopsRow(name=name, phase=phase, useful=useful, executed=executed)
        for (name, phase), (useful, executed) in totals.items()
    ]


def flops_per_step(
    job: Job,
    convention: Convention = EXACT_CAUSAL,
    packed_lengths: Sequence[int] | None = None,
) -> StepFlops:
    """The sums of `predict_flops`, without its rows."""
    batch = step_batch(job, packed_lengths)
    useful = executed = 0
    for term, layers, rerun_layers in step_terms(job, convention, batch):
        useful += 3 * layers * term.useful
        executed += layers * (term.executed + term.executed_backward)
        executed += rerun_layers * term.executed
    if convention.formula:
        useful = 0
    return StepFlops(useful + _useful_beside_terms(job, convention, batch), executed)


def useful_flops(
    job: Job,
    convention: Convention = EXACT_CAUSAL,
    packed_lengths: Sequence[int] | None = None,
) -> Count:
    """Useful FLOPs of a step alone."""
    if convention.formula:
        return convention.formula(job, step_batch(job, packed_lengths))
    return flops_per_step(job, convention, packed_lengths).useful


def matmul_parameters(job: Job) -> int:
    """Weights that one token is multiplied with: linear layers of active experts, and the LM head.

    What 6N stands for: no embedding lookup, no norm, no bias, no idle expert.
    """
    batch = batch_of(1, job.layout.seq_length)
    weights = sum(
        layers * term.useful
        for term, layers, _ in step_terms(job, EXACT_CAUSAL, batch)
        if not term.name.removeprefix("mtp.").startswith(("core_attention", "mamba.scan"))
    )
    return int(weights // (2 * job.layout.seq_length))


def _useful_beside_terms(job: Job, convention: Convention, batch: Batch) -> Count:
    """What a convention counts that is no product forward or backward of a term."""
    if convention.formula:
        return convention.formula(job, batch)
    if not convention.recompute:
        return 0
    return sum(
        layers * term.useful
        for kind, layers in count_layer_kinds(job.architecture).items()
        for term in layer_terms(job, kind, batch, convention)
    )


def step_terms(job: Job, convention: Convention, batch: Batch) -> Iterator[CountedTerm]:
    """Every term of the model: decoder layers by kind, the LM head, and MTP modules."""
    rerun = recomputed_layers(job)
    selective = job.layout.recompute_granularity == "selective"
    for kind, layers in count_layer_kinds(job.architecture).items():
        rerun_layers = rerun.get(kind, 0)
        for term in layer_terms(job, kind, batch, convention):
            again = layers * selective_reruns(job, term.modules) if selective else rerun_layers
            yield term, layers, again
    head = output_layer_term(job, batch)
    yield head, 1, 0
    modules = job.architecture.mtp_num_layers
    if not modules:
        return
    rerun_layers = recomputed_mtp_layers(job)
    for term in mtp_layer_terms(job, mtp_layer_kinds(job)[0], batch, convention):
        again = modules * selective_reruns(job, term.modules) if selective else rerun_layers
        yield term, modules, again
    yield Term("mtp.output_layer", *head[1:]), modules, 0


def step_batch(job: Job, packed_lengths: Sequence[int] | None = None) -> Batch:
    """The sequences of one step. Raises `InputError` for documents that do not fit in one."""
    seq = job.layout.seq_length
    if packed_lengths is None:
        return batch_of(job.layout.global_batch_size, seq)
    if not packed_lengths or min(packed_lengths) < 1 or sum(packed_lengths) > seq:
        raise InputError(
            f"packed lengths {list(packed_lengths)} add to {sum(packed_lengths)} tokens: they are "
            f"the documents of one sequence, at least 1 token each and at most seq_length {seq} "
            f"together."
        )
    return batch_of(job.layout.global_batch_size, seq, tuple(packed_lengths))
