"""The result that every part fills: a summary of figures, and accounts of typed rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steptally.errors import InputError
from steptally.tally.figure import Figure
from steptally.tally.rows import ROW_TYPES, GroupTime, Row

SCHEMA = "steptally/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a training step costs, on one basis or several.

    `basis` is what the accounts rest on; single figures may rest on another and say so.
    `refusals` name what could not be known, and how to supply it.
    """

    basis: str
    job: Mapping[str, Any] = field(default_factory=dict)
    convention: str = ""
    summary: Mapping[str, Figure] = field(default_factory=dict)
    accounts: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    refusals: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints; keys are documented in docs/schema.md."""
        return {
            "schema": SCHEMA,
            "basis": self.basis,
            "job": dict(self.job),
            "convention": self.convention,
            "summary": {name: figure.value for name, figure in self.summary.items()},
            "figures": {
                name: {
                    "unit": figure.unit,
                    "basis": figure.basis,
                    "convention": figure.convention,
                    "origin": figure.origin,
                }
                for name, figure in self.summary.items()
            },
            "accounts": {
                name: [dataclasses.asdict(row) for row in rows]
                for name, rows in self.accounts.items()
            },
            "warnings": list(self.warnings),
            "refusals": list(self.refusals),
        }

    def dumps(self) -> str:
        """The tally as JSON text; exact integers stay exact, however large."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False, default=str)


def tally_from_json(text: str, source: str = "tally") -> Tally:
    """Read back what `Tally.dumps` wrote; raises `InputError` for anything else."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}.") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{source} has schema {found!r}: this steptally reads {SCHEMA!r}.")
    try:
        return Tally(
            basis=content["basis"],
            job=content["job"],
            convention=content["convention"],
            summary={
                name: Figure(value=value, **content["figures"][name])
                for name, value in content["summary"].items()
            },
            accounts={
                name: [_row(name, row) for row in rows]
                for name, rows in content["accounts"].items()
                if name in ROW_TYPES
            },
            warnings=tuple(content["warnings"]),
            refusals=tuple(content["refusals"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{source} is a damaged tally: {error!r}. Make it again.") from error


def _row(account: str, values: Mapping[str, Any]) -> Any:
    arguments = dict(values)
    if "groups" in arguments:
        arguments["groups"] = tuple(GroupTime(**group) for group in arguments["groups"])
    if "ranks" in arguments:
        arguments["ranks"] = tuple(arguments["ranks"])
    return ROW_TYPES[account](**arguments)
