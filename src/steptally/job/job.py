"""A job: what is trained, how it is split, on what. The input of every account."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from steptally.job.architecture import Architecture
from steptally.job.cluster import Cluster
from steptally.job.layout import Layout
from steptally.job.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Architecture + Layout + Recipe + Cluster, resolved and checked.

    `assumed` maps each setting that the source left open to why it has the value it has. `unknown`
    keeps settings that steptally does not know, as they were written; `ignored` those that no
    account depends on (paths, logging, data: `job.options`). `notes` are sentences that a reader
    of the source owes the user: what it overrode, decided, or finds odd. `named_like` is the
    catalogue's model that the job is named after, whether or not it is built like it.
    """

    name: str
    source: str
    architecture: Architecture
    layout: Layout
    recipe: Recipe
    cluster: Cluster
    assumed: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, object] = field(default_factory=dict)
    ignored: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    named_like: str | None = None

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and of the LM head: Megatron pads the vocabulary for TP."""
        architecture = self.architecture
        if architecture.padded_vocab_size is not None:
            return architecture.padded_vocab_size
        multiple = (
            architecture.make_vocab_size_divisible_by * self.layout.tensor_model_parallel_size
        )
        return -(-architecture.vocab_size // multiple) * multiple

    def settings(self) -> dict[str, object]:
        """Every setting, flat, in Megatron's names: what a job file would hold."""
        parts = (self.architecture, self.layout, self.recipe, self.cluster)
        return {name: value for part in parts for name, value in asdict(part).items()}

    def as_json(self) -> dict[str, object]:
        """The `job` object of a tally: resolved settings, and what was assumed or unknown."""
        return {
            "name": self.name,
            "source": self.source,
            "architecture": asdict(self.architecture),
            "layout": {
                **asdict(self.layout),
                "data_parallel_size": self.layout.data_parallel_size,
                "num_microbatches": self.layout.num_microbatches,
            },
            "recipe": asdict(self.recipe),
            "cluster": asdict(self.cluster),
            "padded_vocab_size": self.padded_vocab_size,
            "assumed": [f"{name}: {why}" for name, why in self.assumed.items()],
            "unknown": [f"{name}: {value}" for name, value in self.unknown.items()],
            "ignored": [f"{name}: {value}" for name, value in self.ignored.items()],
            "notes": list(self.notes),
        }
