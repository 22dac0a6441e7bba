"""Keeps what `steptally trace` found: the tally as JSON, each account as a parquet table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptally.errors import WriteError

if TYPE_CHECKING:
    from steptally.tally import Tally


# Beside the accounts, so that `steptally trace DIR/traces` reads them alone.
TRACES = "traces"


def make_folder(directory: Path) -> None:
    """Make a folder, before anything is read. Raises `WriteError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(
            f"{directory} cannot be made ({error.strerror or error}): name a directory that is "
            "new, or one that may be written."
        ) from error


def save_tally(tally: Tally, directory: Path) -> None:
    """Write `tally.json` and `<account>.parquet` into a folder.

    Rows in rows (the groups of a step) are columns of structs, coordinates are JSON text.
    Raises `WriteError`.
    """
    import polars as pl

    from steptally.trace.run_directory import write_atomically

    try:
        for account, rows in tally.accounts.items():
            content = [_flat(dataclasses.asdict(row)) for row in rows]
            frame = pl.DataFrame(content, infer_schema_length=None)
            frame.write_parquet(directory / f"{account}.parquet")
    except OSError as error:
        raise WriteError(
            f"{directory} cannot be written ({error.strerror or error}): name a directory on a "
            "disk that has room and may be written."
        ) from error
    write_atomically(directory / "tally.json", tally.dumps())


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Mappings (coordinates) as JSON text: parquet has none with other keys in each row."""
    return {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in row.items()
    }
