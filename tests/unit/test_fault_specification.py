"""`--inject SPEC`: what a fault may say, and what is refused before anything starts."""

import dataclasses
import json

import pytest
from tests.rehearsals import needs_engine
from typer.testing import CliRunner

from steptally.cli.main import app
from steptally.errors import InputError
from steptally.job import job_from_settings
from steptally.run.faults.check import check_faults, coordinates
from steptally.run.faults.fault import (
    DataStall,
    ImbalancedExperts,
    Pause,
    SlowLink,
    SlowRank,
    SlowStage,
)
from steptally.run.faults.specification import FORMS, parse_fault, parse_faults

JOB = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "vocab_size": 256,
    "global_batch_size": 4,
    "world_size": 8,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
}
EXPERTS = {
    **JOB,
    "num_experts": 4,
    "moe_ffn_hidden_size": 64,
    "sequence_parallel": True,
    "add_bias_linear": False,
    "moe_token_dispatcher_type": "alltoall",
}


@pytest.mark.parametrize(
    "fault",
    [
        SlowRank(spec="slow-rank=3:1.5x", rank=3, factor=1.5),
        SlowRank(spec="slow-rank=3:2x:forward", rank=3, factor=2.0, phase="forward"),
        SlowStage(spec="slow-stage=1:1.4x:backward", stage=1, factor=1.4, phase="backward"),
        SlowLink(spec="slow-link=dp:2x", axis="dp", factor=2.0),
        SlowLink(spec="slow-link=tp:250us", axis="tp", duration_ns=250_000),
        SlowLink(spec="slow-link=2-3:5ms", ranks=(2, 3), duration_ns=5_000_000),
        DataStall(spec="data-stall=1:0.2s", rank=1, duration_ns=200_000_000),
        DataStall(spec="data-stall=1:200ms:every=4", rank=1, duration_ns=200_000_000, every=4),
        Pause(spec="gc-pause=2:100ms:every=3", rank=2, duration_ns=100_000_000, every=3),
        Pause(spec="gc-pause=any:100ms", rank=None, duration_ns=100_000_000),
        ImbalancedExperts(spec="imbalanced-experts=0:0.8", expert=0, share=0.8),
    ],
)
def test_a_fault_is_what_its_words_say(fault):
    assert parse_fault(fault.spec) == fault


def test_the_row_of_the_manifest_names_the_kind_and_only_what_the_fault_has():
    assert parse_fault("slow-link=2-3:5ms").as_json() == {
        "kind": "slow-link",
        "spec": "slow-link=2-3:5ms",
        "ranks": (2, 3),
        "duration_ns": 5_000_000,
    }


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("slow-runk=3:1.5x", "did you mean 'slow-rank'"),
        ("slow-rank", "is no fault that is known"),
        ("", "is no fault that is known"),
        ("slow-rank=3", "does not have the parts"),
        ("slow-rank=3:", "does not have the parts"),
        ("slow-rank=:2x", "does not have the parts"),
        ("slow-rank=3:1.5x:forward:backward", "does not have the parts"),
        ("slow-rank=x:1.5x", "not the number of a rank"),
        ("slow-rank=-1:1.5x", "not the number of a rank"),
        ("slow-rank=³:1.5x", "not the number of a rank"),
        ("slow-rank=3:1.5", "not a factor"),
        ("slow-rank=3:0.5x", "must be above 1"),
        ("slow-rank=3:1x", "must be above 1"),
        ("slow-rank=3:101x", "at most 100"),
        ("slow-rank=3:nanx", "not a factor"),
        ("slow-rank=3:1.5x:sideways", "neither forward nor backward"),
        ("slow-stage=x:1.5x", "not the number of a pipeline stage"),
        ("data-stall=1:0ms", "must be above 0"),
        ("data-stall=1:200", "not a time"),
        ("data-stall=1:61s", "at most 60 s"),
        ("data-stall=1:200ms:every=0", "not every=N"),
        ("data-stall=1:200ms:often", "not every=N"),
        ("data-stall=any:200ms", "not the number of a rank"),
        ("gc-pause=1:0.0001us", "must be above 0"),
        ("slow-link=xp:2x", "neither tp, dp, ep, cp, pp nor a pair"),
        ("slow-link=dp:2x:forward", "behind its size"),
        ("slow-link=dp:fast", "not a time"),
        ("imbalanced-experts=0:80%", "share of tokens"),
        ("imbalanced-experts=0:0", "share of tokens"),
        ("imbalanced-experts=0:1.1", "share of tokens"),
    ],
)
def test_bad_words_are_refused_with_the_form_of_their_kind(spec, says):
    with pytest.raises(InputError) as raised:
        parse_fault(spec)
    message = str(raised.value)
    assert says in message
    kind = spec.partition("=")[0]
    assert FORMS[kind] in message if "=" in spec and kind in FORMS else "KIND=WHERE:SIZE" in message


def test_the_same_fault_twice_is_refused():
    with pytest.raises(InputError, match="given 2 times"):
        parse_faults(["slow-rank=3:1.5x", "slow-rank=3:1.5x"])


def refusal(spec, settings, *, cuda=False, steps=10):
    with pytest.raises(InputError) as raised:
        check_faults(parse_faults([spec]), job_from_settings(settings), cuda=cuda, steps=steps)
    assert spec in str(raised.value) or cuda
    return str(raised.value)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("slow-rank=8:2x", "names rank 8, and the job has 8 ranks: name one of 0 to 7"),
        ("data-stall=9:1ms", "names rank 9"),
        ("gc-pause=8:1ms", "names rank 8"),
        ("slow-link=0-8:1ms", "names rank 8"),
        ("slow-stage=2:2x", "names pipeline stage 2, and the job has 2"),
        ("gc-pause=1:1ms:every=11", "the run has 10: it would do nothing"),
        ("slow-link=cp:2x", "joins one rank"),
        ("slow-link=pp:2x", "Give a time"),
        ("slow-link=0-1:2x", "Give a time"),
        ("slow-link=0-3:1ms", "send each other no message"),
        ("slow-link=2-2:1ms", "send each other no message"),
        ("imbalanced-experts=0:0.8", "the job has none"),
    ],
)
def test_a_fault_that_the_job_cannot_have_is_refused(spec, says):
    assert says in refusal(spec, JOB)


@pytest.mark.parametrize(
    ("settings", "spec", "says"),
    [
        ({}, "imbalanced-experts=4:0.8", "names expert 4"),
        ({"moe_router_topk": 4}, "imbalanced-experts=0:0.8", "cannot change anything"),
        (
            {"moe_token_dispatcher_type": "allgather"},
            "imbalanced-experts=0:0.8",
            "needs moe_token_dispatcher_type alltoall",
        ),
        (
            {"moe_expert_capacity_factor": 1.0},
            "imbalanced-experts=0:0.8",
            "no moe_expert_capacity_factor",
        ),
        (
            {"moe_router_load_balancing_type": "sinkhorn", "moe_router_topk": 1},
            "imbalanced-experts=0:0.8",
            "needs a top-k router",
        ),
    ],
)
def test_imbalance_needs_a_dropless_all_to_all_and_a_choice_to_make(settings, spec, says):
    assert says in refusal(spec, {**EXPERTS, **settings})


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        ("slow-link=tp:2x", "sequence_parallel"),
        ("slow-link=0-1:1ms", "sequence_parallel"),
        ("slow-link=dp:2x", "use_distributed_optimizer"),
        ("slow-link=0-2:1ms", "use_distributed_optimizer"),
    ],
)
def test_a_link_of_reduce_scatters_is_refused_with_the_setting_that_makes_them(spec, setting):
    message = refusal(spec, {**JOB, setting: True})
    assert f"Use --set {setting}=false" in message
    check_faults(parse_faults([spec]), job_from_settings(JOB), cuda=False, steps=1)


def test_faults_of_the_host_are_refused_where_the_ranks_run_on_gpus():
    assert "CUDA is available" in refusal("slow-rank=0:2x", JOB, cuda=True)


@pytest.mark.parametrize("spec", ["slow-link=0-4:1ms", "slow-link=0-1:1ms", "slow-link=2-0:1ms"])
def test_a_link_joins_neighbours_of_a_pipeline_or_a_group_of_two(spec):
    check_faults(parse_faults([spec]), job_from_settings(JOB), cuda=False, steps=1)


@pytest.mark.parametrize(
    ("innermost_first", "of_rank_5"),
    # Megatron's order tp-cp-ep-dp-pp: 5 = 1 + 2 · (0 + 2 · 1); with tp-cp-ep-pp-dp the same
    # digits are those of pp and dp.
    [(False, {"tp": 1, "cp": 0, "dp": 0, "pp": 1}), (True, {"tp": 1, "cp": 0, "pp": 0, "dp": 1})],
)
def test_ranks_are_placed_as_megatron_numbers_them(innermost_first, of_rank_5):
    job = job_from_settings(JOB)
    layout = dataclasses.replace(job.layout, use_tp_pp_dp_mapping=innermost_first)
    assert coordinates(5, layout) == of_rank_5


def test_the_command_refuses_before_it_launches_or_writes_anything(tmp_path):
    needs_engine()
    directory, job = tmp_path / "runs", tmp_path / "job.yaml"
    job.write_text(json.dumps(JOB))  # JSON is YAML
    arguments = ["run", str(job), "--directory", str(directory), "--inject"]
    for spec in ("slow-rank=3:0.5x", "slow-rank=99:2x"):
        error = CliRunner().invoke(app, [*arguments, spec]).exception
        assert isinstance(error, InputError)
        assert error.exit_status == 2
        assert spec in str(error)
    assert not directory.exists()
