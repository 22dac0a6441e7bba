"""The memory of every rank: what lives for the run, an iteration, a micro-batch, an operation."""

from steptally.predict.memory.account import memory_of_ranks, predict_memory
from steptally.predict.memory.changes import predict_changes
from steptally.predict.memory.stage import StageMemory, all_stages
from steptally.predict.memory.tally import memory_tally

__all__ = [
    "StageMemory",
    "all_stages",
    "memory_of_ranks",
    "memory_tally",
    "predict_changes",
    "predict_memory",
]
