"""The memory of whole jobs, line by line: what changes here changes a figure that users see."""

import io

import pytest
from rich.console import Console

from steptally.job import read_job
from steptally.job.catalog.devices import find_device
from steptally.predict.memory import memory_tally
from steptally.report.terminal import print_tally

JOBS = {
    "gpt3-175b, TP 8, PP 8, VPP 3": (
        "gpt3-175b",
        "a100-sxm-80",
        "tensor_model_parallel_size=8",
        "pipeline_model_parallel_size=8",
        "virtual_pipeline_model_parallel_size=3",
        "sequence_parallel=true",
        "recompute_granularity=selective",
        "attention_backend=unfused",
        "world_size=64",
        "global_batch_size=64",
        "bf16=true",
    ),
    "llama-3-8b, TP 2, CP 2, distributed optimizer": (
        "llama-3-8b",
        "h100-sxm",
        "tensor_model_parallel_size=2",
        "context_parallel_size=2",
        "sequence_parallel=true",
        "use_distributed_optimizer=true",
        "cross_entropy_loss_fusion=true",
        "attention_backend=flash",
        "world_size=16",
        "global_batch_size=64",
        "seq_length=16384",
        "bf16=true",
    ),
    "deepseek-v3, PP 16, EP 8": (
        "deepseek-v3",
        "h200-sxm",
        "pipeline_model_parallel_size=16",
        "decoder_first_pipeline_num_layers=3",
        "decoder_last_pipeline_num_layers=2",
        "expert_model_parallel_size=8",
        "expert_tensor_parallel_size=1",
        "world_size=1024",
        "global_batch_size=4096",
        "use_distributed_optimizer=true",
        "moe_token_dispatcher_type=alltoall",
        "moe_grouped_gemm=true",
        "moe_permute_fusion=true",
        "recompute_granularity=selective",
        "recompute_modules=mla_up_proj,layernorm,moe_act",
        "attention_backend=flash",
        "bf16=true",
    ),
}


def tally(name):
    model, device, *settings = JOBS[name]
    return memory_tally(read_job(model, settings), None, find_device(device))


def lines(found):
    for peak in found.accounts["memory_peaks"]:
        yield (
            f"stage {peak.pp}, ranks {peak.ranks}, in flight {peak.in_flight}, {peak.event}: "
            f"first {peak.first_step_peak_bytes:,} later {peak.peak_bytes:,} "
            f"checkpoint {peak.checkpoint_peak_bytes:,} outside {peak.outside_bytes:,}"
        )
        for row in found.accounts["memory"]:
            if row.rank == peak.rank:
                chunk = "" if row.vpp is None else f" [{row.vpp}]"
                yield f"  {row.lifetime:10} {row.name}{chunk}: {row.bytes:,}"


@pytest.mark.parametrize("name", JOBS)
def test_every_line_of_every_stage(snapshot, name):
    assert "\n".join(lines(tally(name))) == snapshot


@pytest.mark.parametrize("width", [80, 132])
def test_the_account_reads_the_same_every_time(snapshot, width):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_tally(tally("gpt3-175b, TP 8, PP 8, VPP 3"), console, most_rows=200)
    printed = console.file.getvalue()
    assert max(len(line) for line in printed.splitlines()) <= width
    assert printed == snapshot
