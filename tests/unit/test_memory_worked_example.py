"""The worked example of docs/formulas/memory.md, number by number."""

from pathlib import Path

from steptally.job import job_from_settings
from steptally.predict.memory.stage import all_stages

DOCS = Path(__file__).parents[2] / "docs" / "formulas" / "memory.md"
EXAMPLE = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "ffn_hidden_size": 768,
    "swiglu": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
    "seq_length": 128,
    "vocab_size": 256,
    "hidden_dropout": 0,
    "attention_dropout": 0,
    "attention_backend": "flash",
    "bf16": True,
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "cross_entropy_loss_fusion": True,
    "cross_entropy_fusion_impl": "te",
    "world_size": 4,
    "micro_batch_size": 2,
    "global_batch_size": 16,
}


def test_the_worked_example_of_the_docs_gives_its_integers():
    (stage,) = all_stages(job_from_settings(EXAMPLE))
    sizes = {line.name: line.bytes for line in stage.lines}
    layer = next(segment for segment in stage.segments[0] if segment.name == "layer")
    numbers = {
        "parameters": (sizes["parameters (bf16)"], 3_281_408),
        "optimizer": (
            sum(sizes[f"{name} (fp32)"] for name in ("main parameters", "exp_avg", "exp_avg_sq")),
            9_844_224,
        ),
        "gradients": (sizes["gradient buffer (fp32)"], 6_562_816),
        "layer": (sum(operation.saved for operation in layer.operations), 1_053_696),
        "activations": (stage.activation_peak, 4_680_704),
        "dummies": (sizes["workspace: dummy weight gradients"], 851_968),
        "peak": (stage.peak, 92_477_440),
    }
    text = DOCS.read_text(encoding="utf-8")
    for name, (found, expected) in numbers.items():
        assert found == expected, name
        assert f"{expected:,}" in text, name
