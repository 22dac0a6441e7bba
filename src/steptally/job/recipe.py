"""Precision, kernels, fusions, overlap and optimizer: everything else that changes a step."""

from __future__ import annotations

from dataclasses import dataclass, field

OPTIMIZERS = ("adam", "sgd", "muon", "dist_muon", "adaptive_muon", "lion", "soap")
STATE_DTYPES = ("fp32", "fp16", "bf16", "fp8")
NOT_NEGATIVE = {"at_least": 0}
PROBABILITY = {"at_least": 0, "at_most": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings that leave the model and its split alone, with Megatron-LM's defaults."""

    # Precision. Neither bf16 nor fp16 means fp32.
    bf16: bool = False
    fp16: bool = False
    fp8: str | None = field(default=None, metadata={"choices": ("hybrid", "e4m3")})
    fp8_recipe: str = field(
        default="delayed",
        metadata={"choices": ("delayed", "tensorwise", "mxfp8", "blockwise", "custom")},
    )
    fp8_param_gather: bool = False
    fp4: str | None = None
    accumulate_allreduce_grads_in_fp32: bool = False
    grad_reduce_in_bf16: bool = False

    # Layer implementation and kernels.
    transformer_impl: str = field(
        default="transformer_engine", metadata={"choices": ("local", "transformer_engine")}
    )
    attention_backend: str = field(
        default="auto", metadata={"choices": ("auto", "flash", "fused", "unfused", "local")}
    )
    masked_softmax_fusion: bool = True
    bias_gelu_fusion: bool = True
    bias_swiglu_fusion: bool = True
    bias_dropout_fusion: bool = True
    apply_rope_fusion: bool = True
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: str = field(
        default="native", metadata={"choices": ("native", "te", "linear")}
    )
    gradient_accumulation_fusion: bool = True
    attention_softmax_in_fp32: bool = False
    cuda_graph_impl: str = field(
        default="none",
        metadata={"choices": ("none", "local", "transformer_engine", "full_iteration")},
    )

    # Communication and its overlap.
    tp_comm_overlap: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_p2p_communication: bool = True
    ddp_bucket_size: int | None = field(default=None, metadata={"at_least": 1})
    ddp_average_in_collective: bool = False

    # Experts.
    moe_token_dispatcher_type: str = field(
        default="allgather", metadata={"choices": ("allgather", "alltoall", "flex")}
    )
    moe_grouped_gemm: bool = False
    moe_permute_fusion: bool = False
    moe_router_dtype: str | None = field(default=None, metadata={"choices": ("fp32", "fp64")})
    moe_router_load_balancing_type: str = "aux_loss"
    moe_aux_loss_coeff: float = field(default=0.0, metadata=NOT_NEGATIVE)
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_shared_expert_overlap: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False

    # Regularisation, optimizer, randomness.
    attention_dropout: float = field(default=0.1, metadata=PROBABILITY)
    hidden_dropout: float = field(default=0.1, metadata=PROBABILITY)
    init_method_std: float = field(default=0.02, metadata=NOT_NEGATIVE)
    optimizer: str = field(default="adam", metadata={"choices": OPTIMIZERS})
    use_distributed_optimizer: bool = False
    use_precision_aware_optimizer: bool = False
    main_grads_dtype: str = field(default="fp32", metadata={"choices": ("fp32", "bf16")})
    main_params_dtype: str = field(default="fp32", metadata={"choices": ("fp32", "fp16")})
    exp_avg_dtype: str = field(default="fp32", metadata={"choices": STATE_DTYPES})
    exp_avg_sq_dtype: str = field(default="fp32", metadata={"choices": STATE_DTYPES})
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = field(default=1.0, metadata=PROBABILITY)
    lr: float = field(default=1e-3, metadata=NOT_NEGATIVE)
    weight_decay: float = field(default=0.01, metadata=NOT_NEGATIVE)
    clip_grad: float = field(default=1.0, metadata=NOT_NEGATIVE)
    adam_beta1: float = field(default=0.9, metadata=PROBABILITY)
    adam_beta2: float = field(default=0.999, metadata=PROBABILITY)
    adam_eps: float = field(default=1e-8, metadata=NOT_NEGATIVE)
    seed: int = field(default=1234, metadata=NOT_NEGATIVE)

    # How long it trains: by iterations or by samples.
    train_iters: int | None = None
    train_samples: int | None = None

    @property
    def params_dtype(self) -> str:
        """The dtype of parameters and matrix products: `fp32`, `bf16` or `fp16`."""
        if self.bf16:
            return "bf16"
        return "fp16" if self.fp16 else "fp32"
