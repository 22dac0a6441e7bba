"""The result that every part fills: a summary of figures, and accounts of typed rows."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from steptally import strict_json
from steptally.errors import InputError
from steptally.tally.figure import Figure
from steptally.tally.rows import ROW_TYPES, Row

SCHEMA = "steptally/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a training step costs, on one basis or several.

    `basis` is what the accounts rest on, but for those named in `account_bases`; single figures
    may rest on another and say so.
    `refusals` name what could not be known, and how to supply it; `injected` the faults that were
    put into the run on purpose, as `--inject` spells them.
    """

    basis: str
    job: Mapping[str, Any] = field(default_factory=dict)
    convention: str = ""
    summary: Mapping[str, Figure] = field(default_factory=dict)
    accounts: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    account_bases: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    refusals: Sequence[str] = ()
    injected: Sequence[str] = ()

    def basis_of(self, account: str) -> str:
        """What an account rests on."""
        return self.account_bases.get(account, self.basis)

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
            "account_bases": dict(self.account_bases),
            "warnings": list(self.warnings),
            "refusals": list(self.refusals),
            "injected": list(self.injected),
        }

    def dumps(self) -> str:
        """The tally as JSON text; exact integers stay exact, however large."""
        return json.dumps(self.as_json(), indent=1, allow_nan=False, default=str)


def tally_from_json(text: str, source: str = "tally") -> Tally:
    """Read back what `Tally.dumps` wrote; raises `InputError` for anything else."""
    try:
        content = strict_json.decode(text)
    except ValueError as error:
        raise InputError(f"{source} is not JSON: {error}.") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise InputError(f"{source} has schema {found!r}: this steptally reads {SCHEMA!r}.")
    try:
        return _from_json(content)
    except KeyError as error:
        raise InputError(
            f"{source} is no whole tally, it lacks {error}: name what count, gemms, traffic, "
            f"memory, mfu, run or report print with --json."
        ) from error
    except (AttributeError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise InputError(f"{source} is a damaged tally ({error!r}): make it again.") from error


def _from_json(content: Mapping[str, Any]) -> Tally:
    """Every part checked against its declared types: a reader of rows needs no checks."""
    figures = content["figures"]
    return Tally(
        basis=msgspec.convert(content["basis"], str),
        job=msgspec.convert(content["job"], dict[str, Any]),
        convention=msgspec.convert(content["convention"], str),
        summary={
            name: msgspec.convert({**figures[name], "value": value}, Figure)
            for name, value in content["summary"].items()
        },
        accounts={
            name: msgspec.convert(rows, list[ROW_TYPES[name]])  # type: ignore[valid-type]
            for name, rows in content["accounts"].items()
            if name in ROW_TYPES
        },
        account_bases=msgspec.convert(content.get("account_bases", {}), dict[str, str]),
        warnings=msgspec.convert(content["warnings"], tuple[str, ...]),
        refusals=msgspec.convert(content["refusals"], tuple[str, ...]),
        injected=msgspec.convert(content.get("injected", []), tuple[str, ...]),
    )
