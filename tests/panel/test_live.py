"""The live panel without a kernel: which widgets there are, what of them changes and how much that is, and what is
left. Runs are written as their workers would write them."""

from __future__ import annotations

import html as html_module
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

from tests.panel import recorded
from tests.panel.hostile import EVIL, PLACES
from tests.panel.parsed import Parsed
from tests.panel.recorded import CREATED, Recorded, recompile
from tpu_magics.panel import feed, html, live
from tpu_magics.panel.live import WIDGET_VIEW, LivePanel
from tpu_magics.panel.live_texts import LiveTexts
from tpu_magics.panel.page import Page
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.protocol import MIME_TYPE
from tpu_magics.panel.run_json import SAVED, record, to_bundle
from tpu_magics.panel.style_sheet import StyleSheet
from tpu_magics.runs.events import Memory, Steps, Value

BURST = feed.BURST


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


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """All may be sent at once; afterwards panels are settled, and no widget may be left."""
    monkeypatch.setattr(live, "UPDATE_EVERY", 0.0)
    monkeypatch.setattr(live, "SHARE", 1e9)
    monkeypatch.setattr(feed, "BURST", 10**9)
    monkeypatch.setattr(live, "BURST", 0)
    before = set(instances())
    place = Shown()
    yield place
    for panel in place.panels:
        panel.settle()
    assert set(instances()) == before, "a widget is left"


def instances() -> dict[str, Any]:
    """All open widgets by their ids."""
    from ipywidgets.widgets import widget as module

    found = getattr(module, "_instances", None)  # ipywidgets 8; in 7 an attribute of the class
    return dict(module.Widget.widgets if found is None else found)


def parts(panel: LivePanel) -> dict[str, Any]:
    """The widgets with the contents of a page's parts, by name, as they stand below each other."""
    found = panel._widgets._parts
    return {name: found[name].content for name in sorted(found, key=lambda name: found[name].order)}


def toggles(panel: LivePanel) -> dict[str, Any]:
    return {name: part.toggle for name, part in panel._widgets._parts.items() if part.toggle is not None}


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
    return "".join(one.value for one in parts(panel).values())


def seen(panel: LivePanel) -> str:
    """The html that all parts show, with the texts that were sent since it was sent whole."""
    return resolved(text_of(panel), panel._widgets._values.value)


def resolved(shown: str, style: str) -> str:
    """What html with variables shows beside a `<style>`."""
    values = dict(re.findall(r'(--t[\w-]+):("[^"]*"|[^;}]*)', style))

    def value(found: re.Match[str]) -> str:
        text = values.get(found[1], found[2]).strip('"')
        return html_module.escape(re.sub(r"\\([0-9a-f]+) ", lambda code: chr(int(code[1], 16)), text))

    text = re.sub(r"<span class=tpu-magics-text style='--t:var\(([^,]*),(\"[^\"]*\")\)'></span>", value, shown)
    return re.sub(r"var\((--t[\w-]+),(\d+%)\)", value, text)


def sent_by(panel: LivePanel) -> list[tuple[Any, str]]:
    """A list to which each html is added that the panel sends from now on."""
    sent: list[tuple[Any, str]] = []
    for one in htmls(panel):
        one.observe(lambda change: sent.append((change["owner"], change["new"])), "value")
    return sent


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_a_panel_opens_moves_and_settles_in_every_state(tmp_path: Path, shown: Shown, kind: str) -> None:
    run = recorded.RUNS[kind](tmp_path)
    panel = shown.panel(run)
    panel.look()
    assert run.view().name in text_of(panel)
    panel.settle()
    (first, replaces), (static, again) = shown.all
    assert (replaces, again) == (False, True), "the page goes where the widgets were"
    assert set(first) == {WIDGET_VIEW, MIME_TYPE, "text/plain"}
    assert list(static) == ["text/plain", "text/html", MIME_TYPE]
    assert static["text/html"].startswith("<div") and "<script" not in static["text/html"]


def test_the_extension_finds_the_record_beside_the_widgets(tmp_path: Path, shown: Shown) -> None:
    run = recorded.running(tmp_path)
    shown.panel(run)
    found, expected = shown.all[0][0][MIME_TYPE], record(run.view(), SAVED)
    assert found["id"] == run.files.id and found["live"] and set(found) == set(expected)


def test_only_core_widgets_are_used(tmp_path: Path, shown: Shown) -> None:
    """So that it works where no extension for widgets of others is installed."""
    shown.panel(recorded.running(tmp_path))
    assert {type(each).__name__ for each in instances().values()} <= {
        *("HTML", "HTMLStyle", "DescriptionStyle", "VBox", "Button", "ButtonStyle", "Layout")
    }


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_live_html_is_done_html(tmp_path: Path, kind: str) -> None:
    """The same html in the same order; only the folds are made otherwise, and charts have fewer points."""
    made = page(recorded.RUNS[kind](tmp_path).view(), live.COMPILES, live.POINTS)
    static, at = without_charts(html.to_html(made)), 0
    parts = live.pieces(made)
    head = parts["head"]
    ordered = {"head": head._replace(rest=""), "failure": parts["failure"], "behind it": live.Piece("", head.rest)}
    for name, piece in {**ordered, **{name: parts[name] for name in list(parts)[2:]}}.items():
        line = piece.line.removeprefix('<div class="tpu-magics-head">').removesuffix("</div>" * (name == "head"))
        for each in map(without_charts, (piece.toggle.removesuffix("</summary>"), line, piece.rest)):
            assert each in static[at:], name
            at = static.index(each, at)


def without_charts(text: str) -> str:
    return re.sub(r'<div style="padding:6px 18px[^>]*><svg.*?</svg>.*?</svg></div>', "", text)


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_strings_of_people_stay_text(tmp_path: Path, shown: Shown, evil: str) -> None:
    run = recorded.running(tmp_path, name="plain")
    panel = shown.panel(run)
    run.update(name=evil, models=[evil], warnings=[evil])
    run.write(*(event(evil) for event in PLACES.values()))
    panel.look()
    style, *others = htmls(panel)
    for one in others:
        Parsed(one.value)
        assert not re.search("<script|</style|<img|<iframe|<svg onload|onerror=alert\\(1\\)>", one.value), one.value
    assert style.value.count("<style") == style.value.count("</style>") == 1 and "script" not in style.value


# -- what changes ------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_sent(tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded.running(tmp_path)
    panel = shown.panel(run)
    stands = run.view()
    monkeypatch.setattr(panel._reading, "view", lambda: stands)
    panel.look()
    sent = sent_by(panel)
    panel.look()
    assert sent == []
    later = run.write(Value(CREATED + 49, 0, name="phase", value="another", step=439)).view()
    monkeypatch.setattr(panel._reading, "view", lambda: later)
    panel.look()
    assert [owner for owner, _html in sent] == [parts(panel)["head"], parts(panel)["section values"]]
    assert all("another" in text for _owner, text in sent), "the line of the section, and its inside"


def test_all_that_is_seen_at_a_moment_is_of_one_page(tmp_path: Path, shown: Shown) -> None:
    """A compile changes the figures, what is wrong, and the line of a section: together, or not yet."""
    run = recorded.running(tmp_path)
    panel = shown.panel(run)
    for nth in range(7, 12):
        run.write(recompile(CREATED + 40 + nth, nth, 200 + nth))
        panel.look()
        head = seen(panel)
        [compiles] = re.findall(r"Compiles</span><br><span[^>]*>(\d+)<", head)
        assert f">{compiles} compiles" in head, "the line of the section"
        [recompiles] = re.findall(r"Recompiles</span><br><span[^>]*>(?:! )?(\d+)<", head)
        assert f"{recompiles} times" in parts(panel)["problems"].value


def test_an_unfolded_part_stays_open(tmp_path: Path, shown: Shown) -> None:
    """Its `<details>` is in a widget that nothing is sent to."""
    run = recorded.warming_up(tmp_path)
    panel = shown.panel(run)
    sent = sent_by(panel)
    known = toggles(panel)
    for nth in range(2, 9):
        run.write(
            recompile(CREATED + 10 + nth, nth, 100 + nth), Steps(CREATED + 10 + nth, 0, total=nth, n=1, seconds=1)
        )
        panel.look()
    assert parts(panel)["section compiles"] in [owner for owner, _html in sent]
    assert not {id(owner) for owner, _html in sent} & {id(one) for one in known.values()}
    assert all(re.fullmatch(r'<details class="tpu-magics-toggle" .*</details>', one.value) for one in known.values())


def test_a_part_that_comes_later_stands_in_its_place_and_moves_no_other(tmp_path: Path, shown: Shown) -> None:
    run = recorded.compiling(tmp_path)
    panel = shown.panel(run)
    before = root(panel).children
    new = recorded.running(tmp_path, "another")
    panel._reading = type(panel._reading)(new.files)
    panel.look()
    assert root(panel).children[: len(before)] == before, "a front end draws all anew that are behind a new one"
    made = live.pieces(page(new.view(), live.COMPILES, live.POINTS))
    assert list(made) == [name for name in parts(panel) if name in made]
    orders = [part.order for part in panel._widgets._parts.values()]
    lines = [part.order + 1 for part in panel._widgets._parts.values() if part.piece.toggle]
    assert len(set(orders)) == len(orders) and len(lines) > 3
    assert re.findall(r'<span style="order:(\d+)">', parts(panel)["head"].value) == list(map(str, sorted(lines)))


def test_a_part_that_goes_is_empty(tmp_path: Path, shown: Shown) -> None:
    run = recorded.compiling(tmp_path)
    panel = shown.panel(run)
    assert "tpu_magics.log" in re.sub("<wbr>", "", parts(panel)["head"].value)
    run.write(*recorded.losses(CREATED + 5, 20))
    panel.look()
    assert parts(panel)["section values"].value == "" == toggles(panel)["section values"].value
    assert "<svg" in parts(panel)["head"].value


def test_it_is_updated_twice_a_second_and_seldom_where_the_extension_shows_the_run(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "UPDATE_EVERY", 0.5)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    panel = shown.panel(recorded.running(tmp_path))
    looked: list[float] = []
    monkeypatch.setattr(panel._widgets, "update", lambda _page: looked.append(clock[0]))

    def passes(seconds: float) -> list[float]:
        looked.clear()
        for _ in range(round(seconds / 0.03)):
            panel.look()
            clock[0] += 0.03
        return [after - before for before, after in itertools.pairwise(looked)]

    assert min(passes(6)) >= 0.5 and len(looked) == 12
    panel.elsewhere = True
    passes(6)
    assert min(passes(20)) >= 5


# -- how much is sent --------------------------------------------------------------------------------------------------


def test_a_minute_of_short_steps_stays_within_its_bytes(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 5 ms, a loss for each, two ranks, memory: everything changes all the time."""
    monkeypatch.setattr(feed, "BURST", BURST)
    monkeypatch.setattr(live, "BURST", BURST)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    run = recorded.failing(tmp_path)
    panel = shown.panel(run)
    panel._widgets._bucket = feed.TokenBucket(live.UPDATES, lambda: clock[0])
    sent = sent_by(panel)
    late, heads, sizes = [], [0], []
    for half_second in range(1, 301):
        clock[0] += 0.5
        t, step = CREATED + 20 + half_second / 2, 30 + 100 * half_second
        run.write(*(Steps(t, rank, total=step, n=100, seconds=0.5) for rank in (0, 1)))
        run.write(Value(t, 0, "loss", 1 / step, step, 100, 1 / step, 2 / step), Memory(t, 0, rss=10**9 + step))
        panel.look()
        late += [] if f">{step:,}<" in seen(panel) else [half_second]
        heads += [half_second] if any(owner is parts(panel)["head"] for owner, _html in sent) else []
        sizes.append(sum(len(text.encode()) + live.ENVELOPE for _owner, text in sent))
        sent.clear()
    assert sum(sizes[:120]) <= live.UPDATES
    assert all(sum(sizes[at : at + 120]) <= feed.A_MINUTE for at in range(180))
    assert len([at for at in late if at <= 120]) <= 30 and len([at for at in late if at > 120]) <= 9, late
    gaps = [(after, after - before) for before, after in itertools.pairwise(heads)]
    assert max(gap for _at, gap in gaps) <= 30 and max(gap for at, gap in gaps if at > 140) <= 10, "the chart"


def test_a_text_that_changes_is_sent_alone_and_stays_a_text(tmp_path: Path, shown: Shown) -> None:
    """Whatever it holds, it ends no string, no rule and no tag."""
    texts = LiveTexts()
    frame = '<div title="{}"><svg><svg></svg>{}</svg><b>1 {}</b><i style="width:{}%"></i></div>'

    def sent(*values: str) -> str:
        return frame.format(*map(html_module.escape, values))

    texts.whole(sent("1", "1", "1", "1"))
    assert texts.changes(sent("1", "1", "2", "2")) is None, "nobody knew that it changes"
    whole = texts.whole(sent("1", "1", "2", "2"))
    assert Parsed(whole).text == "1" and resolved(whole, "") == sent("1", "1", "2", "2")
    for evil in [*EVIL, '";}*{color:red}', "ends with \\", "\n", "var(--t)", "1 %\u2028"]:
        style = texts.changes(sent("other", "other", evil, "3"))
        assert style is not None and resolved(whole, style) == sent("1", "1", evil, "3")
        assert style.count("<") == 2 and style.count("{") == style.count("}") == 1 and style.count('"') == 2
        new = texts.whole(sent("1", "1", evil, "3"))
        assert resolved(new, style) == sent("1", "1", evil, "3"), "variables of the page before say nothing"
        assert [name for name, _value in Parsed(new).attributes] == [
            *("title", "class", "style", "style"),
        ]
        whole = new
    assert texts.changes(sent("1", "1", "2", "2").replace("<b>", "<b><b>")) is None


def test_a_live_page_is_small(tmp_path: Path) -> None:
    made: Page = page(recorded.running(tmp_path).view(), live.COMPILES, live.POINTS)
    sheet = StyleSheet("", html.to_html(made))
    head = live.pieces(made)["head"]
    assert len(sheet.lean(head.line + head.rest)) < 3_000
    assert all(len(sheet.lean(piece.line + piece.rest)) < 14_000 for piece in live.pieces(made).values())


# -- the styles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_styles_become_classes_that_mean_the_same(tmp_path: Path, kind: str) -> None:
    made = page(recorded.RUNS[kind](tmp_path).view())
    static = html.to_html(made)
    sheet = StyleSheet(".base{}", static)
    lean = sheet.lean(static)
    rules = dict(re.findall(r"\.(m[0-9a-f]+):is\(#_,\*\)\{([^}]*)\}", sheet.html))
    assert re.sub(r" class=(m[0-9a-f]+)( (?=/))?", lambda found: f' style="{rules[found[1]]}"', lean) == static
    assert {value for name, value in Parsed(lean).attributes if name == "class"} <= {*rules, "tpu-magics-run"}
    assert len(lean) < 0.7 * len(static) and sheet.html.startswith("<style>.base{}")


def test_the_sheet_has_the_styles_of_what_comes_later(tmp_path: Path, shown: Shown) -> None:
    """Sending it again takes as much as two updates."""
    run = recorded.compiling(tmp_path)
    panel = shown.panel(run)
    before = panel._widgets._style.value
    panel._reading = type(panel._reading)(recorded.running(tmp_path, "another").files)
    panel.look()
    panel._reading = type(panel._reading)(recorded.failed(tmp_path).files)
    panel.look()
    inline = {style for style in re.findall(r' style="([^"]*)"', text_of(panel)) if len(style) >= 12}
    assert panel._widgets._style.value == before and len(before) < 12_000 and len(inline) < 8, inline


def test_styles_that_come_often_join_the_sheet() -> None:
    sheet = StyleSheet("", "")
    text = '<b style="color:red;font-weight:600">x</b>'
    before = sheet.html
    assert sheet.lean(text) == text and sheet.html == before
    for _ in range(200):
        sheet.lean(text)
    assert sheet.lean(text) == re.sub(r' style="[^"]*"', f" class={sheet._names['color:red;font-weight:600']}", text)
    assert sheet.html != before


# -- the stop button ---------------------------------------------------------------------------------------------------


def clicked(panel: LivePanel, **data: Any) -> bool:
    message = {"method": "custom", "content": {"event": "click"}, **data}
    return panel.answer(button(panel).model_id, message)


def test_a_click_stops_the_run_once_and_shows_at_once(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    assert button(panel).description == "Stop" and not button(panel).disabled
    assert clicked(panel) and shown.stops == 1
    assert button(panel).description == "Stopping …" and button(panel).disabled
    assert clicked(panel) and shown.stops == 1, "the answer to a button that is disabled is nothing"


def test_a_stop_from_elsewhere_shows_too(tmp_path: Path, shown: Shown) -> None:
    """From the extension, or after the widgets have gone."""
    panel = shown.panel(recorded.running(tmp_path))
    panel.stop()
    assert shown.stops == 1 and button(panel).disabled
    panel.settle()
    panel.stop()
    assert shown.stops == 2


def test_other_messages_are_not_answered(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    assert not panel.answer("another", {"method": "custom", "content": {"event": "click"}})
    assert not clicked(panel, method="update", state={"description": "x"})
    assert not clicked(panel, content={"event": "keypress"}) and not clicked(panel, content=None)
    assert shown.stops == 0


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
    assert [update for _, update in shown.all] == [False, True, True]
    assert shown.all[-1][0] == to_bundle(run.view())
    assert panel.settled


def test_a_panel_can_be_shown_again_live_and_settled(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    panel.show()
    panel.settle()
    panel.show()
    first, again, static, last = shown.all
    assert first[0][WIDGET_VIEW] == again[0][WIDGET_VIEW] and not again[1]
    assert last == (static[0], False)


def test_a_panel_that_was_closed_says_why_and_looks_no_more(tmp_path: Path, shown: Shown) -> None:
    panel = shown.panel(recorded.running(tmp_path))
    panel.close("ValueError: no such part")
    panel.look()
    bundle, update = shown.all[-1]
    assert update and set(bundle) == {"text/plain"} and len(shown.all) == 2
    assert "stopped: ValueError: no such part" in bundle["text/plain"]
    assert f"%tpu_panel {panel.files.id}" in bundle["text/plain"]
