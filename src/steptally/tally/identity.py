"""What it takes to say which rows are the same line, and which of their values are compared.

`identities.py` says it for each account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

# A row, or a part of one, as field → value.
Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A value of a line. Rows that fall on one line are joined by `combine`.

    `value` computes it where it is not the field of its name. `share_of` names the quantity whose
    total a difference is held against, its own otherwise. `under_convention`: it is counted under
    the tally's convention, and means nothing against another.
    """

    name: str
    unit: str
    combine: Literal["sum", "max", "median"] = "sum"
    value: Callable[[Entry], Any] | None = None
    share_of: str = ""
    under_convention: bool = False

    def of(self, entry: Entry) -> Any:
        """The value in one row; None where it is not known."""
        return self.value(entry) if self.value else entry[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One kind of line of an account. The first quantity is what the account is about.

    A line is told by its `keys`; by its `names` too where both sides use the same words, and by its
    `sizes` where both jobs cut the work alike: none of the settings `cut_by` differs. Both count
    only where both sides fill them. `words` are shown where they differ; `left_out` follow from
    others or are of one side's making. `absent_is_zero`: a line that a side lacks is nothing there.
    `entries` are the rows that count, `entries_note` says which do not.
    """

    keys: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    names: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    cut_by: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    absent_is_zero: bool = True
    entries: Callable[[Sequence[Any]], Iterable[Entry]] = lambda rows: map(entry_of, rows)
    entries_note: str = ""


def entry_of(row: Any) -> Entry:
    """The fields of a row, as they are."""
    return {field.name: getattr(row, field.name) for field in fields(row)}
