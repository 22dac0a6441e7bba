"""What one rank of a world really does in a training step. stdin: cases, stdout: answers.

Runs megatron-core's own model, schedule, DDP and optimizer on small real tensors, over torch's fake
process group: every other rank is taken to be a copy of this one. Routing is forced to be balanced.
A case is {"settings": job settings, "rank": r, "mtp"…}; an answer lists parameters, collectives
[phase, group, collective, bytes, calls] and products [phase, m, n, k, batch, calls].
"""

import json
import sys
import traceback
from collections import Counter
from dataclasses import replace

import megatron.core.tensor_parallel as tensor_parallel
import megatron.core.tensor_parallel.random as random_states
import megatron.core.transformer.moe.router as router
import megatron.core.transformer.multi_latent_attention as latent_attention
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker
from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper
from megatron.core.transformer.transformer_config import MLATransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from steptally.engine import model as engine_model
from steptally.engine.config import optimizer_config, transformer_config
from steptally.engine.cpu import megatron_on_cpu
from steptally.engine.groups import initialize_groups
from steptally.engine.model import model_arguments, wrap_for_data_parallel
from steptally.job import job_from_settings

COLLECTIVES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "send": "send",
    "recv_": "recv",
    "broadcast_": "broadcast",
}


class Recorder(TorchDispatchMode):
    """Counts matrix products and collectives, with the phase in which each ran."""

    def __init__(self):
        super().__init__()
        self.stage = "model"
        self.rerun = 0
        self.collectives = Counter()
        self.products = Counter()

    def phase(self):
        if self.stage != "model":
            return self.stage
        if torch._C._current_graph_task_id() == -1:
            return "forward"
        return "recompute" if self.rerun else "backward"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        if func.namespace == "c10d":
            self.collective(name, args)
        elif func.namespace == "aten" and name in ("mm", "bmm", "addmm", "baddbmm"):
            left, right = [a for a in args if isinstance(a, torch.Tensor)][-2:]
            batch = left.shape[0] if left.dim() == 3 else 1
            m, k = left.shape[-2:]
            self.products[(self.phase(), m, right.shape[-1], k, batch)] += 1
        return func(*args, **(kwargs or {}))

    def collective(self, name, args):
        if name == "barrier":
            return
        group = next(
            dist.ProcessGroup.unbox(a)
            for a in args
            if isinstance(a, torch.ScriptObject) and "ProcessGroup" in str(a._type())
        )
        outputs, inputs = tensors(args[0]), tensors(args[1]) if len(args) > 1 else []
        reduced = COLLECTIVES[name] in ("reduce_scatter", "all_to_all")
        size = sum(t.numel() * t.element_size() for t in (inputs if reduced else outputs))
        if group.size() > 1:
            self.collectives[(self.phase(), group.group_desc, COLLECTIVES[name], size)] += 1


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, list | tuple) else []


def balanced_topk(logits, topk, **_):
    """Round robin: token t goes to the experts after those of token t − 1."""
    tokens, experts = logits.shape
    first = torch.arange(tokens).unsqueeze(1) * topk
    chosen = (first + torch.arange(topk)) % experts
    chosen_map = torch.zeros(tokens, experts, dtype=torch.bool).scatter(1, chosen, True)
    # What a fake group "receives" may be anything: what is chosen must keep a probability.
    probabilities = torch.softmax(logits.float(), dim=-1).nan_to_num(0.5).clamp(min=0.01)
    probabilities = probabilities.type_as(logits) * chosen_map
    return probabilities, chosen_map


class LatentAttention(DotProductAttention):
    """The local core attention with different channels for keys and values, as MLA needs."""

    def __init__(self, config, *args, k_channels=None, v_channels=None, **kwargs):
        super().__init__(config, *args, **kwargs)
        if v_channels is not None:
            heads = config.num_attention_heads // self.pg_collection.tp.size()
            self.hidden_size_per_partition = v_channels * heads


LATENT = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
AGAIN = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")


def configuration(job):
    a = job.architecture
    if not a.multi_latent_attention:
        config = transformer_config(job)
        config.mtp_num_layers = a.mtp_num_layers
        return config
    # The plain configuration refuses to recompute what only MLA has.
    plain = replace(job, layout=replace(job.layout, recompute_granularity=None))
    config = transformer_config(plain)
    known = MLATransformerConfig.__dataclass_fields__
    fields = {name: getattr(config, name) for name in known if hasattr(config, name)}
    fields |= {name: getattr(a, name) for name in LATENT}
    fields |= {name: getattr(job.layout, name) for name in AGAIN}
    fields |= {"recompute_modules": list(job.layout.recompute_modules)}
    fields |= {"multi_latent_attention": True, "rope_type": "rope"}
    fields |= {"mtp_num_layers": a.mtp_num_layers}
    return MLATransformerConfig(**fields)


def build(job, config):
    chunks = config.virtual_pipeline_model_parallel_size
    models = []
    for stage in [None] if chunks is None else range(chunks):
        spec = get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=config.normalization, vp_stage=stage
        )
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = LatentAttention
        mtp = None
        if config.mtp_num_layers:
            mtp = get_gpt_mtp_block_spec(config, spec, False, vp_stage=stage)
        models.append(
            GPTModel(
                config=config,
                transformer_layer_spec=spec,
                mtp_block_spec=mtp,
                pre_process=parallel_state.is_pipeline_first_stage(False, stage),
                post_process=parallel_state.is_pipeline_last_stage(False, stage),
                vp_stage=stage,
                **model_arguments(job),
            )
        )
        for parameter in models[-1].parameters():
            engine_model.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    return models


def answer(case):
    """One case's answer; its error where megatron-core refuses it, so that the others still run."""
    try:
        return answer_or_raise(case)
    except Exception:
        return {"error": traceback.format_exc()[-1500:]}


def answer_or_raise(case):
    job = job_from_settings(case["settings"])
    layout = job.layout
    dist.init_process_group(
        "fake", store=FakeStore(), rank=case["rank"], world_size=layout.world_size
    )
    try:
        initialize_groups(job)
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        config = configuration(job)
        bare = build(job, config)
        parameters = [[[name, p.numel()] for name, p in model.named_parameters()] for model in bare]
        recorder = Recorder()
        step(job, config, bare, recorder)
        return {
            "parameters": parameters,
            "collectives": [[*key, calls] for key, calls in sorted(recorder.collectives.items())],
            "products": [[*key, calls] for key, calls in sorted(recorder.products.items())],
        }
    finally:
        # Megatron keeps these between models.
        MTPLossLoggingHelper.tracker.clear()
        get_moe_layer_wise_logging_tracker().clear()
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def step(job, config, bare, recorder):
    layout = job.layout
    chunks = wrap_for_data_parallel(job, config, bare)
    for chunk in chunks:  # what a fake group "receives" may be anything, NaN included
        chunk.ddp_config.check_for_nan_in_grad = False
    optimizer = get_megatron_optimizer(optimizer_config(job), chunks, use_gloo_process_groups=False)

    def finalize(*args, **kwargs):
        recorder.stage = "gradients"
        finalize_model_grads(*args, **kwargs)

    config.finalize_model_grads_func = finalize
    config.grad_scale_func = optimizer.scale_loss
    width = layout.seq_length // layout.context_parallel_size
    tokens = torch.zeros(layout.micro_batch_size, width, dtype=torch.long)
    positions = torch.arange(width).expand(layout.micro_batch_size, -1)
    mask = torch.ones(1, 1, width, width).triu(1).bool()

    def forward(_, model):
        output = model(tokens, positions, mask, labels=tokens)
        return output, lambda losses: (losses.sum(), torch.tensor(losses.numel()), {})

    watch_recomputation(recorder)
    with recorder:
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[None] * len(chunks) if len(chunks) > 1 else None,
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=layout.num_microbatches,
            seq_length=layout.seq_length,
            micro_batch_size=layout.micro_batch_size,
        )
        recorder.stage = "optimizer"
        optimizer.step()


def watch_recomputation(recorder):
    """Mark what a checkpoint runs again, for as long as it runs."""

    def watched(function):
        def run(*args):
            recorder.rerun += 1
            try:
                return function(*args)
            finally:
                recorder.rerun -= 1

        return run

    plain = random_states.CheckpointFunction

    def checkpoint(function, distribute_saved_activations, *args):
        return plain.apply(watched(function), distribute_saved_activations, *args)

    tensor_parallel.checkpoint = checkpoint
    without_output = random_states.CheckpointWithoutOutput
    if not hasattr(without_output, "plain_checkpoint"):
        without_output.plain_checkpoint = without_output.checkpoint

    def checkpoint_without_output(self, function, *args):
        self.fp8 = False  # 0.16.1 tests `fp8 is not None`, and then needs Transformer Engine
        return self.plain_checkpoint(watched(function), *args)

    without_output.checkpoint = checkpoint_without_output


if __name__ == "__main__":
    router.topk_routing_with_score_function = balanced_topk
    # Without Transformer Engine 0.16.1 leaves these unusable: None, and True.
    latent_attention.TELinear, latent_attention.HAVE_TE = type("TELinear", (), {}), False
    with megatron_on_cpu():
        answers = []
        for case in json.load(sys.stdin):
            sys.stderr.write(f"case {len(answers)}\n")
            answers.append(answer(case))
    print(json.dumps(answers))
