"""WHAT is trained, how it is split, on what: frozen typed descriptions, no accounts.

`read_job` turns anything a user has into a `Job`; `job_from_settings` does the same for a mapping
of Megatron-LM's names to values.
"""

from steptally.job.architecture import Architecture
from steptally.job.cluster import Cluster
from steptally.job.device import Device
from steptally.job.job import Job
from steptally.job.layout import Layout
from steptally.job.readers import read_job
from steptally.job.recipe import Recipe
from steptally.job.resolve import job_from_settings

__all__ = [
    "Architecture",
    "Cluster",
    "Device",
    "Job",
    "Layout",
    "Recipe",
    "job_from_settings",
    "read_job",
]
