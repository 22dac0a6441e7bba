"""The predicted tally of one rank's communication."""

from __future__ import annotations

from collections.abc import Sequence

from steptally.job.job import Job
from steptally.job.training_faults import training_faults
from steptally.predict.traffic import (
    predict_groups,
    predict_traffic,
    traffic_refusals,
    traffic_warnings,
)
from steptally.tally import Figure, Tally, TrafficRow


def traffic_tally(job: Job, rank: int = 0) -> Tally:
    """Accounts `traffic` and `groups` of one rank, and their sums by scope and overlap.

    Raises `InputError` for a rank that the job does not have.
    """
    rows = predict_traffic(job, rank)
    return Tally(
        basis="predicted",
        job=job.as_json(),
        convention="bytes of the full tensor of each collective, not on the wire",
        summary=_sums(rows, rank),
        accounts={"traffic": rows, "groups": predict_groups(job, rank)},
        warnings=(*job.notes, *training_faults(job), *traffic_warnings(job)),
        refusals=traffic_refusals(job),
    )


def _sums(rows: Sequence[TrafficRow], rank: int) -> dict[str, Figure]:
    parts = {
        "traffic_bytes_per_step": rows,
        "traffic_intra_node_bytes_per_step": [r for r in rows if r.scope == "intra-node"],
        "traffic_inter_node_bytes_per_step": [r for r in rows if r.scope == "inter-node"],
        "traffic_overlapped_bytes_per_step": [r for r in rows if r.overlapped],
    }
    return {
        name: Figure(
            value=sum(row.bytes_per_step or 0 for row in chosen),
            unit="byte",
            basis="predicted",
            convention="full tensors",
            origin=f"collectives of rank {rank} in one step",
        )
        for name, chosen in parts.items()
    }
