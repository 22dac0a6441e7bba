"""What a rehearsal does with megatron-core itself: the whole step, its order, its memory."""

import pytest
from tests.recordings import recorded_run
from tests.rehearsals import BALANCED, needs_engine, rehearse_many

from steptally.cli.account import as_recorded, job_of
from steptally.job import job_from_settings
from steptally.measure.run import measure_run
from steptally.rehearse.microbatches import extrapolate
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import make_rehearsable
from steptally.rehearse.tally import rehearsed_tally
from steptally.tally import compare_tallies

pytestmark = pytest.mark.filterwarnings("ignore")  # Megatron's, about what is not installed

BASE = {
    "num_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "seq_length": 128,
    "vocab_size": 1000,
    "micro_batch_size": 1,
    "bf16": True,
    "position_embedding_type": "rope",
    "transformer_impl": "local",
}
SPLIT = {"pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2, "world_size": 8}
EXPERTS = {
    "num_experts": 4,
    "moe_ffn_hidden_size": 128,
    "expert_model_parallel_size": 2,
    "world_size": 2,
    "moe_token_dispatcher_type": "alltoall",
    "add_bias_linear": False,
    "global_batch_size": 2,
}


@pytest.fixture(autouse=True)
def _engine():
    needs_engine()


def rehearsal(settings, rank=0, microbatches=2, routing=BALANCED):
    from steptally.rehearse.program import rehearse_rank

    rehearsable = make_rehearsable(job_from_settings(BASE | settings))
    return rehearse_rank(rehearsable, rank, routing, microbatches)


@pytest.mark.parametrize(
    "settings",
    [
        SPLIT | {"overlap_grad_reduce": True, "use_distributed_optimizer": True},
        SPLIT
        | {
            "pipeline_model_parallel_size": 4,
            "num_layers": 8,
            "virtual_pipeline_model_parallel_size": 2,
        },
    ],
    ids=["1F1B", "interleaved"],
)
def test_many_micro_batches_come_to_what_two_numbers_of_them_say(settings):
    from steptally.rehearse.accounts import count

    numbers = (8, 12, 20) if "virtual_pipeline_model_parallel_size" in settings else (3, 4, 20)
    fewer, more, full = (count(rehearsal(settings, microbatches=n)) for n in numbers)
    found = extrapolate(fewer, more, 20)
    assert found.products == full.products
    assert found.collectives == full.collectives
    assert found.operators == full.operators
    assert found.memory.peak_bytes == full.memory.peak_bytes


def test_operations_stand_in_the_order_of_one_forward_and_one_backward():
    found = rehearsal(SPLIT, rank=0, microbatches=3)
    passes = [(each.kind, each.microbatch) for each in found.passes]
    # The first of two stages: one warm-up pass, then one forward and one backward in turn.
    assert passes == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 0),
        ("forward", 2),
        ("backward", 1),
        ("backward", 2),
    ]


def test_backward_is_placed_in_the_module_whose_forward_it_undoes():
    found = rehearsal({}, microbatches=1)
    backward = {
        (op.place.module, op.place.microbatch) for op in found.operations if op.phase == "backward"
    }
    assert ("decoder.layers.3.mlp.linear_fc1", 0) in backward
    assert ("decoder.layers.0.self_attention.core_attention", 0) in backward


def test_weight_gradients_are_told_from_gradients_of_inputs():
    from steptally.rehearse.accounts import count_products

    shapes = {
        (key.phase, key.m, key.n, key.k)
        for key in count_products(rehearsal({"num_layers": 1}, microbatches=1).operations)
        if key.name == "mlp.linear_fc1"
    }
    # [128, 256] · [256, 1024]; its input's gradient [128, 256], its weight's [1024, 256].
    assert shapes == {
        ("forward", 128, 1024, 256),
        ("dgrad", 128, 256, 1024),
        ("wgrad", 1024, 256, 128),
    }


def test_everything_alive_at_the_peak_adds_up_to_it():
    from steptally.rehearse.accounts import count

    memory = count(rehearsal({"recompute_granularity": "selective"})).memory
    assert sum(memory.held.values()) == memory.peak_bytes
    by_name = {(lifetime, name): size for (lifetime, name, _), size in memory.held.items()}
    parameters = sum(n for chunk in rehearsal({}).parameters for _, n in chunk)
    assert by_name["resident", "parameters"] == 2 * parameters  # bf16
    assert by_name["iteration", "main gradients"] == 4 * parameters
    # Main parameter and two moments in fp32, and Adam's count of steps for each tensor.
    assert by_name["resident", "optimizer state"] == pytest.approx(12 * parameters, rel=1e-4)


def test_running_mla_up_projections_again_frees_queries_keys_and_values_only():
    """The softmax of unfused attention stays: predicted and rehearsed peaks agree within 1 %."""
    from steptally.predict.memory.stage import all_stages
    from steptally.rehearse.accounts import count

    latent = {
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "seq_length": 2048,
        "multi_latent_attention": True,
        "q_lora_rank": 512,
        "kv_lora_rank": 256,
        "v_head_dim": 64,
        "num_layers": 2,
        "add_bias_linear": False,
        "attention_dropout": 0,
        "hidden_dropout": 0,
        "recompute_granularity": "selective",
        "recompute_modules": ["mla_up_proj"],
    }
    rehearsable = make_rehearsable(job_from_settings(BASE | latent))
    (stage,) = all_stages(rehearsable.job)
    blas = sum(line.bytes for line in stage.lines if "cuBLAS" in line.name)
    rehearsed = count(rehearsal(latent, microbatches=1)).memory.peak_bytes
    assert rehearsed == pytest.approx(stage.peak - blas, rel=0.01)


def test_full_recomputation_keeps_less_and_runs_forward_again():
    again = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    plain, recomputed = rehearsal({}, microbatches=1), rehearsal(again, microbatches=1)
    from steptally.rehearse.accounts import count

    assert count(recomputed).memory.peak_bytes < count(plain).memory.peak_bytes
    flops = {
        phase: sum(
            op.product.flops for op in recomputed.operations if op.product and op.phase == phase
        )
        for phase in ("forward", "recompute")
    }
    head = 2 * 128 * 1024 * 256  # the LM head is no layer; padded vocabulary 1024
    assert flops["recompute"] == flops["forward"] - head


def test_a_histogram_of_tokens_loads_the_experts_of_a_rank():
    from steptally.rehearse.accounts import count_products

    uneven = Routing(weights=(3, 2, 2, 1))
    rows = {}
    for rank in (0, 1):
        found = rehearsal(EXPERTS, rank=rank, microbatches=1, routing=uneven)
        rows[rank] = {
            key.m: calls
            for key, calls in count_products(found.operations).items()
            if key.phase == "forward" and key.name.endswith("local_experts.*.linear_fc1")
        }
    # 256 copies of 128 tokens are dealt 96, 64, 64, 32 by each of two ranks, in four layers.
    assert rows == {0: {192: 4, 128: 4}, 1: {128: 4, 64: 4}}


def test_programs_are_pipeline_stages_unless_ranks_of_one_differ():
    from steptally.rehearse.programs import distinct_programs

    def ranks(settings, routing=BALANCED):
        job = job_from_settings(BASE | settings)
        return [program.ranks for program in distinct_programs(job, routing)]

    assert ranks(SPLIT) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert ranks(EXPERTS) == [(0, 1)]
    assert ranks(EXPERTS, Routing(weights=(3, 2, 2, 1))) == [(0,), (1,)]
    assert ranks(EXPERTS, Routing(weights=(2, 1, 2, 1))) == [(0, 1)]  # both do the same
    # 258 copies for 4 experts leave one for each rank, 387 leave three for two ranks.
    assert ranks(EXPERTS | {"seq_length": 129}) == [(0, 1)]
    assert ranks(EXPERTS | {"seq_length": 129, "moe_router_topk": 3}) == [(0,), (1,)]
    windows = {"context_parallel_size": 2, "world_size": 2, "window_size": 16}
    assert ranks(windows) == [(0,), (1,)]
    assert ranks(windows | {"window_size": None}) == [(0, 1)]


@pytest.mark.parametrize("run", ["pp2", "tp2_dp2"])
def test_a_real_run_did_what_its_rehearsal_does(run):
    manifest = recorded_run(run).read_manifest()
    job = as_recorded(job_of(manifest), manifest)
    rehearsable = make_rehearsable(job)
    ranks = range(job.layout.world_size)
    rehearsed = rehearse_many([(rank, job.settings()) for rank in ranks])
    tally = rehearsed_tally(job, rehearsable, rehearsed, BALANCED)
    comparison = compare_tallies(tally, measure_run(recorded_run(run)))
    for account in ("gemms", "traffic"):
        (section,) = comparison.accounts[account]
        assert len(section.lines) > 5
        differing = [line.key for line in section.lines if not line.equal]
        # What the recorded loop adds for its log: the sum of losses and tokens in float64.
        logged = [key for key in differing if key.get("bytes_per_call") == 16]
        assert differing == logged
