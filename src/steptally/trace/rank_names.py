"""The rank that a file's name tells, where its content does not."""

from __future__ import annotations

import re
from pathlib import Path

# rank0, rank_0, rank-0, global_rank3, worker12; but no other word that ends in "rank".
_RANK = re.compile(r"(?<![a-z])(global[-_.]?rank|rank|worker)[-_.=]?(\d+)", re.IGNORECASE)
# trace-0.json, r3.sqlite, 12.json: a number at the end, where no word before makes it another's.
_LAST_NUMBER = re.compile(r"(?:^|[-_.])(?:r|gpu)?(\d{1,6})$", re.IGNORECASE)
_OTHERS_NUMBER = re.compile(
    r"(?:step|iter|iteration|epoch|run|version|v|batch|node|pid|host|cycle|part|window|profile"
    r"|top|seed|dp|tp|pp|cp|ep|x|b)s?[-_.]?\d+$",
    re.IGNORECASE,
)
_ENDINGS = re.compile(r"(?:\.(?:gz|json|sqlite|parquet))+$", re.IGNORECASE)
_TENSORBOARD = re.compile(r"\.pt\.trace$", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """The rank in a file's name, else in its directory's; None where none, or several, are.

    torch's TensorBoard handler writes `<host>_<pid>.<time>.pt.trace.json`: none of these is one.

    >>> [rank_in_name(Path(p)) for p in ("rank_3.json.gz", "rank2/trace.json", "trace-0.json")]
    [3, 2, 0]
    >>> [rank_in_name(Path(p)) for p in ("step_100.json", "node1_4242.1711964646.pt.trace.json")]
    [None, None]
    """
    stem = _ENDINGS.sub("", path.name)
    told = _told(stem)
    if told is not None:
        return told
    if not _TENSORBOARD.search(stem) and not _OTHERS_NUMBER.search(stem):
        number = _LAST_NUMBER.search(stem)
        if number:
            return int(number.group(1))
    return _told(path.parent.name)


def _told(name: str) -> int | None:
    found = {(word.lower(), int(number)) for word, number in _RANK.findall(name)}
    of_job = {number for word, number in found if word.startswith("global")}
    numbers = of_job or {number for _, number in found}
    return numbers.pop() if len(numbers) == 1 else None
