"""Anything that describes a job, read into a `Job`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from steptally.errors import InputError
from steptally.job.job import Job
from steptally.job.readers.job_file import read_job_file
from steptally.job.resolve import job_from_settings


def read_job(argument: str, overrides: Sequence[str] = ()) -> Job:
    """Read a JOB argument: the path of a steptally job file (YAML, Megatron's own names).

    `overrides` are `name=value` texts (the command line's `--set`), which win over the file.
    Raises `InputError` where nothing is found or the job cannot be.
    """
    path = Path(argument)
    if not path.exists():
        raise InputError(f"{argument} is not a file: JOB is the path of a job file.")
    values: dict[str, object] = dict(read_job_file(path))
    values.update(parse_overrides(overrides))
    name = str(values.pop("name", path.stem))
    return job_from_settings(values, name=name, source=str(path))


def parse_overrides(overrides: Sequence[str]) -> Mapping[str, object]:
    """Turn `name=value` texts into settings; hyphens and a leading `--` are accepted.

    >>> parse_overrides(["--num-layers=4"])
    {'num_layers': '4'}
    """
    values: dict[str, object] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--set got {text!r}: it must be name=value, as num_layers=4.")
        values[name.strip().lstrip("-").replace("-", "_")] = value
    return values
