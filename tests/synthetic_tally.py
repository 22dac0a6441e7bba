"""A tally as a recorded run of the demo job fills it: 4 ranks, TP 2 with sequence parallel × DP 2.

The numbers are made up but hang together: parts of a step add up to its span, exposed groups to the
exposed time, and the FLOP terms to the summary.
"""

from __future__ import annotations

import math

from steptally.tally import (
    Figure,
    FlopsRow,
    GemmRow,
    GroupTime,
    MemoryRow,
    ParametersRow,
    StepRow,
    Tally,
    TimeRow,
    TrafficRow,
)

STEPS, WARMUP_STEPS, TRACED_STEPS = 20, 2, (19, 20)
TENSOR, DATA = "TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP"
USEFUL = "exact-causal: S(S+1)/2 pairs a head, padded vocabulary, no recompute"
EXECUTED = "what the matrix products are asked to do: the full square (attention_backend unfused)"
PEAK = "dense fp32 peak 136.2 GFLOP/s of this machine (2 cores, shared by its 4 ranks)"

# As `Job.as_json` writes it, written out: what the job package assumes may change, this may not.
DEMO_JOB: dict[str, object] = {
    "name": "demo",
    "source": "demo.yaml",
    "architecture": {
        "num_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "ffn_hidden_size": 640,
        "num_query_groups": 4,
        "kv_channels": 32,
        "vocab_size": 256,
        "position_embedding_type": "rope",
        "rotary_base": 10000.0,
        "swiglu": True,
        "num_experts": None,
    },
    "layout": {
        "world_size": 4,
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "sequence_parallel": True,
        "seq_length": 256,
        "micro_batch_size": 2,
        "global_batch_size": 16,
        "data_parallel_size": 2,
        "num_microbatches": 4,
        "recompute_modules": ["core_attn"],
    },
    "recipe": {
        "bf16": False,
        "fp16": False,
        "optimizer": "adam",
        "attention_backend": "unfused",
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "lr": 0.001,
    },
    "cluster": {"device": None, "devices_per_node": 8},
    "padded_vocab_size": 256,
    "assumed": [
        "ffn_hidden_size: 640 (Megatron's default, ⌊8h/3⌋ in units of 64: SwiGLU)",
        "kv_channels: 32 (hidden_size / num_attention_heads)",
        "rotary_base: 10000.0 (Megatron's default)",
        "lr: 0.001 (Megatron's default)",
    ],
    "unknown": [],
}
# (term, useful and executed FLOPs of the forward phase); backward is twice as many.
TERMS = (
    ("attention: QKV projection", 4_294_967_296, 4_294_967_296),
    ("attention: scores and values", 1_077_936_128, 2_147_483_648),
    ("attention: output projection", 2_147_483_648, 2_147_483_648),
    ("MLP", 16_911_433_728, 16_911_433_728),
    ("LM head", 536_870_912, 536_870_912),
)
USEFUL_FLOPS = 3 * sum(useful for _, useful, _ in TERMS)
EXECUTED_FLOPS = 3 * sum(executed for _, _, executed in TERMS)


def recorded_tally() -> Tally:
    """Everything that `measure` fills for a run that finished."""
    return Tally(
        basis="measured",
        job=DEMO_JOB,
        convention="exact-causal",
        summary=measured_summary(),
        accounts={
            "flops": flops_rows(),
            "gemms": gemm_rows(),
            "traffic": traffic_rows(),
            "time": [time_row(rank, step) for step in TRACED_STEPS for rank in range(4)],
            "steps": step_rows(),
            "memory": [
                MemoryRow(rank=rank, lifetime="step", name="peak resident set", bytes=size)
                for rank, size in enumerate((912_261_120, 905_969_664, 908_066_816, 901_775_360))
            ],
        },
        account_bases={"flops": "predicted"},
        warnings=("Steps spread by 8 % (min 1.18 s, max 1.27 s): run again on an idle machine.",),
        refusals=(
            "Inter-node traffic is not known: the run has one host. Record on several hosts.",
        ),
    )


def predicted_tally() -> Tally:
    """What `predict` fills without a device: no time, no MFU."""
    return Tally(
        basis="predicted",
        job=DEMO_JOB,
        convention="exact-causal",
        summary={
            "parameters_total": Figure(value=3_278_080, unit="parameter", basis="predicted"),
            "flops_per_step_useful": _predicted(USEFUL_FLOPS, USEFUL),
            "flops_per_step_executed": _predicted(EXECUTED_FLOPS, EXECUTED),
            "flops_per_token_useful": Figure(
                value=USEFUL_FLOPS / 4096, unit="FLOP/token", basis="predicted", convention=USEFUL
            ),
            "tokens_per_step": Figure(value=4096, unit="token", basis="predicted"),
            "mfu": Figure(value=None, unit="1", basis="predicted", convention=USEFUL),
        },
        accounts={
            "flops": flops_rows(),
            "parameters": [
                ParametersRow(name="embedding", count=65_536, active=65_536),
                ParametersRow(name="layers", count=3_212_544, active=3_212_544),
            ],
        },
        refusals=("MFU needs a device: state one with --device NAME (steptally knows A100, …).",),
    )


def killed_tally() -> Tally:
    """A run killed in its sixth step: rank 3 did not finish it, and nothing was traced."""
    rows = [row for row in step_rows() if row.step <= 6 and (row.step, row.rank) != (6, 3)]
    return Tally(
        basis="measured",
        job=DEMO_JOB,
        accounts={"steps": rows},
        warnings=("The run did not finish: rank 3 died with SIGKILL in step 6.",),
        refusals=("No rank left a trace: where the step went is not known. Run it again.",),
    )


def measured_summary() -> dict[str, Figure]:
    wall = "median of 16 untraced steps after warm-up, slowest rank; min 1.177 s, max 1.271 s"
    return {
        "step_time_s": _measured(1.209, "s", "slowest rank's wall", wall),
        "step_time_spread": _measured(0.078, "1", "(max − min) / median", "16 untraced steps"),
        "tokens_per_step": _measured(4096, "token", "global batch 16 × sequence 256", ""),
        "tokens_per_s": _measured(3387.9, "token/s", "whole job, median step", wall),
        "flops_per_step_useful": _predicted(USEFUL_FLOPS, USEFUL),
        "flops_per_step_executed": _measured(
            EXECUTED_FLOPS, "FLOP", "executed", "summed over the matrix products in 4 traces"
        ),
        "flops_per_step_executed_predicted": _predicted(EXECUTED_FLOPS, EXECUTED),
        "mfu": _measured(
            USEFUL_FLOPS / 1.209 / 136.2e9, "1", f"{USEFUL}; {PEAK}", f"useful / peak; {wall}"
        ),
        "hfu": _measured(
            EXECUTED_FLOPS / 1.209 / 136.2e9, "1", f"{EXECUTED}; {PEAK}", f"executed / peak; {wall}"
        ),
        "peak_memory_bytes_max": _measured(912_261_120, "byte", "peak resident set", "rank 0 of 4"),
        "tracing_cost": _measured(
            0.127, "1", "traced over untraced median step, minus 1", "2 traced steps"
        ),
    }


def flops_rows() -> list[FlopsRow]:
    return [
        FlopsRow(name=name, phase=phase, useful=times * useful, executed=times * executed)
        for phase, times in (("forward", 1), ("backward", 2))
        for name, useful, executed in TERMS
    ]


def gemm_rows() -> list[GemmRow]:
    shapes = (
        ("linear_fc1", "forward", 512, 1344, 256, 1, 16),
        ("linear_fc2", "forward", 512, 256, 672, 1, 16),
        ("linear_qkv", "forward", 512, 256, 256, 1, 16),
        ("core_attention", "forward", 256, 256, 32, 8, 32),
    )
    return [
        GemmRow(
            name=name,
            phase=phase,
            m=m,
            n=n,
            k=k,
            batch=batch,
            calls=calls,
            flops=2 * m * n * k * batch * calls,
            rank=rank,
        )
        for rank in range(4)
        for name, phase, m, n, k, batch, calls in shapes
    ]


def traffic_rows() -> list[TrafficRow]:
    kinds = (
        (TENSOR, "_allgather_base_", "forward", 36, 524_288),
        (TENSOR, "_reduce_scatter_base_", "forward", 36, 524_288),
        (TENSOR, "_allgather_base_", "backward", 72, 524_288),
        (DATA, "_reduce_scatter_base_", "backward", 2, 3_281_920),
        (DATA, "_allgather_base_", "optimizer", 2, 3_281_920),
    )
    return [
        TrafficRow(
            group=group,
            group_size=2,
            collective=collective,
            phase=phase,
            calls_per_step=calls,
            bytes_per_call=size,
            rank=rank,
        )
        for rank in range(4)
        for group, collective, phase, calls, size in kinds
    ]


def time_row(rank: int, step: int) -> TimeRow:
    compute = 912_000_000 + 9_000_000 * rank + 1_000_000 * (step - 19)
    tensor, data, shared = 221_000_000 - 8_000_000 * rank, 37_000_000, 6_000_000
    exposed, idle = tensor + data + shared, 121_000_000 + 13_500_000 * (rank % 2)
    overlap = 18_000_000
    return TimeRow(
        rank=rank,
        step=step,
        span_ns=compute + exposed + idle,
        busy_ns=compute + exposed,
        compute_ns=compute,
        communication_ns=exposed + overlap,
        overlap_ns=overlap,
        exposed_ns=exposed,
        idle_ns=idle,
        groups=(
            _group(TENSOR, 144, tensor, shared, overlap=0),
            _group(DATA, 4, data, shared, overlap=overlap),
        ),
    )


def step_rows() -> list[StepRow]:
    """Losses fall from ln 256, a uniform guess; the first step and traced ones are slow."""
    return [
        StepRow(
            step=step,
            rank=rank,
            duration_ns=_wall_ns(step, rank),
            tokens=4096,
            traced=step in TRACED_STEPS,
            warmup=step <= WARMUP_STEPS,
            loss=1.9 + (math.log(256) - 1.9) * math.exp(-(step - 1) / 6),
            grad_norm=2.5 / step,
        )
        for step in range(1, STEPS + 1)
        for rank in range(4)
    ]


def _wall_ns(step: int, rank: int) -> int:
    wall = 1_171_000_000 + (step * 7919 % 23) * 4_500_000 + rank * 400_000
    if step == 1:
        return wall * 3
    return wall + 150_000_000 if step in TRACED_STEPS else wall


def _group(name: str, instances: int, alone: int, shared: int, *, overlap: int) -> GroupTime:
    return GroupTime(
        group=name,
        instances=instances,
        communication_ns=alone + shared + overlap,
        overlap_ns=overlap,
        exposed_ns=alone + shared,
        exposed_alone_ns=alone,
    )


def _measured(value: float, unit: str, convention: str, origin: str) -> Figure:
    return Figure(value=value, unit=unit, basis="measured", convention=convention, origin=origin)


def _predicted(value: int, convention: str) -> Figure:
    return Figure(
        value=value,
        unit="FLOP",
        basis="predicted",
        convention=convention,
        origin="docs/formulas/flops.md",
    )
