"""Closed forms over a job: needs neither torch nor polars."""

from steptally.predict.account import predict
from steptally.predict.convention import EXACT_CAUSAL, Convention
from steptally.predict.flops import StepFlops, flops_per_step, predict_flops
from steptally.predict.parameters import predict_parameters

__all__ = [
    "EXACT_CAUSAL",
    "Convention",
    "StepFlops",
    "flops_per_step",
    "predict",
    "predict_flops",
    "predict_parameters",
]
