"""Runs the real Megatron-Core code of any rank of any world on fake tensors, and counts it.

Whatever is counted here was done by megatron-core's own operators and collectives, never derived
from `predict`: that is what makes the two comparable.
"""
