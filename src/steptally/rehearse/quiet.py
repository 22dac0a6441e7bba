"""Silences what Megatron and torch say on import and on first use: none of it is about the job."""

from __future__ import annotations

import logging
import warnings


def quiet() -> None:
    """For the rest of this process."""
    warnings.filterwarnings("ignore")
    for name in ("megatron", "megatron.core", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # An operator that refuses its shapes is logged with its traceback; the refusal says it too.
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
