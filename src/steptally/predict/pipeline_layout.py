"""Read `--pipeline-model-parallel-layout`: "Et*3|(tt|)*29,m|L" says what each stage holds.

E is the embedding, t a decoder layer, m an MTP depth, L the loss; `|` ends a stage, `x*n` and
`(…)*n` repeat, commas are for the eye. Stage i belongs to pipeline rank i mod PP, virtual stage
i div PP. Rules: `PipelineParallelLayerLayout` (megatron-core 0.16.1,
transformer/pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from steptally.errors import InputError

REPEATED_GROUP = re.compile(r"\(([^)]+)\)\*(\d+)")
REPEATED_LETTER = re.compile(r"(.)\*(\d+)")


class LayoutStage(NamedTuple):
    """How many decoder layers and MTP depths one (virtual) stage holds."""

    decoder_layers: int
    mtp_layers: int


def parse_pipeline_layout(
    text: str,
    *,
    pipeline_size: int,
    virtual_size: int | None,
    num_layers: int,
    mtp_layers: int,
) -> tuple[LayoutStage, ...]:
    """The stages of a layout string in the order of model depth, checked as Megatron checks them.

    Raises `InputError` with what was found and the rule. `virtual_size` None takes what the string
    implies.

    >>> parse_pipeline_layout("Et|ttL", pipeline_size=2, virtual_size=None, num_layers=3,
    ...                       mtp_layers=0)[1].decoder_layers
    2
    """
    stages = unroll(text).split("|")
    _known_letters(text, stages)
    _stage_count(text, len(stages), pipeline_size, virtual_size)
    _contents(text, "".join(stages), num_layers, mtp_layers)
    _mtp_together(text, stages, pipeline_size, mtp_layers)
    return tuple(
        LayoutStage(decoder_layers=stage.count("t"), mtp_layers=stage.count("m"))
        for stage in stages
    )


def unroll(text: str) -> str:
    """Write out a layout's repetitions; groups first, then single letters.

    >>> unroll("Et*3|(tt|)*2,m|L")
    'Ettt|tt|tt|m|L'
    """
    text = text.replace(",", "").replace(" ", "")
    for pattern in (REPEATED_GROUP, REPEATED_LETTER):
        text = pattern.sub(lambda match: match[1] * int(match[2]), text)
    return text


def _refuse(text: str, found: str, rule: str) -> InputError:
    return InputError(f"pipeline_model_parallel_layout {text!r} {found}: {rule}.")


def _known_letters(text: str, stages: list[str]) -> None:
    wrong = sorted(set("".join(stages)) - set("EtmL"))
    if wrong:
        raise _refuse(
            text,
            f"holds {''.join(wrong)!r}",
            "E is the embedding, t a decoder layer, m an MTP layer, L the loss, | ends a stage, "
            "x*n and (…)*n repeat",
        )


def _stage_count(text: str, stages: int, pipeline_size: int, virtual_size: int | None) -> None:
    if stages % pipeline_size:
        raise _refuse(
            text,
            f"has {stages} stages",
            f"it must be a multiple of pipeline_model_parallel_size {pipeline_size}",
        )
    if pipeline_size == 1 and stages > 1:
        raise _refuse(
            text, f"has {stages} stages", "pipeline_model_parallel_size is 1, which has one stage"
        )
    if virtual_size is not None and stages != pipeline_size * virtual_size:
        raise _refuse(
            text,
            f"has {stages} stages",
            f"pipeline_model_parallel_size {pipeline_size} · virtual_pipeline_model_parallel_size "
            f"{virtual_size} = {pipeline_size * virtual_size} are stated; drop the latter or "
            f"change the layout",
        )


def _contents(text: str, flat: str, num_layers: int, mtp_layers: int) -> None:
    if flat.count("E") != 1 or flat.count("L") != 1 or flat[0] != "E" or flat[-1] != "L":
        raise _refuse(
            text, f"reads {flat!r}", "it must start with its only E and end with its only L"
        )
    for letter, name, wanted in (
        ("t", "num_layers", num_layers),
        ("m", "mtp_num_layers", mtp_layers),
    ):
        if flat.count(letter) != wanted:
            raise _refuse(
                text,
                f"holds {flat.count(letter)} times {letter!r}",
                f"{name} is {wanted}, and they must be equal",
            )
    if "m" in flat and "t" in flat[flat.index("m") :]:
        raise _refuse(text, f"reads {flat!r}", "every t must come before the first m")


def _mtp_together(text: str, stages: list[str], pipeline_size: int, mtp_layers: int) -> None:
    """All MTP depths share one stage: the last virtual stage of a pipeline rank."""
    for index, stage in enumerate(stages):
        if "m" not in stage:
            continue
        if stage.count("m") != mtp_layers:
            raise _refuse(text, f"has {stage!r} as stage {index}", "all m must stand in one stage")
        if index < len(stages) - pipeline_size:
            raise _refuse(
                text,
                f"has MTP in stage {index}",
                f"MTP must stand in the last virtual stage of its rank, one of the last "
                f"{pipeline_size} stages",
            )
