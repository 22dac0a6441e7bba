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
from typing import NamedTuple

from steptally.errors import InputError
from steptally.job import Job
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.count import Count
from steptally.predict.layers import count_layer_kinds
from steptally.predict.recompute import recomputed_layers, recomputed_modules
from steptally.predict.terms import Batch, Term, layer_terms, output_layer_term
from steptally.tally import FlopsRow


class StepFlops(NamedTuple):
    """FLOPs of one optimizer step over all ranks."""

    useful: Count
    executed: Count


class CountedTerm(NamedTuple):
    """A term, how many layers have it, and in how many of them it runs again in backward."""

    term: Term
    layers: int
    rerun_layers: int


def predict_flops(
    job: Job,
    convention: Convention = EXACT_CAUSAL,
    packed_lengths: Sequence[int] | None = None,
) -> list[FlopsRow]:
    """Rows of useful and executed FLOPs by term and phase: forward, backward, recompute.

    `packed_lengths` are the lengths in tokens of the documents that fill one sequence (attention
    stays inside a document); None means one document of `seq_length`. The convention decides what
    is useful; executed FLOPs are those of the kernels that the job runs. All are exact ints.
    """
    totals: dict[tuple[str, str], list[Count]] = {("embedding", "forward"): [0, 0]}
    for term, layers, rerun_layers in _step_terms(job, convention, packed_lengths):
        for phase, useful, executed in (
            ("forward", layers * term.useful, layers * term.executed),
            ("backward", 2 * layers * term.useful, layers * term.executed_backward),
            ("recompute", 0, rerun_layers * term.executed),
        ):
            if executed or phase != "recompute":
                total = totals.setdefault((term.name, phase), [0, 0])
                total[0] += useful
                total[1] += executed
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
    useful = executed = 0
    for term, layers, rerun_layers in _step_terms(job, convention, packed_lengths):
        useful += 3 * layers * term.useful
        executed += layers * (term.executed + term.executed_backward)
        executed += rerun_layers * term.executed
    return StepFlops(useful, executed)


def _step_terms(
    job: Job, convention: Convention, packed_lengths: Sequence[int] | None
) -> Iterator[CountedTerm]:
    batch = step_batch(job, packed_lengths)
    rerun = recomputed_layers(job)
    modules = recomputed_modules(job)
    for kind, layers in count_layer_kinds(job.architecture).items():
        for term in layer_terms(job, kind, batch, convention):
            selected = not modules.isdisjoint(term.modules)
            yield CountedTerm(term, layers, layers if selected else rerun.get(kind, 0))
    yield CountedTerm(output_layer_term(job, batch), 1, 0)


def step_batch(job: Job, packed_lengths: Sequence[int] | None = None) -> Batch:
    """The sequences of one step. Raises `InputError` for documents that do not fit in one."""
    seq = job.layout.seq_length
    if packed_lengths is None:
        return Batch(job.layout.global_batch_size, seq, (seq,))
    if not packed_lengths or min(packed_lengths) < 1 or sum(packed_lengths) > seq:
        raise InputError(
            f"packed lengths {list(packed_lengths)} add to {sum(packed_lengths)} tokens: they are "
            f"the documents of one sequence, at least 1 token each and at most seq_length {seq} "
            f"together."
        )
    return Batch(job.layout.global_batch_size, seq, tuple(packed_lengths))
