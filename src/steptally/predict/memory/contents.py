"""What is alive at a stage's peak, by lifetime, chunk and operation; the lines add up to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from steptally.job import Job
from steptally.predict.memory.chunk import Segment, received_gradient, segment_footprint
from steptally.predict.memory.dimensions import Dimensions, dimensions
from steptally.predict.memory.operation import Footprint, Operation
from steptally.predict.memory.stage import StageMemory

MICROBATCH, TRANSIENT = "microbatch", "transient"
OPTIMIZER_COPIES = "optimizer step: fp32 copies of gradients"


class Content(NamedTuple):
    """So many bytes of `name` are alive; `vpp` is the chunk, None where it is of all of them."""

    lifetime: str
    name: str
    vpp: int | None
    bytes: int


class Place(NamedTuple):
    """Where in a chunk its peak is: the last of `segment`'s equal parts, at its `operation`.

    `temporary` is what lives only there; `operation` is None inside a part that runs again.
    """

    segment: int
    operation: int | None
    temporary: int


def contents(job: Job, stage: StageMemory) -> list[Content]:
    """Everything that is allocated on a rank of `stage` when a later step is at its peak.

    >>> from steptally.job import job_from_settings
    >>> from steptally.predict.memory.stage import all_stages
    >>> job = job_from_settings({"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...     "seq_length": 32, "vocab_size": 128})
    >>> stage = all_stages(job)[0]
    >>> sum(content.bytes for content in contents(job, stage)) == stage.peak
    True
    """
    found = [Content(line.lifetime, line.name, None, int(line.bytes)) for line in stage.lines]
    if stage.optimizer_temporary > stage.activation_peak:
        found.append(Content(TRANSIENT, OPTIMIZER_COPIES, None, stage.optimizer_temporary))
    else:
        found += _activations(dimensions(job), stage)
    return [content for content in found if content.bytes]


def peak_event(job: Job, stage: StageMemory) -> str:
    """The event of the peak in words: `backward of chunk 0, in layer: mlp.linear_fc1`."""
    if stage.optimizer_temporary > stage.activation_peak:
        return "optimizer step"
    moment = stage.moment
    segments = stage.segments[moment.chunk]
    place = peak_place(dimensions(job), segments, forward=moment.forward)
    word = "forward" if moment.forward else "backward"
    chunk = f" of chunk {moment.chunk}" if len(stage.segments) > 1 else ""
    return f"{word}{chunk}, in {_place_name(segments, place)}"


def peak_place(sizes: Dimensions, segments: Sequence[Segment], *, forward: bool) -> Place:
    """Where one micro-batch's pass through a chunk needs most: the first place that does."""
    saved = most = 0
    found = Place(0, None, 0)
    for index, segment in enumerate(segments):
        part = segment_footprint(sizes, segment)
        saved += int((segment.repeats - 1) * part.saved)
        beside = 0 if forward else received_gradient(sizes, segments, index)
        for operation, alive, temporary in _steps(segment, part, forward=forward):
            if saved + alive + temporary + beside > most:
                most = saved + alive + temporary + beside
                found = Place(index, operation, temporary + beside)
        saved += int(part.saved)
    return found


def _activations(sizes: Dimensions, stage: StageMemory) -> Iterator[Content]:
    """Waiting micro-batches whole, the running one as far as its pass has come."""
    moment = stage.moment
    for chunk, segments in enumerate(stage.segments):
        running = chunk == moment.chunk
        waiting = moment.in_flight[chunk] - running
        place = peak_place(sizes, segments, forward=moment.forward) if running else None
        held = _held(sizes, segments, place, waiting)
        for (lifetime, name), size in held.items():
            yield Content(lifetime, name, chunk, size)
        if place is not None:
            word = "forward" if moment.forward else "backward"
            name = f"{word} of {_place_name(segments, place)}"
            yield Content(TRANSIENT, name, chunk, place.temporary)


def _held(
    sizes: Dimensions, segments: Sequence[Segment], place: Place | None, waiting: int
) -> dict[tuple[str, str], int]:
    """Saved bytes by lifetime and name, of `waiting` micro-batches and the running one."""
    held: dict[tuple[str, str], int] = defaultdict(int)
    for index, segment in enumerate(segments):
        whole, partly = waiting * segment.repeats, 0
        if place is not None and index <= place.segment:
            whole += segment.repeats - (index == place.segment)
            partly = int(index == place.segment)
        for position, (name, saved) in enumerate(_saved(sizes, segment)):
            reached = place is not None and _reaches(place, position)
            times = whole + partly * reached
            # The head's tensors are gone before the next micro-batch's forward, but for VPP.
            lifetime = TRANSIENT if segment.name == "head" and not waiting else MICROBATCH
            held[lifetime, name] += int(times * saved)
    return held


def _reaches(place: Place, position: int) -> bool:
    return place.operation is not None and position <= place.operation


def _saved(sizes: Dimensions, segment: Segment) -> list[tuple[str, int]]:
    """(name, bytes) of what one part of a segment keeps."""
    if segment.recomputed:
        saved = int(segment_footprint(sizes, segment).saved)
        return [(f"{segment.name}: input, for recomputation", saved)]
    return [(_named(segment, operation), int(operation.saved)) for operation in segment.operations]


def _steps(
    segment: Segment, part: Footprint, *, forward: bool
) -> Iterator[tuple[int | None, int, int]]:
    """(operation, saved so far, temporary) at each operation of one part of a segment."""
    if segment.recomputed:
        yield None, 0, int(part.forward_peak if forward else part.backward_peak)
        return
    saved = 0
    for position, operation in enumerate(segment.operations):
        saved += int(operation.saved)
        yield position, saved, int(operation.forward if forward else operation.backward)


def _place_name(segments: Sequence[Segment], place: Place) -> str:
    segment = segments[place.segment]
    if place.operation is None:
        return f"{segment.name}: running it again"
    return _named(segment, segment.operations[place.operation])


def _named(segment: Segment, operation: Operation) -> str:
    """`layer: mlp.linear_fc1`; `embedding.word_embeddings` names its segment itself."""
    if operation.name.startswith(f"{segment.name}."):
        return operation.name
    return f"{segment.name}: {operation.name}"
