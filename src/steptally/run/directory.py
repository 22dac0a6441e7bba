"""One run directory for all ranks of a job."""

from __future__ import annotations

import os
from pathlib import Path

import torch.distributed as dist

from steptally.errors import InputError
from steptally.run.naming import free_path, new_run_path
from steptally.run.ranks import has_process_group, rank_and_world_size
from steptally.trace.run_directory import ENVIRONMENT_VARIABLE, RunDirectory


def agree_on_directory(wanted: str | Path | None, name: str) -> RunDirectory:
    """The directory that this rank and all others write to; every rank must call it.

    Rank 0 chooses and tells the others through torch.distributed. Without process groups each rank
    takes the directory that it is told: by argument, or by STEPTALLY_RUN_DIRECTORY. Raises
    `InputError` where several ranks have neither.
    """
    told = wanted or os.environ.get(ENVIRONMENT_VARIABLE) or None
    rank, world_size = rank_and_world_size()
    if has_process_group():
        chosen: list[str | None] = [None]
        if rank == 0:
            chosen = [str(_choose(told, name))]
        dist.broadcast_object_list(chosen, src=0)
        return RunDirectory(Path(str(chosen[0])))
    if world_size == 1:
        return RunDirectory(_choose(told, name))
    if told is None:
        raise InputError(
            f"This is rank {rank} of {world_size} and torch.distributed is not initialised: the "
            f"ranks cannot agree on a run directory. Initialise it before the first step, set "
            f"{ENVIRONMENT_VARIABLE}, or pass Recorder(directory=...)."
        )
    return RunDirectory(Path(told).absolute())


def _choose(told: str | Path | None, name: str) -> Path:
    return new_run_path(Path("runs"), name) if told is None else free_path(Path(told))
