"""Pipeline stages as Megatron's `pipeline_model_parallel_layout` spells them. Imports no torch.

`Et*2|(tt|)*2L` means an embedding and two layers, then twice two layers, then the loss.
"""

from __future__ import annotations

import re

from steptally.job import Layout

_REPEATED = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*(\d+)")


def stages_of(layout_text: str) -> list[str]:
    """The layers of each stage, in order, with every repetition written out.

    >>> stages_of("Et*2|(t|)*2L")
    ['Ett', 't', 't', 'L']
    """
    text = layout_text.replace(",", "")  # Megatron's commas are for the eye
    while (match := _REPEATED.search(text)) is not None:
        unit = match[2] if match[1] is None else match[1]
        text = text[: match.start()] + unit * int(match[3]) + text[match.end() :]
    return text.split("|")


def virtual_stages(layout: Layout) -> int | None:
    """Model chunks of one pipeline rank; None without interleaving.

    A stated `pipeline_model_parallel_layout` implies it: its stages over the pipeline size.
    """
    if layout.pipeline_model_parallel_layout is None:
        return layout.virtual_pipeline_model_parallel_size
    stages = len(stages_of(layout.pipeline_model_parallel_layout))
    chunks = stages // layout.pipeline_model_parallel_size
    return chunks if chunks > 1 else None
