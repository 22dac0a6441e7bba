"""Initial weights depend on names and the seed alone (the layouts' losses test their slicing)."""

import pytest

pytest.importorskip("megatron.core")

import torch
from megatron.core import parallel_state

from steptally.engine.adapt import adapt
from steptally.engine.availability import EngineParts
from steptally.engine.config import transformer_config
from steptally.engine.cpu import megatron_on_cpu
from steptally.engine.groups import initialize_groups, seed_this_rank
from steptally.engine.model import build_chunks
from steptally.engine.weights import fill_weights, named_globally
from steptally.job import job_from_settings

PARTS = EngineParts(torch="2.13.0", megatron_core="0.16.1")
BASE = {
    "num_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "seq_length": 16,
    "vocab_size": 256,
    "num_experts": 2,
    "moe_layer_freq": [0, 1],
    "add_bias_linear": False,
}
FC1 = "decoder.layers.0.mlp.linear_fc1.weight"


def weights(job):
    (chunk,) = build_chunks(job, transformer_config(job))
    fill_weights(chunk, seed=job.recipe.seed)
    return {name: parameter.detach().clone() for name, parameter in named_globally(chunk)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The weights of three models, built one after the other on one rank."""
    job = adapt(job_from_settings(BASE), PARTS)
    reseeded = adapt(job_from_settings(BASE | {"seed": 7}), PARTS)
    with megatron_on_cpu():
        store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        initialize_groups(job)
        seed_this_rank(job.recipe.seed)
        built = {"first": weights(job), "again": weights(job), "reseeded": weights(reseeded)}
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    return built


def test_a_job_always_starts_from_the_same_weights(models):
    first, again = models["first"], models["again"]
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_another_seed_gives_another_model(models):
    assert not torch.equal(models["first"][FC1], models["reseeded"][FC1])


@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        # init_method_std is 0.02; what writes to the residual stream gets 0.02 / √(2 · 2 layers).
        ("embedding.word_embeddings.weight", 0.02),
        ("decoder.layers.0.self_attention.linear_proj.weight", 0.01),
        ("decoder.layers.1.mlp.experts.local_experts.1.linear_fc1.weight", 0.02),
        ("decoder.layers.1.mlp.experts.local_experts.1.linear_fc2.weight", 0.01),
    ],
)
def test_deviations_are_megatrons(models, name, deviation):
    assert models["first"][name].std().item() == pytest.approx(deviation, rel=0.02)


def test_norms_start_at_one(models):
    assert torch.equal(models["first"]["decoder.final_layernorm.weight"], torch.ones(256))


def test_experts_and_layers_differ(models):
    first = models["first"]
    expert = "decoder.layers.1.mlp.experts.local_experts.{}.linear_fc1.weight"
    query = "decoder.layers.{}.self_attention.linear_qkv.weight"
    for name in (expert, query):
        assert not torch.equal(first[name.format(0)], first[name.format(1)])
