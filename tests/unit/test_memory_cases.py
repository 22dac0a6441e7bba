"""Public threads about memory (cases M107 of ../shared/cases/cases.yaml), with the right answers.

M107-01 and M107-02 are in test_memory_states.py. Not predictions of a job, and left to the parts
that read recordings: M107-04 (a growing gap between reserved and allocated), M107-07 (an OOM
message told apart as capacity), M107-11 (an error that surfaces late in asynchronous saving).
M107-12 states two totals but not the job they belong to.
"""

import pytest

from steptally.job import job_from_settings, read_job
from steptally.job.catalog.devices import find_device
from steptally.predict.memory import memory_tally, predict_memory
from steptally.predict.memory.stage import all_stages

GIB, MIB = 2**30, 2**20


def test_m107_06_an_allocation_of_58_gib_is_the_fp32_softmax_of_205280_tokens():
    # THUDM/slime#1951: vocabulary 152,064 over TP 2; 205,280 tokens · 76,032 · 4 bytes.
    job = job_from_settings(
        {
            "num_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "seq_length": 205280,
            "vocab_size": 152064,
            "tensor_model_parallel_size": 2,
            "world_size": 2,
            "bf16": True,
        }
    )
    (softmax,) = [row for row in predict_memory(job) if row.name == "head: loss"]
    assert softmax.bytes == 205280 * 76032 * 4
    assert softmax.bytes / GIB == pytest.approx(58.14, abs=0.01)


def test_m107_13_weights_alone_exceed_a_24_gib_card():
    # modelscope/ms-swift#5615: Qwen3-30B-A3B on four RTX 4090, EP 2, TP 1: 29 to 31 GiB of bf16.
    settings = ("expert_model_parallel_size=2", "world_size=4", "global_batch_size=4", "bf16=true")
    device = find_device("rtx-4090")
    tally = memory_tally(read_job("qwen3-30b-a3b", settings), None, device)
    weights = next(row for row in tally.accounts["memory"] if row.name == "parameters (bf16)")
    assert 29 < weights.bytes / GIB < 31
    assert weights.bytes > device.memory_bytes
    assert tally.summary["fits"].value is False


def layout(context, micro_batch_size):
    return all_stages(
        job_from_settings(
            {
                "num_layers": 4,
                "hidden_size": 512,
                "num_attention_heads": 8,
                "seq_length": 1024,
                "vocab_size": 50257,
                "micro_batch_size": micro_batch_size,
                "global_batch_size": 8 * micro_batch_size,
                "world_size": 8,
                "context_parallel_size": context,
                "bf16": True,
                "use_distributed_optimizer": True,
                "attention_backend": "flash",
            }
        )
    )[0]


def test_m107_15_the_peak_follows_the_tokens_of_a_rank_and_the_states_do_not():
    # NVIDIA/Megatron-LM#7220: CP 1 with micro-batch 4 needs 1002.6 MiB more than CP 2 with 4 and
    # than CP 1 with 2, which agree; resident state is equal in all three. The logits dominate.
    whole, halved, half = layout(1, 4), layout(2, 4), layout(1, 2)
    assert halved.peak == pytest.approx(half.peak, rel=0.01)
    states = [
        sum(line.bytes for line in one.lines if line.lifetime in ("resident", "iteration"))
        for one in (whole, halved, half)
    ]
    assert len(set(states)) == 1
    bytes_a_logit = (whole.peak - half.peak) / 2048 / 50304
    assert 6 < bytes_a_logit < 12  # 10.2 in the thread, whose layers are not stated
