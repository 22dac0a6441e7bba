"""The command line: `steptally VERB …`. One file a verb; heavy imports live inside the verbs.

Exit status: 0 done; 1 done, and the verb found what it looks for; 2 bad input. Every
`SteptallyError` is caught here, once.
"""

from __future__ import annotations

import importlib
import sys

import typer

from steptally.errors import SteptallyError

# Each name is a module of `steptally.cli` with a function of that name, which is the command.
VERBS: tuple[str, ...] = (
    "demo",
    "run",
    "report",
    "calibrate",
    "count",
    "mfu",
    "gemms",
    "traffic",
    "memory",
    "rehearse",
    "trace",
    "stragglers",
    "compare",
    "validate",
    "devices",
    "models",
)

app = typer.Typer(
    name="steptally",
    help="Accounts for a training step of a Megatron-style LLM: every FLOP, byte and microsecond.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from steptally import __version__

        typer.echo(f"steptally {__version__}")
        raise typer.Exit


for _verb in VERBS:
    _function = getattr(importlib.import_module(f"steptally.cli.{_verb}"), f"{_verb}_command")
    app.command(name=_verb)(_function)


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        app()
    except SteptallyError as error:
        sys.stderr.write(f"steptally: {error}\n")
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.stderr.write("steptally: interrupted\n")
        sys.exit(130)
