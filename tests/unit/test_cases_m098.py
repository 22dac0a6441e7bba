"""Public threads about FLOP counts (cases M098 of ../shared/cases/cases.yaml)."""

import pytest

from steptally.job import read_job
from steptally.predict.attention_pairs import chunk_pairs, window_pairs
from steptally.predict.conventions import CONVENTIONS, find_convention
from steptally.predict.flops import flops_per_step, matmul_parameters, predict_flops, useful_flops
from steptally.predict.parameters import model_size


def test_m098_02_a_window_counts_its_exact_pairs():
    # NVIDIA/Megatron-LM#1725, #3280: neither the full 2,098,176 nor half the window, 524,288.
    assert window_pairs(2048, 512) == 917760
    assert chunk_pairs(2048, 256) == 263168


def test_m098_02_the_whole_step_follows_the_windows():
    job = read_job("llama-3-8b", ["seq_length=2048"])
    local = read_job("llama-3-8b", ["seq_length=2048", "window_size=512"])
    pairs = 2098176 - 917760
    attention = 3 * 2 * (2 * pairs * job.architecture.query_projection_size) * 32
    assert useful_flops(job) - useful_flops(local) == attention


def test_m098_03_gate_latent_experts_and_windows_are_counted_as_bridge_counts_them():
    # NVIDIA-NeMo/Megatron-Bridge#3029: the three terms on which Bridge and Megatron-LM differed.
    gated = read_job("llama-3-8b", ["attention_output_gate=true"])
    gate = 6 * gated.layout.tokens_per_step * 32 * 4096 * 4096
    for name in ("bridge", "megatron-lm", "exact-causal"):
        convention = find_convention(name)
        assert (
            useful_flops(gated, convention) - useful_flops(read_job("llama-3-8b"), convention)
            == gate
        )
    window = read_job("gpt-oss-120b")
    exact, bridge = useful_flops(window), useful_flops(window, find_convention("bridge"))
    router = sum(row.useful for row in predict_flops(window) if row.name == "router")
    # What is left after the router, which Bridge does not count, is S(S+1)/2 against S²/2.
    assert exact - router == pytest.approx(bridge, rel=1e-4)


def test_m098_06_only_the_active_experts_count():
    # AI-Hypercomputer/maxtext#678: 287.78 with all 8 experts, 79.98 with the 2 active: 3.60.
    active = read_job("mixtral-8x7b", ["seq_length=2048"])
    everything = read_job("mixtral-8x7b", ["seq_length=2048", "moe_router_topk=8"])
    assert useful_flops(everything) / useful_flops(active) == pytest.approx(
        287.78 / 79.98, rel=0.01
    )


def test_m098_11_the_logged_figure_counts_recomputation():
    # deepspeedai/DeepSpeed#2565: GPT 18.4B on 128 GPUs, log 125.18 TFLOP/s at 50.51 samples/s.
    job = read_job("megatron-18.4b", ["global_batch_size=1", "world_size=1"])
    rates = {
        name: 50.51 * float(useful_flops(job, convention)) / 128 / 1e12
        for name, convention in CONVENTIONS.items()
    }
    assert min(rates, key=lambda name: abs(rates[name] - 125.18)) == "sc21"
    assert rates["sc21"] == pytest.approx(125.18, rel=1e-3)


def test_m098_12_full_recompute_executes_four_thirds_less_what_is_not_run_again():
    # deepspeedai/DeepSpeed#3362: MFU uses 3 passes, HFU 4; the LM head runs 3 times.
    full = ["recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"]
    job = read_job("gpt3-175b", [*full, "attention_backend=flash"])
    useful, executed = flops_per_step(job)
    assert executed / useful == pytest.approx(4 / 3, rel=0.01)


def test_m098_13_six_n_leaves_out_attention():
    # alibaba/Megatron-LLaMA#49: 2170 tokens/s/GPU, 6N gives 169 TFLOP/s, the README says 180.
    job = read_job("llama-2-13b", ["seq_length=2048"])
    per_token = {
        name: float(useful_flops(job, find_convention(name))) / job.layout.tokens_per_step
        for name in ("6n", "palm", "full-attention")
    }
    assert 2170 * per_token["6n"] / 1e12 == pytest.approx(169.3, rel=0.005)
    assert 2170 * per_token["full-attention"] / 1e12 == pytest.approx(180, rel=0.011)
    assert 2170 * per_token["palm"] / 1e12 == pytest.approx(180, rel=0.005)


def test_m098_17_all_and_active_matmul_parameters_are_told_apart():
    # PrimeIntellect-ai/prime-rl#803: MFU used idle experts and parameters in no product.
    job = read_job("mixtral-8x7b")
    size = model_size(job)
    # 46.7 B in all, 12.9 B active (Jiang et al. 2024, arXiv:2401.04088).
    assert size.total == pytest.approx(46.7e9, rel=0.002)
    assert size.active == pytest.approx(12.9e9, rel=0.002)
    hidden, vocabulary = job.architecture.hidden_size, job.padded_vocab_size
    norms = (2 * job.architecture.num_layers + 1) * hidden
    assert matmul_parameters(job) == size.active - vocabulary * hidden - norms


def test_m098_18_a_llama_without_its_query_groups_is_another_model():
    # NVIDIA/Megatron-LM#818: 8.84 B parameters for 8.03, FLOPs a sequence at 8k 0.461 for 0.422 P.
    wide = read_job("llama-3-8b", ["num_query_groups=32"])
    assert model_size(wide).total == pytest.approx(8.835e9, rel=1e-3)
    assert useful_flops(wide) / 1e15 == pytest.approx(0.461, abs=0.001)
    assert useful_flops(read_job("llama-3-8b")) / 1e15 == pytest.approx(0.422, abs=0.001)
