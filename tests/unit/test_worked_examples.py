"""The tables of docs/formulas/gemms.md and traffic.md, row by row."""

from pathlib import Path

from steptally.job import job_from_settings
from steptally.job.catalog.devices import find_device
from steptally.predict.gemm_relief import with_relief
from steptally.predict.gemms import predict_gemms
from steptally.predict.traffic import predict_traffic

FORMULAS = Path(__file__).parents[2] / "docs" / "formulas"


def worked_rows(name):
    """The cells of the last table of a document, below its header."""
    text = (FORMULAS / name).read_text().split("## Worked example")[1]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[2:]]


def test_worked_products():
    job = job_from_settings(
        {
            "num_layers": 4,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_query_groups": 8,
            "ffn_hidden_size": 14336,
            "swiglu": True,
            "seq_length": 4096,
            "vocab_size": 50257,
            "untie_embeddings_and_output_weights": True,
            "tensor_model_parallel_size": 8,
            "sequence_parallel": True,
            "bf16": True,
            "world_size": 8,
            "micro_batch_size": 1,
            "global_batch_size": 16,
        }
    )
    device = find_device("H100 SXM")
    rows = with_relief(predict_gemms(job, 0, device), job, 0, device)
    found = {
        (
            *(row.name, row.phase, f"{row.m:,}", f"{row.n:,}", f"{row.k:,}", f"{row.calls}"),
            *(row.tile, f"{row.waves:.3f}", f"{100 * row.efficiency:.1f} %", row.restore or "–"),
        )
        for row in rows
        if row.tile
    }
    assert set(worked_rows("gemms.md")) <= found
    (fc1,) = [row for row in rows if (row.name, row.phase) == ("linear_fc1", "forward")]
    assert (fc1.flops // fc1.calls, fc1.bytes) == (120_259_084_288, 92_274_688)
    assert f"{fc1.intensity:,.1f}" == "1,303.3"


def test_worked_traffic():
    job = job_from_settings(
        {
            "num_layers": 4,
            "hidden_size": 256,
            "num_attention_heads": 8,
            "num_query_groups": 4,
            "ffn_hidden_size": 768,
            "swiglu": True,
            "normalization": "RMSNorm",
            "add_bias_linear": False,
            "position_embedding_type": "rope",
            "seq_length": 128,
            "vocab_size": 256,
            "untie_embeddings_and_output_weights": True,
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "pipeline_model_parallel_size": 2,
            "world_size": 8,
            "micro_batch_size": 2,
            "global_batch_size": 16,
            "bf16": True,
            "use_distributed_optimizer": True,
            "transformer_impl": "local",
        }
    )
    found = [
        (
            *(row.group, row.name, row.collective, row.phase, f"{row.calls_per_step}"),
            *(f"{row.bytes_per_call:,}", f"{row.sent_bytes_per_step:,}"),
        )
        for row in predict_traffic(job)
    ]
    assert worked_rows("traffic.md") == found
