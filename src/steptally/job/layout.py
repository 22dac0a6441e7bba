"""How the work is split over ranks and over time, in the names of Megatron-LM's command line."""

from __future__ import annotations

from dataclasses import dataclass, field

# Accounts list ranks one by one: a mistyped number must not keep them for hours.
MOST_RANKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Parallel sizes (ranks), batch sizes (sequences), sequence length (tokens), recomputation.

    `world_size` is the number of ranks; data parallelism is what is left of it after tensor,
    pipeline and context parallelism.
    """

    world_size: int = field(metadata={"at_most": MOST_RANKS})
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    sequence_parallel: bool = False
    use_tp_pp_dp_mapping: bool = False

    decoder_first_pipeline_num_layers: int | None = None
    decoder_last_pipeline_num_layers: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str | None = None
    microbatch_group_size_per_vp_stage: int | None = None

    seq_length: int
    micro_batch_size: int
    global_batch_size: int
    rampup_batch_size: tuple[int, ...] | None = None  # start, increment, samples until full

    recompute_granularity: str | None = field(
        default=None, metadata={"choices": ("full", "selective")}
    )
    recompute_method: str | None = field(default=None, metadata={"choices": ("uniform", "block")})
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] = ("core_attn",)
    distribute_saved_activations: bool = False

    cp_comm_type: str = field(
        default="p2p", metadata={"choices": ("p2p", "a2a", "allgather", "a2a+p2p")}
    )
    num_distributed_optimizer_instances: int = 1

    @property
    def data_parallel_size(self) -> int:
        """Replicas of the model: world / (tp · pp · cp)."""
        return self.world_size // self.model_parallel_size

    @property
    def model_parallel_size(self) -> int:
        """Ranks that hold one copy of the model and one sequence: tp · pp · cp."""
        return (
            self.tensor_model_parallel_size
            * self.pipeline_model_parallel_size
            * self.context_parallel_size
        )

    @property
    def num_microbatches(self) -> int:
        """Micro-batches that one pipeline runs in a step: global / (micro · dp)."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel_size)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, over all ranks."""
        return self.global_batch_size * self.seq_length

    @property
    def order(self) -> str:
        """The order in which ranks are numbered, innermost first, as Megatron spells it."""
        return "tp-cp-ep-pp-dp" if self.use_tp_pp_dp_mapping else "tp-cp-ep-dp-pp"
