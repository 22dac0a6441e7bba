"""Say how large a model really is that is named like a published one and built otherwise."""

from __future__ import annotations

from collections.abc import Iterable

from steptally.job import Job
from steptally.job.catalog.models import models
from steptally.tally import ParametersRow

# Papers print two or three digits, and the vocabulary is padded for tensor parallelism.
CLOSE_ENOUGH = 0.03


def named_model_warnings(job: Job, rows: Iterable[ParametersRow]) -> tuple[str, ...]:
    """A sentence with both parameter counts where they differ by over 3 %, else none.

    `rows` are the job's parameters (`predict_parameters`); modules for multi-token prediction do
    not count, as in published figures. `Job.notes` says which settings differ.
    """
    if job.named_like is None:
        return ()
    model = models()[job.named_like]
    built = sum(row.count for row in rows if not row.name.startswith("mtp"))
    excess = built / model.parameters - 1
    if abs(excess) <= CLOSE_ENOUGH:
        return ()
    sentence = (
        f"The job is named like {model.name}, which has {model.parameters / 1e9:.3f} B parameters, "
        f"but its settings build {built / 1e9:.3f} B ({excess:+.1%}): figures are not comparable "
        f"with that model's."
    )
    return (sentence,)
