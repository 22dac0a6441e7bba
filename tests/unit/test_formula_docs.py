"""The worked examples of docs/formulas: each number in the text is what the code computes."""

from pathlib import Path

import pytest
from tests.unit.test_predict_flops import WORKED_EXAMPLE

from steptally.job import job_from_settings, read_job
from steptally.predict.convention import EXACT_CAUSAL
from steptally.predict.conventions import find_convention
from steptally.predict.elementwise import elementwise_flops
from steptally.predict.flops import predict_flops, useful_flops
from steptally.predict.layers import layer_kinds
from steptally.predict.model_terms import layer_terms
from steptally.predict.parameters import model_size
from steptally.predict.terms import batch_of

DOCS = Path(__file__).parents[2] / "docs" / "formulas"


def states(page, *numbers):
    text = (DOCS / f"{page}.md").read_text()
    for number in numbers:
        assert f"{number:,}" in text, f"{page}.md does not state {number:,}"


def one_layer(model, index):
    job = read_job(model)
    batch = batch_of(1, job.layout.seq_length)
    terms = layer_terms(job, layer_kinds(job)[index], batch, EXACT_CAUSAL)
    return {term.name: term for term in terms}


def test_flops():
    account = predict_flops(job_from_settings(WORKED_EXAMPLE))
    states("flops", sum(row.useful for row in account), sum(row.executed for row in account))


def test_attention_pairs():
    from steptally.predict.attention_pairs import causal_pairs, chunk_pairs, window_pairs

    states(
        "attention_pairs",
        window_pairs(2048, 512),
        causal_pairs(2048),
        chunk_pairs(2048, 256),
    )


def test_experts():
    terms = one_layer("deepseek-v3", -1)
    routed = terms["experts.linear_fc1"].useful + terms["experts.linear_fc2"].useful
    shared = terms["shared_experts.linear_fc1"].useful + terms["shared_experts.linear_fc2"].useful
    states("experts", terms["router"].useful, routed, shared)


def test_latent_attention():
    terms = one_layer("deepseek-v3", 0)
    for name in ("linear_q_up_proj", "core_attention.qk", "core_attention.pv"):
        states("latent_attention", terms[name].useful)


def test_mtp():
    settings = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 16,
        "vocab_size": 128,
        "global_batch_size": 4,
        "mtp_num_layers": 2,
    }
    account = predict_flops(job_from_settings(settings))
    (projection,) = (
        row.useful for row in account if (row.name, row.phase) == ("mtp.eh_proj", "forward")
    )
    states("mtp", projection)


def test_mamba():
    terms = one_layer("nemotron-h-8b", 0)
    scan = terms["mamba.scan"]
    states("mamba", terms["mamba.in_proj"].useful, scan.useful, scan.executed)


def test_elementwise():
    counted = elementwise_flops(job_from_settings(WORKED_EXAMPLE))
    states("elementwise", counted["norms"], counted["softmax"], counted["activations"])


def test_parameters():
    states("parameters", model_size(read_job("llama-3-8b")).total)


def test_utilization():
    job = read_job(
        "gpt3-175b",
        ["global_batch_size=64", "world_size=64", "padded_vocab_size=51200"],
    )
    full = useful_flops(job, find_convention("full-attention"))
    states("utilization", full)
    assert full / 13.75 / 64 / 312e12 == pytest.approx(0.514, abs=5e-4)
    assert useful_flops(job) / 13.75 / 64 / 312e12 == pytest.approx(0.507, abs=5e-4)


def test_stragglers():
    from tests.straggler_example import AHEAD, ENTERED, LEFT, US, example

    from steptally.measure.stragglers.clock import raw_clocks
    from steptally.measure.stragglers.one_clock import on_one_clock
    from steptally.measure.stragglers.waits import waits

    def listed(values):
        return ", ".join(map(str, values))

    made = example()
    together = on_one_clock(made)
    clocks = together.clocks.rows
    rows = waits(made, together.pairing, together.clocks)
    text = (DOCS / "stragglers.md").read_text()
    for number, (entered, left) in enumerate(zip(ENTERED, LEFT, strict=True)):
        assert f"| {number + 1} | {listed(entered)} | {listed(left)} |" in text
        own = rows.filter(rows["instance"] == number)
        parts = [[time // US for time in own[name]] for name in ("wait_ns", "transfer_ns")]
        assert f"| {number + 1} | {listed(parts[0])} | {listed(parts[1])} |" in text
    recorded = [[time + AHEAD * (rank == 1) for rank, time in enumerate(left)] for left in LEFT]
    behind = [[times[rank] - sorted(times)[1] for times in recorded] for rank in range(3)]
    assert f"rank 1 by {behind[1][0]:,}, {behind[1][1]:,} and {behind[1][2]:,} µs" in text
    assert f"rank 0 by {behind[0][0]}, {behind[0][1]} and {behind[0][2]};".replace("-", "−") in text
    assert behind[2] == [0, 0, 0]
    offsets = [clocks[rank].offset_ns // US for rank in range(3)]
    assert offsets == [1, -AHEAD, 0]
    assert f"offsets of {offsets[0]}, −{AHEAD:,} and {offsets[2]} µs" in text
    bounds = [clocks[rank].bound_ns // US for rank in range(3)]
    assert f"{bounds[0]}, {bounds[1]} and {bounds[2]} µs" in text
    raw = waits(made, together.pairing, raw_clocks(made))
    assert f"seems to wait {raw['wait_ns'][0] // US} µs" in text
    exposed, wait = rows["exposed_wait_ns"][0] // US, rows["wait_ns"][0] // US
    assert f"{exposed} of its {wait} µs are exposed" in text
