"""Every convention by name, and conversion of a figure from one to another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from steptally.errors import InputError, did_you_mean
from steptally.job import Job
from steptally.predict import approximations
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.flops import useful_flops
from steptally.predict.megatron_lm import bridge_flops, megatron_lm_flops

FULL_ATTENTION = Convention(
    name="full-attention",
    summary="as exact-causal, with S² pairs a head in every attention layer",
    source="steptally: docs/conventions.md",
    full_attention=True,
)

ALL = (
    EXACT_CAUSAL,
    FULL_ATTENTION,
    Convention(
        name="megatron-lm",
        summary="S²/2 pairs, no windows, three MLP matrices for swiglu only, no router, MTP",
        source=(
            "NVIDIA/Megatron-LM megatron/training/training.py, "
            "1fdd0e1b407a269baf6a3a9bedf37b39314e2702 (2026)"
        ),
        formula=megatron_lm_flops,
    ),
    Convention(
        name="bridge",
        summary="as megatron-lm, with exact windows and three MLP matrices for every gate",
        source=(
            "NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/training/utils/flop_utils.py, "
            "0494433be0f526f59f7ad56bec005279af32c375 (2026)"
        ),
        formula=bridge_flops,
    ),
    Convention(
        name="megatron-2024",
        summary="S² pairs, three MLP matrices for swiglu only, experts in every layer, no router",
        source="NVIDIA/Megatron-LM core_r0.6 to core_r0.9, megatron/training/training.py (2024)",
        formula=approximations.megatron_2024,
    ),
    Convention(
        name="sc21",
        summary="S² pairs, and every layer run again in backward (full recomputation)",
        source="Narayanan et al. 2021, arXiv:2104.04473, equation 3",
        full_attention=True,
        recompute=True,
    ),
    Convention(
        name="korthikanti",
        summary="S² pairs, no recompute: 72BLsh²(1 + s/6h + v/12hL) for a GPT",
        source="Korthikanti et al. 2022, arXiv:2205.05198, equation 7",
        full_attention=True,
    ),
    Convention(
        name="korthikanti-hfu",
        summary="korthikanti with recompute; selective recompute counts attention twice",
        source="Korthikanti et al. 2022, arXiv:2205.05198, appendix A",
        formula=approximations.korthikanti_hfu,
    ),
    Convention(
        name="palm",
        summary="6N + 12LHQS a token, N the active parameters with embeddings",
        source="Chowdhery et al. 2022, arXiv:2204.02311, appendix B",
        formula=approximations.palm,
    ),
    Convention(
        name="mpt",
        summary="6N + 12LdS a token, N all parameters with embeddings",
        source="mosaicml/llm-foundry scripts/train/benchmarking/README.md, 8c8dd48f7216",
        formula=approximations.mpt,
    ),
    Convention(
        name="hfu-4/3",
        summary="4/3 of mpt, whatever activation checkpointing runs again",
        source="mosaicml/llm-foundry scripts/train/benchmarking/README.md, 8c8dd48f7216",
        formula=approximations.mpt_hfu,
    ),
    Convention(
        name="torchtitan",
        summary="6(N − token embedding) + 12LHQS a token",
        source="pytorch/torchtitan, get_nparams_and_flops (2025)",
        formula=approximations.torchtitan,
    ),
    Convention(
        name="6n",
        summary="6N a token, N the active parameters with embeddings",
        source="Hoffmann et al. 2022, arXiv:2203.15556, appendix F",
        formula=approximations.six_n,
    ),
    Convention(
        name="6n-all",
        summary="6N a token, N all parameters, idle experts included",
        source="common scripts; see docs/conventions.md",
        formula=approximations.six_n_all,
    ),
    Convention(
        name="6n-without-embedding",
        summary="6N a token, N the active parameters without embeddings and LM head",
        source="Kaplan et al. 2020, arXiv:2001.08361, section 2.1",
        formula=approximations.six_n_without_embedding,
    ),
    Convention(
        name="8n-without-embedding",
        summary="8N a token, N the parameters of the layers: forward, backward, recomputation",
        source="bigscience-workshop/Megatron-DeepSpeed before its #251 (2022-02-21)",
        formula=approximations.eight_n_without_embedding,
    ),
)

CONVENTIONS: Mapping[str, Convention] = {convention.name: convention for convention in ALL}

# What people quote instead of counting; `count` prints each beside the exact figure.
APPROXIMATIONS = ("6n", "6n-without-embedding", "6n-all", "palm", "megatron-lm")


def find_convention(name: str) -> Convention:
    """The convention of this name; raises `InputError` that lists them.

    >>> find_convention("megatron-lm").name
    'megatron-lm'
    """
    found = CONVENTIONS.get(name.strip().lower())
    if found is None:
        raise InputError(
            f"convention {name!r} is not known{did_you_mean(name, CONVENTIONS)}: it must be one of "
            f"{', '.join(CONVENTIONS)}."
        )
    return found


def convert(
    figure: float,
    source: Convention,
    target: Convention,
    job: Job,
    packed_lengths: Sequence[int] | None = None,
) -> float:
    """A published or logged figure (TFLOP/s, MFU, FLOPs) as the target convention would give it.

    The step time behind both is the same, so the figure scales with the FLOPs that each counts.

    >>> from steptally.job import read_job
    >>> job = read_job("gpt3-175b")
    >>> round(convert(0.514, CONVENTIONS["korthikanti"], EXACT_CAUSAL, job), 4)
    0.507
    """
    counted = useful_flops(job, source, packed_lengths)
    wanted = useful_flops(job, target, packed_lengths)
    return float(Fraction(wanted) / Fraction(counted)) * figure
