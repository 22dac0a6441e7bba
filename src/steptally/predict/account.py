"""The predicted tally of a job: its FLOPs and parameters, each figure with its convention."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.job import Job
from steptally.predict.attention_kernel import attention_kernel, attention_kernel_assumption
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.flops import predict_flops, step_batch
from steptally.predict.named_model import named_model_warning
from steptally.predict.parameters import EMBEDDINGS, predict_parameters
from steptally.tally import Figure, FlopsRow, ParametersRow, Tally


def predict(
    job: Job,
    convention: Convention = EXACT_CAUSAL,
    packed_lengths: Sequence[int] | None = None,
) -> Tally:
    """Fill a tally from closed forms: accounts `flops` and `parameters`, and their sums.

    `packed_lengths` are the documents of one sequence, in tokens (None: one of `seq_length`).

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings(
    ...     {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
    ...      "vocab_size": 128, "transformer_impl": "local"})
    >>> predict(job).summary["flops_per_step_useful"].value
    21258240
    """
    flops = predict_flops(job, convention, packed_lengths)
    parameters = predict_parameters(job)
    tokens = step_batch(job, packed_lengths).useful_tokens
    warnings = (
        *job.notes,
        named_model_warning(job, parameters),
        attention_kernel_assumption(job),
    )
    return Tally(
        basis="predicted",
        job=job.as_json(),
        convention=convention.name,
        summary={
            **parameter_figures(parameters),
            **flops_figures(job, flops, tokens, convention),
        },
        accounts={"flops": flops, "parameters": parameters},
        warnings=tuple(warning for warning in warnings if warning is not None),
    )


def parameter_figures(rows: Sequence[ParametersRow]) -> dict[str, Figure]:
    """Sums of the parameter rows: all, active, and those that are embeddings."""
    total = sum(row.count for row in rows)
    embedding = sum(row.count for row in rows if row.name in EMBEDDINGS)
    values = {
        "parameters_total": (total, "as built: padded vocabulary, tied weights once"),
        "parameters_active": (sum(row.active for row in rows), "what one token passes through"),
        "parameters_embedding": (embedding, "word and position embeddings and the LM head"),
        "parameters_without_embedding": (total - embedding, "parameters_total − embedding"),
    }
    return {
        name: Figure(value=value, unit="parameter", basis="predicted", origin=origin)
        for name, (value, origin) in values.items()
    }


def flops_figures(
    job: Job, rows: Sequence[FlopsRow], tokens: int, convention: Convention
) -> dict[str, Figure]:
    """Sums of the FLOP rows, per step and per token."""
    useful = sum(row.useful for row in rows)
    executed = sum(row.executed for row in rows)
    kernel = f"{attention_kernel(job)} attention, recompute and padding included"
    return {
        "flops_per_step_useful": _flop_figure(useful, "FLOP", convention.name, "all ranks"),
        "flops_per_step_executed": _flop_figure(executed, "FLOP", "executed", kernel),
        "flops_per_token_useful": _flop_figure(
            _quotient(useful, tokens), "FLOP/token", convention.name, "per step / tokens_per_step"
        ),
        "tokens_per_step": Figure(
            value=tokens,
            unit="token",
            basis="predicted",
            origin="global_batch_size · tokens of a sequence",
        ),
    }


def _flop_figure(value: int | float, unit: str, convention: str, origin: str) -> Figure:
    return Figure(value=value, unit=unit, basis="predicted", convention=convention, origin=origin)


def _quotient(dividend: int, divisor: int) -> int | float:
    """An exact int where it divides, else the nearest float."""
    whole, rest = divmod(dividend, divisor)
    return whole if rest == 0 else dividend / divisor
