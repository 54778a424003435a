"""Runs compared: what differs stands first, and numbers that are nearly the same do not differ."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.panel.test_runs import CREATED, a_run, trained
from tpu_magics.panel.charts import CURVES
from tpu_magics.panel.compared import compare, compared_html, compared_text
from tpu_magics.panel.json_values import plain, size_of
from tpu_magics.panel.messages import Comparison
from tpu_magics.panel.runs import when
from tpu_magics.panel.table import to_text
from tpu_magics.runs.events import End, Memory, Steps, Value
from tpu_magics.runs.reader import Run


def different(found: Comparison) -> dict[str, tuple[str, ...]]:
    return {row.label: row.cells for row in found.different}


def equal(found: Comparison) -> dict[str, tuple[str, ...]]:
    return {row.label: row.cells for row in found.equal}


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    other = a_run(
        tmp_path,
        "other",
        Value(CREATED, 0, name="loss", value=0.25),
        End(CREATED, 0, status="failed", steps=7),
        status="failed",
        failure={"what": "Rank 0 failed: ValueError: no", "why": "", "todo": "", "details": []},
        plan={"device": "CPU", "precision": "bf16"},
        versions={"torch": "2.9.0"},
    )
    found = compare([trained(tmp_path, plan={"device": "CPU"}), other])
    assert found.runs == ("digits", "other") and found.title == "Runs side by side"
    assert list(different(found).items()) == [
        ("status", ("done", "failed")),
        ("last loss", ("0.125", "0.25")),
        ("last accuracy", ("0.9877", "not logged")),
        ("seconds", ("61.2", "0.0")),
        ("ranks", ("2", "1")),
        ("steps", ("1,200", "7")),
        ("steps per second, compiles included", ("24", "n/a (no step was recorded)")),
        ("compiles", ("4", "n/a (not reported by the runtime)")),
        ("recompiles", ("3", "n/a (not reported by the runtime)")),
        ("seconds of compiling", ("2.5", "n/a (no time was recorded)")),
        ("peak memory", ("512 MiB to 3.0 GiB (2 ranks)", "n/a (no sample)")),
        ("recompiles: the shape of an input changes", ("2", "n/a")),
        ("recompiles: the last batch is smaller", ("1", "n/a")),
        ("--precision", ("default", "bf16")),
        ("version of torch", ("n/a", "2.9.0")),
        ("updated in the notebook", ("model", "none")),
        ("failure", ("none", "Rank 0 failed: ValueError: no")),
    ]
    assert equal(found) == {"device": ("CPU", "CPU")}


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        (0.0207068, 0.0207065, False),
        (0.0207, 0.0208, True),
        (0.1, 0.1 + 2**-55, False),
        (1000, 1001, True),
        (1000, 1000.5, False),
        (0.0, 0.0, False),
        (0.0, 1e-9, True),
        ("nan", "nan", False),
        ("nan", 0.5, True),
        ("inf", 1e308, True),
        (1e308, -1e308, True),
        ("warm", "cold", True),
    ],
)
def test_values_are_compared_with_a_tolerance(
    tmp_path: Path, first: float | str, second: float | str, differ: bool
) -> None:
    runs = [a_run(tmp_path, f"r{at}", Value(CREATED, 0, name="x", value=one)) for at, one in enumerate((first, second))]
    found = compare(runs)
    assert ("last x" in different(found)) is differ and ("last x" in equal(found)) is not differ
    cells = {**different(found), **equal(found)}["last x"]
    assert len(set(cells)) == 2 or not differ, "what differs reads differently"


def test_times_and_memory_may_differ_a_little_and_counts_not(tmp_path: Path) -> None:
    def one(name: str, seconds: float, took: float, rss: int, steps: int) -> Run:
        events = (Steps(CREATED, 0, total=steps, n=steps, seconds=took), End(CREATED, 0, steps=steps, compiles=2))
        return a_run(tmp_path, name, *events, memory=(Memory(CREATED, 0, rss=rss),), seconds=seconds)

    first = one("a", 60.0, 50.0, 1_000_000_000, 1000)
    assert different(compare([first, one("b", 64.0, 48.0, 1_030_000_000, 1000)])) == {}
    found = different(compare([first, one("c", 80.0, 20.0, 1_100_000_000, 1001)]))
    assert set(found) == {"seconds", "steps", "steps per second, compiles included", "peak memory"}
    short = compare([one("d", 0.1, 0.05, 1_000, 1), one("e", 0.4, 0.05, 1_000, 1)])
    assert different(short) == {}, "fractions of a second"


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [trained(tmp_path), trained(tmp_path, created=CREATED + 60), trained(tmp_path, "b")]
    assert compare(runs[:2]).runs == (f"digits {when(CREATED)}", f"digits {when(CREATED + 60)}")
    assert compare(runs[1:]).runs == ("digits", "b")
    assert compare([runs[0], trained(tmp_path)]).runs[0] == runs[0].id, "the same second"


def test_equal_runs_say_so(tmp_path: Path) -> None:
    found = compare([trained(tmp_path), trained(tmp_path, "again")])
    assert found.title == "Runs side by side: nothing differs" and found.different == () and len(found.equal) > 10


def curve(tmp_path: Path, name: str, count: int, logged: str = "loss") -> Run:
    values = (Value(CREATED + at, 0, name=logged, value=2 / (at + 1), step=at) for at in range(count))
    return a_run(tmp_path, name, *values)


def test_the_losses_of_both_are_curves_of_at_most_200_points(tmp_path: Path) -> None:
    found = compare([curve(tmp_path, "a", 5_000), curve(tmp_path, "b", 50)])
    assert [chart.title for chart in found.charts] == ["loss"] * 2 and len({chart.key for chart in found.charts}) == 2
    assert [chart.caption for chart in found.charts] == ["2 → 0.0004", "2 → 0.04"]
    assert 100 <= len(found.charts[0].points) <= 200 and len(found.charts[1].points) == 50
    assert found.charts[1].points[-1][:2] == (49, 0.04) and not found.charts[0].marked
    assert size_of(plain(found)) < 40_000


def test_the_curve_is_of_a_name_that_all_have_logged(tmp_path: Path) -> None:
    a, b = curve(tmp_path, "a", 3, "train_loss"), curve(tmp_path, "b", 3, "train_loss")
    with b.events_path(0).open("ab") as file:
        file.writelines(line.replace(b"train_loss", b"loss") for line in b.events_path(0).read_bytes().splitlines(True))
    assert [chart.title for chart in compare([a, b]).charts] == ["train_loss"] * 2
    alone = compare([a, curve(tmp_path, "c", 3, "loss"), a_run(tmp_path, "d")])
    assert [chart.title for chart in alone.charts] == ["train_loss", "loss", "loss"]
    assert alone.charts[2].points == () and alone.charts[2].caption == "not logged"


def test_as_text_what_differs_stands_first(tmp_path: Path) -> None:
    lines = to_text(compared_text(compare([curve(tmp_path, "a", 9), curve(tmp_path, "b", 5)]))).splitlines()
    assert lines[1].split() == ["a", "b"] and lines[3].split() == ["curve", "of", "the", "loss", "█▄▃▂▂▁▁▁▁", "█▄▂▁▁"]
    assert lines[4].split() == ["last", "loss", "0.2222", "0.4"]
    at = lines.index("Equal")
    assert lines.index(next(line for line in lines if line.startswith("status"))) > at > 4
    assert max(map(len, lines)) <= 100


def test_as_html_equal_rows_are_folded(tmp_path: Path) -> None:
    html = compared_html(compare([trained(tmp_path), trained(tmp_path, "other", loss=0.5)]))
    shown, folded = html.split("<details>")
    assert re.search(r"<th [^>]*>last loss</th><td [^>]*>0.125</td><td [^>]*>0.5</td></tr>", shown)
    assert "status" not in shown and ">status</th>" in folded and "equal rows</summary>" in folded


def test_as_html_the_curves_lie_over_each_other(tmp_path: Path) -> None:
    html = compared_html(compare([curve(tmp_path, "a", 9), curve(tmp_path, "<b>", 5)]))
    [drawing] = re.findall(r"<svg role=.*?</svg></svg>|<svg role=.*?</svg>(?=</div>)", html)
    lines = re.findall(r'<path d="([^"]+)" style="stroke:(#\w+)', drawing)
    assert [colour for _line, colour in lines] == list(CURVES[:2]) and len({line for line, _colour in lines}) == 2
    assert 'aria-label="a: loss 2 → 0.2222; &lt;b&gt;: loss 2 → 0.4"' in drawing and "<b>:" not in html
    for name, colour in zip(("a", "&lt;b&gt;"), CURVES, strict=False):
        assert f'<b style="color:{colour}">━</b> {name}: loss 2 →' in html
    alone = compare([trained(tmp_path), trained(tmp_path, "other")])
    assert "<svg" not in compared_html(alone), "one point is no curve"


def test_a_foreign_run_is_compared_too(tmp_path: Path) -> None:
    """Thousands of names and long texts: the first of them are shown, cut."""
    strange = a_run(
        tmp_path,
        "strange",
        *(Value(CREATED, 0, name=f"{at}" + "n" * 500, value="v" * 150) for at in range(3_000)),
        *(Value(CREATED, 0, name="loss", value=value, step=at) for at, value in enumerate(("nan", "inf", 3, "text"))),
        versions={f"p{at}" * 50: ["x" * 9_000] for at in range(500)},
        plan={"precision": {"deep": ["x" * 9_000]}},
        models=["m" * 9_000] * 9,
        failure={"what": "w" * 60_000},
    )
    found = compare([strange, trained(tmp_path)])
    assert size_of(plain(found)) < 60_000 and len(found.different) < 120
    assert all(math.isfinite(point[0]) for chart in found.charts for point in chart.points)
    assert compared_html(found) and to_text(compared_text(found))
