"""A run as the parts of its panel, each a piece of HTML, in their order.

The same view always gives the same strings, so that a live panel sends only the parts that changed.
"""

from __future__ import annotations

from tpu_magics.panel.findings import folded, recorded_finding
from tpu_magics.panel.model_view import RunView
from tpu_magics.panel.sections_compiles import compile_row, compiles_html, reads_html
from tpu_magics.panel.sections_header import facts_html, header_html
from tpu_magics.panel.sections_parts import charts_html, ranks_html, values_html, warnings_html
from tpu_magics.panel.sections_rehearsal import rehearsal_html


def _rules_html(view: RunView) -> str:
    """What the rules said of the code before the run, folded."""
    return folded([recorded_finding(one) for one in view.findings])


_SECTIONS = (
    ("header", header_html),
    ("facts", facts_html),
    ("rehearsal", rehearsal_html),
    ("rules", _rules_html),
    ("warnings", warnings_html),
    ("compiles", compiles_html),
    ("reads", reads_html),
    ("charts", charts_html),
    ("values", values_html),
    ("ranks", ranks_html),
)


def sections(view: RunView) -> dict[str, str]:
    """The parts by name, in the order in which they are shown; "" for one that has nothing to say. The compiles
    themselves (`compile_rows`) belong behind "compiles"."""
    return {name: make(view) for name, make in _SECTIONS}


def compile_rows(view: RunView, limit: int = 50) -> list[tuple[str, str]]:
    """The newest compiles, each with a key that stays its own; a `<details>` unfolds to all that is known of it."""
    return [(entry.key, compile_row(entry, view.lead)) for entry in view.compile_log[:limit]]
