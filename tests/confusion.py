"""`make confusion`: faults put into real runs, and what `steptally stragglers` calls them.

    python -m tests.confusion [--faults 30] [--clean 20] [--seed N] [--keep DIR]

Each run is a real job of 4 or 8 ranks over gloo. Kind, place and size of its fault are drawn: 1.2
to 3 times the rank's own time in the steps that it strikes, as a clean run of the layout took it.
Half of the slow workers are slowed from outside the product, by a process that stops and continues
the rank. A fault is found where the first verdict has its class and coordinates; a clean run passes
where no verdict exceeds the effect that is stated as detectable.

Ranks that compute all the time on fewer cores than ranks slow each other, and hide each other's
faults: one that stands still lends its core to the rest. So every rank sleeps for a part of its
compute (`--inject slow-rank` of all of them alike), as a host does whose device computes, until
they have room. A fault multiplies with that.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.slowed_ranks import rank_pid, slow_down

from steptally.trace.run_directory import RunDirectory

JOB = {
    "num_layers": 2,
    "hidden_size": 96,
    "num_attention_heads": 4,
    "ffn_hidden_size": 384,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "swiglu": False,
    "untie_embeddings_and_output_weights": True,
    "vocab_size": 256,
    "seq_length": 64,
    "micro_batch_size": 1,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
}
# Many tokens for few weights, one expert a rank: else a hot expert costs nothing, or is balanced by
# another on its rank.
EXPERTS = {
    "num_experts": 4,
    "moe_ffn_hidden_size": 768,
    "moe_token_dispatcher_type": "alltoall",
    "seq_length": 384,
}
# World and parallel sizes; every rank has peers, so that a slow one can be told from its stage.
LAYOUTS = {
    "dp4": {"world_size": 4, "global_batch_size": 8},
    "dp2 pp2": {
        "world_size": 4,
        "pipeline_model_parallel_size": 2,
        "global_batch_size": 8,
        "num_layers": 8,  # so that the head is little of the last stage
    },
    "tp2 dp2": {"world_size": 4, "tensor_model_parallel_size": 2, "global_batch_size": 4},
    "dp4 pp2": {
        "world_size": 8,
        "pipeline_model_parallel_size": 2,
        "global_batch_size": 8,
        "num_layers": 8,  # so that the head is little of the last stage
    },
    "dp4 ep4": {
        "world_size": 4,
        "expert_model_parallel_size": 4,
        "global_batch_size": 8,
        **EXPERTS,
    },
}
WARMUP, TRACED = 2, 18
TRACED_FOR_TYPICAL = 8
# Of the time in which a rank is stopped, a third falls where it slept or had no core: seen with
# stops of 10 and 15 ms, 2 and 4 times from outside, 1.5 and 3.6 times in its own time.
STOPPED_EVERY_MS, STOPPED_MORE = 20.0, 1.5
FAULT_KINDS = (
    "slow-worker",
    "slow-worker",
    "stage-imbalance",
    "slow-link",
    "data-loading",
    "pause",
    "expert-hot-spot",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: its layout, its fault (as `--inject` takes it, or a rank slowed from outside).

    `verdict` is what it should be called: "none" for a clean run.
    """

    layout: str
    verdict: str
    coordinates: dict[str, int] = field(default_factory=dict)
    inject: str = ""
    stopped: tuple[int, float] | None = None
    seed: int = 0

    @property
    def fault(self) -> str:
        """The fault in words."""
        if self.stopped:
            return f"rank {self.stopped[0]} stopped from outside, {self.stopped[1]:.1f}x"
        return self.inject or "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """What a rank of a layout takes in a step without a fault: own time, and messages on a link."""

    own_ms: float
    messages: int

    def excess_ms(self, factor: float) -> float:
        """What makes a rank's own time `factor` times as long."""
        return (factor - 1) * self.own_ms


def typical(layout: str, directory: Path) -> Typical:
    """Of a clean run: the median own time, and the calls of rank 0 on its tp or pp axis."""
    clean_run = Trial(layout=layout, verdict="none")
    accounts = search(run(clean_run, directory, TRACED_FOR_TYPICAL))["accounts"]
    own_ns = [
        row["own_ns"]
        for row in accounts["peers"]
        if row["operation"] == "all own work" and row["step"] is None and row["against"] == "peers"
    ]
    calls = sum(row["instances"] for row in accounts["waits"] if _on_a_link(row))
    return Typical(
        own_ms=statistics.median(own_ns) / 1e6, messages=max(1, round(calls / TRACED_FOR_TYPICAL))
    )


def _on_a_link(row: dict[str, object]) -> bool:
    return row["rank"] == 0 and row["axis"] in ("tp", "pp")


def coordinates(layout: str, rank: int) -> dict[str, int]:
    """The places of a rank on the axes that its layout splits (Megatron's order tp, dp, pp)."""
    sizes = LAYOUTS[layout]
    tp = sizes.get("tensor_model_parallel_size", 1)
    pp = sizes.get("pipeline_model_parallel_size", 1)
    ep = sizes.get("expert_model_parallel_size", 1)
    dp = sizes["world_size"] // (tp * pp)
    places = {"tp": rank % tp, "dp": rank // tp % dp, "pp": rank // (tp * dp), "ep": rank % ep}
    split = {"tp": tp, "dp": dp, "pp": pp, "ep": ep}
    return {axis: at for axis, at in places.items() if split[axis] > 1}


def draw(kind: str, number: int, dice: random.Random, usual: Mapping[str, Typical]) -> Trial:
    """A fault of one kind, at a place and of a size that are drawn; `usual` by layout."""
    factor = round(dice.uniform(1.2, 3.0), 2)
    if kind == "stage-imbalance":
        layout = dice.choice(["dp2 pp2", "dp2 pp2", "dp4 pp2"])
        stage = dice.randrange(2)
        return Trial(
            layout=layout,
            verdict=kind,
            coordinates={"pp": stage},
            inject=f"slow-stage={stage}:{factor}x",
            seed=number,
        )
    if kind == "expert-hot-spot":
        expert = dice.randrange(4)
        share = round(dice.uniform(0.8, 0.98), 2)
        return Trial(
            layout="dp4 ep4",
            verdict=kind,
            coordinates=coordinates("dp4 ep4", expert),
            inject=f"imbalanced-experts={expert}:{share}",
            seed=number,
        )
    layout = dice.choice(["dp4", "dp4", "dp2 pp2", "dp2 pp2", "tp2 dp2", "tp2 dp2", "dp4 pp2"])
    rank = dice.randrange(LAYOUTS[layout]["world_size"])
    place = coordinates(layout, rank)
    excess_ms = usual[layout].excess_ms(factor)
    if kind == "slow-worker":
        if number % 2:
            return Trial(
                layout=layout,
                verdict=kind,
                coordinates=place,
                stopped=(rank, factor),
                seed=number,
            )
        phase = dice.choice(["", ":forward", ":backward"])
        inject = f"slow-rank={rank}:{factor}x{phase}"
    elif kind == "data-loading":
        every = dice.choice(["", ":every=3"])
        inject = f"data-stall={rank}:{excess_ms:.1f}ms{every}"
    elif kind == "pause":
        inject = f"gc-pause={rank}:{excess_ms:.1f}ms:every={dice.choice([3, 4, 5])}"
    else:
        layout = dice.choice(["dp2 pp2", "tp2 dp2"])
        first = dice.choice([0, 1]) if layout == "dp2 pp2" else dice.choice([0, 2])
        second = first + (2 if layout == "dp2 pp2" else 1)
        place = {
            axis: at
            for axis, at in coordinates(layout, first).items()
            if coordinates(layout, second)[axis] == at
        }
        each_ms = usual[layout].excess_ms(factor) / usual[layout].messages
        inject = f"slow-link={first}-{second}:{each_ms:.1f}ms"
    return Trial(layout=layout, verdict=kind, coordinates=place, inject=inject, seed=number)


def clean(number: int, dice: random.Random) -> Trial:
    """A run without a fault."""
    return Trial(
        layout=dice.choice([*LAYOUTS, "dp4", "dp2 pp2", "tp2 dp2"]), verdict="none", seed=number
    )


def run(trial: Trial, directory: Path, traced: int = TRACED) -> Path:
    """Run it for so many traced steps; the run directory."""
    job = directory / "job.yaml"
    settings = {**JOB, **LAYOUTS[trial.layout], "seed": 1000 + trial.seed}
    job.write_text(json.dumps(settings))
    steps = WARMUP + traced
    command = [sys.executable, "-m", "steptally", "run", str(job), "--directory", str(directory)]
    command += ["--steps", str(steps), "--warmup-steps", str(WARMUP)]
    command += ["--traced-steps", ",".join(map(str, range(WARMUP + 1, steps + 1)))]
    for fault in [*alike(LAYOUTS[trial.layout]["world_size"]), *trial.inject.split()]:
        command += ["--inject", fault]
    with ExitStack() as stack:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        stack.callback(process.kill)
        output: list[bytes] = []
        reader = threading.Thread(target=lambda: output.append(process.stdout.read()))
        reader.start()
        if trial.stopped:
            made = _wait_for_directory(directory, process)
            pid = rank_pid(RunDirectory(made), trial.stopped[0])
            stopped = 1 + STOPPED_MORE * (trial.stopped[1] - 1)
            stack.enter_context(slow_down(pid, stopped, STOPPED_EVERY_MS))
        status = process.wait(timeout=600)
        reader.join()
        if status:
            raise RuntimeError(
                f"{trial.fault}: run ended with {status}: {output[0].decode()[-2000:]}"
            )
    return _made(directory)


def alike(ranks: int) -> list[str]:
    """What makes every rank sleep for as much of its compute as leaves room for the others.

    Nothing where each has a core of its own.
    """
    ranks_a_core = ranks / len(os.sched_getaffinity(0))
    factor = 2 * ranks_a_core if ranks_a_core > 1 else 1
    return [f"slow-rank={rank}:{factor}x" for rank in range(ranks)] if factor > 1 else []


def _made(directory: Path) -> Path:
    (made,) = [path for path in directory.iterdir() if path.is_dir()]
    return made


def _wait_for_directory(directory: Path, process: subprocess.Popen[bytes]) -> Path:
    while process.poll() is None:
        found = [path for path in directory.iterdir() if path.is_dir()]
        if found:
            return found[0]
        time.sleep(0.05)
    raise RuntimeError("the run ended before it made its directory")


def search(path: Path) -> dict[str, object]:
    """What `steptally stragglers --json` says of a run."""
    command = [sys.executable, "-m", "steptally", "stragglers", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{path}: {done.stderr}")
    return json.loads(done.stdout)


def answer(trial: Trial, found: dict[str, object]) -> tuple[str, bool]:
    """What the tool calls it, and whether that is right."""
    verdicts = [v for v in found["verdicts"] if v["class"] != "not-identifiable"]
    if trial.verdict == "none":
        beyond = [v for v in verdicts if (v["factor"] or 9) > (v["detectable"] or 1)]
        return (beyond[0]["class"] if beyond else "none"), not beyond
    if not verdicts:
        return "none", False
    first = verdicts[0]
    return first["class"], first["class"] == trial.verdict and (
        first["coordinates"] == trial.coordinates
    )


def trials(faults: int, clean_runs: int, seed: int, usual: Mapping[str, Typical]) -> list[Trial]:
    """As many faults, over all kinds in turn, and clean runs, in mixed order."""
    dice = random.Random(seed)
    drawn = [draw(FAULT_KINDS[n % len(FAULT_KINDS)], n, dice, usual) for n in range(faults)]
    drawn += [clean(faults + n, dice) for n in range(clean_runs)]
    dice.shuffle(drawn)
    return drawn


def main() -> None:
    """Run all, and print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--faults", type=int, default=30)
    arguments.add_argument("--clean", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=None)
    arguments.add_argument("--keep", type=Path, default=None)
    asked = arguments.parse_args()
    seed = random.SystemRandom().randrange(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    table: Counter[tuple[str, str]] = Counter()
    right = Counter[bool]()
    with ExitStack() as stack:
        root = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        usual = {}
        for number, layout in enumerate(LAYOUTS):
            directory = root / f"typical{number}"
            directory.mkdir(parents=True)
            usual[layout] = typical(layout, directory)
            print(f"{layout:<8} {usual[layout]}", flush=True)
        for number, trial in enumerate(trials(asked.faults, asked.clean, seed, usual)):
            directory = root / f"{number:02}"
            directory.mkdir(parents=True)
            found = search(run(trial, directory))
            called, is_right = answer(trial, found)
            table[trial.verdict, called] += 1
            right[trial.verdict == "none"] += is_right
            _tell(trial, found, called, is_right)
    _print_table(table)
    print(f"faults found: {right[False]} of {asked.faults}")
    print(f"clean runs passed: {right[True]} of {asked.clean}")


def _tell(trial: Trial, found: dict[str, object], called: str, is_right: bool) -> None:
    verdicts = "; ".join(
        f"{v['class']} {v['coordinates']} {v['factor'] or 0:.2f}x (detectable "
        f"{v['detectable'] or 0:.2f})"
        for v in found["verdicts"]
    )
    mark = "right" if is_right else "WRONG"
    print(
        f"{mark}  {trial.layout:<8} {trial.fault:<36} S {found['slowdown'] or 0:.2f}  {verdicts}",
        flush=True,
    )


def _print_table(table: Counter[tuple[str, str]]) -> None:
    truths = sorted({truth for truth, _ in table})
    answers = sorted({called for _, called in table})
    print("\n" + f"{'truth / answer':<20}" + "".join(f"{one:>20}" for one in answers))
    for truth in truths:
        print(f"{truth:<20}" + "".join(f"{table[truth, one]:>20}" for one in answers))


if __name__ == "__main__":
    main()
