"""Traffic of whole jobs: published and recorded numbers, context parallelism, scopes, refusals."""

import pytest

from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.predict.ranks import group_ranks
from steptally.predict.traffic import (
    predict_groups,
    predict_traffic,
    traffic_refusals,
    traffic_warnings,
)
from steptally.predict.traffic_tally import traffic_tally
from steptally.tally import tally_from_json

GPT3 = {
    "num_layers": 96,
    "hidden_size": 12288,
    "num_attention_heads": 96,
    "seq_length": 2048,
    "max_position_embeddings": 2048,
    "padded_vocab_size": 51200,
    "tensor_model_parallel_size": 8,
    "pipeline_model_parallel_size": 8,
    "world_size": 1024,
    "sequence_parallel": True,
    "global_batch_size": 128,
    "bf16": True,
    "use_distributed_optimizer": True,
    "transformer_impl": "local",
}
SMALL = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 64,
    "vocab_size": 128,
    "bf16": True,
}


def calls(rows, group, collective, size):
    return sum(
        row.calls_per_step
        for row in rows
        if (row.group, row.collective, row.bytes_per_call) == (group, collective, size)
    )


def of_context(**settings):
    job = job_from_settings(
        {**SMALL, "num_query_groups": 2, "context_parallel_size": 4, "world_size": 4, **settings}
    )
    return [
        (row.name.removeprefix("core_attention "), row.collective, row.phase, row.bytes_per_call)
        for row in predict_traffic(job)
        if row.group == "CONTEXT_PARALLEL_GROUP"
    ]


def test_rank_500_of_gpt3_moves_what_megatron_was_seen_to_move():
    # Recorded on fake tensors with megatron-core 0.16.1: shared/research/mcore-cpu.md, section 4.
    rows = predict_traffic(job_from_settings(GPT3), 500)
    tensor, pipeline = "TENSOR_MODEL_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"
    assert calls(rows, tensor, "all_gather", 50331648) == 576
    assert calls(rows, tensor, "reduce_scatter", 50331648) == 384
    assert calls(rows, pipeline, "send", 6291456) == 16
    assert calls(rows, pipeline, "recv", 6291456) == 16
    # Two buffers there (weights in bf16, the norms without Float16Module in fp32), one here.
    gradients = calls(rows, "DATA_PARALLEL_GROUP_WITH_CP", "reduce_scatter", 10873331712 + 2359296)
    assert gradients == 1


def test_groups_list_ranks_in_megatrons_order():
    groups = {row.group: row for row in predict_groups(job_from_settings(GPT3), 500)}
    # Rank 500 = tp 4 + 8 · (dp 14 + 16 · pp 3).
    assert groups["TENSOR_MODEL_PARALLEL_GROUP"].ranks == tuple(range(496, 504))
    assert groups["PIPELINE_MODEL_PARALLEL_GROUP"].ranks == tuple(range(116, 1024, 128))
    assert groups["TENSOR_MODEL_PARALLEL_GROUP"].scope == "intra-node"
    assert groups["PIPELINE_MODEL_PARALLEL_GROUP"].nodes == 8


def test_only_neighbouring_stages_decide_whether_a_message_leaves_the_node():
    # 8 devices a node, 4 a stage: stages 0 and 1 share a node, stages 1 and 2 do not.
    job = job_from_settings(
        {**SMALL, "num_layers": 4, "pipeline_model_parallel_size": 4, "world_size": 16}
    )
    scopes = {
        (row.phase, row.collective): (row.scope, row.network_bytes_per_step)
        for row in predict_traffic(job, 4)
        if row.group == "PIPELINE_MODEL_PARALLEL_GROUP"
    }
    assert scopes["forward", "recv"] == ("intra-node", 0)
    assert scopes["backward", "send"] == ("intra-node", 0)
    assert scopes["forward", "send"] == ("inter-node", 64 * 64 * 2)


# Keys: 16 of 64 tokens on each rank, 2 groups of 16 channels, 2 bytes.
KEYS = 16 * 2 * 16 * 2
QUERIES = 2 * KEYS


def test_ring_attention_sends_keys_and_values_round_and_their_gradients_back():
    assert [row for row in of_context() if row[1] == "send"] == [
        ("K and V", "send", "forward", 2 * KEYS),
        ("K and V", "send", "backward", 2 * KEYS),
        ("K, V, dK and dV", "send", "backward", 4 * KEYS),
        ("dK and dV", "send", "backward", 2 * KEYS),
    ]


def test_ring_attention_repeats_all_but_its_first_and_last_exchange():
    job = job_from_settings({**SMALL, "context_parallel_size": 4, "world_size": 4})
    times = {
        (row.name, row.phase): row.calls_per_step
        for row in predict_traffic(job)
        if row.collective == "send"
    }
    layers, parts = 2, 4
    assert times["core_attention K and V", "forward"] == layers * (parts - 1)
    assert times["core_attention K and V", "backward"] == layers
    assert times["core_attention K, V, dK and dV", "backward"] == layers * (parts - 2)
    assert times["core_attention dK and dV", "backward"] == layers


def test_ring_neighbours_are_those_of_the_context_parallel_group():
    # One rank of 4 on each node: cp is outside tp 8.
    job = job_from_settings(
        {
            **SMALL,
            "num_attention_heads": 8,
            "tensor_model_parallel_size": 8,
            "context_parallel_size": 4,
            "world_size": 32,
        }
    )
    assert group_ranks(job, "CONTEXT_PARALLEL_GROUP", 9) == (1, 9, 17, 25)
    scopes = {row.scope for row in predict_traffic(job, 9) if row.group.startswith("CONTEXT")}
    assert scopes == {"inter-node"}


def test_gathered_attention_moves_whole_keys_and_values_three_times():
    assert of_context(cp_comm_type="allgather") == [
        ("K", "all_gather", "forward", 4 * KEYS),
        ("V", "all_gather", "forward", 4 * KEYS),
        ("K", "all_gather", "backward", 4 * KEYS),
        ("V", "all_gather", "backward", 4 * KEYS),
        ("dK", "reduce_scatter", "backward", 4 * KEYS),
        ("dV", "reduce_scatter", "backward", 4 * KEYS),
    ]


def test_exchanged_heads_move_queries_and_outputs_too():
    moved = of_context(cp_comm_type="a2a", num_query_groups=4)
    assert [(name, phase) for name, _, phase, _ in moved] == [
        *((name, "forward") for name in ("Q", "K", "V", "O")),
        *((name, "backward") for name in ("O", "dO", "dQ", "dK", "dV")),
    ]
    assert {size for *_, size in moved} == {QUERIES}


def test_recomputation_exchanges_keys_and_values_again():
    again = {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    phases = [phase for _, collective, phase, _ in of_context(**again) if collective == "send"]
    assert phases.count("recompute") == 1


EXPERTS = {
    "num_layers": 48,
    "hidden_size": 6144,
    "num_attention_heads": 48,
    "num_experts": 64,
    "moe_router_topk": 4,
    "seq_length": 4096,
    "vocab_size": 128,
    "bf16": True,
    "moe_token_dispatcher_type": "alltoall",
}


@pytest.mark.parametrize(
    ("case", "settings", "sent_mib", "network_mib"),
    [
        # marin-community/marin#7706: EP8 inside a node, two pipeline stages (half the layers each).
        (
            "M106-04 PP2 EP8",
            {
                "pipeline_model_parallel_size": 2,
                "expert_model_parallel_size": 8,
                "world_size": 16,
            },
            3.9375 / 2,
            0,
        ),
        (
            "M106-04 EP16 over two nodes",
            {"expert_model_parallel_size": 16, "world_size": 16},
            4.21875,
            2.25,
        ),
        (
            "M106-04 EP16 in one rack",
            {"expert_model_parallel_size": 16, "world_size": 16, "link_domain_size": 72},
            4.21875,
            0,
        ),
    ],
)
def test_expert_payload_of_a_token(case, settings, sent_mib, network_mib):
    job = job_from_settings(
        {**EXPERTS, "global_batch_size": 16 // settings.get("pipeline_model_parallel_size", 1)}
        | settings
    )
    rows = [
        row
        for row in predict_traffic(job)
        if row.name in ("dispatch tokens", "combine tokens") and row.phase == "forward"
    ]
    tokens = job.layout.num_microbatches * 4096
    mib = 2**20 * tokens
    assert sum(row.sent_bytes_per_step for row in rows) == sent_mib * mib, case
    assert sum(row.network_bytes_per_step for row in rows) == network_mib * mib, case


def test_m106_14_tensor_parallel_overlap_over_two_nodes_hides_nothing():
    # TransformerEngine#1071: user buffers are for a tensor-parallel group of one node.
    settings = {
        **SMALL,
        "num_attention_heads": 16,
        "tensor_model_parallel_size": 16,
        "world_size": 16,
        "sequence_parallel": True,
        "tp_comm_overlap": True,
    }
    job = job_from_settings({**settings, "devices_per_node": 8})
    (group,) = [row for row in predict_groups(job) if row.group == "TENSOR_MODEL_PARALLEL_GROUP"]
    assert group.scope == "inter-node"
    assert any("tp_comm_overlap hides nothing" in warning for warning in traffic_warnings(job))
    row = next(row for row in predict_traffic(job) if row.name == "linear_qkv input")
    assert row.overlapped is False
    inside = job_from_settings({**settings, "devices_per_node": 16})
    assert not traffic_warnings(inside)
    row = next(row for row in predict_traffic(inside) if row.name == "linear_qkv input")
    assert row.overlapped is True


def test_the_flag_that_would_hide_gradients_is_named_until_it_is_set():
    def gradients(**settings):
        job = job_from_settings(
            {**SMALL, "world_size": 2, "use_distributed_optimizer": True, **settings}
        )
        row = next(row for row in predict_traffic(job) if row.collective == "reduce_scatter")
        return row.overlap_flag, row.overlapped

    assert gradients() == ("overlap_grad_reduce", False)
    assert gradients(overlap_grad_reduce=True) == ("overlap_grad_reduce", True)


def test_one_rank_moves_nothing():
    assert predict_traffic(job_from_settings(SMALL)) == []


def test_what_cannot_be_counted_is_refused_with_a_way_out():
    flex = job_from_settings(
        {
            **EXPERTS,
            "moe_token_dispatcher_type": "flex",
            "expert_model_parallel_size": 2,
            "world_size": 2,
        }
    )
    assert "moe_token_dispatcher_type=alltoall" in traffic_refusals(flex)[0]
    mixed = job_from_settings(
        {**SMALL, "context_parallel_size": 4, "world_size": 4, "cp_comm_type": "a2a+p2p"}
    )
    assert "a2a+p2p" in traffic_refusals(mixed)[0]
    assert not traffic_refusals(job_from_settings(SMALL))


def test_a_rank_outside_the_job_is_an_input_error():
    with pytest.raises(InputError, match="1024"):
        predict_traffic(job_from_settings(GPT3), 1024)


def test_the_tally_survives_json():
    tally = traffic_tally(job_from_settings(GPT3), 500)
    again = tally_from_json(tally.dumps())
    assert again.accounts == {name: list(rows) for name, rows in tally.accounts.items()}
    total = tally.summary["traffic_bytes_per_step"].value
    assert total == sum(row.bytes_per_step for row in tally.accounts["traffic"])
