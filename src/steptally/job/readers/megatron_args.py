"""A Megatron-LM launch script or bare argument list, read into settings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from steptally.errors import InputError
from steptally.job.readers.command_line import is_megatron_flag, parse_arguments
from steptally.job.readers.reading import Reading
from steptally.job.readers.shell import Command, Script, read_script
from steptally.job.readers.shell_values import Field, lacking
from steptally.job.readers.tokenizer import vocabulary

LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
NUMBER_OF = {
    "processes": ("--nproc-per-node", "--num-gpus", "--ntasks-per-node", "--gpus-per-node"),
    "nodes": ("--nnodes", "--num-nodes", "--nodes", "-N"),
    "ranks": ("--ntasks", "-n", "-np", "--np", "--world-size"),
}
SLURM_COUNTS = {
    "nodes": "SLURM_NNODES",
    "processes": "SLURM_NTASKS_PER_NODE",
    "ranks": "SLURM_NTASKS",
}
# Flags whose value often is the name of the model.
NAMING_FLAGS = ("wandb_exp_name", "one_logger_run_name", "tokenizer_model", "load", "save")


def read_arguments(
    text: str, source: str, name: str, outside: Mapping[str, object] | None = None
) -> Reading:
    """Read the settings that a script passes to Megatron-LM.

    `outside` holds variables of the script that the user supplies. Raises `InputError` where no
    command carries Megatron's flags, or where the script is cut short.
    """
    script = read_script(text, source, outside)
    command, others = _training_command(script, source)
    launcher, words = _split_launcher(_opened(command.words))
    arguments = parse_arguments(words, source, script.undecided)
    values, notes = arguments.values, arguments.notes
    notes += _about(script, others, text, source)
    _world(launcher, script, values, notes)
    if "num_query_groups" in values or "group_query_attention" not in values:
        values.setdefault("group_query_attention", False)
    assumed = vocabulary(values, notes)
    return Reading(
        values=values,
        name=name,
        assumed=assumed,
        notes=tuple(notes),
        names=(name, *(str(values[flag]) for flag in NAMING_FLAGS if flag in values)),
        consumed=script.variables.fixed & script.variables.used,
    )


def _training_command(script: Script, source: str) -> tuple[Command, list[Command]]:
    """The command with most Megatron flags; a list of flags without a command is one command."""
    commands = script.commands
    loose = [command for command in commands if command.words[0].text.startswith("-")]
    if len(loose) == len(commands) and commands:
        joined = tuple(word for command in commands for word in command.words)
        commands, loose = [Command(line=commands[0].line, words=joined)], []
    counted = [(_megatron_flags(command), command) for command in commands if command not in loose]
    best = max(counted, key=lambda pair: pair[0], default=(0, None))
    if not best[0] or best[1] is None:
        raise InputError(
            f"{source} holds no command with Megatron-LM's flags (--num-layers, --hidden-size, …): "
            f"give the script that starts training, or its argument list."
        )
    others = [command for count, command in counted if command is not best[1] and count > 2]
    return best[1], [*others, *(command for command in loose if _megatron_flags(command))]


def _megatron_flags(command: Command) -> int:
    return _count_flags(_opened(command.words))


def _count_flags(words: Sequence[Field]) -> int:
    return sum(is_megatron_flag(word.text) for word in words)


def _opened(words: Sequence[Field]) -> list[Field]:
    """Open up `bash -c "torchrun … --num-layers 32 …"`: one argument that holds a command."""
    opened: list[Field] = []
    for word in words:
        parts = word.text.split()
        inside: list[Command] = []
        if len(parts) > 1 and sum(map(is_megatron_flag, parts)) > 1:
            inside = read_script(word.text, "the command in quotes").commands
        if not inside:
            opened.append(word)
            continue
        best = max(inside, key=lambda command: _count_flags(command.words))
        opened += [
            Field(text=part.text, line=word.line, missing=lacking(part.text, word.missing))
            for part in best.words
        ]
    return opened


def _split_launcher(words: Sequence[Field]) -> tuple[list[Field], list[Field]]:
    """The launcher's own words, and the arguments of the training program."""
    for position, word in enumerate(words):
        if word.text.endswith(".py"):
            return list(words[: position + 1]), list(words[position + 1 :])
    first = next((i for i, word in enumerate(words) if is_megatron_flag(word.text)), len(words))
    return list(words[:first]), list(words[first:])


def _world(
    launcher: Sequence[Field], script: Script, values: dict[str, object], notes: list[str]
) -> None:
    """World size and devices per node from torchrun, srun, mpirun or deepspeed."""
    counts = {what: _number(launcher, flags) for what, flags in NUMBER_OF.items()}
    by_torch = any(word.text.endswith(LAUNCHERS) for word in launcher)
    if not by_torch and any(word.text == "srun" for word in launcher):
        for what, variable in SLURM_COUNTS.items():
            counts[what] = counts[what] or _count(script, variable)
    if counts["nodes"] is None and by_torch and not _mentions(launcher, NUMBER_OF["nodes"]):
        counts["nodes"] = 1  # torchrun's own default
    processes, nodes, ranks = counts["processes"], counts["nodes"], counts["ranks"]
    if processes and by_torch:
        values.setdefault("devices_per_node", processes)
    if processes and nodes:
        values.setdefault("world_size", processes * nodes)
    elif ranks and not by_torch:
        values.setdefault("world_size", ranks)
    else:
        stated = _count(script, "WORLD_SIZE")
        if stated is not None:
            values.setdefault("world_size", stated)
    if by_torch and "world_size" not in values:
        notes.append(
            "The number of nodes or of processes a node comes from outside the script: pass "
            "--set world_size=N for the true number of ranks."
        )


def _count(script: Script, variable: str) -> int | None:
    """A positive number that a variable holds."""
    found = script.variables.scalars.get(variable)
    return _positive(found.text) if found is not None else None


def _positive(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d{0,8}", text) else None


def _mentions(words: Sequence[Field], flags: Sequence[str]) -> bool:
    return any(word.text.partition("=")[0].replace("_", "-") in flags for word in words)


def _number(words: Sequence[Field], flags: Sequence[str]) -> int | None:
    for position, word in enumerate(words):
        flag, equals, text = word.text.partition("=")
        if (flag.replace("_", "-") if flag.startswith("--") else flag) not in flags:
            continue
        if not equals and position + 1 < len(words):
            text = words[position + 1].text
        return _positive(text)
    return None


def _about(script: Script, others: Sequence[Command], text: str, source: str) -> list[str]:
    """Sentences on what the script leaves to the outside or to a condition."""
    notes = []
    for other in others:
        kind = "flags stand alone" if other.words[0].text.startswith("-") else "another command"
        notes.append(
            f"{source} line {other.line}: {kind} with Megatron's flags, not read: bash does not "
            f"pass them to the training command."
        )
    for name, line in script.undecided.items():
        if name in script.variables.used:
            notes.append(
                f"{source} line {line} sets {name} under a condition that the script alone does "
                f"not decide: it is read without that line; pass --set {name}=VALUE to settle it."
            )
    if script.sourced:
        notes.append(f"{source} reads {', '.join(script.sourced)}, which is not read here.")
    if text.rstrip().endswith("\\"):
        notes.append(f"{source} ends in a backslash: if it was cut there, flags are missing.")
    return notes
