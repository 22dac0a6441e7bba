"""What a recorded event is, from its category first and its name second.

Never from the presence of a `stream`: some profilers give a CPU operator one. The rules are data
(`kinds.toml`, with their sources), which a user's own file goes before; names of host events that
torch and steptally's recorder give are fixed here.

>>> rules = load_rules()
>>> rules.kind("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)")
'communication'
>>> rules.family("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT")
'gemm'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from steptally.trace.kind_rules import NameRule, RuleFile, read_rules

TAG = "steptally::collective"
WAIT = "steptally::wait"

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})$")
_PRODUCT = re.compile("mm|mv|ger|matmul|dot|conv|att|gemm|linear|outer|einsum|lstm|gru|rnn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The shipped rules, with a user's before them; picklable, for worker processes."""

    files: Sequence[RuleFile]

    def kind(self, category: str | None, name: str) -> str | None:
        """One of `schema.KINDS`, or None for what is no interval of anyone's work."""
        kind = self._by_category((category or "").lower())
        if kind in ("operator", "annotation"):
            return _host_kind(kind, name)
        for file in self.files:
            for rule in file.kinds:
                if kind in rule.of and rule.matches(name):
                    return rule.outcome
        return kind

    def knows(self, category: str | None) -> bool:
        """Whether a category is counted, or deliberately left out."""
        category = (category or "").lower()
        left_out = any(category in file.left_out for file in self.files)
        return left_out or self._by_category(category) is not None

    def looks_like_communication(self, name: str) -> bool:
        """Whether a kernel that no rule knows is named as communication would be."""
        rules = [rule for file in self.files for rule in file.kinds if "compute" in rule.of]
        decided = any(rule.matches(name) for rule in rules)
        return not decided and any(rule.matches(name) for rule in self._suspects())

    def is_named_like_communication(self, name: str) -> bool:
        """Whether an operation of unknown category is one, by all that its name tells."""
        suspect = any(rule.matches(name) for rule in self._suspects())
        return suspect or self._communicates(name)

    def family(self, name: str, kind: str = "compute") -> str:
        """One of `kind_rules.FAMILIES`, for a kernel by its name; for other kinds by these."""
        if kind == "communication" or (kind == "compute" and self._communicates(name)):
            return "communication"
        if kind in ("copy", "memset"):
            return "copy"
        for file in self.files:
            for rule in file.families:
                if rule.matches(name):
                    return rule.outcome
        return "other"

    def _by_category(self, category: str) -> str | None:
        for file in self.files:
            if category in file.categories:
                return file.categories[category]
        return None

    def _suspects(self) -> Sequence[NameRule]:
        return [file.suspects for file in self.files if file.suspects is not None]

    def _communicates(self, name: str) -> bool:
        return self.kind("kernel", name) == "communication"


@cache
def load_rules(path: Path | None = None) -> Rules:
    """The shipped rules, behind those of `path` where one is given.

    Raises `InputError` where that file cannot be read or breaks the layout of `kinds.toml`.
    """
    shipped = read_rules(Path(__file__).with_name("kinds.toml"))
    return Rules(files=(shipped,) if path is None else (read_rules(path), shipped))


def keeps_arguments(name: str) -> bool:
    """Whether an operator's arguments are worth keeping: matrix products for their shapes,
    autograd's nodes and custom functions for the number that links the two.
    """
    return not name.startswith("aten::") or _PRODUCT.search(name) is not None


def step_number(name: str) -> int | None:
    """The number of a `ProfilerStep#<n>` annotation, else None."""
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


def _host_kind(kind: str, name: str) -> str:
    if name == TAG:
        return "collective"
    if name == WAIT:
        return "wait"
    if name.startswith("gloo:"):
        return "transfer"
    if name.startswith("ProfilerStep") and step_number(name) is not None:
        return "step"
    if kind == "annotation":
        return "annotation"
    if name == "_c10d_functional::wait_tensor":
        return "wait"
    if name.startswith(("c10d::", "_c10d_functional::")) or name == "record_param_comms":
        return "issue"
    # Bookkeeping of a dispatch mode (the recorder's own) and of record_function.
    if name == "PythonDispatchMode" or name.startswith("profiler::"):
        return "instrument"
    return "operator"
