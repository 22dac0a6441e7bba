"""The transformer's shape, in the names of Megatron-LM's command line."""

from __future__ import annotations

from dataclasses import dataclass, field

POSITION_EMBEDDINGS = ("learned_absolute", "rope", "mrope", "yarn", "relative", "none")
# Accounts list layers and experts one by one: a mistyped number must not keep them for hours.
MOST_LAYERS = 100_000
MOST_EXPERTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What is trained. Sizes are in elements, counts are counts; nothing here depends on a GPU.

    Every field is resolved: a value that a source leaves open has been filled with Megatron-LM's
    own default (`job.resolve`) and is named in `Job.assumed`.
    """

    num_layers: int = field(metadata={"at_most": MOST_LAYERS})
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    make_vocab_size_divisible_by: int = 128
    padded_vocab_size: int | None = None
    max_position_embeddings: int | None = None
    position_embedding_type: str = field(
        default="learned_absolute", metadata={"choices": POSITION_EMBEDDINGS}
    )
    rotary_base: float = field(default=10000.0, metadata={"above": 0})
    rotary_percent: float = field(default=1.0, metadata={"above": 0, "at_most": 1})
    normalization: str = field(
        default="LayerNorm", metadata={"choices": ("LayerNorm", "RMSNorm", "L2Norm")}
    )
    norm_epsilon: float = field(default=1e-5, metadata={"at_least": 0})
    qk_layernorm: bool = False
    attention_output_gate: bool = False
    softmax_type: str = field(
        default="vanilla", metadata={"choices": ("vanilla", "off-by-one", "learnable")}
    )
    swiglu: bool = False
    quick_geglu: bool = False
    squared_relu: bool = False
    # Two shapes that Megatron-LM's command line has no flag for; Megatron-Bridge builds both.
    geglu: bool = False  # a gate with plain GELU (Gemma)
    post_layer_norms: bool = False  # a further norm after attention and after the MLP (Gemma 2, 3)
    add_bias_linear: bool = True
    add_qkv_bias: bool = False
    untie_embeddings_and_output_weights: bool = False

    # Attention over less than the whole prefix. `window_size` is the number of keys that a query
    # sees, itself included: Megatron's --window-size LEFT,RIGHT is read as LEFT + 1.
    window_size: int | None = None
    window_attn_skip_freq: int | tuple[int, ...] | None = None
    attention_chunk_size: int | None = None

    # Mixture of experts.
    num_experts: int | None = field(default=None, metadata={"at_most": MOST_EXPERTS})
    moe_layer_freq: int | tuple[int, ...] = 1
    moe_router_topk: int = 2
    moe_ffn_hidden_size: int | None = None
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_latent_size: int | None = None

    # Multi-latent attention.
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 32
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128

    # Multi-token prediction, and hybrid Mamba layers.
    mtp_num_layers: int | None = field(default=None, metadata={"at_most": MOST_LAYERS})
    hybrid_override_pattern: str | None = None
    mamba_state_dim: int = 128
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_num_heads: int | None = None

    @property
    def gated_linear_unit(self) -> bool:
        """Whether the MLP has a gate: two matrices up and one down instead of one and one."""
        return self.swiglu or self.quick_geglu or self.geglu

    @property
    def query_projection_size(self) -> int:
        """Width of all query heads together; differs from hidden_size where kv_channels is set."""
        return self.kv_channels * self.num_attention_heads
