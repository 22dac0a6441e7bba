"""A tally as one HTML file that opens offline: no script, no font, no image from elsewhere.

Charts are inline SVG in percentages of their box, so that text keeps its size on a phone. Each
chart has a text alternative and its values as text; hatching, marks and words say what colours say.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from steptally import __version__
from steptally.report.agreement import executed_flops_agreement
from steptally.report.html_charts import bars_chart, loss_plot, steps_plot
from steptally.report.html_stragglers import heat_charts, replay_plot, wait_chart
from steptally.report.job_lines import job_lines, job_name, settings
from steptally.report.labels import headlines, label, ordered_figures
from steptally.report.quantity import exact, printable, quantity
from steptally.report.rank_bars import rank_bars
from steptally.report.step_points import losses, step_points
from steptally.report.tables import account_tables
from steptally.report.verdict_cards import looked_for_stragglers, no_straggler, verdict_cards
from steptally.tally import Figure, Tally

MOST_ROWS = 200
NUMBER = re.compile(r"-?[\d,.e]+ ")


def render_html(tally: Tally) -> str:
    """The whole page as text. What the tally holds is escaped, whatever it is.

    Missing accounts leave their section out.
    """
    environment = Environment(
        loader=PackageLoader("steptally.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(_page(tally))


def _page(tally: Tally) -> dict[str, Any]:
    """What the template shows, as text and percentages: it decides nothing itself."""
    points = step_points(tally)
    return {
        "name": job_name(tally),
        "basis": printable(tally.basis),
        "version": __version__,
        "job_lines": job_lines(tally),
        "convention": printable(tally.convention),
        "warnings": [printable(warning) for warning in tally.warnings],
        "refusals": [printable(refusal) for refusal in tally.refusals],
        "verdicts": verdict_cards(tally),
        "no_straggler": no_straggler(tally) if looked_for_stragglers(tally) else "",
        "verdicts_basis": printable(tally.basis_of("verdicts")),
        "heat_maps": heat_charts(tally),
        "heat_basis": printable(tally.basis_of("peers")),
        "waits": wait_chart(tally),
        "waits_basis": printable(tally.basis_of("waits")),
        "replay": replay_plot(tally),
        "replay_basis": printable(tally.basis_of("replay")),
        "cards": [_figure(key, figure) for key, figure in headlines(tally)],
        "figures": [_figure(key, figure) for key, figure in ordered_figures(tally)],
        "agreements": executed_flops_agreement(tally),
        "time_basis": printable(tally.basis_of("time")),
        "steps_basis": printable(tally.basis_of("steps")),
        "bars": bars_chart(rank_bars(tally)),
        "steps": steps_plot(points),
        "loss": loss_plot(losses(points)),
        "tables": account_tables(tally, most_rows=MOST_ROWS),
        "settings": settings(tally),
    }


def _figure(key: str, figure: Figure) -> dict[str, str]:
    value = quantity(figure.value, figure.unit)
    # `not known` and other words are no number with a unit.
    number, unit = value.split(" ", 1) if NUMBER.match(value) else (value, "")
    return {
        "number": number,
        "unit": unit,
        "key": printable(key),
        "label": label(key),
        "value": value,
        "exact": exact(figure.value, figure.unit) or "",
        "basis": printable(figure.basis),
        "convention": printable(figure.convention),
        "origin": printable(figure.origin),
    }
