"""A run as JSON: every field by its name, every number that JSON can hold, and never more than fits."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.recorded import CREATED, Recorded, first_compile, recompile
from tpu_magics.panel.json_values import fitting, plain, size_of
from tpu_magics.panel.messages import RunTexts
from tpu_magics.panel.model_view import RunView
from tpu_magics.panel.page import to_html, to_text
from tpu_magics.panel.protocol import MIME_TYPE
from tpu_magics.panel.run_json import COMM, FIELDS, SAVED, record, to_bundle
from tpu_magics.panel.sections_header import figures, state_text
from tpu_magics.runs.events import RuleFinding, Site, Value, Warned

HOSTILE = '</script><b onclick="x()">\'&\ud83d é \u202e'


def strict(value: Any) -> Any:
    """Through JSON and back, as a browser reads it; fails where JSON has no such thing."""
    return json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8"))


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_every_field_goes_by_its_name(tmp_path: Path, kind: str) -> None:
    view = recorded.RUNS[kind](tmp_path).view()
    made = record(view)
    assert strict(made) == made and made["v"] == 1
    assert tuple(made["view"]) == tuple(field.name for field in dataclasses.fields(RunView)) == FIELDS
    assert set(made["said"]) == {field.name for field in dataclasses.fields(RunTexts)}
    for name in ("id", "state", "live", "steps", "compiles", "recompiles", "elapsed", "device", "rehearsed"):
        assert made["view"][name] == getattr(view, name)
    assert [entry["key"] for entry in made["view"]["compile_log"]] == [entry.key for entry in view.compile_log]
    assert len(made["view"]["ranks"]) == len(view.ranks)


def test_the_words_are_those_of_the_panel(tmp_path: Path) -> None:
    view = recorded.failed(tmp_path).view()
    said = record(view)["said"]
    assert said["state"] == state_text(view) == "✗ failed" and said["tone"] == "broken"
    assert [tuple(each.values()) for each in said["figures"]] == [dataclasses.astuple(each) for each in figures(view)]
    text = " ".join(to_text(view).split())
    for part in (said["compiles"], said["failure"]["facts"][0]["lines"][0], said["notes"], *said["failure"]["lines"]):
        assert " ".join(part.split()) in text, part
    for fact in said["facts"]:
        assert set(fact) == {"label", "lines", "state", "mark", "code"}
    assert said["footer"] in to_html(view)
    assert said["likeness"] is None
    assert said["causes"] == {"input-shape": "input-shape"}


def test_a_rehearsal_is_told_as_one(tmp_path: Path) -> None:
    said = record(recorded.rehearsed(tmp_path, recorded.ASLEEP, 30.0).view())["said"]
    assert said["notes"].endswith("rehearsal of 8 ranks on XLA:CPU")
    assert said["likeness"]["short"].startswith("Values, shards") and len(said["likeness"]["facts"]) == 2
    assert said["ranks"]["notes"][0].startswith("! The other ranks wait for rank 3")
    assert len(said["ranks"]["rows"]) == 8 and len(said["ranks"]["rows"][0]) == len(said["ranks"]["columns"])


def test_numbers_that_json_has_not_are_texts(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    run.write(Value(CREATED + 55, 0, name="loss", value="nan", step=441, low=0.1, high="nan"))
    run.write(Value(CREATED + 56, 0, name="worse", value="inf", step=442), Value(CREATED, 0, name="b", value="-inf"))
    series = {one["name"]: one for one in strict(record(run.view()))["view"]["values"]}
    assert series["loss"]["points"][-1]["value"] == "nan" and series["loss"]["last"] == "nan"
    assert series["worse"]["last"] == "inf" and series["worse"]["high"] is None
    assert plain([math.nan, math.inf, -math.inf, 1.5]) == ["nan", "inf", "-inf", 1.5]


def test_what_people_wrote_stays_text(tmp_path: Path) -> None:
    site = Site(0, HOSTILE, 1, HOSTILE, HOSTILE, HOSTILE)
    run = recorded.running(tmp_path)
    run.write(first_compile(CREATED + 30, site=site), Warned(CREATED, 0, code="x", text=HOSTILE))
    run.write(Value(CREATED + 30, 0, name=HOSTILE, value=HOSTILE, step=1))
    made = strict(record(run.view()))
    shown = json.dumps(made, ensure_ascii=False)
    assert "onclick" in shown and "\ud83d" not in shown
    assert any("onclick" in notice["text"] for notice in made["said"]["notices"])


def test_any_value_becomes_json() -> None:
    assert plain({"a": (1, None, True), 2: {3, 4} and "set"}) == {"a": [1, None, True], "2": "set"}
    assert plain(Path("/x")) == "/x" and plain(Site(1, "In [2]", 3))["path"] == "In [2]"
    assert plain("\ud800") == "?" and plain("é") == "é"
    assert fitting(["a" * 10] * 5, 30) == ["a" * 10] * 2


# -- how much --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_ten_thousand_compiles_are_the_newest_thousand(tmp_path: Path) -> None:
    view = recorded.long_run(tmp_path, compiles=10_000).view()
    made, saved = record(view), record(view, SAVED)
    assert made["view"]["compiles"] == saved["view"]["compiles"] == 10_000
    assert 900 < len(made["view"]["compile_log"]) <= 1_000
    assert made["view"]["compile_log"][0]["compile"]["nth"] == 9_999
    assert saved["view"]["compile_log"] == made["view"]["compile_log"][: len(saved["view"]["compile_log"])]
    assert len(saved["view"]["compile_log"]) > 50
    assert size_of(made) <= COMM.total and size_of(saved) <= SAVED.total


def stuffed(root: Path) -> Recorded:
    """A run in which all that can be long is long."""
    run = recorded.long_run(root, compiles=300)
    long, many = "word " * 400, range(80)
    run.write(*(Warned(CREATED, 0, code=f"w{at}", text=f"{at} {long}") for at in many))
    run.supervise(
        *(RuleFinding(CREATED, 0, f"TPU{at}", "x", Site(at, "In [1]", 1), 1, long, long, long) for at in many)
    )
    inputs = recorded.inputs(128) * 400
    run.write(*(recompile(CREATED + at, at, cause=f"cause {at}", inputs=inputs, text=long, fix=long) for at in many))
    points = ((name, step) for name in range(60) for step in range(150))
    run.write_many(
        Value(CREATED + step, 0, name=f"value {name}", value=1 / (step + 1), step=step) for name, step in points
    )
    failure = {"what": long, "why": long, "todo": long, "details": [long] * 300}
    run.update(status="failed", failure=failure, models=[long] * 50)
    return run


@pytest.mark.long
def test_what_is_saved_in_a_notebook_is_bounded(tmp_path: Path) -> None:
    view = stuffed(tmp_path).view()
    for room in (SAVED, COMM):
        made = strict(record(view, room))
        assert size_of(made) <= room.total, room
        assert made["view"]["compile_log"], "nothing is left of the compiles"
        curves = [len(series["points"]) for series in made["view"]["values"]]
        assert len(curves) > 20 and min(curves) >= 8


def test_a_thinned_curve_keeps_its_range_and_its_end(tmp_path: Path) -> None:
    view = recorded.done(tmp_path).view()
    whole = next(series for series in view.values if series.name == "loss")
    [kept] = [one for one in record(view, SAVED)["view"]["values"] if one["name"] == "loss"]
    assert len(kept["points"]) <= len(whole.points)
    assert kept["points"][-1]["step"] == whole.points[-1].step
    lows = [float(f"{point.low:.6g}") for point in whole.points]
    assert min(point["low"] for point in kept["points"]) == min(lows)


# -- the bundle ------------------------------------------------------------------------------------------------------


def test_the_bundle_has_text_first_and_html_as_before(tmp_path: Path) -> None:
    view = recorded.done(tmp_path).view()
    bundle = to_bundle(view)
    assert list(bundle) == ["text/plain", "text/html", MIME_TYPE]
    assert bundle["text/plain"] == to_text(view) and bundle["text/html"] == to_html(view)
    assert bundle[MIME_TYPE] == record(view, SAVED) and size_of(bundle[MIME_TYPE]) <= SAVED.total


def test_a_record_that_cannot_be_made_leaves_the_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_magics.panel.run_json.record", lambda *_: 1 / 0)
    assert list(to_bundle(recorded.done(tmp_path).view())) == ["text/plain", "text/html"]
