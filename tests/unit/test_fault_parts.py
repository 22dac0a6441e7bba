"""The parts of `--inject` that need no run: the router, a link's delay, who pauses when."""

import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("megatron.core")

import torch
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.moe.router import TopKRouter

from steptally.engine.adapt import adapt
from steptally.engine.availability import find_parts
from steptally.engine.config import transformer_config
from steptally.engine.cpu import megatron_on_cpu
from steptally.job import job_from_settings
from steptally.run.faults.communication import COLLECTIVES, MESSAGES
from steptally.run.faults.experts import imbalanced_experts, preferring
from steptally.run.faults.slow_compute import DELAY_OPERATOR, SlowCompute
from steptally.run.faults.slow_link import SlowLinks
from steptally.run.faults.specification import parse_fault, parse_faults
from steptally.run.faults.stalls import pauses_of
from steptally.run.faults.stamps import Stamps
from steptally.trace.kineto import read_kineto

EXPERTS = {
    "num_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "seq_length": 64,
    "vocab_size": 256,
    "global_batch_size": 2,
    "world_size": 1,
    "num_experts": 8,
    "moe_ffn_hidden_size": 32,
    "moe_router_topk": 2,
    "add_bias_linear": False,
    "moe_token_dispatcher_type": "alltoall",
}


@pytest.mark.parametrize("share", [0.1, 0.8, 1.0])
def test_megatrons_router_sends_that_share_of_tokens_to_the_expert_and_as_many_copies(share):
    job = adapt(job_from_settings(EXPERTS), find_parts())
    config = transformer_config(job)
    groups = SimpleNamespace(tp=None, cp=None, tp_cp=None, tp_dp_cp=None)
    tokens = 2 * 60
    with megatron_on_cpu():
        model_parallel_cuda_manual_seed(1, tp_rank=0, ep_rank=0, etp_rank=0)
        router = TopKRouter(config, groups).eval()
        logits = torch.randn(60, 2, 8, generator=torch.Generator().manual_seed(1))
        _, natural = router.routing(logits)
        with imbalanced_experts(parse_fault(f"imbalanced-experts=5:{share}")):
            probabilities, routed = router.routing(logits)
        _, after = router.routing(logits)
    assert routed[:, 5].sum() == round(share * tokens)
    assert routed.sum() == natural.sum() == 2 * tokens
    assert torch.isfinite(probabilities).all()
    assert torch.equal(after, natural)


def test_the_tokens_that_are_sent_are_spread_evenly_and_the_others_choose_as_before():
    logits = torch.tensor([[3.0, 2.0, 1.0]]).repeat(4, 1)
    changed = preferring(logits, 2, 0.5)
    assert changed.argmax(dim=-1).tolist() == [0, 2, 0, 2]
    assert torch.equal(changed[:, :2], logits[:, :2])


class CompletedByAnotherThread:
    """A work whose future a thread of gloo completes, a time after it was issued."""

    def __init__(self, after_s):
        self.after_s = after_s
        self.delayed_s = None

    def get_future(self):
        return self

    def then(self, callback):
        def complete():
            time.sleep(self.after_s)
            began = time.perf_counter()
            callback(None)
            self.delayed_s = time.perf_counter() - began

        thread = threading.Thread(target=complete)
        thread.start()
        thread.join()


@pytest.mark.parametrize(
    ("size", "transfer_s", "more"),
    # A factor of 3 adds twice the 60 ms from when the last member came; 40 ms are 40 ms.
    [("3x", 0.06, 0.12), ("40ms", 0.06, 0.04)],
)
def test_a_links_delay_counts_from_when_the_last_member_came(tmp_path, size, transfer_s, more):
    faults = parse_faults([f"slow-link=dp:{size}"])
    links = SlowLinks(faults, Stamps(tmp_path))
    here, there = Stamps(tmp_path), Stamps(tmp_path)
    transfer = here.come("group", 2, 0)
    time.sleep(0.2)  # this rank waits: no part of the transfer
    there.come("group", 2, 1)
    work = CompletedByAnotherThread(transfer_s)
    links._delay_completion(work, faults, transfer, "DATA_PARALLEL_GROUP")
    # Not more than the 520 ms that a factor of 3 would make of the wait and the transfer.
    assert 0.95 * more <= work.delayed_s < 0.5


class CompletedAlready:
    """A work that is over by the time that something is to hang on its future."""

    def get_future(self):
        return self

    def then(self, callback):
        callback(None)


def test_a_collective_that_is_over_too_soon_is_held_where_it_is_waited_for(tmp_path):
    faults = parse_faults(["slow-link=dp:500ms"])
    links, work = SlowLinks(faults, Stamps(tmp_path)), CompletedAlready()
    began = time.perf_counter()
    links._delay_completion(work, faults, Stamps(tmp_path).come("group", 1, 0), "GROUP")
    assert time.perf_counter() - began < 0.5  # whoever issues is not held
    assert links._holding(lambda work: "waited")(work) == "waited"
    assert time.perf_counter() - began >= 0.5
    assert links._holding(lambda work: "again")(work) == "again"
    assert time.perf_counter() - began < 1.0


def test_ranks_see_each_others_stamps_and_never_those_of_an_earlier_transfer(tmp_path):
    here, there = Stamps(tmp_path), Stamps(tmp_path)
    for _ in range(4100):  # beyond the length of the table
        one, other = here.come("group", 2, 0), there.come("group", 2, 1)
        assert one.all_came()
        assert one.last_came_ns() == other.last_came_ns()
    alone = here.come("group", 2, 0)
    assert not alone.all_came()
    assert alone.last_came_ns() == alone.rows[0, 1]


def test_a_pause_of_any_rank_falls_on_one_rank_a_step_and_all_ranks_know_which():
    pauses = [parse_fault("gc-pause=any:100ms:every=3")]
    fell_on = Counter()
    for step in range(1, 61):
        paused = [pauses_of(pauses, step, rank=rank, world_size=4, seed=7) for rank in range(4)]
        assert sorted(paused) == [0, 0, 0, 100_000_000 if step % 3 == 0 else 0]
        fell_on.update(rank for rank in range(4) if paused[rank])
    assert fell_on.keys() == {0, 1, 2, 3}  # 20 draws of 4


def test_a_pause_of_one_rank_adds_up_with_one_of_any():
    pauses = parse_faults(["gc-pause=0:100ms:every=2", "gc-pause=1:10ms", "gc-pause=1:1ms"])
    spent = [pauses_of(pauses, 2, rank=rank, world_size=2, seed=7) for rank in (0, 1)]
    assert spent == [100_000_000, 11_000_000]


def test_slow_compute_delays_operators_in_their_phase_and_nothing_outside_of_a_step(tmp_path):
    compute = SlowCompute()
    compute.extra = {"forward": 1.0}
    a = torch.randn(512, 512)
    with compute, torch.profiler.profile() as profiler:
        a @ a  # before the step
        with torch.profiler.record_function("ProfilerStep#1"), compute.step():
            a @ a  # outside of forward
            with compute.phase("forward"):
                for _ in range(40):
                    a @ a
                with compute.apart():
                    time.sleep(0.05)  # communication: not stretched
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = read_kineto(tmp_path / "trace.json", 0).events
    spent = {
        name: int((rows["end_ns"] - rows["start_ns"]).sum())
        for name in ("aten::matmul", DELAY_OPERATOR)
        for rows in [events.filter(events["name"] == name)]
    }
    products = events.filter(events["name"] == "aten::matmul")
    in_forward = products.sort("start_ns")[2:]
    own_ns = int((in_forward["end_ns"] - in_forward["start_ns"]).sum())
    assert len(products) == 42
    assert spent[DELAY_OPERATOR] / own_ns == pytest.approx(1.0, rel=0.3)
    first = events.filter(events["name"] == DELAY_OPERATOR)["start_ns"].min()
    assert first > in_forward["start_ns"][0]


def test_every_method_that_communicates_is_known():
    """A new torch may call its collectives by new names, which no fault would see."""
    known = {*COLLECTIVES, *MESSAGES}
    kinds = ("reduce", "gather", "scatter", "all_to_all", "alltoall", "broadcast", "barrier")
    methods = {
        name
        for name in vars(torch.distributed.ProcessGroup)
        if any(kind in name for kind in kinds) or name in ("send", "recv")
    }
    assert methods - known == {"monitored_barrier"}  # a store's, not gloo's: Megatron has none
