"""Reads what the host did from an Nsight Systems export: calls of the runtime, NVTX ranges."""

from __future__ import annotations

import polars as pl

from steptally.trace.kinds import Rules
from steptally.trace.nsys_database import Database, or_null
from steptally.trace.schema import EVENTS

_THREAD_BITS = 0xFFFFFF
_RANGES = (59, 60)  # NvtxPushPopRange, NvtxStartEndRange
# cudaLaunchKernel_v7000, cudaMemcpyAsync_ptsz: the version of the call, not what it is.
_VERSION = r"(_v\d+)?(_ptsz|_ptds)?$"
# torch.autograd.profiler.emit_nvtx writes "aten::mm, seq = 7, op_id = 990346, sizes = …".
_DETAILS = r", (seq|op_id|sizes|input_op_ids) = .*$"


def host_frames(database: Database, global_pid: int | None, rules: Rules) -> list[pl.DataFrame]:
    """Launches, the profiler's own work, and annotations of one process."""
    return [
        _calls(database, global_pid),
        _overhead(database, global_pid),
        _ranges(database, global_pid, rules),
    ]


def _where(global_pid: int | None) -> str:
    return "1" if global_pid is None else f"globalTid >> 24 = {global_pid >> 24}"


def _calls(database: Database, global_pid: int | None) -> pl.DataFrame:
    found = database.intervals(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        {
            "thread": f"globalTid & {_THREAD_BITS}",
            "correlation": "correlationId",
            "name": "nameId",
        },
        _where(global_pid),
    )
    names, places = database.texts(found.pop("name"), missing="(unnamed call)")
    return pl.DataFrame(
        {
            **found,
            "name": pl.Series(names, dtype=pl.String).str.replace(_VERSION, "").gather(places),
            "kind": pl.repeat("launch", places.size, dtype=EVENTS["kind"], eager=True),
            "correlation": or_null(found["correlation"]),
        }
    )


def _overhead(database: Database, global_pid: int | None) -> pl.DataFrame:
    """The profiler's own work, by CUPTI and by Nsight Systems."""
    parts = []
    for table in ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"):
        wanted = {
            "thread": f"globalTid & {_THREAD_BITS}",
            "name": "nameId",
        }
        found = database.intervals(table, wanted, _where(global_pid))
        names, places = database.texts(found.pop("name"), missing="Profiler overhead")
        name = pl.Series(names, dtype=pl.String).gather(places)
        kind = pl.repeat("instrument", places.size, dtype=EVENTS["kind"], eager=True)
        parts.append(pl.DataFrame({**found, "name": name, "kind": kind}))
    return pl.concat(parts)


def _ranges(database: Database, global_pid: int | None, rules: Rules) -> pl.DataFrame:
    """NVTX ranges: annotations; torch's steps; NCCL's own are issues of collectives."""
    schema = {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "thread": pl.Int64,
        "name": pl.String,
        "domain": pl.Int64,
        "payload": pl.String,
    }
    if not database.has("NVTX_EVENTS", "start", "end", "text", "globalTid", "eventType"):
        rows: list[tuple[object, ...]] = []
    else:
        text, domain = _text(database), _domain(database)
        payload = "jsonText" if database.has("NVTX_EVENTS", "jsonText") else "NULL"
        rows = database.rows(
            f"SELECT start, end, globalTid & {_THREAD_BITS}, {text}, {domain}, "
            f"{payload} "
            f"FROM NVTX_EVENTS WHERE eventType IN {_RANGES} AND typeof(start) = 'integer' "
            f"AND typeof(end) = 'integer' AND end >= start AND {_where(global_pid)}"
        )
    found = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
    found = found.with_columns(pl.col("name").fill_null("").str.replace(_DETAILS, ""))
    nccl = pl.col("name").str.contains("^p?nccl[A-Z]") & (pl.col("domain") != 0)
    distinct = found["name"].unique()
    kinds = [rules.kind("user_annotation", name) for name in distinct]
    classified = pl.DataFrame({"name": distinct, "kind": pl.Series(kinds, dtype=EVENTS["kind"])})
    issue = pl.lit("issue", dtype=EVENTS["kind"])
    return (
        found.join(classified, on="name", how="left", maintain_order="left")
        .with_columns(kind=pl.when(nccl).then(issue).otherwise("kind"))
        .with_columns(payload=pl.when(nccl).then("payload"))
        .drop("domain")
    )


def _text(database: Database) -> str:
    """A range's text, which it has itself or by the number of a string."""
    if not (database.has("NVTX_EVENTS", "textId") and database.has("StringIds", "id", "value")):
        return "text"
    return "ifnull(text, (SELECT value FROM StringIds WHERE id = textId))"


def _domain(database: Database) -> str:
    return "ifnull(domainId, 0)" if database.has("NVTX_EVENTS", "domainId") else "0"
