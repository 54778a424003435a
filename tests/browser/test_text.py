"""The tutorial about text, as a person goes through it: it runs, the status bar tells, the panel shows what the record
has, and a click leads to the line."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.jupyter import START, Notebook, Server, copied

pytestmark = [pytest.mark.browser, pytest.mark.process, pytest.mark.long]
TRAINS = 13  # the cell with %%tpu_train


def test_the_text_notebook_is_followed_to_its_end(server: Server, page: Any) -> None:
    notebook = Notebook(server, page, copied(server, "02_text.ipynb"))
    notebook.await_kernel()
    notebook.run_all()

    expect(notebook.status).to_contain_text("training", timeout=START)
    expect(notebook.status).to_contain_text("%")
    notebook.show_panel()
    expect(notebook.state).to_contain_text("done", timeout=2 * START)

    view = notebook.record()
    notebook.unfold("compiles")
    expect(notebook.rows).to_have_count(view.compiles)
    for row, entry in zip(notebook.rows.all(), view.compile_log, strict=True):
        graph = entry.compile
        assert (graph.recompile and not graph.expected) == ("tpu-mod-warning" in (row.get_attribute("class") or ""))
        if not graph.recompile:
            expect(row).to_contain_text("first compile")

    newest = view.compile_log[0].compile
    assert newest.site.cell_id, "the record knows the cell"
    notebook.rows.first.get_by_role("button", name=f"line {newest.site.line}").click()
    text = notebook.source(TRAINS).splitlines()[newest.site.line - 1]
    expect(notebook.shown.locator(".jp-tpu-marked-line", has_text=text.strip())).to_be_in_viewport()
    if any(entry.compile.recompile for entry in view.compile_log):
        expect(notebook.cell(TRAINS).locator("button.jp-tpu-badge").first).to_be_visible()
