"""A traced window: consecutive steps that one profiler session records.

Starting and stopping the profiler and writing the trace take from milliseconds to seconds, and not
the same on every rank. All of it happens between steps, and between two barriers: no rank waits
for another's profiler inside a step, or shares its cores with one that writes its trace.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from isal import igzip

from steptally.run.tagging import tagged_collectives

_COMPRESSION_LEVEL = 1


class TracedWindow:
    """Records from construction to `stop`; `save` writes the trace of this rank.

    PyTorch has one profiler a process, and starting a second one ends the first. Where the loop
    runs its own, this rank records nothing and says so; it still meets the others at the barriers.
    """

    def __init__(self, sequence: Counter[tuple[object, ...]]) -> None:
        self._profiler: Any = None
        if torch._C._autograd._profiler_enabled():
            warnings.warn(
                "steptally leaves these steps of this rank untraced: the loop's own torch profiler "
                "runs in them. Name other steps: Recorder(traced_steps=...).",
                stacklevel=2,
            )
        else:
            self._profiler = torch.profiler.profile(record_shapes=True)
        if not sequence:
            _rehearse(may_profile=self._profiler is not None)
        self._tags = ExitStack()
        _synchronize()
        if self._profiler is not None:
            self._profiler.start()
        barrier()
        self._tags.enter_context(tagged_collectives(sequence))

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Mark one step; what it left running on the device still belongs to it."""
        with torch.profiler.record_function(f"ProfilerStep#{number}"):
            yield
            _synchronize()

    def stop(self, *, with_others: bool) -> None:
        """Stop recording, once all ranks are through their step: nothing of torch stays patched."""
        self._tags.close()
        if with_others:
            barrier()
        if self._profiler is not None:
            self._profiler.stop()

    def save(self, path: Path) -> None:
        """Write the gzipped Kineto file: whole, or not at all.

        A run with several windows keeps them in one file: a window is added to what is there.
        """
        if self._profiler is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
            plain, packed = Path(directory) / "trace.json", Path(directory) / "trace.json.gz"
            self._profiler.export_chrome_trace(str(plain))
            if path.exists():
                earlier = igzip.decompress(path.read_bytes())
                plain.write_bytes(joined_traces(earlier, plain.read_bytes()))
            with (
                plain.open("rb") as source,
                igzip.open(packed, "wb", compresslevel=_COMPRESSION_LEVEL) as file,
            ):
                shutil.copyfileobj(source, file, length=1 << 20)
            packed.replace(path)


def _rehearse(*, may_profile: bool) -> None:
    """Record a few barriers for nothing: a profiler's first events cost tens of milliseconds."""
    profiler = torch.profiler.profile(record_shapes=True) if may_profile else nullcontext()
    with profiler, tagged_collectives(Counter()):
        for _ in range(4):
            barrier()


def joined_traces(earlier: bytes, later: bytes) -> bytes:
    """Two Kineto sessions of one process as one: their clocks have the same base."""
    first = msgspec.json.decode(earlier, type=dict[str, msgspec.Raw])
    second = msgspec.json.decode(later, type=dict[str, msgspec.Raw])
    events = [
        event
        for trace in (first, second)
        for event in msgspec.json.decode(trace["traceEvents"], type=list[msgspec.Raw])
    ]
    return msgspec.json.encode({**first, **second, "traceEvents": events})


def barrier() -> None:
    """Wait for all ranks, where torch.distributed is initialised."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _synchronize() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
