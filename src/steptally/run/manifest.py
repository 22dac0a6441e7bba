"""The manifest: who trained what, where, with which software. Written before the first step."""

from __future__ import annotations

import enum
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptally.errors import InputError
from steptally.job import Job, job_from_settings
from steptally.run.faults.fault import Fault
from steptally.run.machine import (
    describe_git,
    describe_machine,
    describe_steptally_checkout,
    describe_versions,
)
from steptally.run.privacy import allowed_environment, is_secret, without_secrets
from steptally.trace.run_directory import FORMAT, RunDirectory, write_atomically

RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"


def new_manifest(
    *,
    name: str,
    described: Mapping[str, Any],
    world_size: int,
    steps: int | None,
    warmup_steps: int,
    traced_steps: Sequence[int],
    seed: int | None = None,
    command: Sequence[str] | None = None,
    injected: Sequence[Fault] = (),
) -> dict[str, Any]:
    """Everything that is known before the ranks meet; `status` is `running`.

    `described` is `describe_job`'s. `steps` is None where the loop's length is not known,
    `command` is this process's own unless given; values that may be secret are hidden in it.
    """
    return {
        "format": FORMAT,
        "status": RUNNING,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "name": name,
        "command": without_secrets(sys.orig_argv if command is None else command),
        "seed": seed if seed is not None else described["settings"].get("seed"),
        "world_size": world_size,
        **described,
        "steps": steps,
        "warmup_steps": warmup_steps,
        "traced_steps": list(traced_steps),
        "injected": [fault.as_json() for fault in injected],
        "versions": describe_versions(),
        "git": {
            "working_directory": describe_git(Path.cwd()),
            "steptally": describe_steptally_checkout(),
        },
        "machine": describe_machine(),
        "ranks": [],
        "environment": allowed_environment(os.environ),
        "parallel_groups": {},
    }


def describe_job(job: Job | Mapping[str, object] | None) -> dict[str, Any]:
    """`job` and `settings` of the manifest; where there is no job, `job_refused` says why.

    A mapping (Megatron-LM's `vars(get_args())`, say) that does not make a valid job must not stop
    a training run: the run is recorded, the refusal with it, and in `stated_settings` what the
    mapping held.
    """
    if job is None:
        return {"job": None, "settings": {}, "job_refused": "the recorder was given no job"}
    if isinstance(job, Mapping):
        stated = plain_settings(job)
        try:
            job = job_from_settings(stated, name="recorded", source="the recorder's job")
        except InputError as error:
            refusal = {"job_refused": str(error), "stated_settings": stated}
            return {"job": None, "settings": {}, **refusal}
    return {"job": job.as_json(), "settings": job.settings()}


def plain_settings(values: Mapping[str, object]) -> dict[str, object]:
    """The settings that JSON can hold: enumerations and dtypes by name; no objects, no secrets."""
    plain: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, enum.Enum):
            value = value.name
        elif type(value).__name__ == "dtype":  # torch's, without importing torch for it
            value = str(value)
        scalars = value if isinstance(value, (list, tuple)) else [value]
        simple = all(isinstance(item, (str, int, float, bool, type(None))) for item in scalars)
        if simple and not is_secret(name):
            plain[name] = value
    return plain


def write_manifest(directory: RunDirectory, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest by this one."""
    write_atomically(directory.manifest, json.dumps(manifest, indent=1, default=str) + "\n")


def complete_manifest(directory: RunDirectory, manifest: dict[str, Any]) -> None:
    """Write rank 0's manifest over the launcher's, which knows what was typed and injected."""
    if directory.manifest.exists():
        launchers = directory.read_manifest()
        kept = ("created", "name", "command", "git", "injected")
        manifest |= {name: launchers[name] for name in kept}
    write_manifest(directory, manifest)


def change_manifest(directory: RunDirectory, **changes: Any) -> None:
    """Replace some entries of the manifest, keep the others."""
    write_manifest(directory, {**directory.read_manifest(), **changes})


def finish(directory: RunDirectory, status: str) -> None:
    """Say how the run ended, once: the first to say that it failed is right."""
    if directory.read_manifest()["status"] == RUNNING:
        change_manifest(directory, status=status)
