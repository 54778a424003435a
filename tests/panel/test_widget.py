"""The live panel without a kernel: which widgets there are, what of them changes, and what is left. Runs are written as
their workers would write them."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

from tests.panel import recorded
from tests.panel.recorded import CREATED, Recorded, recompile
from tpu_magics.panel import widget, widget_rows
from tpu_magics.panel.model import RunModel
from tpu_magics.panel.page import to_html
from tpu_magics.panel.protocol import MIME_TYPE
from tpu_magics.panel.run_json import to_bundle
from tpu_magics.panel.sections import compile_rows, sections
from tpu_magics.panel.widget import WIDGET_VIEW, Budget, LivePanel
from tpu_magics.panel.widget_html import Sheet, fixed_pieces, pieces
from tpu_magics.runs.events import Value

HOSTILE = '</style><script>alert(1)</script><b style="color:red">\'&'


class Shown:
    """Where a panel is published. `all`: bundles with whether each replaced what was there."""

    def __init__(self) -> None:
        self.all: list[tuple[Mapping[str, Any], bool]] = []
        self.panels: list[LivePanel] = []
        self.stops = 0

    def publish(self, bundle: Mapping[str, Any], update: bool) -> None:
        self.all.append((bundle, update))

    def stop(self) -> None:
        self.stops += 1

    def panel(self, run: Recorded, **options: Any) -> LivePanel:
        self.panels.append(LivePanel(run.files, self.stop, self.publish, **options))
        return self.panels[-1]

    def live(self, run: Recorded) -> LivePanel:
        """A panel that has shown the run once."""
        panel = self.panel(run)
        panel.look()
        return panel


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """All may be sent at once; afterwards panels are settled, and no widget may be left."""
    monkeypatch.setattr(widget, "UPDATE_EVERY", 0.0)
    monkeypatch.setattr(widget, "SHARE", 1e9)
    monkeypatch.setattr(widget, "BURST", 10**9)
    monkeypatch.setattr(widget_rows, "EVERY", 0.0)
    before = set(living())
    place = Shown()
    yield place
    for panel in place.panels:
        panel.settle()
    assert set(living()) == before, "a widget is left"


def living() -> list[str]:
    """The ids of all open widgets."""
    return list(instances())


def instances() -> dict[str, Any]:
    """All open widgets by their ids."""
    from ipywidgets.widgets import widget as module

    found = getattr(module, "_instances", None)  # ipywidgets 8; in 7 an attribute of the class
    return dict(module.Widget.widgets if found is None else found)


def root(panel: LivePanel) -> Any:
    return panel._widgets._root


def htmls(panel: LivePanel) -> list[Any]:
    """The HTML widgets below a panel, in the order of the tree."""

    def below(one: Any) -> Iterator[Any]:
        if isinstance(one, ipywidgets.HTML):
            yield one
        for child in getattr(one, "children", ()):
            yield from below(child)

    return list(below(root(panel)))


def button(panel: LivePanel) -> Any:
    return panel._widgets._stop


def text_of(panel: LivePanel) -> str:
    return "".join(one.value for one in htmls(panel))


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_a_panel_opens_moves_and_settles_in_every_state(tmp_path: Path, shown: Shown, kind: str) -> None:
    run = recorded.RUNS[kind](tmp_path)
    panel = shown.live(run)
    assert run.view().name in text_of(panel)
    panel.settle()
    (live, first), (static, second) = shown.all
    assert (first, second) == (False, True), "the page goes where the widgets were"
    assert set(live) == {WIDGET_VIEW, "text/plain"} and list(static) == ["text/plain", "text/html", MIME_TYPE]
    assert static["text/html"].startswith("<div") and "<script" not in static["text/html"]


def test_only_core_widgets_are_used(tmp_path: Path, shown: Shown) -> None:
    """So that it works where no extension for widgets of others is installed."""
    shown.live(recorded.running(tmp_path))
    assert {type(each).__name__ for each in instances().values()} <= {
        *("HTML", "HTMLStyle", "DescriptionStyle", "VBox", "HBox", "Button", "ButtonStyle", "Layout")
    }


def test_what_is_shown_live_is_what_the_sections_say(tmp_path: Path, shown: Shown) -> None:
    run = recorded.running(tmp_path)
    panel = shown.live(run)
    for name, html in sections(run.view()).items():
        if name not in ("header", "ranks"):  # these tell the time, too
            assert bare(html) in bare(text_of(panel)), name
    rows = compile_rows(run.view())
    assert [bare(html) in bare(text_of(panel)) for _, html in rows] == [True] * len(rows)


def bare(html: str) -> str:
    return re.sub(r' (style="[^"]*"|class=m[0-9a-f]+)', "", html)


def test_strings_of_people_stay_text(tmp_path: Path, shown: Shown) -> None:
    run = recorded.running(tmp_path, name="plain")
    run.update(name=HOSTILE)
    hostile: dict[str, Any] = {"difference": (HOSTILE,), "text": HOSTILE, "fix": HOSTILE, "cause": "unknown"}
    run.write(recompile(CREATED + 30, 9, **hostile), Value(CREATED + 31, 0, name=HOSTILE, value=HOSTILE, step=1))
    panel = shown.live(run)
    for one in htmls(panel)[1:]:
        assert "<script" not in one.value and "</style" not in one.value and 'style="color:red"' not in one.value
    assert htmls(panel)[0].value.count("<style") == htmls(panel)[0].value.count("</style>") == 1
    assert "script" not in htmls(panel)[0].value


# -- what changes ------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_sent(tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded.running(tmp_path)
    panel = shown.live(run)
    stands = panel._reading._model.view()
    monkeypatch.setattr(panel._reading._model, "view", lambda: stands)
    changed: list[str] = []
    for one in htmls(panel):
        one.observe(lambda change: changed.append(change["new"]), "value")
    panel.look()
    assert changed == []
    later = run.write(Value(CREATED + 55, 0, name="loss", value=0.125, step=441)).view(CREATED + 60.0)
    monkeypatch.setattr(panel._reading._model, "view", lambda: dataclasses.replace(stands, values=later.values))
    panel.look()
    assert len(changed) == 1 and "0.125" in changed[0], "only the curve is new"


def test_a_compile_adds_a_row_and_leaves_the_others_alone(tmp_path: Path, shown: Shown) -> None:
    run = recorded.warming_up(tmp_path)
    panel = shown.live(run)
    before = rows_of(panel)
    for nth in range(2, 30):
        run.write(recompile(CREATED + 10 + nth, nth, 100 + nth))
        panel.look()
    after = rows_of(panel)
    assert after[: len(before)] == before, "a box draws all children anew behind one that is new"
    assert all(box.layout.flex_flow == "column-reverse" for box in boxes(panel))
    assert [label for one in reversed(after) for label in labels(one)] == [f"#{nth}" for nth in reversed(range(30))]


def rows_of(panel: LivePanel) -> list[Any]:
    """The widgets with rows, oldest first."""
    return [one for group in panel._widgets._rows.box.children for one in group.children]


def boxes(panel: LivePanel) -> list[Any]:
    box = panel._widgets._rows.box
    return [box, *box.children]


def labels(one: Any) -> list[str]:
    return re.findall(r"<b>(#\d+)</b>", one.value)


def test_old_rows_go_in_groups_and_never_come_again(tmp_path: Path, shown: Shown) -> None:
    run = recorded.warming_up(tmp_path)
    panel = shown.panel(run)
    for nth in range(2, 200):
        run.write(recompile(CREATED + 10 + nth, nth, 100 + nth))
        panel.look()
    found = [label for one in reversed(rows_of(panel)) for label in labels(one)]
    assert widget_rows.LIMIT <= len(found) < 2 * widget_rows.LIMIT
    assert found == [f"#{nth}" for nth in range(199, 199 - len(found), -1)]


def test_many_compiles_at_once_share_widgets(tmp_path: Path, shown: Shown) -> None:
    run = recorded.long_run(tmp_path, steps=10_000, compiles=1_000, records=100)
    panel = shown.live(run)
    assert len([label for one in rows_of(panel) for label in labels(one)]) == widget_rows.LIMIT
    assert len(rows_of(panel)) < widget_rows.LIMIT / 2


def test_a_row_that_reads_differently_is_sent_again(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = shown.live(recorded.warming_up(tmp_path))
    before = rows_of(panel)
    view = panel._reading._model.view()
    rows = [(key, html.replace("first compile", "second thoughts")) for key, html in compile_rows(view)]
    monkeypatch.setattr(widget, "compile_rows", lambda _view: rows)
    panel.look()
    assert rows_of(panel) == before and "second thoughts" in text_of(panel) and "first compile" not in text_of(panel)


def test_it_is_not_updated_more_often_than_twice_a_second(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widget, "UPDATE_EVERY", 0.5)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    panel = shown.panel(recorded.running(tmp_path))
    looked: list[float] = []
    monkeypatch.setattr(panel, "_update", lambda: looked.append(clock[0]))
    for _ in range(200):
        panel.look()
        clock[0] += 0.03
    assert len(looked) == 12 and min(b - a for a, b in itertools.pairwise(looked)) >= 0.5


# -- how much is sent --------------------------------------------------------------------------------------------------


def test_the_budget_is_kept_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    budget, sent = Budget(), 0
    for _ in range(120):
        clock[0] += 0.5
        budget.refill()
        while budget.take("x" * 1_300):
            sent += 1_300 + widget.ENVELOPE
    assert 60 * widget.RATE < sent <= 60 * widget.RATE + widget.BURST + 2_000


def test_what_is_small_and_looked_at_goes_first(tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little to spend, the state and the figures are still sent, and everything is sent in the end."""
    run = recorded.compiling(tmp_path)
    panel = shown.panel(run)
    new = recorded.running(tmp_path, "another").view()
    monkeypatch.setattr(panel._reading._model, "view", lambda: new)
    spent: list[str] = []
    monkeypatch.setattr(panel._budget, "refill", lambda: None)
    monkeypatch.setattr(widget, "ENVELOPE", 0)
    for _ in range(40):
        panel._budget.left = 1.0
        panel.look()
        spent.append(text_of(panel))
    # Behind the new compiles and why they were, the first thing that one sees is the state.
    first = next(number for number, text in enumerate(spent) if "● training" in text)
    curve = next(number for number, text in enumerate(spent) if "<svg" in text)
    assert first < curve < 39


# -- the html ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_styles_become_classes_that_mean_the_same(tmp_path: Path, kind: str) -> None:
    view = recorded.RUNS[kind](tmp_path).view()
    known = sections(view)
    sheet = Sheet(known.values())
    for html in [*known.values(), to_html(view), *dict(compile_rows(view)).values()]:
        lean = sheet.lean(html)
        rules = dict(re.findall(r"\.(m[0-9a-f]+):is\(#_,\*\)\{([^}]*)\}", sheet.html))
        assert re.sub(r" class=(m[0-9a-f]+)", lambda found: f' style="{rules[found[1]]}"', lean) == html
    assert len(sheet.lean(known["header"])) < 0.6 * len(known["header"])


def test_styles_that_come_often_join_the_sheet() -> None:
    sheet = Sheet([])
    html = '<b style="color:red;font-weight:600">x</b>'
    before = sheet.html
    assert sheet.lean(html) == html and sheet.html == before
    for _ in range(200):
        sheet.lean(html)
    assert sheet.lean(html) == re.sub(r' style="[^"]*"', f" class={sheet._names['color:red;font-weight:600']}", html)
    assert sheet.html != before


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_pieces_are_whole_and_together_the_html(tmp_path: Path, kind: str) -> None:
    view = recorded.RUNS[kind](tmp_path).view()
    for html in [*sections(view).values(), to_html(view)]:
        assert "".join(pieces(html)) == html
        for count in (1, 3, 9):
            fixed = fixed_pieces(html, count)
            assert len(fixed) == count and "".join(fixed) == html
    title, figures = fixed_pieces(sections(view)["header"], 2)
    assert view.name in title and "Elapsed" not in title and "Elapsed" in figures


# -- the stop button ---------------------------------------------------------------------------------------------------


def clicked(panel: LivePanel, **data: Any) -> bool:
    message = {"method": "custom", "content": {"event": "click"}, **data}
    return panel.answer(button(panel).model_id, message)


def test_a_click_stops_the_run_once(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    assert button(panel).description == "Stop" and not button(panel).disabled
    assert clicked(panel) and shown.stops == 1
    panel.look()
    assert button(panel).description == "Stopping …" and button(panel).disabled
    assert clicked(panel) and shown.stops == 1, "the answer to a button that is disabled is nothing"


def test_other_messages_are_not_answered(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    assert not panel.answer("another", {"method": "custom", "content": {"event": "click"}})
    assert not clicked(panel, method="update", state={"description": "x"})
    assert not clicked(panel, content={"event": "keypress"}) and not clicked(panel, content=None)
    assert shown.stops == 0


def test_messages_are_served_at_each_look(tmp_path: Path, shown: Shown) -> None:
    served: list[Any] = []
    panel = shown.panel(recorded.running(tmp_path), serve=served.append)
    panel.look()
    panel.look()
    assert served == [panel.answer, panel.answer]


def test_a_button_that_cannot_work_says_why(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path), no_stop="not in this kernel")
    assert button(panel).disabled and button(panel).tooltip == "not in this kernel"
    assert clicked(panel) and shown.stops == 0


# -- the end -----------------------------------------------------------------------------------------------------------


def test_settling_again_shows_what_is_new_and_nothing_twice(tmp_path: Path, shown: Shown) -> None:
    run = recorded.done(tmp_path)
    run.update(status="running")
    panel = shown.panel(run)
    panel.settle()
    run.update(status="done")
    panel.settle()
    panel.settle()
    view = RunModel(run.files)
    view.refresh()
    assert [update for _, update in shown.all] == [False, True, True]
    assert shown.all[-1][0] == to_bundle(view.view())
    assert panel.settled


def test_a_panel_can_be_shown_again_live_and_settled(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    panel.show()
    panel.settle()
    panel.show()
    live, again, static, last = shown.all
    assert live == again and not again[1]
    assert last == (static[0], False)


def test_a_panel_that_was_closed_says_why_and_looks_no_more(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    panel.close("ValueError: no such part")
    panel.look()
    bundle, update = shown.all[-1]
    assert update and set(bundle) == {"text/plain"} and len(shown.all) == 2
    assert "stopped: ValueError: no such part" in bundle["text/plain"]
    assert f"%tpu_panel {panel.files.id}" in bundle["text/plain"]
