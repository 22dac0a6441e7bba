"""What real megatron-core layers keep and need, on fake tensors. stdin: cases, stdout: marks.

A case has `settings` and `rank`; a mark is [pass, bytes before, bytes after, most bytes during] of
each forward and backward pass, of tensors that did not exist before the step.
"""

import contextlib
import gc
import json
import sys
import weakref

import megatron.core.pipeline_parallel.schedules as schedules
import megatron.core.tensor_parallel.random as megatron_random
import megatron.core.transformer.moe.token_dispatcher as token_dispatcher
import torch
import torch.distributed._tools.fake_collectives
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import steptally.engine.model as engine_model
from steptally.engine.config import transformer_config
from steptally.engine.cpu import megatron_on_cpu
from steptally.engine.groups import initialize_groups
from steptally.job import job_from_settings


class Live(TorchDispatchMode):
    """Adds up the storages that operators make, until each is collected."""

    def __init__(self, known):
        super().__init__()
        self.known = known
        self.sizes = {}
        self.total = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and func.namespace != "prim":
                self._add(tensor.untyped_storage())
        self.peak = max(self.peak, self.total)
        return out

    def _add(self, storage):
        key = storage._cdata
        if key not in self.known and key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.total += storage.nbytes()
            weakref.finalize(storage, self._remove, key)

    def _remove(self, key):
        self.total -= self.sizes.pop(key, 0)

    def mark(self, name, function, *args, **kwargs):
        """Call a function and note [name, bytes before, after, most during]."""
        before = self.peak = self.total
        result = function(*args, **kwargs)
        return result, [name, before, self.total, self.peak]


class Splits(list):
    """What a token dispatcher reads back from the device."""

    def tolist(self):
        return list(self)


def equal_splits(preprocess):
    """Routing of fake tensors has no counts: every expert gets its padded capacity."""

    def patched(self, routing_map):
        preprocess(self, routing_map)
        copies = self.capacity * self.tp_size * self.ep_size
        return Splits([copies] * self.num_local_experts)

    return patched


def native_dropout(tensor, p=0.5, training=True, inplace=False):
    """On a GPU, torch's dropout keeps a mask of one byte an element; on a CPU a product."""
    return tensor if p == 0 else torch.native_dropout(tensor, p, True)[0]


def patch():
    megatron_random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    dispatcher = token_dispatcher.MoEAlltoAllTokenDispatcher
    dispatcher.preprocess = equal_splits(dispatcher.preprocess)
    torch.nn.functional.dropout = native_dropout
    engine_model.Float16Module = lambda config, module: module  # built in half precision below


def build(job):
    config = transformer_config(job)
    if job.recipe.bf16:
        torch.set_default_dtype(torch.bfloat16)
    chunks = engine_model.build_chunks(job, config)
    torch.set_default_dtype(torch.float32)
    return engine_model.wrap_for_data_parallel(job, config, chunks)


def storages(chunks):
    """Parameters, gradients and buffers: what was there before the step."""
    known = set()
    for chunk in chunks:
        for tensor in [*chunk.module.parameters(), *chunk.module.buffers()]:
            known.add(tensor.untyped_storage()._cdata)
            if hasattr(tensor, "main_grad"):
                known.add(tensor.main_grad.untyped_storage()._cdata)
    return known


def run_step(job, chunks):
    layout = job.layout
    shape = (layout.micro_batch_size, layout.seq_length // layout.context_parallel_size)
    live, marks = Live(storages(chunks)), []
    backward_step = schedules.backward_step

    def loss(output):
        mean = output.float().mean()
        return mean, {"loss": mean.detach()}

    def forward(data, chunk):
        tokens, labels = (torch.zeros(shape, dtype=torch.int64) for _ in range(2))
        positions = torch.zeros(shape, dtype=torch.int64)
        output, mark = live.mark("forward", chunk, tokens, positions, None, labels=labels)
        marks.append(mark)
        return output, loss

    def backward(*args, **kwargs):
        result, mark = live.mark("backward", backward_step, *args, **kwargs)
        marks.append(mark)
        return result

    schedules.backward_step = backward
    data = [iter([0] * 10**4) for _ in chunks]
    with live:
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=data if len(chunks) > 1 else data[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=layout.num_microbatches,
            seq_length=shape[1],
            micro_batch_size=shape[0],
            forward_only=False,
        )
    schedules.backward_step = backward_step
    return marks


def answer(case):
    job = job_from_settings(case["settings"])
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=case["rank"], world_size=job.layout.world_size
    )
    with megatron_on_cpu():
        initialize_groups(job)
        with FakeTensorMode(allow_non_fake_inputs=True):
            patch()
            marks = run_step(job, build(job))
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_global_memory_buffer()
    torch.distributed.destroy_process_group()
    RotaryEmbedding.forward.cache_clear()
    gc.collect()
    return marks


print(json.dumps([answer(case) for case in json.load(sys.stdin)]))
