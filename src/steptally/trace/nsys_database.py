"""Reads columns of an Nsight Systems SQLite export, fast, whatever its schema version holds.

The versions differ in tables and columns, so both are probed and what is missing is absent. Whole
columns come over as Arrow (ADBC's driver), and no row becomes a Python object.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import adbc_driver_sqlite.dbapi as adbc
import numpy as np
import numpy.typing as npt
import polars as pl
from adbc_driver_sqlite import StatementOptions

from steptally.errors import InputError
from steptally.trace.schema import Loss

Int64s = npt.NDArray[np.int64]
Read = TypeVar("Read")

ABSENT = -1
NO_TIME = -(2**62)
_NONE = np.empty(0, dtype=np.int64)
_CHUNK_ROWS = 1 << 18
_SMALLEST_CHUNK_ROWS = 1 << 8
_MOST_ROWS = 1 << 28
_ARROW_ROWS = 1 << 16
_MOST_IN_TABLE = 1 << 24
_MOST_IN_LIST = 10_000
_WAIT_S = 2.0
_COLUMN = re.compile(r"[A-Za-z_]\w*")


@dataclass(slots=True, kw_only=True)
class Database:
    """An open export: its tables with their columns, and what of it could not be read."""

    path: Path
    connection: sqlite3.Connection
    bulk: adbc.Connection
    tables: Mapping[str, frozenset[str]]
    losses: list[Loss] = field(default_factory=list)

    def has(self, table: str, *columns: str) -> bool:
        """Whether the export holds that table with all these columns."""
        return set(columns) <= self.tables.get(table, frozenset())

    def intervals(
        self, table: str, columns: Mapping[str, str], where: str = "1"
    ) -> dict[str, Int64s]:
        """The rows of a table that hold `where`: start_ns, end_ns and named columns (expressions).

        Numbers are `ABSENT` where a value is NULL or no integer, and throughout where this export
        lacks a column of the expression. Rows without usable times, and what is damaged, are left
        out and noted in `losses`.
        """
        known = self.tables.get(table, frozenset())
        absent = {"start_ns": NO_TIME, "end_ns": NO_TIME}
        wanted = {"start_ns": "start", "end_ns": "end"} | {
            name: text for name, text in columns.items() if _columns_of(text) <= known
        }
        parts = []
        if {"start", "end"} <= known:
            strict = [_strict(text, absent.get(name, ABSENT)) for name, text in wanted.items()]
            reader = _ColumnReader(self.bulk, table, where, list(wanted.values()), strict)
            parts = list(self._chunks(table, reader.read))
        found = {
            name: np.concatenate([_NONE, *(part[place] for part in parts)])
            for place, name in enumerate(wanted)
        }
        rows = found["start_ns"].size
        found |= {name: np.full(rows, ABSENT) for name in columns if name not in found}
        return self._timed(found)

    def _timed(self, found: dict[str, Int64s]) -> dict[str, Int64s]:
        """The rows that are intervals of time; the others are a loss."""
        start, end = found["start_ns"], found["end_ns"]
        timed = (start != NO_TIME) & (end >= start)
        if timed.all():
            return found
        reason = "no usable time, or a negative duration"
        self.losses.append(Loss(reason=reason, events=int((~timed).sum())))
        return {name: column[timed] for name, column in found.items()}

    def texts(self, ids: Int64s, missing: str) -> tuple[list[str], Int64s]:
        """The distinct strings of these numbers, `missing` for none, and which one each is."""
        distinct, places = distinct_and_places(ids)
        known: dict[int, str] = {}
        if self.has("StringIds", "id", "value"):
            for start in range(0, distinct.size, _MOST_IN_LIST):
                some = ",".join(map(str, distinct[start : start + _MOST_IN_LIST]))
                found = self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({some})")
                known |= {int(number): str(text) for number, text in found}  # type: ignore[call-overload]
        return [known.get(int(number), missing) for number in distinct], places

    def rows(self, query: str) -> list[tuple[object, ...]]:
        """All rows of a small query; none where its table is damaged, which is noted."""
        try:
            return self.connection.execute(query).fetchall()
        except sqlite3.DatabaseError as error:
            self.losses.append(Loss(reason=f"rows of the database cannot be read ({error})"))
            return []

    def distinct(self, table: str, columns: str) -> set[tuple[object, ...]]:
        """The different combinations of these columns."""
        select = f"SELECT DISTINCT {columns} FROM {table} WHERE"
        chunks = self._chunks(
            table, lambda rows: self.connection.execute(f"{select} {rows}").fetchall()
        )
        return {row for chunk in chunks for row in chunk}

    def _chunks(self, table: str, read: Callable[[str], Read]) -> Iterator[Read]:
        """What `read` makes of one range of row numbers after another.

        A range that cannot be read is halved until only damaged pages are left out.
        """
        first, last = (self._end(table, end) for end in ("min", "max"))
        if first is None or last is None:
            return
        lost = 0
        for start in self._starts(table, first, last):
            ranges = [(start, min(start + _CHUNK_ROWS, last + 1))]
            while ranges:
                low, high = ranges.pop()
                try:
                    yield read(f"rowid >= {low} AND rowid < {high}")
                except sqlite3.DatabaseError:
                    middle = (low + high) // 2
                    if high - low > _SMALLEST_CHUNK_ROWS:
                        ranges += [(middle, high), (low, middle)]
                    else:
                        lost += high - low
        if lost:
            self.losses.append(Loss(reason=f"damaged pages of {table}", events=lost))

    def _starts(self, table: str, first: int, last: int) -> Iterator[int]:
        """Where ranges of row numbers begin; a gap, as before one damaged number, is left out."""
        start = first
        while start <= last:
            yield start
            start += _CHUNK_ROWS
            query = f"SELECT min(rowid) FROM {table} WHERE rowid >= {start}"
            try:
                (following,) = self.connection.execute(query).fetchone()
            except sqlite3.DatabaseError:
                if last - start > _MOST_ROWS:  # a damaged last number: there is no way past this
                    self.losses.append(Loss(reason=f"rows of {table} behind a damaged page"))
                    return
                continue  # the range itself tells what of it is damaged
            start = last + 1 if following is None else max(start, following)

    def _end(self, table: str, end: str) -> int | None:
        """The first or last row number: asked alone, SQLite reads only that page."""
        rows = self.rows(f"SELECT {end}(rowid) FROM {table}")
        return rows[0][0] if rows and isinstance(rows[0][0], int) else None


@dataclass(slots=True)
class _ColumnReader:
    """Columns as arrays of integers.

    From the first range with NULLs or other types in it, the `strict` expressions are read: always
    integers, at half as much cost again.
    """

    connection: adbc.Connection
    table: str
    where: str
    fast: Sequence[str]
    strict: Sequence[str]

    def read(self, rows: str) -> list[Int64s]:
        limits = f"FROM {self.table} WHERE {rows} AND ({self.where})"
        found = self._columns(self.fast, limits)
        if found is None:
            self.fast = self.strict
            found = self._columns(self.strict, limits)
        return found or []

    def _columns(self, expressions: Sequence[str], limits: str) -> list[Int64s] | None:
        """The columns as arrays; None where one of them holds anything but integers."""
        named = ", ".join(f"{text} AS c{place}" for place, text in enumerate(expressions))
        with self.connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: _ARROW_ROWS})
            try:
                frame = pl.DataFrame(cursor.execute(f"SELECT {named} {limits}").fetch_arrow())
            except (adbc.Error, pl.exceptions.PolarsError) as error:
                if expressions is not self.strict:
                    return None  # another type than in the first rows, or damage
                raise sqlite3.DatabaseError(str(error)) from error
        if frame.is_empty():
            return [_NONE for _ in expressions]
        whole = all(column.dtype == pl.Int64 and not column.null_count() for column in frame)
        return [column.to_numpy() for column in frame] if whole else None


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """The export in `path`, read-only. Raises `InputError`: one sentence for each fault."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=_WAIT_S)
        connection.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    except (sqlite3.Error, ValueError) as error:
        raise InputError(f"{path} cannot be opened: {error}. Check the path.") from error
    try:
        tables = _tables(connection)
        with adbc.connect(uri, autocommit=True) as bulk:
            yield Database(path=path, connection=connection, bulk=bulk, tables=tables)
    except sqlite3.OperationalError as error:
        raise InputError(f"{path} cannot be read: {error}. {_advice(str(error))}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # Python does not get at SQLite's own message where that quotes damaged bytes.
        raise InputError(
            f"{path} is damaged or no SQLite database ({error}): export it again with nsys export "
            "--type sqlite."
        ) from error
    finally:
        connection.close()


def distinct_and_places(ids: Int64s) -> tuple[Int64s, Int64s]:
    """The distinct numbers in order, and which one each is; small ones without sorting."""
    if ids.size == 0 or ids.min() < ABSENT or ids.max() >= _MOST_IN_TABLE:
        return np.unique(ids, return_inverse=True)
    present = np.zeros(int(ids.max()) - ABSENT + 1, dtype=bool)
    present[ids - ABSENT] = True
    return np.flatnonzero(present) + ABSENT, (np.cumsum(present) - 1)[ids - ABSENT]


def or_null(numbers: Int64s) -> pl.Series:
    """A column of numbers that are never negative, null where they are."""
    column = pl.Series(numbers)
    return column.set(column < 0, None) if numbers.size and numbers.min() < 0 else column


def _columns_of(expression: str) -> set[str]:
    return set(_COLUMN.findall(expression)) - {"ifnull"}


def _tables(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    names = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
    return {
        name: frozenset(row[1] for row in connection.execute(f'PRAGMA table_info("{name}")'))
        for (name,) in names.fetchall()
    }


def _advice(error: str) -> str:
    if "locked" in error:
        return "Another program is writing it: wait until its export has ended."
    return "Check its permissions and its disk, or export it again with nsys export --type sqlite."


def _strict(expression: str, absent: int) -> str:
    return f"CASE typeof({expression}) WHEN 'integer' THEN {expression} ELSE {absent} END"
