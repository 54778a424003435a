"""Runs as tables: what a person reads, word for word."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tpu_magics.panel.compared import compare, compared_html, compared_text
from tpu_magics.panel.run_lines import run_line
from tpu_magics.panel.runs import plain_summary, rehearsal, runs_table, summary_table
from tpu_magics.panel.table import to_html, to_text
from tpu_magics.runs import preflights
from tpu_magics.runs.events import Compile, End, Event, Memory, Start, Steps, Value, Warned, to_line
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run, find_run, list_runs

CREATED = 1795239243.0  # 2026-11-21 05:34:03 UTC


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def a_run(root: Path, name: str, *events: Event, memory: tuple[Memory, ...] = (), **fields: Any) -> Run:
    folder = RunFolder.create(name, root=root)
    folder.update(**{"created": CREATED, "status": "done", **fields})
    for rank in {event.rank for event in events}:
        folder.events_path(rank).write_bytes(b"".join(to_line(event) for event in events if event.rank == rank))
    folder.supervisor_path.write_bytes(b"".join(map(to_line, memory)))
    return Run(folder.path)


def trained(root: Path, name: str = "digits", loss: float = 0.125, compiles: int | None = 4, **fields: Any) -> Run:
    return a_run(
        root,
        name,
        Start(CREATED + 1, 0),
        Start(CREATED + 1, 1),
        Value(CREATED + 2, 0, name="accuracy", value=0.987654321, step=10),
        Value(CREATED + 2, 0, name="loss", value=loss, step=10),
        Steps(CREATED + 3, 0, total=1200, n=1200, seconds=50.0),
        Compile(CREATED + 2, 0, seconds=1.5),
        Compile(CREATED + 3, 0, seconds=0.5, nth=1, recompile=True, cause="input-shape"),
        Compile(CREATED + 3, 0, seconds=0.25, nth=2, recompile=True, cause="last-batch"),
        Compile(CREATED + 3, 0, seconds=0.25, nth=3, recompile=True, cause="input-shape"),
        End(CREATED + 4, 0, steps=1200, compiles=compiles, recompiles=3),
        memory=(Memory(CREATED + 2, 0, rss=3 * 2**30), Memory(CREATED + 2, 1, rss=512 * 2**20)),
        **{"seconds": 61.25, "models": ["model"], **fields},
    )


def test_a_table_of_runs(tmp_path: Path) -> None:
    failed = a_run(tmp_path, "second", Start(CREATED, 0), status="failed", created=CREATED + 3600, seconds=0.5)
    table = runs_table([failed, trained(tmp_path)])
    assert table.columns == ("when", "name", "status", "steps", "seconds", "ranks", "last value", "curve")
    assert [row.cells for row in table.rows] == [
        ("2026-11-21 07:34:03", "second", "failed", "n/a", "0.5", "1", "not logged", ""),
        ("2026-11-21 06:34:03", "digits", "done", "1,200", "61.2", "2", "loss 0.125", "▅"),
    ]
    assert table.notes == ("Steps are n/a where rank 0 recorded none.",)
    assert max(map(len, to_text(table).splitlines())) <= 100


def test_no_runs(tmp_path: Path) -> None:
    assert to_text(runs_table([])).endswith("No runs here yet. %%tpu_train starts one.")


def test_a_lost_run_is_explained(tmp_path: Path) -> None:
    table = runs_table([a_run(tmp_path, "a", status="running", pid_started=1)])
    assert table.rows[0].cells[2] == "lost"
    assert "lost: the kernel of this run has ended, and the run with it." in table.notes


def test_a_run_without_run_json_has_its_reasons(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.info_path.unlink()
    table = runs_table([run])
    assert table.rows[0].cells[4] == "n/a"
    assert "Seconds are n/a where run.json is missing or incomplete." in table.notes
    nameless = run.path.rename(tmp_path / "other")
    text = to_text(summary_table(Run(nameless)))
    assert "n/a (run.json is missing or incomplete)" in text and "Run other: unknown" in text


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["acc", "loss", "lr"], "loss 1"),
        (["acc", "train/Loss", "lr"], "train/Loss 1"),
        (["acc", "lr"], "lr 1"),
        (["loss", "eval_loss"], "loss 0"),
        (["train_loss", "eval_loss"], "train_loss 0"),
    ],
)
def test_the_loss_is_the_value_that_is_shown(tmp_path: Path, names: list[str], shown: str) -> None:
    values = [Value(CREATED, 0, name=name, value=index) for index, name in enumerate(names)]
    assert runs_table([a_run(tmp_path, "a", *values)]).rows[0].cells[-2] == shown


@pytest.mark.parametrize(
    ("status", "events", "reason"),
    [
        ("running", (Start(CREATED, 0),), "counted when rank 0 ends"),
        ("failed", (Start(CREATED, 0),), "rank 0 did not finish"),
        ("done", (End(CREATED, 0),), "not reported by the runtime"),
    ],
)
def test_compiles_that_are_not_available_say_why(
    tmp_path: Path, status: str, events: tuple[Event, ...], reason: str
) -> None:
    table = summary_table(a_run(tmp_path, "a", *events, status=status))
    assert ("compiles", f"n/a ({reason})") in [row.cells for row in table.rows]


def test_the_summary_of_one_run(tmp_path: Path) -> None:
    run = trained(tmp_path, warnings=["The disk is nearly full."])
    table = summary_table(run)
    assert table.title == "Run digits: done" and table.notes == (f"Its records are in {run.path}.",)
    assert [row.cells for row in table.rows] == [
        ("started", "2026-11-21 06:34:03"),
        ("seconds", "61.2"),
        ("ranks", "2"),
        ("steps", "1,200"),
        ("steps per second, compiles included", "24"),
        ("compiles", "4"),
        ("recompiles", "3"),
        ("seconds of compiling", "2.5"),
        ("peak memory", "512 MiB to 3.0 GiB (2 ranks)"),
        ("recompiles: the shape of an input changes", "2"),
        ("recompiles: the last batch is smaller", "1"),
        ("last accuracy", "0.9877"),
        ("last loss", "0.125"),
        ("updated in the notebook", "model"),
        ("warning", "The disk is nearly full."),
    ]
    assert table.rows[-1].state == "warning"


def test_the_summary_of_a_failure_says_what_why_and_what_to_do(tmp_path: Path) -> None:
    failure = {"what": "Rank 1 was killed.", "why": "No memory.", "todo": "Use less.", "details": ["x"]}
    run = a_run(tmp_path, "a", Warned(CREATED, 0, code="x", text="Careful."), status="failed", failure=failure)
    rows = summary_table(run).rows[-4:]
    assert [row.cells for row in rows] == [
        ("what happened", "Rank 1 was killed."),
        ("why", "No memory."),
        ("what to do", "Use less."),
        ("warning", "Careful."),
    ]
    assert [row.state for row in rows] == ["broken", "", "", "warning"]


def test_a_running_run_says_so_far(tmp_path: Path) -> None:
    cells = dict(row.cells for row in summary_table(a_run(tmp_path, "a", Start(1.0, 0), status="running")).rows)
    assert cells["seconds"].endswith(" so far") and cells["steps"] == "0"


def test_the_plain_summary_is_the_same_for_two_runs_of_one_notebook(tmp_path: Path) -> None:
    first = trained(tmp_path)
    second = trained(tmp_path, "again", loss=0.3, created=CREATED + 99, seconds=7.0)
    assert plain_summary(first) == plain_summary(second)
    assert plain_summary(first).splitlines() == [
        "status: done",
        "ranks: 2",
        "steps: 1,200",
        "compiles: 4",
        "recompiles: 3",
        "values: accuracy, loss",
        "models: model",
    ]


def test_the_plain_summary_of_a_run_cut_short_has_no_chance_numbers(tmp_path: Path) -> None:
    run = a_run(tmp_path, "a", Steps(CREATED, 0, total=17, n=17, seconds=1.0), status="interrupted")
    assert plain_summary(run).splitlines() == [
        "status: interrupted",
        "ranks: 1",
        "steps: n/a (rank 0 did not finish)",
        "compiles: n/a (rank 0 did not finish)",
        "recompiles: n/a (rank 0 did not finish)",
        "values: none",
        "models: none",
    ]


def test_names_and_texts_of_the_person_are_kept_short_and_escaped(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>\n" + "x" * 100
    run = a_run(tmp_path, "<b>bold<b>", Value(CREATED, 0, name=nasty, value=nasty), End(CREATED, 0))
    compared = compare([run, run])
    tables = ((to_html(table), to_text(table)) for table in (runs_table([run]), summary_table(run)))
    for html, text in (*tables, (compared_html(compared), to_text(compared_text(compared)))):
        assert "<script>" not in html and "<b>bold" not in html and "&lt;script&gt;" in html
        assert "x" * 60 not in text


@pytest.mark.parametrize("created", [10.0**17, -(10.0**17)])
def test_a_time_that_is_none_is_no_error(tmp_path: Path, created: float) -> None:
    assert runs_table([a_run(tmp_path, "a", created=created)]).rows[0].cells[0].startswith("n/a (not a time")


def test_numbers_that_cannot_be_reckoned_with_break_nothing(tmp_path: Path) -> None:
    """Each number of run.json and of the records in turn."""
    run = trained(tmp_path, workers=[{"rank": 0, "pid": 1, "exit": 0, "peak_rss": 5}], seconds=2.5)
    for path in (run.info_path, run.events_path(0)):
        text = path.read_text()
        for number in re.finditer(r"(?<=:)\s*-?\d+(\.\d+)?", text):
            for value in ("1" * 5_000, "1e999", "NaN", "-Infinity"):
                path.write_text(text[: number.start()] + value + text[number.end() :])
                shown = find_run("last", tmp_path)
                text_of = f"{to_text(runs_table(list_runs(tmp_path)))}{to_text(summary_table(shown))}"
                assert shown == run and run.summary().name in text_of and "1" * 30 not in text_of
                assert plain_summary(run) and run_line(run).id == run.id
        path.write_text(text)


def test_the_newest_of_many_are_shown_and_how_many_there_are(tmp_path: Path) -> None:
    runs = [trained(tmp_path, f"r{number}") for number in range(3)]
    assert "The newest 2 of 1,234 runs. --all shows all, -n N the newest N." in to_text(runs_table(runs[:2], 1234))
    assert "The newest" not in to_text(runs_table(runs, 3))


# -- rehearsals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("info", "word"), [({"rehearsed": True}, "rehearsal"), ({"spmd": 8}, "SPMD"), ({}, "")])
def test_run_json_tells_a_rehearsal_in_a_word(info: dict[str, Any], word: str) -> None:
    assert rehearsal({"plan": info}) == word


@pytest.mark.parametrize("info", [None, [], {}, {"plan": None}, {"plan": {"rehearsed": "yes", "spmd": "8"}}])
def test_of_a_foreign_run_json_nothing_is_concluded(info: object) -> None:
    assert rehearsal(info) == ""


def test_the_plain_summary_says_that_it_is_a_rehearsal(tmp_path: Path) -> None:
    run = recorded.rehearsed(tmp_path)
    for rank in range(8):
        run.write(End(CREATED + 15, rank, steps=25, compiles=2, recompiles=1))
    run.update(status="done")
    assert "\nranks: 8 (rehearsal)\n" in plain_summary(Run(run.files.path))
    assert "8 (rehearsal)" in to_text(summary_table(Run(run.files.path)))
    meshed = recorded.meshed(tmp_path)
    assert "\nranks: 1 (SPMD)\n" in plain_summary(Run(meshed.files.path))


# -- beside a preflight -----------------------------------------------------------------------------------------------


def test_a_run_on_a_tpu_has_its_step_beside_what_a_preflight_said(tmp_path: Path) -> None:
    run = trained(tmp_path, host={"tpu": "v5litepod-8"})
    measured = run.summary().step_seconds
    assert measured
    assert "preflight" not in to_text(summary_table(run))
    for function, target in (("digits", "v6e-8"), ("other", "v5litepod-8"), ("digits", "v5litepod-8")):
        known = {"status": "fits", "needed": 1, "available": 2, "least": 0.0125, "estimate": 0.025}
        preflights.note(preflights.Record(function, target, **known), tmp_path)  # type: ignore[arg-type]
    told = to_text(summary_table(run))
    assert "measured; preflight for v5litepod-8: at least 12.5 ms, compiler's estimate 25 ms" in " ".join(told.split())
    assert "preflight" not in to_text(summary_table(trained(tmp_path, "cpu", host={"tpu": ""})))
