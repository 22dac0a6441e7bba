"""What a collective is, by the name of its kernel, its arguments, its operator or gloo's transfer.

A kernel's arguments say more than its name: NCCL runs all-to-alls and messages as one kernel,
`SendRecv`, and RCCL everything as `ncclDevKernel_Generic`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Searched in a name without its underscores, in small letters; the first that is found.
_BY_NAME = (
    ("reducescatter", "reduce-scatter"),
    ("rdxnscatter", "reduce-scatter"),
    ("allreduce", "all-reduce"),
    ("crossdevicereduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("fcollect", "all-gather"),
    ("alltoall", "all-to-all"),
    ("sendrecv", "send-recv"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("gather", "gather"),
    ("scatter", "scatter"),
)
# DeepEP's, hybrid-EP's and MORI's kernels: tokens to their experts, and back.
_EXPERTS = re.compile(r"intranode|internode|hybrid_ep|\bEp(Dispatch|Combine)", re.IGNORECASE)
_REDUCE = re.compile(r"nccl\w*_Reduce_|^gloo:reduce$", re.IGNORECASE)
_ARGUMENTS = {"reduce": "reduce", "send": "send", "recv": "recv", "recvanysource": "recv"}

# Members leave these together: none can before the last has entered, and all need the same data.
LEAVE_TOGETHER = ("all-reduce", "barrier", "all-gather", "reduce-scatter")
# Nobody leaves before the last has entered, but each when its own share is there.
LEAVE_APART = ("all-to-all", "send-recv")
MESSAGES = ("send", "recv")


def collective_of(name: str, argument: str | None = None) -> str:
    """One of `COLLECTIVE_NAMES`, from a kernel's or transfer's name and its argument if it has one.

    >>> collective_of("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
    'send-recv'
    >>> collective_of("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all_to_allv")
    'all-to-all'
    >>> collective_of("ncclKernel_Reduce_RING_LL_Sum_float()"), collective_of("gloo:all_reduce")
    ('reduce', 'all-reduce')
    """
    if argument:
        told = _plain(argument)
        known = _ARGUMENTS.get(told) or _first(told)
        if known:
            return known
    if name.startswith(("Memcpy", "CopyPeer")):
        return "copy"
    if _EXPERTS.search(name):
        return "barrier" if "barrier" in name else "all-to-all"
    found = _first(_plain(name))
    if found:
        return found
    return "reduce" if _REDUCE.search(name) else "unknown"


def collectives_of(names: Iterable[str], arguments: Iterable[str | None]) -> list[str]:
    """`collective_of` for many, each distinct pair once."""
    known: dict[tuple[str, str | None], str] = {}
    found = []
    for pair in zip(names, arguments, strict=True):
        if pair not in known:
            known[pair] = collective_of(*pair)
        found.append(known[pair])
    return found


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _first(plain: str) -> str | None:
    return next((known for word, known in _BY_NAME if word in plain), None)
