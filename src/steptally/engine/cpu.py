"""Let megatron-core 0.16.1 run on CPU tensors: `with megatron_on_cpu(): …`.

Megatron-Core asks CUDA for the current device, for streams and for random states even where
nothing needs a GPU. `megatron_on_cpu` answers those questions for the CPU, in two ways: it replaces
the few names listed in `replacements`, and a `TorchFunctionMode` redirects `device="cuda"`
arguments. Both last as long as the context.

The replacements are process-wide and the mode belongs to one thread, so this is for a process that
does nothing else: a worker, never a user's own. Streams are no-ops: whatever Megatron overlaps on
streams runs in order. The CPU's one random generator stands for the GPU's.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from steptally.engine.availability import MEGATRON_CORE_VERSION, find_parts, require_engine
from steptally.errors import MissingPartError, RunError

CPU = torch.device("cpu")
ABSENT = object()


@contextlib.contextmanager
def megatron_on_cpu() -> Iterator[None]:
    """Run the body with megatron-core on CPU tensors.

    Raises `MissingPartError` where megatron-core is absent, of another version, or lacks a name
    that is to be replaced, and `RunError` where CUDA is available: there, Megatron runs as it is.
    """
    require_engine(find_parts())
    if torch.cuda.is_available():
        raise RunError(
            "CUDA is available, so megatron-core runs unshimmed: the CPU shim would replace the "
            "real streams and random states. To run on CPU, hide the GPUs: CUDA_VISIBLE_DEVICES=''."
        )
    with contextlib.ExitStack() as stack:
        for replacement in replacements():
            stack.enter_context(replaced(replacement))
        stack.enter_context(_quiet("megatron.core.tensor_parallel.random"))
        # Megatron's `jit_fuser` is torch.compile: a C++ build of half a minute for no gain here.
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(CudaToCpu())
        yield


@dataclass(frozen=True, slots=True)
class Replacement:
    """One name to replace: `owner` is a module, or `module:Class`.

    `may_be_absent` marks a name that megatron-core itself leaves unbound.
    """

    owner: str
    name: str
    value: object
    may_be_absent: bool = False

    def resolve_owner(self) -> Any:
        """The module or class whose name is replaced."""
        module_name, _, class_name = self.owner.partition(":")
        module = import_module(module_name)
        return getattr(module, class_name) if class_name else module


def replacements() -> tuple[Replacement, ...]:
    """Every name that is replaced; the comments say who asks for it."""
    pipeline = "megatron.core.pipeline_parallel.p2p_communication"
    random = "megatron.core.tensor_parallel.random"
    moe = "megatron.core.transformer.moe"
    norm = "megatron.core.transformer.torch_norm:WrappedTorchNorm"
    return (
        # Where new tensors go: linear layers, DDP buffers, pipeline receives, rotary embeddings.
        Replacement("torch.cuda", "current_device", lambda: CPU),
        # Pipeline communication and timers wait for the device.
        Replacement("torch.cuda", "synchronize", lambda device=None: None),
        # The tracker of random states, and recomputation, which replays them.
        Replacement("torch.cuda", "get_rng_state", lambda device="cuda": torch.get_rng_state()),
        Replacement("torch.cuda", "manual_seed", torch.manual_seed),
        Replacement(random, "_get_cuda_rng_state", _get_rng_state),
        Replacement(random, "_set_cuda_rng_state", _set_rng_state),
        # Partial distributed-optimizer instances, expert all-to-all and shared-expert overlap.
        Replacement("torch.cuda", "Stream", FinishedStream),
        Replacement("torch.cuda", "Event", FinishedEvent),
        Replacement("torch.cuda", "stream", lambda stream: contextlib.nullcontext()),
        Replacement("torch.cuda", "current_stream", lambda device=None: FinishedStream()),
        Replacement("torch.cuda", "default_stream", lambda device=None: FinishedStream()),
        Replacement("torch:Tensor", "record_stream", lambda tensor, stream: None),
        Replacement("torch.cuda.nvtx", "range_push", lambda message: 0),
        Replacement("torch.cuda.nvtx", "range_pop", lambda: 0),
        # Outputs are freed while they are still being sent, which only a CUDA stream makes safe.
        Replacement(pipeline, "_p2p_ops", _sending_aliases(pipeline)),
        # Without Apex or Transformer Engine, norms refuse sequence parallelism.
        Replacement(norm, "__new__", _norm_for_sequence_parallel(norm)),
        # One failed import of many names leaves this one unbound without Transformer Engine.
        Replacement(f"{moe}.moe_utils", "te_general_gemm", None, may_be_absent=True),
        # Split sizes become numpy arrays only on their way from a GPU; gloo needs them as such.
        Replacement(f"{moe}.token_dispatcher", "maybe_move_tensor_to_cpu", _as_host_value),
    )


class CudaToCpu(TorchFunctionMode):
    """Redirects `device="cuda"`, `.cuda()` and pinned memory to plain CPU memory.

    `Tensor.type()` answers in CUDA's names, since Megatron's optimizers sort parameters by the
    text `torch.cuda.FloatTensor`.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one torch function with its device arguments redirected."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if func is torch.Tensor.to:
            args = tuple(map(_on_cpu, args))
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


class FinishedStream:
    """A stream whose work is already done: the CPU runs everything in order."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CPU

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has already happened."""
        return event or FinishedEvent()


class FinishedEvent:
    """An event that has already happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Nothing to record."""

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether the event has happened: always."""
        return True


@contextlib.contextmanager
def replaced(replacement: Replacement) -> Iterator[None]:
    """Replace one name for the duration of the context; refuse where it is not there."""
    owner = replacement.resolve_owner()
    before = vars(owner).get(replacement.name, ABSENT)  # absent where it is inherited
    if not (hasattr(owner, replacement.name) or replacement.may_be_absent):
        raise MissingPartError(
            f"{replacement.owner}.{replacement.name} does not exist in megatron-core "
            f"{MEGATRON_CORE_VERSION} with torch {torch.__version__}: the CPU shim replaces it. "
            f"Install the versions that steptally is tested with, or report this combination."
        )
    setattr(owner, replacement.name, replacement.value)
    try:
        yield
    finally:
        if before is ABSENT:
            delattr(owner, replacement.name)
        else:
            setattr(owner, replacement.name, before)


@contextlib.contextmanager
def _quiet(logger_name: str) -> Iterator[None]:
    """Silence a warning that is always true here: the GPU's random state is the CPU's."""
    logger = logging.getLogger(logger_name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _on_cpu(value: Any) -> Any:
    """`value`, or the CPU where it names a CUDA device."""
    if isinstance(value, str) and value.startswith("cuda"):
        return CPU
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    return value


def _get_rng_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


def _as_host_value(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def _sending_aliases(owner: str) -> Callable[..., Any]:
    """Pipeline sends whose memory outlives the schedule's early release of it.

    After an asynchronous send, `deallocate_output_tensor` swaps the tensor's storage for an empty
    one. gloo keeps the tensor, not its storage, and would read freed memory; an alias keeps both.
    """
    original = import_module(owner)._p2p_ops

    def send_and_receive(**tensors: Any) -> Any:
        for name in ("tensor_send_prev", "tensor_send_next"):
            if tensors.get(name) is not None:
                tensors[name] = tensors[name].detach()
        return original(**tensors)

    return send_and_receive


def _norm_for_sequence_parallel(owner: str) -> Callable[..., torch.nn.Module]:
    """A constructor of torch's norms that marks their weights as Apex's fused norm does.

    Megatron sums the gradients of parameters marked `sequence_parallel` over the tensor-parallel
    ranks. Everything else that the original refuses, it still refuses.
    """
    original = Replacement(owner, "__new__", None).resolve_owner().__new__

    def build(cls: type, config: Any, *args: Any, **kwargs: Any) -> torch.nn.Module:
        whole_sequence = copy.copy(config)
        whole_sequence.sequence_parallel = False
        module: torch.nn.Module = original(cls, whole_sequence, *args, **kwargs)
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return module

    return build
