"""`steptally models`: presets that can stand for a JOB, with their sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from steptally.job import Job
    from steptally.job.catalog.models import Model

SCHEMA = "steptally/1"


def models_command(
    name: Annotated[str, typer.Argument(help="Part of a name. [all]")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print all fields as JSON.")] = False,
) -> None:
    """List model presets: their shape, published parameter counts, and where both are from."""
    found = select_models(name)
    if json_output:
        entries = [model_as_json(model) for model in found]
        typer.echo(json.dumps({"schema": SCHEMA, "models": entries}, indent=1))
        return
    from rich.console import Console

    if len(found) == 1:
        print_model(found[0], Console())
    else:
        print_models(found, Console())


def select_models(name: str) -> list[Model]:
    """Models whose name, title or alias holds every word of `name`.

    Raises `InputError` where there is none.
    """
    from steptally.errors import InputError
    from steptally.job.catalog.models import find_model, models, nearest_models

    exact = find_model(name)
    words = name.lower().split()
    found = [
        model
        for model in models().values()
        if all(word in f"{model.name} {model.title} {model.aliases}".lower() for word in words)
    ]
    if exact is not None:
        return [exact]
    if not found:
        near = ", ".join(nearest_models(name)) or "none"
        raise InputError(
            f"no model's name holds {name[:60]!r}; similar names: {near}. `steptally models` lists "
            f"all; another model is described by a job file or its config.json."
        )
    return found


def model_as_json(model: Model) -> dict[str, Any]:
    """A model's entry; docs/cli/models.md lists the keys."""
    return {
        "name": model.name,
        "title": model.title,
        "aliases": list(model.aliases),
        "parameters_published": model.parameters,
        "parameters_active_published": model.active,
        "settings": dict(model.settings),
        "source": model.source,
        "note": model.note,
    }


def print_models(models: list[Model], console: Console) -> None:
    """One line a model."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    for heading in ("parameters", "active", "layers", "hidden", "heads", "kv", "experts"):
        table.add_column(heading, justify="right")
    for model in models:
        shape = _job(model).architecture
        experts = f"{shape.moe_router_topk}/{shape.num_experts}" if shape.num_experts else "–"
        groups = "MLA" if shape.multi_latent_attention else str(shape.num_query_groups)
        table.add_row(
            model.name,
            _billions(model.parameters),
            _billions(model.active) if model.active else "–",
            str(shape.num_layers),
            str(shape.hidden_size),
            str(shape.num_attention_heads),
            groups,
            experts,
        )
    console.print(table)
    console.print(
        f"{len(models)} models; counts as published, without MTP modules. "
        f"`steptally models NAME` shows one with its settings and source.",
        style="dim",
    )


def print_model(model: Model, console: Console) -> None:
    """Every setting of one model, and who says so."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{model.name}: {model.title}", style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    lines = [("parameters", _billions(model.parameters) + " as published")]
    if model.active:
        lines.append(("active", _billions(model.active) + " as published"))
    lines += [(name, str(value)) for name, value in model.settings.items()]
    lines += [("source", model.source), ("note", model.note), ("aliases", ", ".join(model.aliases))]
    for label, value in lines:
        if value:
            table.add_row(Text(label, style="dim"), Text(value))
    console.print(table)


def _job(model: Model) -> Job:
    from steptally.job import job_from_settings

    return job_from_settings(model.settings, name=model.name)


def _billions(count: float) -> str:
    """Three digits, or all where the count is exact and one model is shown."""
    return f"{count / 1e12:.4g} T" if count >= 1e12 else f"{count / 1e9:.4g} B"
