"""Tokens for a run: a text file through a byte tokenizer, or seeded random tokens.

The global batch of a step depends on the job's seed and the step alone; each data-parallel rank
takes its part of it, in the order of Megatron-LM's sampler. The same job therefore sees the same
tokens under every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptally.errors import InputError
from steptally.job import Job, Layout
from steptally.job.coerce import shown

BYTE_VALUES = 256
CORPUS, RANDOM = "corpus", "random"

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """Where tokens come from: `draw(generator, sequences, length)` gives a [sequences, length]."""

    name: str
    draw: Callable[[np.random.Generator, int, int], Tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of one rank: inputs and next tokens, both [micro_batch_size, seq_length]."""

    tokens: Tokens
    labels: Tokens


def open_source(data: str, job: Job) -> TokenSource:
    """The source that `data` names: `corpus` (the package's own text), `random`, or a text file.

    Raises `InputError` where a file cannot be read or is shorter than one sequence, or where the
    vocabulary cannot hold every byte.
    """
    vocabulary = job.architecture.vocab_size
    if data == RANDOM:
        return TokenSource(
            name=RANDOM,
            draw=lambda generator, sequences, length: generator.integers(
                0, vocabulary, size=(sequences, length), dtype=np.int64
            ),
        )
    if vocabulary < BYTE_VALUES:
        raise InputError(
            f"vocab_size is {vocabulary}: the byte tokenizer of text data needs {BYTE_VALUES}. "
            f"Use --set vocab_size={BYTE_VALUES}, or random tokens: --data {RANDOM}."
        )
    return _text_source(data, job.layout.seq_length)


def micro_batches(
    source: TokenSource, layout: Layout, *, seed: int, step: int, dp_rank: int
) -> Iterator[MicroBatch]:
    """This replica's micro-batches of one step (counted from 1), in order."""
    generator = np.random.default_rng([seed, step])
    batch = source.draw(generator, layout.global_batch_size, layout.seq_length + 1)
    size = layout.micro_batch_size
    for number in range(layout.num_microbatches):
        first = (number * layout.data_parallel_size + dp_rank) * size
        rows = batch[first : first + size]
        yield MicroBatch(tokens=rows[:, :-1], labels=rows[:, 1:])


def _text_source(data: str, seq_length: int) -> TokenSource:
    text = _read_text(data)
    if len(text) <= seq_length:
        shorter = f", or a seq_length of at most {len(text) - 1}" if len(text) > 1 else ""
        raise InputError(
            f"{data} holds {len(text)} bytes: one sequence needs seq_length + 1 = {seq_length + 1} "
            f"tokens. Use a longer text{shorter}."
        )
    tokens = np.frombuffer(text, dtype=np.uint8).astype(np.int64)

    def draw(generator: np.random.Generator, sequences: int, length: int) -> Tokens:
        starts = generator.integers(0, len(tokens) - length + 1, size=sequences)
        return np.stack([tokens[start : start + length] for start in starts])

    return TokenSource(name=data, draw=draw)


def _read_text(data: str) -> bytes:
    if data == CORPUS:
        return resources.files("steptally.run").joinpath("corpus.txt").read_bytes()
    path = Path(data)
    try:
        if path.exists() and not path.is_file():  # a device or a pipe has no end, or no second one
            raise OSError(0, "not a regular file")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise InputError(
            f"--data {shown(data)} cannot be read ({getattr(error, 'strerror', None) or error}): "
            f"it must be '{CORPUS}', '{RANDOM}' or the path of a text file."
        ) from error
