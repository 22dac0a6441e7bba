"""Where Python issues communication and waits for it: one place to act before, behind or inside.

Every function of `torch.distributed` that Megatron-Core calls ends in a method of `ProcessGroup`,
and every wait in one of `Work`. Both are replaced for the duration of a step, on top of what the
recorder has put there, so that what runs `before` is outside of the recorder's events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch.distributed as dist

from steptally.engine.cpu import Replacement, replaced

# Several names of one call: torch 2.13 calls by others (`…_single`) than 2.6 does.
_NAMES = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("alltoall", "alltoall_base", "gather", "scatter", "barrier"),
    *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
)
COLLECTIVES = tuple(name for name in _NAMES if hasattr(dist.ProcessGroup, name))
MESSAGES = ("send", "recv")

Around = Callable[[], AbstractContextManager[None]]
Call = Callable[..., Any]


@contextmanager
def around_communication(before: Callable[[], None], around: Around) -> Iterator[None]:
    """Call `before` ahead of each issue and each wait of this process, and run it in `around`."""

    def wrapped(function: Call) -> Call:
        def communicate(*args: Any, **kwargs: Any) -> Any:
            before()
            with around():
                return function(*args, **kwargs)

        return communicate

    methods = [(dist.ProcessGroup, name) for name in (*COLLECTIVES, *MESSAGES)]
    methods += [(dist.Work, "wait"), (dist.Work, "synchronize")]
    with replaced_methods(methods, wrapped):
        yield


@contextmanager
def replaced_methods(
    methods: list[tuple[type, str]], wrapped: Callable[[Call], Call]
) -> Iterator[None]:
    """Replace each method by what `wrapped` makes of it, until the block ends."""
    with ExitStack() as stack:
        for owner, name in methods:
            place = f"{owner.__module__}:{owner.__name__}"
            value = wrapped(getattr(owner, name))
            stack.enter_context(replaced(Replacement(place, name, value)))
        yield
