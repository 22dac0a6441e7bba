"""The CPU shim: what it refuses, what it redirects, and that it leaves no trace."""

import pytest

pytest.importorskip("megatron.core")

import torch
from megatron.core.transformer.moe import token_dispatcher

from steptally.engine import availability
from steptally.engine.cpu import megatron_on_cpu, replacements
from steptally.errors import MissingPartError, RunError


def test_another_version_of_megatron_core_is_refused(monkeypatch):
    monkeypatch.setattr(availability.metadata, "version", lambda distribution: "0.17.0")
    with pytest.raises(MissingPartError, match=r"0\.17\.0 is installed"), megatron_on_cpu():
        pass


def test_a_name_that_megatron_core_has_dropped_is_refused_by_name(monkeypatch):
    monkeypatch.delattr(token_dispatcher, "maybe_move_tensor_to_cpu")
    with pytest.raises(MissingPartError) as raised, megatron_on_cpu():
        pass
    assert "moe.token_dispatcher.maybe_move_tensor_to_cpu does not exist" in str(raised.value)


def test_a_machine_with_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RunError, match="CUDA is available"), megatron_on_cpu():
        pass


def test_what_goes_to_cuda_lands_on_the_cpu():
    with megatron_on_cpu():
        made = torch.zeros(2, device="cuda")
        pinned = torch.zeros(2, pin_memory=True)
        moved = (torch.zeros(2).cuda(), torch.zeros(2).to("cuda"), torch.zeros(2, device="cuda:0"))
        current = torch.cuda.current_device()
    assert {tensor.device.type for tensor in (made, pinned, *moved)} == {"cpu"}
    assert current == torch.device("cpu")


def test_tensor_types_carry_the_names_that_megatrons_optimizers_look_for():
    with megatron_on_cpu():
        assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
        assert torch.zeros(1).type(torch.int64).dtype == torch.int64


def test_everything_is_as_before_once_the_context_ends():
    owners = [(item.resolve_owner(), item.name) for item in replacements()]
    before = [getattr(owner, name, None) for owner, name in owners]
    with megatron_on_cpu():
        during = [getattr(owner, name, None) for owner, name in owners]
    after = [getattr(owner, name, None) for owner, name in owners]
    assert after == before
    assert all(new != old for new, old in zip(during, before, strict=True) if old is not None)


def test_norms_keep_their_own_refusals_and_are_marked_for_sequence_parallelism():
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    shape = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2}
    split = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    with megatron_on_cpu():
        norm = WrappedTorchNorm(TransformerConfig(**shape, **split), hidden_size=8)
        with pytest.raises(AssertionError, match="memory_efficient_layer_norm"):
            WrappedTorchNorm(
                TransformerConfig(**shape, memory_efficient_layer_norm=True), hidden_size=8
            )
    assert all(parameter.sequence_parallel for parameter in norm.parameters())
