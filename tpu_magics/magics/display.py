"""Displays a table: as HTML and text in a notebook, as text elsewhere."""

from __future__ import annotations

import sys

from tpu_magics.panel.table import Table, to_html, to_text


def show_table(table: Table) -> None:
    """Display one table as a mime bundle, or print it where there is no front end."""
    if "ipykernel" not in sys.modules:
        print(to_text(table), flush=True)
        return
    from IPython.display import display

    display({"text/plain": to_text(table), "text/html": to_html(table)}, raw=True)
