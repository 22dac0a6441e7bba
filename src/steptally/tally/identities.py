"""What makes two rows the same line of an account, and which of their values are compared.

Every field of every row type is named in `IDENTITIES`: a key, a quantity, a word, or left out. A
test holds the table against `rows.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from steptally.tally.identity import Entry, Identity, Quantity, entry_of
from steptally.tally.straggler_identities import STRAGGLER_IDENTITIES
from steptally.tally.trace_identities import TIME, TRACE_IDENTITIES

TENSOR_CUTS = frozenset(
    {
        "tensor_model_parallel_size",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "sequence_parallel",
        "cp_comm_type",
        "seq_length",
        "micro_batch_size",
    }
)
# What else changes how large a message is: buckets of a stage, their padding, their dtype.
MESSAGE_CUTS = TENSOR_CUTS | {
    "world_size",
    "data_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "pipeline_model_parallel_layout",
    "num_distributed_optimizer_instances",
    "use_distributed_optimizer",
    "ddp_bucket_size",
    "overlap_grad_reduce",
    "bf16",
    "fp16",
    "fp8",
    "fp8_param_gather",
    "accumulate_allreduce_grads_in_fp32",
    "grad_reduce_in_bf16",
}
CHUNK_CUTS = frozenset({"pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"})


def _moving(rows: Sequence[Any]) -> Iterable[Entry]:
    return (entry_of(row) for row in rows if row.group_size != 1)


def _counted_steps(rows: Sequence[Any]) -> Iterable[Entry]:
    return (entry_of(row) for row in rows if not (row.traced or row.warmup))


def _bytes_of_calls(entry: Entry) -> int | None:
    return None if entry["bytes"] is None else entry["calls"] * entry["bytes"]


def _bytes_of_step(entry: Entry) -> int:
    known: int | None = entry["bytes_per_step"]
    return entry["calls_per_step"] * entry["bytes_per_call"] if known is None else known


def _most(unit: str, *names: str) -> tuple[Quantity, ...]:
    return tuple(Quantity(name=name, unit=unit, combine="max") for name in names)


def _typical_ns(*names: str, share_of: str = "") -> tuple[Quantity, ...]:
    """Durations as the median over steps: two runs have no step in common."""
    return tuple(
        Quantity(name=name, unit="ns", combine="median", share_of=share_of) for name in names
    )


IDENTITIES: dict[str, tuple[Identity, ...]] = {
    "flops": (
        Identity(
            keys=("phase",),
            names=("name",),
            quantities=(
                Quantity(name="executed", unit="FLOP"),
                Quantity(name="useful", unit="FLOP", under_convention=True),
            ),
        ),
    ),
    "elementwise": (
        Identity(
            keys=("name", "phase"),
            quantities=(Quantity(name="executed", unit="FLOP"),),
            left_out=("useful",),  # the same number
        ),
    ),
    "conventions": (
        Identity(
            keys=("name",),
            quantities=_most("FLOP", "useful"),
            words=("source",),
            left_out=("difference",),
            absent_is_zero=False,
        ),
    ),
    "logged": (
        Identity(
            keys=("name",),
            quantities=_most("FLOP/s", "counted_flops_per_s", "logged_flops_per_s"),
            left_out=("difference",),
            absent_is_zero=False,
        ),
    ),
    "loss": (
        Identity(
            keys=("iteration",),
            quantities=(
                *_most("", "loss"),
                *_most("token", "tokens"),
                *_most("s", "wall_time_s"),
                Quantity(name="useful_flops", unit="FLOP", combine="max", under_convention=True),
            ),
            absent_is_zero=False,
        ),
    ),
    "parameters": (
        Identity(
            keys=("name",),
            quantities=(
                Quantity(name="count", unit="parameter"),
                Quantity(name="active", unit="parameter"),
            ),
        ),
    ),
    "gemms": (
        Identity(
            keys=("rank", "phase"),
            names=("name",),
            sizes=("m", "n", "k", "batch"),
            cut_by=TENSOR_CUTS,
            quantities=(
                Quantity(name="flops", unit="FLOP"),
                Quantity(name="calls", unit="call"),
                Quantity(name="bytes", unit="byte", value=_bytes_of_calls),
            ),
            words=("dtype", "bound"),
            left_out=(
                *("waves", "tile", "tail_efficiency", "efficiency", "restore"),  # of a device
                *("intensity", "cuts", "misaligned"),  # follow from the shape and the layout
            ),
        ),
    ),
    "traffic": (
        Identity(
            keys=("rank", "group", "collective", "phase"),
            names=("name",),
            sizes=("group_size", "bytes_per_call"),
            cut_by=MESSAGE_CUTS,
            quantities=(
                Quantity(name="bytes_per_step", unit="byte", value=_bytes_of_step),
                Quantity(name="calls_per_step", unit="call"),
                Quantity(name="sent_bytes_per_step", unit="byte"),
                Quantity(name="network_bytes_per_step", unit="byte"),
            ),
            words=("scope", "dtype", "overlapped"),
            left_out=("overlap_flag",),
            entries=_moving,
            entries_note="collectives of a group of one rank move nothing and are left out",
        ),
    ),
    "groups": (
        Identity(
            keys=("rank", "group"),
            quantities=(*_most("rank", "group_size"), *_most("node", "nodes")),
            words=("ranks", "scope"),
            absent_is_zero=False,
            entries=_moving,
            entries_note="groups of one rank are left out",
        ),
    ),
    "memory": (
        Identity(
            keys=("rank", "lifetime"),
            names=("name",),
            sizes=("vpp",),
            cut_by=CHUNK_CUTS,
            quantities=(Quantity(name="bytes", unit="byte"),),
            left_out=("pp", "peak_bytes"),  # of the rank: account memory_peaks
        ),
    ),
    "memory_peaks": (
        Identity(
            keys=("rank",),
            quantities=_most(
                "byte",
                *("total_bytes", "peak_bytes", "first_step_peak_bytes"),
                *("checkpoint_peak_bytes", "outside_bytes"),
            ),
            words=("pp", "ranks", "in_flight", "event"),
            absent_is_zero=False,
        ),
    ),
    "programs": (
        Identity(
            keys=("rank",),
            quantities=(
                *_most("parameter", "parameters"),
                *_most("", "products", "collectives", "operators"),
            ),
            words=("pp", "ranks", "in_flight"),
            left_out=("rank_count", "microbatches"),
            absent_is_zero=False,
        ),
    ),
    "substitutions": (
        Identity(
            keys=("setting",),
            quantities=(Quantity(name="rehearsed", unit="", combine="max"),),
            words=("stated", "flops", "traffic", "memory"),
            left_out=("why",),
            absent_is_zero=False,
        ),
    ),
    "memory_timeline": (
        Identity(
            keys=("rank", "step", "event", "microbatch", "vpp"),
            quantities=_most("byte", "peak_bytes", "before_bytes", "after_bytes"),
            left_out=("position",),
            absent_is_zero=False,
        ),
    ),
    "memory_changes": (
        Identity(
            keys=("name",),
            quantities=(
                *_most("byte", "total_bytes"),
                *_most("FLOP", "flops_per_step_executed"),
            ),
            words=("fits", "cost"),
            left_out=("difference",),
            absent_is_zero=False,
        ),
    ),
    "time": TIME,
    **TRACE_IDENTITIES,
    **STRAGGLER_IDENTITIES,
    "steps": (
        Identity(
            keys=("rank",),
            quantities=_typical_ns("duration_ns"),
            left_out=("step", "tokens", "traced", "warmup", "loss", "grad_norm"),
            absent_is_zero=False,
            entries=_counted_steps,
            entries_note="warm-up and traced steps are left out",
        ),
        Identity(
            keys=("step",),
            quantities=(
                Quantity(name="loss", unit="", combine="median"),
                Quantity(name="grad_norm", unit="", combine="median"),
                *_most("token", "tokens"),
            ),
            left_out=("rank", "duration_ns", "traced", "warmup"),
            absent_is_zero=False,
        ),
    ),
}
