"""The predicted tally of a job: its FLOPs and parameters, each figure with its convention."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from steptally.job import Job
from steptally.job.training_faults import training_faults
from steptally.predict.attention_kernel import attention_kernel, attention_kernel_assumption
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.conventions import APPROXIMATIONS, CONVENTIONS
from steptally.predict.count import Count
from steptally.predict.elementwise import elementwise_flops
from steptally.predict.flops import (
    matmul_parameters,
    predict_flops,
    step_batch,
    useful_flops,
)
from steptally.predict.named_model import named_model_warnings
from steptally.predict.parameters import EMBEDDINGS, predict_parameters
from steptally.tally import ConventionRow, Figure, FlopsRow, ParametersRow, Tally

# Settings of Megatron that change what is multiplied, and that no formula here counts.
CHANGES_PRODUCTS = {
    "experimental_attention_variant": "its attention layers are not counted as what they are",
    "linear_attention_freq": "its linear attention layers are counted as softmax attention",
    "heterogeneous_layers_config_path": "its layers differ, and are counted as if they were alike",
    "heterogeneous_layers_config_encoded_json": "its layers differ, and are counted as if alike",
    "hybrid_attention_ratio": "give the layers as hybrid_override_pattern",
    "hybrid_mlp_ratio": "give the layers as hybrid_override_pattern",
    "retro_add_retriever": "the retriever is not counted",
    "freeze_all_layers": "frozen layers have no weight gradient, and are counted with one",
    "decoder_seq_length": "the decoder is counted at seq_length; override that",
    "reset_attention_mask": "attention stays inside documents: give their --packed-lengths",
}


def predict(
    job: Job,
    convention: Convention = EXACT_CAUSAL,
    packed_lengths: Sequence[int] | None = None,
) -> Tally:
    """Fill a tally from closed forms: accounts `flops` and `parameters`, and their sums.

    `packed_lengths` are the documents of one sequence, in tokens (None: one of `seq_length`).
    Beside them stand `elementwise`, which no MFU counts, and `conventions`, the same step as
    others count it.

    >>> from steptally.job import job_from_settings
    >>> job = job_from_settings(
    ...     {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32,
    ...      "vocab_size": 128, "transformer_impl": "local"})
    >>> predict(job).summary["flops_per_step_useful"].value
    21258240
    """
    flops = predict_flops(job, convention, packed_lengths)
    parameters = predict_parameters(job)
    elementwise = elementwise_flops(job, packed_lengths)
    tokens = step_batch(job, packed_lengths).useful_tokens
    return Tally(
        basis="predicted",
        job=job.as_json(),
        convention=convention.name,
        summary={
            **parameter_figures(parameters),
            "parameters_matmul_active": Figure(
                value=matmul_parameters(job),
                unit="parameter",
                basis="predicted",
                origin="weights that one token is multiplied with: what 6N stands for",
            ),
            **flops_figures(job, flops, tokens, convention),
            "elementwise_flops_per_step": _flop_figure(
                sum(elementwise.values()), "FLOP", "elementwise", "beside the matrix products"
            ),
        },
        accounts={
            "flops": flops,
            "elementwise": [
                FlopsRow(name=name, phase="step", useful=count, executed=count)
                for name, count in elementwise.items()
            ],
            "conventions": convention_rows(job, packed_lengths),
            "parameters": parameters,
        },
        warnings=(
            *job.notes,
            *training_faults(job),
            *named_model_warnings(job, parameters),
            *assumptions(job),
        ),
        refusals=not_counted(job),
    )


def assumptions(job: Job) -> tuple[str, ...]:
    """What the executed FLOPs rest on that the job does not state."""
    found = [attention_kernel_assumption(job)]
    factor = job.recipe.moe_expert_capacity_factor
    if factor is not None and not job.recipe.moe_pad_expert_input_to_capacity:
        found.append(
            f"moe_expert_capacity_factor is {factor:g} without padding: how many tokens are "
            f"dropped depends on the data; balanced routing is assumed for the executed FLOPs."
        )
    return tuple(sentence for sentence in found if sentence is not None)


def not_counted(job: Job) -> tuple[str, ...]:
    """Settings of the job that change its products in a way that no formula here knows."""
    return tuple(
        f"{name} = {value}: {why}; the FLOPs are those of the model without it."
        for name, value in job.unknown.items()
        if (why := CHANGES_PRODUCTS.get(name)) is not None
    )


def convention_rows(
    job: Job, packed_lengths: Sequence[int] | None = None, names: Sequence[str] = APPROXIMATIONS
) -> list[ConventionRow]:
    """The same step under other conventions, and how far each is from the exact count."""
    exact = useful_flops(job, EXACT_CAUSAL, packed_lengths)
    rows = []
    for name in names:
        useful = useful_flops(job, CONVENTIONS[name], packed_lengths)
        rows.append(
            ConventionRow(
                name=name,
                useful=whole_or_nearest(useful),
                difference=float(Fraction(useful) / Fraction(exact)) - 1,
                source=CONVENTIONS[name].source,
            )
        )
    return rows


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
    useful = whole_or_nearest(sum(row.useful for row in rows))
    executed = sum(row.executed for row in rows)
    kernel = f"{attention_kernel(job)} attention, recompute and padding included"
    per_token = whole_or_nearest(Fraction(useful) / tokens)
    return {
        "flops_per_step_useful": _flop_figure(useful, "FLOP", convention.name, convention.summary),
        "flops_per_step_executed": _flop_figure(executed, "FLOP", "executed", kernel),
        "flops_per_token_useful": _flop_figure(
            per_token, "FLOP/token", convention.name, "per step / tokens_per_step"
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


def whole_or_nearest(count: Count) -> int | float:
    """An exact int where it is whole, else the nearest float."""
    exact = Fraction(count)
    return exact.numerator if exact.denominator == 1 else float(exact)
