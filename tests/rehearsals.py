"""Rehearsals for tests: of many jobs, in a few processes that import torch once each."""

import importlib.util
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from steptally.errors import SteptallyError
from steptally.job import job_from_settings
from steptally.rehearse.pool import usable_processes
from steptally.rehearse.routing import Routing
from steptally.rehearse.substitutions import make_rehearsable

BALANCED = Routing()


def needs_engine():
    """Skip where torch or megatron-core is absent."""
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("megatron.core")):
        pytest.skip("needs torch and megatron-core")


def rehearse_settings(rank, settings):
    """One job's `Rehearsed`, in this process; the error where megatron-core refuses it."""
    from steptally.rehearse.pool import rehearse_one

    try:
        return rehearse_one(make_rehearsable(job_from_settings(settings)), rank, BALANCED)
    except SteptallyError as error:
        return error


def rehearse_many(cases):
    """`Rehearsed` of each (rank, settings), in order."""
    needs_engine()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["steptally.rehearse.worker"])
    with ProcessPoolExecutor(usable_processes(), mp_context=context) as pool:
        return list(pool.map(rehearse_settings, *zip(*cases, strict=True)))
