"""Single changes of a job that lower its memory: what each would need, and what it costs.

Devices, global batch and model stay as they are, unless the change says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from steptally.errors import InputError
from steptally.job import Device, Job, job_from_settings
from steptally.job.training_faults import training_faults
from steptally.predict.attention_kernel import UNFUSED, attention_kernel
from steptally.predict.flops import flops_per_step
from steptally.predict.memory.account import RankMemory, memory_of_ranks
from steptally.predict.memory.stage import all_stages
from steptally.predict.ranks import rank_at
from steptally.tally import MemoryChangeRow

FULL_RECOMPUTATION = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}


MOST_DOUBLINGS = 6


class Change(NamedTuple):
    """Settings to change, and what that costs beside executed FLOPs.

    Of the changes of one `axis`, smallest first, one is proposed: the first that fits.
    """

    settings: Mapping[str, object]
    cost: str
    axis: str = ""

    @property
    def name(self) -> str:
        """The settings as `--set` takes them."""
        return " ".join(f"{name}={_text(value)}" for name, value in self.settings.items())


def predict_changes(job: Job, device: Device | None = None) -> list[MemoryChangeRow]:
    """Every single change that would need less, those that fit and execute least first.

    A change that Megatron would refuse, or build and fail to train, is left out.
    """
    now = worst_rank(job, device).total_bytes
    executed = flops_per_step(job).executed
    found: dict[str, MemoryChangeRow] = {}
    for change in candidates(job):
        axis = change.axis or change.name
        if axis in found and found[axis].fits:
            continue
        try:
            row = _row(changed_job(job, change), change, executed, device)
        except InputError:
            continue
        if row.total_bytes < min(now, found[axis].total_bytes if axis in found else now):
            found[axis] = row
    return sorted(found.values(), key=_order)


def _row(job: Job, change: Change, executed: int, device: Device | None) -> MemoryChangeRow:
    need, flops = worst_rank(job, device).total_bytes, flops_per_step(job).executed
    return MemoryChangeRow(
        name=change.name,
        total_bytes=need,
        fits=fits(need, device),
        flops_per_step_executed=flops,
        difference=flops / executed - 1,
        cost=change.cost,
    )


def fits(total_bytes: int, device: Device | None) -> bool | None:
    """Whether a device has that much; None where its memory is not known."""
    if device is None or device.memory_bytes is None:
        return None
    return total_bytes <= device.memory_bytes


def worst_rank(job: Job, device: Device | None) -> RankMemory:
    """The first rank of the stage that needs most of its device."""
    peaks = [max(stage.first_step_peak, stage.peak) for stage in all_stages(job, device)]
    rank = rank_at(job.layout, pp=peaks.index(max(peaks)))
    return memory_of_ranks(job, rank, device)[0]


def changed_job(job: Job, change: Change) -> Job:
    """The job with a change; raises `InputError` where Megatron would not run or train it."""
    changed = job_from_settings(
        {**job.settings(), **job.unknown, **change.settings},
        name=job.name,
        source=job.source,
        ignored=job.ignored,
    )
    faults = training_faults(changed)
    if len(faults) > len(training_faults(job)):
        raise InputError(faults[0])
    return changed


def candidates(job: Job) -> Iterator[Change]:
    """Changes worth a try, possible or not."""
    yield from _recomputation(job)
    yield from _recipe(job)
    yield from _batch(job)
    yield from _split(job)


def _recomputation(job: Job) -> Iterator[Change]:
    layout = job.layout
    if layout.recompute_granularity == "full":
        return
    if layout.recompute_granularity is None:
        for module in _modules(job):
            settings = {"recompute_granularity": "selective", "recompute_modules": (module,)}
            yield Change(settings, "")
    yield Change(FULL_RECOMPUTATION, "")


def _modules(job: Job) -> Sequence[str]:
    """What `recompute_modules` can name in this model; core attention where it keeps scores."""
    architecture = job.architecture
    modules = ["layernorm"]
    if attention_kernel(job) == UNFUSED:
        modules.append("core_attn")
    if architecture.multi_latent_attention:
        modules.append("mla_up_proj")
    if architecture.num_experts is None:
        return (*modules, "mlp")
    return (*modules, "moe_act", "moe")


def _recipe(job: Job) -> Iterator[Change]:
    recipe, layout = job.recipe, job.layout
    replicas = layout.data_parallel_size * layout.context_parallel_size
    if replicas > 1 and not recipe.use_distributed_optimizer:
        yield Change({"use_distributed_optimizer": True}, "gathers parameters after the update")
    if recipe.use_distributed_optimizer and not recipe.use_precision_aware_optimizer:
        yield Change(
            {
                "use_precision_aware_optimizer": True,
                "exp_avg_dtype": "bf16",
                "exp_avg_sq_dtype": "bf16",
            },
            "moments in bf16: other numerics",
        )
    if not recipe.optimizer_cpu_offload:
        yield Change({"optimizer_cpu_offload": True}, "updates on the CPU, over the host link")
    if not (recipe.cross_entropy_loss_fusion and recipe.cross_entropy_fusion_impl == "te"):
        yield Change({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}, "")
    if recipe.transformer_impl == "local":
        yield Change({"transformer_impl": "transformer_engine"}, "needs Transformer Engine")
    elif attention_kernel(job) == UNFUSED:
        yield Change({"attention_backend": "flash"}, "")


def _batch(job: Job) -> Iterator[Change]:
    layout = job.layout
    for size in _halved(layout.micro_batch_size):
        yield Change(
            {"micro_batch_size": size}, "smaller products, more passes", "micro_batch_size"
        )
    if layout.virtual_pipeline_model_parallel_size:
        yield Change({"virtual_pipeline_model_parallel_size": None}, "a larger pipeline bubble")


def _halved(size: int) -> Iterator[int]:
    """Half the size, a quarter, and so on, as long as it is whole."""
    while size % 2 == 0:
        size //= 2
        yield size


def _split(job: Job) -> Iterator[Change]:
    """More ranks of each kind of parallelism, out of the same devices; then more devices."""
    layout = job.layout
    if layout.tensor_model_parallel_size > 1 and not layout.sequence_parallel:
        yield Change({"sequence_parallel": True}, "")
    costs = {
        "tensor_model_parallel_size": "more tensor-parallel communication, narrower products",
        "pipeline_model_parallel_size": "a larger pipeline bubble",
        "context_parallel_size": "exchanges keys and values",
        "expert_model_parallel_size": "a wider all-to-all",
    }
    for name, cost in costs.items():
        more = {"sequence_parallel": True} if name == "tensor_model_parallel_size" else {}
        for size in _doubled(getattr(layout, name)):
            yield Change({name: size, **more}, cost, name)
    if job.recipe.use_distributed_optimizer:
        for size in _doubled(layout.world_size):
            yield Change({"world_size": size}, "more devices", "world_size")


def _doubled(size: int) -> Iterator[int]:
    """Twice the size, four times, and so on."""
    return (size << times for times in range(1, MOST_DOUBLINGS + 1))


def _order(row: MemoryChangeRow) -> tuple[bool, float, int]:
    """Those that fit come first, then those that execute least, then those that need least."""
    return (not row.fits, round(row.difference, 6), row.total_bytes)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
