"""A page as JSON: every field by its name, every number that JSON can hold, and never more than fits."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.hostile import EVIL, PLACES
from tests.panel.recorded import CREATED, Recorded, recompile, started
from tpu_magics.panel.html import to_html
from tpu_magics.panel.json_values import plain, shortened, size_of
from tpu_magics.panel.page import Page
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.protocol import MIME_TYPE, RECORD_VERSION
from tpu_magics.panel.run_json import COMM, SAVED, RecordSize, record, sized_page, to_bundle
from tpu_magics.panel.run_view import RunView
from tpu_magics.panel.text import to_text
from tpu_magics.runs.events import RuleFinding, Site, Value, Warned


def strict(value: Any) -> Any:
    """Through JSON and back, as a browser reads it; fails where JSON has no such thing."""
    return json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode("utf-8"))


def items(made: dict[str, Any], key: str = "compiles") -> list[Any]:
    return next(one["items"] for one in made["sections"] if one["key"] == key)


@pytest.mark.parametrize("kind", recorded.RUNS)
def test_every_field_goes_by_its_name(tmp_path: Path, kind: str) -> None:
    view = recorded.RUNS[kind](tmp_path).view()
    made = record(view)
    assert strict(made) == made == plain(page(view, COMM.compiles, COMM.points)) and made["v"] == RECORD_VERSION
    assert tuple(made) == tuple(field.name for field in dataclasses.fields(Page))


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_what_people_wrote_stays_text(tmp_path: Path, evil: str) -> None:
    made = strict(record(started(tmp_path, *(event(evil) for event in PLACES.values())).view()))
    assert "\ud800" not in json.dumps(made, ensure_ascii=False)


def test_any_value_becomes_json() -> None:
    assert plain({"a": (1, None, True), 2: {3, 4} and "set"}) == {"a": [1, None, True], "2": "set"}
    assert plain(Path("/x")) == "/x" and plain(Site(1, "In [2]", 3))["path"] == "In [2]"
    assert plain("\ud800") == "?" and plain("é") == "é"
    assert plain([math.nan, math.inf, -math.inf, 1.5]) == ["nan", "inf", "-inf", 1.5]
    assert size_of(shortened({"a": "x" * 900, "b": list(range(900)), "c": 1}, 500)) <= 500


def test_rows_that_come_again_are_made_once(tmp_path: Path) -> None:
    """A run of a thousand compiles sends an update twice a second."""
    view = recorded.long_run(tmp_path).view()
    first, again = record(view), record(dataclasses.replace(view, steps=5))
    assert all(one is other for one, other in zip(items(first), items(again), strict=True)) and len(items(first)) > 100


# -- how much --------------------------------------------------------------------------------------------------------


def test_the_newest_compiles_are_there_and_the_others_counted(tmp_path: Path) -> None:
    view = recorded.long_run(tmp_path).view()
    for size in (COMM, SAVED):
        made, found = sized_page(view, size)
        assert found == plain(made) and size_of(found) <= size.total
        numbers = [item["cells"][0] for item in items(found)]
        assert numbers == [f"#{nth}" for nth in range(999, 999 - len(numbers), -1)] and len(numbers) > 30
        left = f"{1_000 - len(numbers)} older compiles are in the run folder only."
        assert left in next(one.notes for one in made.sections if one.key == "compiles")


def stuffed(root: Path) -> RunView:
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
    return run.view()


def test_no_record_is_larger_than_it_may_be(tmp_path: Path) -> None:
    view = stuffed(tmp_path)
    for total in (1_000_000, 100_000, 30_000, 3_000):
        for kept in (view, dataclasses.replace(view, ranks=view.ranks * 500, reads=view.reads * 100)):
            found = strict(record(kept, RecordSize(total, 200, 200)))
            assert size_of(found) <= total and set(found) == {field.name for field in dataclasses.fields(Page)}
            assert found["id"] and found["v"] == RECORD_VERSION and found["figures"]


def test_an_update_of_a_large_run_does_a_part_of_the_work(tmp_path: Path) -> None:
    """10 ms on a free machine: make bench."""
    view = recorded.long_run(tmp_path).view()
    whole = recorded.calls(lambda: record(view))
    assert recorded.calls(lambda: record(dataclasses.replace(view, steps=7))) < whole / 3


# -- the bundle ------------------------------------------------------------------------------------------------------


def test_the_bundle_is_one_page_as_text_html_and_record(tmp_path: Path) -> None:
    view = recorded.done(tmp_path).view()
    bundle = to_bundle(view)
    made, found = sized_page(view, SAVED)
    assert list(bundle) == ["text/plain", "text/html", MIME_TYPE]
    assert (bundle["text/plain"], bundle["text/html"], bundle[MIME_TYPE]) == (to_text(made), to_html(made), found)


def test_a_torn_record_shows_what_can_be_shown(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    run.files.events_path(0).write_bytes(b'{"kind": "steps", "t": 1, "total": 5\n\x00\xff\n[1, 2]\n{"kind": []}\n')
    bundle = to_bundle(run.view())
    assert "n/a" in bundle["text/html"] and bundle[MIME_TYPE]["name"] == "text-classifier"
