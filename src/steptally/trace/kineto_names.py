"""Texts that repeat: classified or decoded once, on first sight, and numbers from there on."""

from __future__ import annotations

from steptally.trace.kinds import Rules, keeps_arguments
from steptally.trace.schema import DEVICE_KINDS

NOT_KEPT, UNKNOWN = -1, -2
WAYS = 8


# Which arguments of an event are of use; plain numbers, since every block compares with each.
NOTHING, LAUNCH, DEVICE, COLLECTIVE, OPERATOR = range(5)
SHAPES = 5  # of operators that only have to tell how large their tensors are


class Names(dict[tuple[str | None, str], int]):
    """The code of each pair of category and name; `NOT_KEPT` for what is nobody's work, `UNKNOWN`
    for a category that no rule knows.

    Kinds in `left_out` are not kept either.

    A code is a row of `names` and `kinds` times `WAYS`, plus which arguments to read, so that a
    block's codes tell both without another look-up.
    """

    def __init__(self, rules: Rules, left_out: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.rules = rules
        self.left_out = left_out
        self.names: list[str] = []
        self.kinds: list[str] = []

    def __missing__(self, key: tuple[str | None, str]) -> int:
        kind = self.rules.kind(*key)
        if kind is None and not self.rules.knows(key[0]):
            self[key] = UNKNOWN
        elif kind is None or kind in self.left_out:
            self[key] = NOT_KEPT
        else:
            self[key] = len(self.names) * WAYS + _reads(kind, key[1])
            self.names.append(key[1])
            self.kinds.append(kind)
        return self[key]


class Texts(dict[bytes, int]):
    """The code of each JSON text; 0 for none."""

    def __init__(self) -> None:
        super().__init__({b"": 0})
        self.texts: list[str | None] = [None]

    def __missing__(self, key: bytes) -> int:
        self[key] = len(self.texts)
        self.texts.append(key.decode(errors="replace"))
        return self[key]


def _reads(kind: str, name: str) -> int:
    if kind == "launch":
        return LAUNCH
    if kind in DEVICE_KINDS:
        return DEVICE
    if kind == "collective":
        return COLLECTIVE
    if kind in ("issue", "transfer") or (kind == "operator" and keeps_arguments(name)):
        return OPERATOR
    return SHAPES if kind == "operator" else NOTHING
