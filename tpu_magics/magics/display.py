"""Displays of tables and mime bundles: as HTML and text in a notebook, as text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tpu_magics.panel.table import Table, to_html, to_text


def show_table(table: Table) -> None:
    show({"text/plain": to_text(table), "text/html": to_html(table)})


def show(bundle: Mapping[str, Any]) -> None:
    """Display a mime bundle, or print its text where there is no front end."""
    if "ipykernel" not in sys.modules:
        print(bundle["text/plain"], flush=True)
        return
    from IPython.display import display

    display(dict(bundle), raw=True)
