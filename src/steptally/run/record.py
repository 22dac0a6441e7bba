"""The recorder: a run directory for any training loop, by two lines.

    recorder = steptally.Recorder(job=vars(args), steps=args.train_iters)
    ...
    with recorder.step() as step:
        step.loss = train_step(...)

A step that is not traced costs two readings of the monotonic clock; everything else (writing, the
profiler, values that are still on a device) happens between steps.
"""

from __future__ import annotations

import atexit
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from steptally.errors import InputError, MissingPartError
from steptally.job import Job
from steptally.run.machine import peak_resident_bytes
from steptally.run.manifest import (
    FAILED,
    FINISHED,
    complete_manifest,
    describe_job,
    finish,
    new_manifest,
)
from steptally.run.schedule import check_steps, choose_traced_steps
from steptally.run.step_log import StepRecord, append_steps
from steptally.trace.run_directory import RunDirectory

try:
    import torch
except ImportError as error:
    raise MissingPartError(
        "Recording needs PyTorch, which is not installed here: pip install 'steptally[engine]'."
    ) from error

from steptally.run.directory import agree_on_directory
from steptally.run.ranks import gather_ranks, rank_and_world_size
from steptally.run.window import TracedWindow, barrier

# How long a record may wait for the next write to the disk.
_FLUSH_INTERVAL_NS = 1_000_000_000
# The two clocks drift apart by milliseconds in a day: enough to place a step in a log.
_UNIX_MINUS_MONOTONIC_NS = time.time_ns() - time.perf_counter_ns()


class Step:
    """One step while it runs. Set `loss`, `grad_norm` and `tokens` at any time inside it.

    `loss` and `grad_norm` take a number or a tensor of one element, which is not read (no
    synchronisation) before the step is over; `tokens` is the whole job's in this step.
    """

    __slots__ = ("_annotation", "_recorder", "_started_ns", "grad_norm", "loss", "number", "tokens")

    def __init__(self, recorder: Recorder) -> None:
        self.number = 0
        self.loss: Any = None
        self.grad_norm: Any = None
        self.tokens: int | None = None
        self._recorder = recorder
        self._annotation: AbstractContextManager[None] | None = None
        self._started_ns = 0

    def __enter__(self) -> Self:
        self.number = self._recorder._begin_step()
        if self.number in self._recorder._traced_steps:
            self._annotation = self._recorder._open_window().step(self.number)
            self._annotation.__enter__()
        self._started_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._annotation is not None:
            self._annotation.__exit__(kind, error, traceback)
        ended_ns = time.perf_counter_ns()
        self._recorder._open_step = None
        if error is None:
            self._recorder._take(self, self._started_ns, ended_ns)
        else:
            self._recorder._step_failed()


class Recorder:
    """Writes one run directory for all ranks of a job.

    Every rank makes one, with the same arguments, and enters `step` once per optimizer step. The
    directory is `directory`, or the environment variable STEPTALLY_RUN_DIRECTORY, or
    `runs/<time>-<name>` of the working directory, chosen by rank 0; in a job of several hosts it
    must be on a file system that they share.

    `job` is a `Job` or a mapping of Megatron-LM's names (`vars(get_args())`); `steps` the length
    of the run where it is known; steps are numbered from 1, the first `warmup_steps` of them are
    not timed, `traced_steps` are profiled (`choose_traced_steps` unless given; `()` for none).
    `tokens_per_step` is the tokens of one step over all ranks: the job's unless given.

    Works with CPU and CUDA, with or without torch.distributed, and uses Megatron's parallel state
    where it is set up. Raises `InputError` for steps that are not in the run, and where several
    ranks cannot agree on a directory.

    >>> with Recorder(steps=10) as recorder:                           # doctest: +SKIP
    ...     for batch in batches:
    ...         with recorder.step() as step:
    ...             step.loss = train_step(batch)
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        name: str = "run",
        job: Job | Mapping[str, object] | None = None,
        steps: int | None = None,
        warmup_steps: int = 2,
        traced_steps: Sequence[int] | None = None,
        tokens_per_step: int | None = None,
        seed: int | None = None,
    ) -> None:
        if traced_steps is None:
            traced_steps = choose_traced_steps(steps, warmup_steps)
        check_steps(steps, warmup_steps, traced_steps)
        self._wanted_directory = directory
        self._name = name
        self._described = describe_job(job)
        self._steps = steps
        self._warmup_steps = warmup_steps
        self._traced_steps = frozenset(traced_steps)
        self._tokens_per_step = tokens_per_step or _tokens_of(self._described)
        self._seed = seed
        self._directory: RunDirectory | None = None
        self._rank = 0
        self._number = 0
        self._open_step: int | None = None
        self._pending: list[StepRecord] = []
        self._flushed_ns = time.perf_counter_ns()
        self._window: TracedWindow | None = None
        self._sequence: Counter[tuple[object, ...]] = Counter()
        self._closed = False
        self._can_write = True
        atexit.register(self._close_at_exit)

    @property
    def directory(self) -> RunDirectory:
        """The run directory; known from the first step on."""
        if self._directory is None:
            raise InputError(
                "The recorder's directory is not known yet: the ranks agree on it when the first "
                "step begins. Ask for it later, or pass Recorder(directory=...)."
            )
        return self._directory

    def step(self) -> Step:
        """The next step, to be entered by `with` around one optimizer step.

        Steps do not nest: entering one inside another raises `InputError`. After `close` steps are
        not recorded any more.
        """
        if self._directory is None and not self._closed:
            self._start()
        return Step(self)

    def _begin_step(self) -> int:
        """The number of the step that is being entered; 0 for one that is not recorded."""
        if self._closed:
            warnings.warn(
                "steptally records no step after close(): close it once the loop is over.",
                stacklevel=3,
            )
            return 0
        if self._open_step is not None:
            raise InputError(
                f"Step {self._number + 1} begins inside step {self._open_step}, whose wall time "
                f"would hold both: put `with recorder.step()` around one optimizer step."
            )
        self._number += 1
        self._open_step = self._number
        return self._number

    def close(self, status: str = FINISHED) -> None:
        """Write what is pending and say in the manifest how the run ended. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        if self._directory is None:
            return
        self._close_window(with_others=False)
        self._flush(len(self._pending))
        if self._rank == 0 or status != FINISHED:
            self._write(lambda: finish(self.directory, status))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(FINISHED if error is None else FAILED)

    def _start(self) -> None:
        """Before the first step: agree on the directory, and let rank 0 write the manifest."""
        self._directory = agree_on_directory(self._wanted_directory, self._name)
        self._rank, world_size = rank_and_world_size()
        rows, groups = gather_ranks()
        if self._rank == 0:
            manifest = new_manifest(
                name=self._name,
                described=self._described,
                world_size=world_size,
                steps=self._steps,
                warmup_steps=self._warmup_steps,
                traced_steps=sorted(self._traced_steps),
                seed=self._seed,
            )
            manifest |= {"ranks": rows, "parallel_groups": groups}
            self._write(lambda: complete_manifest(self.directory, manifest))
            # From now on the directory is taken: another recorder would mix its steps with these.
            self._write(self.directory.steps.touch)

    def _open_window(self) -> TracedWindow:
        if self._window is None:
            self._flush(len(self._pending))
            self._window = TracedWindow(self._sequence)
        return self._window

    def _close_window(self, *, with_others: bool) -> None:
        """Save the trace. A rank that closes early must not wait for the others."""
        if self._window is not None:
            window, self._window = self._window, None
            window.stop(with_others=with_others)
            self._write(lambda: window.save(self.directory.trace(self._rank)))
            if with_others:
                barrier()

    def _take(self, step: Step, started_ns: int, ended_ns: int) -> None:
        """Keep the record of a step that is over; write when a window or the interval ends."""
        if self._closed:
            return
        self._pending.append(
            StepRecord(
                step=step.number,
                rank=self._rank,
                start_unix_ns=started_ns + _UNIX_MINUS_MONOTONIC_NS,
                duration_ns=ended_ns - started_ns,
                tokens=self._tokens_per_step if step.tokens is None else step.tokens,
                traced=step.number in self._traced_steps,
                warmup=step.number <= self._warmup_steps,
                loss=_kept(step.loss),
                grad_norm=_kept(step.grad_norm),
            )
        )
        if self._window is not None and step.number + 1 not in self._traced_steps:
            self._flush(len(self._pending))
            self._close_window(with_others=True)
        elif ended_ns - self._flushed_ns >= _FLUSH_INTERVAL_NS:
            # A GPU may still be at work on the newest step: reading its loss would stop the queue.
            keep_newest = _is_on_gpu(step.loss) or _is_on_gpu(step.grad_norm)
            self._flush(len(self._pending) - keep_newest)

    def _step_failed(self) -> None:
        """The loop's own error is on its way up: leave nothing patched, write no half step."""
        if self._window is not None:
            window, self._window = self._window, None
            window.stop(with_others=False)

    def _flush(self, count: int) -> None:
        """Write the oldest `count` pending records."""
        records, self._pending = self._pending[:count], self._pending[count:]
        if records:
            peaks = peak_memory()
            self._write(lambda: append_steps(self.directory.steps, records, peaks))
        self._flushed_ns = time.perf_counter_ns()

    def _write(self, action: Callable[[], None]) -> None:
        """Write something; a full disk must stop the recording, not the training."""
        if not self._can_write:
            return
        try:
            action()
        except OSError as error:
            self._can_write = False
            warnings.warn(
                f"steptally stops recording rank {self._rank}: {error}. Training goes on.",
                stacklevel=2,
            )

    def _close_at_exit(self) -> None:
        """The program ends without `close`; Python keeps the error that ended it, if one did."""
        self.close(FAILED if getattr(sys, "last_value", None) is not None else FINISHED)


def peak_memory() -> dict[str, int]:
    """High-water marks so far, in bytes: of torch's allocator on a GPU, else of resident memory.

    `peak_reserved_bytes`, what the allocator holds of the GPU, is there on a GPU only.
    """
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {"peak_memory_bytes": peak_resident_bytes()}
    return {
        "peak_memory_bytes": int(torch.cuda.max_memory_allocated()),
        "peak_reserved_bytes": int(torch.cuda.max_memory_reserved()),
    }


def _tokens_of(described: Mapping[str, Any]) -> int | None:
    """Tokens of one step over all ranks, where the recorder was given a job."""
    if described["job"] is None:
        return None
    layout = described["job"]["layout"]
    return int(layout["global_batch_size"] * layout["seq_length"])


def _kept(value: Any) -> Any:
    """A copy of a tensor, free of its graph: loops reuse the buffer that holds their loss."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_on_gpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda
