"""Whether two jobs do the same work, and in what they differ.

Wrong work is not faster work: times, rates and MFU of two tallies are put in a ratio only where
tokens, architecture, precision policy and optimizer are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from steptally.tally.tally import Tally

PARTS = ("architecture", "layout", "recipe", "cluster")
# What must be equal beside the architecture.
WORK = {
    "tokens": ("global_batch_size", "seq_length", "rampup_batch_size"),
    "precision policy": (
        *("bf16", "fp16", "fp8", "fp8_recipe", "fp8_param_gather", "fp4"),
        *("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_bf16"),
        *("attention_softmax_in_fp32", "moe_router_dtype"),
        *("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"),
    ),
    "optimizer": ("optimizer",),
    "dropped tokens": ("moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"),
}
# The vocabulary is padded for the layout: less than a row of it a rank is no other model.
PADDING = ("make_vocab_size_divisible_by", "padded_vocab_size")
# Without the second, the first does nothing.
ONLY_WITH = {"fp8_recipe": "fp8", "fp8_param_gather": "fp8", "moe_router_dtype": "num_experts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """A setting that two jobs have different values of; `work` says what of the work it changes."""

    part: str
    name: str
    a: Any
    b: Any
    work: str = ""

    def as_json(self) -> dict[str, Any]:
        """The setting as documented in docs/schema.md."""
        return {
            "part": self.part,
            "name": self.name,
            "a": self.a,
            "b": self.b,
            "changes_work": self.work or None,
        }


def differing_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[SettingDifference]:
    """Every setting that two `job` objects differ in; one that a job lacks is None there.

    >>> differing_settings({"layout": {"seq_length": 4096}}, {"layout": {"seq_length": 8192}})[0].b
    8192
    """
    found = [
        SettingDifference(part=part, name=name, a=one, b=other, work=_work(part, name, a, b))
        for part in PARTS
        for name, one, other in _differing(_part(a, part), _part(b, part))
    ]
    found += [
        SettingDifference(part="job", name=name, a=one, b=other)
        for name, one, other in _differing(_plain(a), _plain(b))
    ]
    return found


def why_not_equal_work(a: Tally, b: Tally) -> list[str]:
    """What makes the work of two tallies unequal, or unknown; nothing where it is equal."""
    missing = [side for side, tally in (("A", a), ("B", b)) if not _part(tally.job, "layout")]
    if missing:
        return [f"{' and '.join(missing)} does not say which job it is of"]
    found = _differing_faults(a, b)
    found += [
        f"{one.name} ({one.work}): {shown(one.a)} against {shown(one.b)}"
        for one in differing_settings(a.job, b.job)
        if one.work
    ]
    tokens = [tally.summary.get("tokens_per_step") for tally in (a, b)]
    values = [figure.value for figure in tokens if figure is not None and figure.value is not None]
    if len(values) == 2 and values[0] != values[1]:
        found.append(f"tokens_per_step: {shown(values[0])} against {shown(values[1])}")
    return found


def _differing_faults(a: Tally, b: Tally) -> list[str]:
    """Faults change no work and every time: a ratio would tell of them, not of the job."""
    one, other = sorted(a.injected), sorted(b.injected)
    if one == other:
        return []
    return [f"injected faults: {shown(one)} against {shown(other)}"]


def shown(value: Any) -> str:
    """A setting's value in a sentence.

    >>> shown(131072), shown(None), shown([1, 2]), shown(True)
    ('131,072', 'not set', '1, 2', 'true')
    """
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    return str(value)


def _work(part: str, name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    needed = ONLY_WITH.get(name)
    if needed and not any(_part(job, p).get(needed) for job in (a, b) for p in PARTS):
        return ""
    if part == "architecture":
        return "" if name in PADDING else "architecture"
    return next((what for what, names in WORK.items() if name in names), "")


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys((*a, *b)):
        one, other = (_listed(side.get(name)) for side in (a, b))
        if one != other:
            yield str(name), one, other


def _listed(value: Any) -> Any:
    """A tuple as the list that JSON makes of it."""
    return list(value) if isinstance(value, tuple) else value


def _part(job: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = job.get(name)
    return part if isinstance(part, Mapping) else {}


def _plain(job: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside the parts and changes a step: the padded vocabulary, unknown settings."""
    return {name: job.get(name) for name in ("padded_vocab_size", "unknown") if job.get(name)}
