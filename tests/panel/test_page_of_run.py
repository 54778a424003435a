"""The words of a run: what its page says, each thing once."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.hostile import EVIL, PLACES, told_in_run_json
from tests.panel.recorded import (
    ASLEEP,
    CREATED,
    Recorded,
    agreed,
    began,
    first_compile,
    mode_switch,
    myself,
    optimizer_state,
    read_early,
    recompile,
    rehearsal_plan,
    started,
)
from tpu_magics.panel.formats import clock, percent, seconds, short, size
from tpu_magics.panel.json_values import plain
from tpu_magics.panel.page import Figure, Item, Page, Problem, Section
from tpu_magics.panel.page_of_run import page
from tpu_magics.panel.page_problems import straggler, told_findings
from tpu_magics.panel.run_view import LIVE_STATES, RunView
from tpu_magics.runs.events import (
    Batch,
    Cache,
    Divergence,
    End,
    Event,
    Fallback,
    Memory,
    Mesh,
    Metrics,
    Read,
    Resumed,
    RuleFinding,
    Saved,
    Site,
    Steps,
    Times,
    Value,
)

GIB = 2**30


def section(view: RunView, key: str) -> Section | None:
    return next((one for one in page(view).sections if one.key == key), None)


def told(view: RunView, key: str) -> str:
    """All texts of a section; "" where it is not there."""
    found = section(view, key)
    return "" if found is None else json.dumps(plain(found), ensure_ascii=False)


def fact(view: RunView, key: str, label: str) -> str:
    found = section(view, key)
    return "" if found is None else "\n".join(line for one in found.facts if one.label == label for line in one.lines)


def figure(view: RunView, label: str) -> Figure:
    [found] = [one for one in page(view).figures if one.label == label]
    return found


def problem(view: RunView, kind: str) -> Problem:
    [found] = [one for one in page(view).problems if one.kind == kind]
    return found


def ranks(view: RunView) -> list[dict[str, str]]:
    """The table of ranks, by its headings."""
    found = section(view, "ranks")
    return [] if found is None else [dict(zip(found.columns, row.cells, strict=True)) for row in found.rows]


def compiles(view: RunView) -> tuple[Item, ...]:
    found = section(view, "compiles")
    assert found is not None
    return found.items


# -- the whole -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recorded.RUNS)
def test_every_run_has_the_same_head(tmp_path: Path, name: str) -> None:
    view = recorded.RUNS[name](tmp_path).view()
    made = page(view)
    assert (made.name, made.state, made.live) == (view.name, view.state, view.live)
    assert [one.label for one in made.figures][:4] == ["Steps", "Step time", "Compiles", "Recompiles"]
    assert {"compiles", "memory", "precision", "run"} <= {one.key for one in made.sections}
    assert len({one.key for one in made.sections}) == len(made.sections)
    assert len({one.key for one in made.problems}) == len(made.problems)
    assert all(len(row.cells) == len(one.columns) for one in made.sections for row in (*one.rows, *one.items))
    assert page(view) == made
    json.dumps(plain(made), allow_nan=False)


ENDED_STATES = ("done", "failed", "interrupted", "stopped", "timeout", "lost", "refused", "unknown")


@pytest.mark.parametrize("state", [*LIVE_STATES, *ENDED_STATES, "another"])
def test_every_state_has_a_word_a_mark_and_a_tone(tmp_path: Path, state: str) -> None:
    made = page(dataclasses.replace(recorded.starting(tmp_path).view(), state=state))
    assert made.state == state and made.symbol in "◌◐●✓✗■!?"
    assert (made.tone == "live") == (state in LIVE_STATES)


def test_the_time_alone_changes_nothing_but_the_time(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    before, after = plain(page(run.view(CREATED + 60))), plain(page(run.view(CREATED + 61)))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"elapsed"}


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_foreign_texts_are_taken_as_they_are(tmp_path: Path, evil: str) -> None:
    for number, event in enumerate(PLACES.values()):
        json.dumps(plain(page(started(tmp_path / str(number), event(evil)).view())))
    json.dumps(plain(page(told_in_run_json(tmp_path, evil, "run"))))


def test_a_page_is_bounded_whatever_the_records_hold(tmp_path: Path) -> None:
    """20,000 ranks, a million points and long texts were seen in records of others."""
    run = recorded.running(tmp_path)
    view = run.view()
    rank = view.ranks[0]
    huge = "x" * 100_000
    [read] = view.reads
    many = dataclasses.replace(
        view,
        name=huge,
        detail=huge,
        ranks=tuple(dataclasses.replace(rank, rank=number, state=huge) for number in range(20_000)),
        compile_log=view.compile_log * 2_000,
        causes=view.causes * 500,
        reads=(dataclasses.replace(read, code=huge),) * 5_000,
        memory_curve=(1e9,) * 1_000_000,
        notices=view.notices * 10_000,
        models=(huge,) * 1_000,
    )
    made = page(many, compiles=50)
    assert len(json.dumps(plain(made))) < 300_000
    assert [len(one.rows) for one in made.sections if one.key == "ranks"] == [64]
    assert "19,936 more ranks not shown." in told(many, "ranks")


# -- figures ---------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    made = page(recorded.running(tmp_path).view())
    assert made.elapsed == "1 min 00 s"
    assert [(one.label, one.value, one.note) for one in made.figures] == [
        ("Steps", "440", ""),
        ("Step time", "111 ms", "median"),
        ("Compiles", "8", "22 % of the time"),
        ("Recompiles", "5", "and 1 expected"),
        ("bf16", "100 %", "of 24 matmuls"),
    ]
    assert made.compiled_at == (4, 8, 12, 16, 20, 40)


def test_the_time_of_a_step_is_a_median_without_compiles(tmp_path: Path) -> None:
    """A step that waited for something else once does not move it."""
    run = started(tmp_path, Steps(CREATED + 9, 0, 1, 1, 8.0, 1, 7.9))
    assert figure(run.view(), "Step time").value == "n/a"
    run.write(*(Steps(CREATED + 10 + at, 0, 2 + at, 1, 0.1) for at in range(9)), Steps(CREATED + 60, 0, 11, 1, 40.0))
    assert figure(run.view(), "Step time").value == "100 ms"


@pytest.mark.parametrize("expected", [optimizer_state(CREATED + 3, 1), mode_switch(CREATED + 3, 1, 4)])
def test_an_expected_compile_is_no_problem(tmp_path: Path, expected: Any) -> None:
    view = started(tmp_path, first_compile(CREATED + 2), expected).view()
    found = figure(view, "Recompiles")
    assert (found.value, found.note, found.tone) == ("0", "and 1 expected", "")
    assert page(view).problems == ()
    assert [one.tone for one in compiles(view)] == ["", ""]
    assert "No action" not in told(view, "compiles")


def test_a_recompile_is_one_from_the_first(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 2))
    assert figure(run.view(), "Recompiles").tone == ""
    found = figure(run.write(recompile(CREATED + 3, 1)).view(), "Recompiles")
    assert (found.value, found.tone) == ("1", "warning")


def test_figures_that_are_not_available_say_why(tmp_path: Path) -> None:
    run = started(tmp_path, Steps(CREATED + 2, 0, 5, 5, 1.0))
    found = figure(run.view(), "Compiles")
    assert (found.value, found.hint) == (
        "n/a",
        "n/a: rank 0 has recorded none yet; the count comes at its end.",
    )
    run.update(status="done")
    assert "n/a (rank 0 did not finish)" in told(run.view(), "compiles")
    run.write(End(CREATED + 4, 0, steps=5, compiles=4))
    assert figure(run.view(), "Compiles").value == "4" and figure(run.view(), "Recompiles").value == "n/a"
    assert "4 compiles, recompiles n/a (no compile was recorded)" in told(run.view(), "compiles")


def test_bf16_is_a_figure_where_it_was_asked_for(tmp_path: Path) -> None:
    run = started(tmp_path, plan={"device": "CPU"})
    run.write(agreed(CREATED + 3, asked="", source="", share=0.0))
    assert "bf16" not in [one.label for one in page(run.view()).figures]
    run.write(agreed(CREATED + 4, **recorded.DIFFERS))
    assert (figure(run.view(), "bf16").value, figure(run.view(), "bf16").tone) == ("0 %", "warning")


# -- progress --------------------------------------------------------------------------------------------------------


def test_progress_where_the_number_of_steps_is_known(tmp_path: Path) -> None:
    run = started(tmp_path, Steps(CREATED + 12, 0, 20, 20, 10.0))
    view = run.view()
    assert page(view).progress is None
    known = page(dataclasses.replace(view, total_steps=100)).progress
    assert known is not None
    assert (known.done, known.total, known.text) == (20, 100, "20 of 100 steps · about 40 s left")
    over = page(dataclasses.replace(view, total_steps=15)).progress
    assert over is not None and (over.done, over.text) == (15, "15 of 15 steps · almost done")
    ended = page(dataclasses.replace(view, total_steps=100, live=False, state="failed")).progress
    assert ended is not None and ended.text == "20 of 100 steps"


def test_steps_against_their_limit(tmp_path: Path) -> None:
    assert figure(started(tmp_path, plan={"steps": 500}).view(), "Steps").note == "of at most 500"


# -- state -----------------------------------------------------------------------------------------------------------


def test_warming_up_is_said_with_the_count_of_compiles(tmp_path: Path) -> None:
    made = page(recorded.warming_up(tmp_path).view())
    assert (made.state, made.detail) == ("compiling", "warming up, 2 compiles so far")


def test_what_was_updated_in_the_notebook(tmp_path: Path) -> None:
    assert page(recorded.done(tmp_path).view()).detail == "updated in the notebook: model"


@pytest.mark.parametrize(("status", "tone"), [("failed", "broken"), ("interrupted", ""), ("stopped", "")])
def test_a_run_that_its_user_stopped_has_not_failed(tmp_path: Path, status: str, tone: str) -> None:
    failure = {"what": "It ended.", "why": "", "todo": "Run it again.", "details": ["x"] * 50}
    made = page(Recorded(tmp_path, status=status, failure=failure).view())
    assert made.failure is not None and (made.failure.what, made.failure.tone) == ("It ended.", tone)
    assert made.failure.lines[-1] == "… and 10 more lines"


# -- problems --------------------------------------------------------------------------------------------------------


def test_a_recompile_has_its_line_and_its_fix(tmp_path: Path) -> None:
    found = page(recorded.running(tmp_path).view()).problems[0]
    assert (found.title, found.count, found.times, found.badge) == (
        *("Recompiles: the shape of an input changes", "5 times, 6.05 s", 5),
        "recompiled 5x",
    )
    assert found.site is not None and (found.site.path, found.site.line) == ("In [12]", 14)
    assert found.text.endswith("input_ids now int64[32,155], before int64[32,128].")
    assert found.fix.startswith("Pad to a multiple")


def test_a_recompile_without_a_known_cause_says_what_differs(tmp_path: Path) -> None:
    unknown = recompile(CREATED + 4, 1, cause="unknown", text="", fix="", difference=("dot 3 is new",))
    found = problem(started(tmp_path, unknown).view(), "recompile")
    assert (found.title, found.text, found.fix) == ("Recompiles: unknown cause", "dot 3 is new", "")
    bare = recompile(CREATED + 4, 1, cause="", text="", fix="", difference=(), inputs=(), seconds=None)
    view = started(tmp_path / "bare", bare).view()
    assert problem(view, "recompile").text == "The cause is unknown."
    assert "none from the host" in told(view, "compiles")


def finding(line: int = 5, code: str = "TPU301", path: str = "In [12]", **fields: Any) -> RuleFinding:
    known = {
        "name": "pad-to-longest",
        "message": "It pads to the longest.",
        "why": "Each is new.",
        "fix": "Pad to 128.",
    }
    return RuleFinding(CREATED, 0, code, "recompiles", Site(0, path, line), 1, **{**known, **fields})


@pytest.mark.parametrize(
    "rule",
    [finding(14), finding(12, first=12, last=15), finding(16, first=13, last=16)],
    ids=["the same line", "a statement of several lines", "its last line"],
)
def test_a_cause_and_a_rule_of_one_place_are_one_problem_at_the_line_that_was_measured(
    tmp_path: Path, rule: RuleFinding
) -> None:
    view = started(tmp_path, first_compile(CREATED + 2), recompile(CREATED + 3, 1), rule).view()
    [found] = page(view).problems
    assert found.title == "Recompiles: the shape of an input changes (TPU301 pad to longest)"
    assert found.site is not None and found.site.line == 14
    assert (found.fix, found.badge) == ("Pad to 128.", "recompiled")


@pytest.mark.parametrize(
    "others",
    [
        (finding(14, path="In [3]"),),  # another cell
        (finding(14, code="TPU303", name="changing-number"),),  # another cause
        (finding(13),),  # the only one of the cell, but of another line
        (finding(15, first=15, last=16),),  # the next statement
        (finding(5), finding(7)),
    ],
)
def test_what_was_measured_keeps_its_fix_where_no_rule_is_of_that_place(
    tmp_path: Path, others: tuple[RuleFinding, ...]
) -> None:
    view = started(tmp_path, first_compile(CREATED + 2), recompile(CREATED + 3, 1), *others).view()
    first, *rest = page(view).problems
    assert [one.kind for one in rest] == ["rule" for _ in others]
    assert first.site is not None and first.site.line == 14 and first.fix != "Pad to 128."


@pytest.mark.parametrize(("path", "joined"), [("In [12]", True), ("/home/me/net.py", False)])
def test_a_branch_is_joined_with_the_rule_of_the_line_that_decided(tmp_path: Path, path: str, joined: bool) -> None:
    rule = finding(14, "TPU101", name="branch-on-value")
    measured = recompile(CREATED + 3, 1, cause="data-branch", deciding=(Site(3, path, 14),))
    view = started(tmp_path, first_compile(CREATED + 2), measured, rule).view()
    found = page(view).problems
    assert [one.kind for one in found] == (["recompile"] if joined else ["recompile", "rule"])
    assert ("TPU101" in found[0].title) == joined


def done(tmp_path: Path, *events: Event, steps: int = 8, **info: Any) -> RunView:
    """A run of one rank that has ended, with these events."""
    counted = Steps(CREATED + 4, 0, steps, steps, 3.0)
    end = End(CREATED + 5, 0, steps=steps, compiles=2, recompiles=1)
    return started(tmp_path, *events, counted, end, status="done", **info).view()


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        *((code, {}) for code in ("TPU301", "TPU302", "TPU303", "TPU203", "TPU206", "TPU405", "TPU401")),
    ],
)
def test_what_the_run_refuted_is_taken_back(tmp_path: Path, code: str, fields: dict[str, Any]) -> None:
    found = finding(5, code, **fields)
    others = finding(6, "TPU102"), finding(7, advice=True)
    assert told_findings(done(tmp_path / "t", found, *others, models=["net"])) == others[:1]
    assert page(done(tmp_path / "a", found, models=["net"])).problems == ()
    assert len(page(done(tmp_path / "b", found, steps=1)).problems) == 1, "too few steps to tell"
    limited = {"plan": {"device": "CPU", "workers": 1, "replicas": 1, "steps": 8}}
    assert len(page(done(tmp_path / "c", found, models=["net"], **limited)).problems) == 1
    assert len(page(started(tmp_path / "d", found).view()).problems) == 1, "it goes on"


def test_what_the_run_has_not_refuted_stays(tmp_path: Path) -> None:
    compiled = first_compile(CREATED + 2), recompile(CREATED + 3, 1)
    kinds = [one.kind for one in page(done(tmp_path / "a", *compiled, finding(5))).problems]
    assert kinds == ["recompile", "rule"]
    on_a_tpu = page(done(tmp_path / "b", finding(5, "TPU403"), models=["net"]))
    assert len(on_a_tpu.problems) == 1, "a rehearsal starts new processes in place of forks; a TPU refuses the run"
    read = Read(CREATED + 2, 0, Site(3, "In [12]", 5), 8, 0.1)
    assert page(done(tmp_path / "c", finding(5, "TPU102"), read)).problems == (), "it was read after the sync"
    assert len(page(done(tmp_path / "d", finding(6, "TPU102"), read)).problems) == 1
    assert len(page(done(tmp_path / "e", finding(5, "TPU502"))).problems) == 1


def test_a_rule_has_words_and_advice_is_not_shown(tmp_path: Path) -> None:
    view = started(tmp_path, finding(), finding(9, "TPU409", advice=True, name="eval-batch-size")).view()
    [found] = page(view).problems
    assert (found.title, found.badge, found.tone) == ("TPU301 pad to longest", "TPU301 pad to longest", "warning")
    assert found.text == "It pads to the longest. Each is new."
    assert "TPU409" not in json.dumps(plain(page(view)))


def test_a_read_that_splits_the_step(tmp_path: Path) -> None:
    found = problem(recorded.running(tmp_path).view(), "read")
    assert (found.count, found.fix) == ("40 reads, 3.2 s", "Log every N steps, or with tpu_magics.log(loss=loss).")
    explained = started(tmp_path / "rule", read_early(CREATED + 2), finding(17, "TPU102", name="value-read")).view()
    assert [one.title for one in page(explained).problems] == [
        "A device-to-host read splits the step (TPU102 value read)"
    ]


def test_operations_on_the_host(tmp_path: Path) -> None:
    found = problem(started(tmp_path, Fallback(CREATED + 2, 0, "aten::nonzero", 12)).view(), "host")
    assert found.text.startswith("XLA does not support aten::nonzero (12).")


def test_the_worst_comes_first_and_notes_are_no_problems(tmp_path: Path) -> None:
    view = recorded.failed(tmp_path).view()
    assert [(one.tone, one.kind) for one in page(view).problems] == [
        ("broken", "rank"),
        ("warning", "recompile"),
        ("warning", "precision"),
        ("warning", "message"),
    ]
    assert page(view).problems[-1].text == "Accelerator sets nothing on XLA:CPU; --precision does. (rank 0)"
    assert "XLA_USE_BF16 is deprecated" in told(view, "notes")
    assert page(recorded.starting(tmp_path).view()).problems == ()


@pytest.mark.parametrize(
    ("text", "title", "rest"),
    [
        ("Compiles are not recorded. Training continues.", "Compiles are not recorded", "Training continues."),
        ("No disk.", "", "No disk."),
        ("Use 1.5 or e.g. less than 2. x stays", "", "Use 1.5 or e.g. less than 2. x stays"),
        (f"{'A long sentence ' * 9}. Another.", "", f"{'A long sentence ' * 9}. Another."),
    ],
)
def test_the_first_sentence_of_a_message_is_its_title(tmp_path: Path, text: str, title: str, rest: str) -> None:
    [one] = page(started(tmp_path, warnings=[text]).view()).problems
    assert (one.title, one.text) == (title, rest)


def test_graphs_that_differ_are_told_whole(tmp_path: Path) -> None:
    found = problem(started(tmp_path, Divergence(CREATED + 2, 0, (1,), 2, {"0": "a", "1": "b"})).view(), "rank")
    assert found.text.startswith("Ranks compiled different graphs at compile #2") and "would hang" in found.text


PLACE = {"checkpoints": {"place": "gs://bucket/run1/train", "seconds": 300.0, "steps": None, "keep": 2}}


def saved(t: float, step: int, **fields: Any) -> Saved:
    cost = {"copied": 0.5, "written": 2.0, "size": 12 * 2**20, "name": f"step-{step:09d}-17f"}
    return Saved(t, 0, **{"step": step, "synced": step, **cost, **fields})


def test_without_a_place_for_checkpoints_nothing_is_said_of_them(tmp_path: Path) -> None:
    assert section(started(tmp_path).view(), "checkpoints") is None


def test_checkpoints_tell_their_age_and_their_price(tmp_path: Path) -> None:
    run = started(tmp_path, saved(CREATED + 10, 100), saved(CREATED + 20, 200), plan=PLACE)
    found = section(run.view(CREATED + 50), "checkpoints")
    assert found is not None
    assert found.summary == "2 saved, the newest at step 200, 30 s ago"
    facts = {one.label: one.lines[0] for one in found.facts}
    assert facts == {
        "Place": "gs://bucket/run1/train",
        "Saved": "every 5 min 00 s; the newest 2 are kept",
        "Newest": "step 200: 12 MiB, copied in 500 ms, written in 2 s",
        "Cost": "the training waited 1 s in all, 2 % of the run",
    }


def test_a_run_tells_what_it_went_on_from_and_when_the_session_ends(tmp_path: Path) -> None:
    resumed = Resumed(CREATED + 1, 0, step=1200, synced=1200, saved=CREATED - 100, name="step-000001200-17f")
    host = {"session_limit": 9 * 3600.0, "session_since": CREATED - 2 * 3600}
    run = started(tmp_path, resumed, plan=PLACE, host=host)
    found = section(run.view(CREATED + 60), "checkpoints")
    assert found is not None
    assert found.summary == "none saved yet"
    facts = {one.label: one.lines[0] for one in found.facts}
    assert facts["Resumed"] == "from step 1,200, saved 1 min 41 s before this run began"
    assert facts["Session"] == "2 h 01 min of 9 h 00 min, after which this host ends it"


def ram(rss: int, pss: int | None = None, rank: int = 0, t: float = 1) -> Memory:
    return Memory(t, rank, rss=rss * GIB, pss=None if pss is None else pss * GIB)


def hbm(used: int, total: int | None = 16, rank: int = 0) -> Memory:
    return Memory(1, rank, hbm_used=used * GIB, hbm_total=None if total is None else total * GIB)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((ram(5, 4), ram(4, 4, rank=1)), []),
        ((ram(5, 4), ram(6, 5, rank=1)), [("warning", "9.0 GiB of 10.0 GiB of the machine are used (90 %).")]),
        ((ram(10),), [("broken", "10.0 GiB of 10.0 GiB of the machine are used (100 %).")]),
        ((hbm(1), hbm(14, rank=3)), [("warning", "14.0 GiB of 16.0 GiB of rank 3 are used (88 %).")]),
        ((hbm(15, None),), []),
    ],
)
def test_a_memory_that_is_almost_full(tmp_path: Path, events: tuple[Event, ...], said: list[tuple[str, str]]) -> None:
    view = started(tmp_path, *events, host={"memory": 10 * GIB}, plan={"device": "TPU"}).view()
    assert [(one.tone, one.text) for one in page(view).problems] == said


# -- facts -----------------------------------------------------------------------------------------------------------

HOST: dict[str, Any] = {"host": {"memory": 10 * GIB, "device": "CPU"}}
TPU: dict[str, Any] = {"plan": {"device": "TPU"}}
DONE: dict[str, Any] = {"status": "done"}


@pytest.mark.parametrize(
    ("where", "events", "info", "said"),
    [
        ("memory Host memory", (), {}, "n/a (no sample yet)"),
        ("memory Host memory", (), DONE, "n/a (no sample)"),
        ("memory Host memory", (ram(4, 2),), {}, "2.0 GiB (PSS); 20 % of the machine's 10.0 GiB"),
        ("memory Host memory", (ram(4),), {}, "4.0 GiB (RSS); 40 % of the machine's 10.0 GiB"),
        (
            *("memory Host memory", (ram(5, 4), ram(6, 5, rank=1)), {}),
            "9.0 GiB (PSS) in 2 workers, most in rank 1 (5.0 GiB); 90 % of the machine's 10.0 GiB",
        ),
        (
            *("memory Host memory", (ram(4, 3), ram(2, 1, t=2)), DONE),
            "3.0 GiB (PSS), peak; 30 % of the machine's 10.0 GiB",
        ),
        ("memory Host memory", (ram(4),), {"host": {}}, "4.0 GiB (RSS); total of the machine n/a (not in run.json)"),
        ("memory HBM", (), {"plan": {"device": "CPU"}}, "n/a on XLA:CPU"),
        ("memory HBM", (), TPU, "n/a (no sample yet)"),
        ("memory HBM", (hbm(4),), TPU, "4.0 GiB of 16.0 GiB (25 %)"),
        ("memory HBM", (hbm(4, None),), TPU, "4.0 GiB; total n/a (not reported by the runtime)"),
        (
            *("memory HBM", (hbm(1), hbm(14, rank=3)), TPU),
            "14.0 GiB of 16.0 GiB (88 %), rank 3, the fullest of 2",
        ),
        ("run Effective batch", (Batch(1, 0, 8, 4, 2),), {}, "64 = 8 per device x 4 accumulated x 2 ranks"),
        ("run Effective batch", (Batch(1, 0, None, 4, 2),), {}, "n/a (the batch of a device is not known)"),
        ("run Effective batch", (Batch(1, 0, 8, None, 2),), {}, "n/a (the number of accumulated batches is not known)"),
        ("run Compile cache", (Cache(1, 0, 3, 1, "/cache"),), {}, "3 hits, 1 miss: /cache"),
        ("time Compiling", (Times(5, 0, 1.5, None, 0.25),), {}, "1.5 s"),
        ("time Executing", (Times(5, 0, 1.5, None, 0.25),), {}, ""),
        ("time Executing", (Times(5, 0, 75.0, 4000.0, 0.0),), {}, "1 h 06 min"),
        ("precision Actual", (agreed(3),), {}, "24 of 24 matmuls in bf16"),
        ("precision Requested", (agreed(3),), {}, "bf16 (--precision)"),
        ("precision Parameters", (agreed(3),), {}, "39 bf16, 3 s64"),
        ("precision Actual", (agreed(3, ops=1, share=0.996),), {}, "1 of 1 matmul in bf16"),
        ("precision Actual", (agreed(3, share=None),), {}, "n/a (not reported by the runtime)"),
        ("precision Actual", (agreed(3, ops=0, share=None),), {}, "n/a (the graph has no matmul or convolution)"),
    ],
)
def test_facts(tmp_path: Path, where: str, events: tuple[Event, ...], info: dict[str, Any], said: str) -> None:
    key, _, label = where.partition(" ")
    assert fact(started(tmp_path, *events, **{**HOST, **info}).view(), key, label) == said


def test_precision_before_a_step_was_compiled(tmp_path: Path) -> None:
    run = started(tmp_path)
    assert "requested: bf16; actual: n/a (no compiled step yet)" in told(run.view(), "precision")
    run.update(status="done", plan={})
    assert "requested: default; actual: n/a (no compiled step was examined)" in told(run.view(), "precision")


# -- compiles --------------------------------------------------------------------------------------------------------


def test_a_compile_is_one_row_that_unfolds_to_all_that_is_known(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 2, memory={"arguments": 3 * 2**20, "code": 100}))
    newest, first = compiles(run.write(recompile(CREATED + 3, 1, step=7)).view())
    assert (newest.key, first.key) == ("0-1", "0-0")
    assert newest.cells == (
        *("#1", "In [12], line 14", "1.21 s", "the shape of an input changes"),
        "input_ids now int64[32,129], before int64[32,128] (and 1 more)",
    )
    assert {one.label: " ".join(one.lines) for one in newest.facts} == {
        "Line": "In [12], line 14, in training_function",
        "Cause": "The shape of an input changed: input_ids now int64[32,129], before int64[32,128].",
        "Fix": "Pad to a multiple (pad_to_multiple_of=64 in the tokenizer or collator) or to one max_length, and mask "
        "the padding.",
        "Difference from #0": "input_ids now int64[32,129], before int64[32,128] "
        "attention_mask now int64[32,129], before int64[32,128]",
        "Inputs": "input_ids int64[32,129] attention_mask int64[32,129] labels int64[32]",
        "Program memory": "n/a (not reported by the runtime)",
        "More": "rank 0 · site 0 · after 7 steps · triggered by the end of a step · graph 00000001",
    }
    assert first.cells[3] == "first compile"
    assert "arguments 3 MiB, code 100 bytes" in str(first.facts)


def test_a_file_is_named_in_a_row_and_its_path_is_in_what_unfolds(tmp_path: Path) -> None:
    site = Site(0, "/home/me/project/train.py", 31, "train", "torch_xla.sync()")
    [one] = compiles(started(tmp_path, first_compile(CREATED + 2, site=site)).view())
    assert one.cells[1] == "train.py, line 31"
    assert one.facts[0].lines == ("/home/me/project/train.py, line 31, in train",)


def test_a_page_has_the_newest_compiles_and_their_keys_stay(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    before = compiles(run.view())
    after = compiles(run.write(recompile(CREATED + 40, 7, 64, step=430)).view())
    assert after[1:] == before
    found = next(one for one in page(run.view(), compiles=3).sections if one.key == "compiles")
    assert found.items == after[:3] and found.notes == ("6 older compiles are in the run folder only.",)


# -- values and charts -----------------------------------------------------------------------------------------------


def test_the_loss_is_the_first_chart(tmp_path: Path) -> None:
    events = [Value(CREATED + 2, 0, name, float(at), at) for at in range(9) for name in ("acc", "lr", "loss")]
    view = started(tmp_path, *events, Value(CREATED + 3, 0, "phase", "tuning", 8)).view()
    made = page(view).charts
    assert [(one.title, one.caption) for one in made] == [("loss", "0 → 8"), ("acc", "0 → 8"), ("lr", "0 → 8")]
    assert made[0].points[-1] == (8, 8.0, 8.0, 8.0) and made[0].marked
    found = section(view, "values")
    assert found is not None and [row.cells for row in found.rows] == [("phase", "tuning", "8", "")]


def test_a_chart_has_at_most_so_many_points_with_their_range(tmp_path: Path) -> None:
    view = started(tmp_path, *(Value(CREATED + 2, 0, "loss", float(at % 7), at) for at in range(190))).view()
    [made] = page(view, points=20).charts
    assert len(made.points) <= 20
    assert {low for _x, _value, low, _high in made.points} == {0.0}
    assert {high for _x, _value, _low, high in made.points} == {6.0}


def test_a_value_that_broke_is_said(tmp_path: Path) -> None:
    logged: list[float | str] = [1.0, "nan", "nan"]
    events = [Value(CREATED + 2, 0, "loss", value, at) for at, value in enumerate(logged)]
    [made] = page(started(tmp_path, *events).view()).charts
    assert (made.caption, made.warning) == ("1 → nan", "not a finite number at step 1")
    assert plain(made)["points"][1] == [1, "nan", "nan", "nan"]


def test_without_a_value_it_is_said_how_to_log_one(tmp_path: Path) -> None:
    assert "Log one with tpu_magics.log(loss=loss)." in told(started(tmp_path).view(), "values")


# -- ranks -----------------------------------------------------------------------------------------------------------


def test_one_rank_needs_no_table(tmp_path: Path) -> None:
    assert section(recorded.running(tmp_path).view(), "ranks") is None


def test_the_table_of_ranks(tmp_path: Path) -> None:
    view = recorded.failed(tmp_path).view()
    rows = ranks(view)
    assert list(rows[0]) == ["rank", "state", "steps", "steps/s", "loss", "compiles", "recompiles", "RSS", "PSS"]
    assert [row["state"] for row in rows] == ["stopped (SIGTERM)", "failed (exit code 1)"]
    found = section(view, "ranks")
    assert found is not None and found.summary == "2 ranks: 1 stopped, 1 failed"
    eight = recorded.on_tpu(tmp_path).view()
    assert ranks(eight)[0]["HBM"] == "13.0 GiB of 16.0 GiB"
    assert "8 ranks: all training" in told(eight, "ranks")
    assert {row["recompiles"] for row in ranks(recorded.rehearsed(tmp_path).view())} == {"0"}, "one is expected"


HOSTS = [
    {"index": 0, "name": "slice-0-w0", "address": "10.0.0.2", "ranks": [0, 1]},
    {"index": 1, "name": "<b>w1</b>", "address": "10.0.0.3", "ranks": [2, 3]},
]


def run_on(root: Path, count: int = 4, **info: Any) -> Recorded:
    run = Recorded(root, "hosts", **myself())
    run.update(plan=rehearsal_plan(count), **info)
    for rank in range(count):
        run.write(*began(CREATED + 0.99, rank, count))
    return run


def test_on_several_hosts_each_rank_has_its_own(tmp_path: Path) -> None:
    view = run_on(tmp_path, hosts=HOSTS).view()
    assert [row["host"] for row in ranks(view)] == ["slice-0-w0"] * 2 + ["<b>w1</b>"] * 2
    workers = [{"rank": 0, "host": 1}, {"rank": 3, "host": 0}]
    moved = run_on(tmp_path / "moved", hosts=HOSTS, workers=workers).view()
    assert [rank.host for rank in moved.ranks] == ["<b>w1</b>", "slice-0-w0", "<b>w1</b>", "slice-0-w0"]


def test_the_head_counts_the_hosts_and_weighs_no_memory_of_one_machine(tmp_path: Path) -> None:
    run, alone = run_on(tmp_path / "pod", hosts=HOSTS), run_on(tmp_path / "one")
    for each in (run, alone):
        for rank in range(4):
            each.write(Memory(CREATED + 2, rank, rss=3 << 20, pss=2 << 20))
    assert page(run.view()).where == "rehearsal of 4 ranks on 2 hosts, XLA:CPU"
    assert page(alone.view()).where == "rehearsal of 4 ranks on XLA:CPU"
    assert fact(run.view(), "memory", "Host memory").endswith("on 2 hosts")
    assert "machine's" in fact(alone.view(), "memory", "Host memory")


@pytest.mark.parametrize("hosts", [None, 3, "x", [7], [{"ranks": 5}], [{"name": None, "ranks": [0]}], [{"index": []}]])
def test_of_foreign_hosts_nothing_is_concluded(tmp_path: Path, hosts: object) -> None:
    assert "host" not in ranks(run_on(tmp_path, hosts=hosts).view())[0]


# -- rehearsals ------------------------------------------------------------------------------------------------------


def ranks_of(root: Path, *times: tuple[float | None, float | None]) -> Recorded:
    """Ranks that have trained for 20 seconds, with their seconds of compiling and in collectives."""
    run = run_on(root, len(times))
    for rank, (compiling, collectives) in enumerate(times):
        run.write(Times(CREATED + 21, rank, compiling, 0.1, 0.0, collectives, 10))
    return run


def test_a_rehearsal_says_so_and_what_is_as_on_a_tpu(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    assert page(view).where == "rehearsal of 8 ranks on XLA:CPU"
    assert page(recorded.on_tpu(tmp_path).view()).where == "8 ranks on TPU"
    said = told(view, "rehearsal")
    for word in ("speed and memory do not", "gloo", "weights", "random states", "barriers", "the data of each rank"):
        assert word in said


@pytest.mark.parametrize("name", ["running", "done", "failed", "on-tpu", "starting"])
def test_other_runs_say_nothing_of_it(tmp_path: Path, name: str) -> None:
    view = recorded.RUNS[name](tmp_path).view()
    said = json.dumps(plain(page(view)))
    assert "ehears" not in said.replace("rehearsal-of-2", "") and "in collectives" not in said
    assert "Collectives" not in said


def test_compiles_of_a_rehearsal_are_those_of_whole_graphs(tmp_path: Path) -> None:
    run = recorded.rehearsed(tmp_path)
    view = run.view()
    assert view.compiles == 2 and view.pieces == 4
    said = told(view, "compiles")
    assert "Graphs are counted as a TPU would compile them; here host collectives split them into 4 pieces." in said
    assert "split by host collectives into 2 pieces; a TPU compiles it as one graph" in said
    run.write(recompile(CREATED + 10, 2, seconds=0.0, **recorded.CUT))
    assert "into 2 pieces, all compiled before; a TPU compiles it as one graph" in told(run.view(), "compiles")
    assert compiles(run.view())[0].cells[2] == "0 s"
    uncut = ranks_of(tmp_path / "uncut", (1.0, 0.5), (1.0, 0.5)).write(first_compile(CREATED + 3)).view()
    assert "piece" not in told(uncut, "compiles")


def test_the_time_in_collectives_is_a_share_of_the_training(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    said = "3.62 s (25 calls, 27 % of the training time)"
    assert fact(view, "time", "Collectives on the host") == said
    assert [row["in collectives"] for row in ranks(view)][:2] == ["3.62 s (27 %)", "2.23 s (17 %)"]
    unmeasured = ranks_of(tmp_path / "none", (1.0, None), (1.0, None)).view()
    assert fact(unmeasured, "time", "Collectives on the host") == ""
    assert ranks(unmeasured)[1]["in collectives"] == "n/a"


def test_the_rank_that_the_others_wait_for_is_named_and_marked(tmp_path: Path) -> None:
    alike = recorded.rehearsed(tmp_path).view()
    assert straggler(alike) is None and page(alike).problems == ()
    view = recorded.rehearsed(tmp_path / "asleep", ASLEEP, 29.2).view()
    found = problem(view, "rank")
    assert found.title == "The other ranks wait for rank 3"
    assert found.text.startswith("Rank 3 spent 27 % of its time outside compiles and collectives")
    table = section(view, "ranks")
    assert table is not None and [row.tone for row in table.rows] == ["", "", "", "warning", "", "", "", ""]


def test_ranks_that_were_killed_are_not_said_to_be_waited_for(tmp_path: Path) -> None:
    run = recorded.rehearsed(tmp_path, ASLEEP, 29.2)
    run.update(status="failed", failure=recorded.FAILURE, workers=[{"rank": 3, "signal": 9}])
    assert "wait for rank" not in json.dumps(plain(page(run.view())))


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        (((2.0, 10.0), (2.0, 7.9)), 1),  # 20 s: 10.5 points busier
        (((2.0, 10.0), (2.0, 8.1)), None),  # 9.5 points
        (((2.0, 10.0), (10.0, 2.0)), None),  # it compiled while the other waited
        (((2.0, 5.0), (2.0, 5.0), (2.0, 14.0)), None),  # two that are alike
        (((2.0, 5.0), (None, 5.0)), None),
        (((2.0, None), (2.0, 5.0)), None),
        (((2.0, 5.0),), None),
        ((), None),
    ],
)
def test_a_rank_stands_apart_or_not(
    tmp_path: Path, times: tuple[tuple[float | None, float | None], ...], slow: int | None
) -> None:
    found = straggler(ranks_of(tmp_path, *times).view(CREATED + 22))
    assert (found.rank if found else None) == slow


# -- SPMD ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "8 virtual devices, data=8, model=1; parameters: 12 sharded (1 MiB), 4 replicated (3 KiB)"),
        ({"sharded": None, "text": "not readable: {x}"}, "parameters: n/a (not readable: {x})"),
        ({"replicated": None}, "parameters: n/a (not reported)"),
        ({"sharded": 0, "replicated": 0}, "parameters: none on the devices"),
        ({"sharded": 0}, "parameters: 0 sharded, 4 replicated (3 KiB)"),
        ({"shape": (), "axes": ()}, "8 virtual devices, no global mesh; "),
        ({"axes": ()}, "axis 0=8, axis 1=1; "),
    ],
)
def test_the_mesh_and_its_parameters(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    view = recorded.meshed(tmp_path, **fields).view()
    assert said in fact(view, "run", "Mesh")
    assert page(view).where == "8 virtual devices in one SPMD worker on XLA:CPU"
    assert "XLA puts them into the graph" in told(view, "rehearsal") and "gloo" not in told(view, "rehearsal")


def test_a_mesh_on_a_tpu_is_no_rehearsal(tmp_path: Path) -> None:
    run = recorded.meshed(tmp_path, virtual=False)
    run.update(plan={**rehearsal_plan(1), "device": "TPU", "spmd": 0})
    assert fact(run.view(), "run", "Mesh").startswith("8 devices, data=8, model=1; ")
    assert section(run.view(), "rehearsal") is None


def test_a_mesh_that_was_not_told_yet(tmp_path: Path) -> None:
    run = Recorded(tmp_path, "early", **myself())
    run.update(plan={**rehearsal_plan(1), "spmd": 8})
    assert fact(run.view(), "run", "Mesh") == "n/a (no record yet)"
    assert page(run.view()).where == "one SPMD worker on XLA:CPU"
    assert fact(recorded.running(tmp_path).view(), "run", "Mesh") == ""


def test_the_newest_mesh_counts_and_its_batch_is_that_of_all_devices(tmp_path: Path) -> None:
    run = recorded.meshed(tmp_path).write(Batch(CREATED + 5, 0, per_device=32, accumulation=2, ranks=1))
    run.write(Mesh(CREATED + 9, 0, (4, 2), ("data", "model"), 8, True, 16, 0, 9 * 2**20))
    assert fact(run.view(), "run", "Mesh").endswith("data=4, model=2; parameters: 16 sharded (9 MiB), 0 replicated")
    assert fact(run.view(), "run", "Effective batch") == "64 = 32 for all devices together x 2 accumulated"


def test_reports_of_the_runtimes_metrics(tmp_path: Path) -> None:
    run = recorded.meshed(tmp_path)
    said = "2 reports, the newest in rank-0-metrics-1.txt: compiles 2 (3.92 s), executions 200 (626 ms)"
    assert fact(run.view(), "run", "Metrics report").startswith(said)
    run.write(Metrics(CREATED + 9, 0, file="", number=0))
    assert "1 report, not saved: compiles n/a (not measured)" in fact(run.view(), "run", "Metrics report")
    pieces = recorded.rehearsed(tmp_path / "pieces").write(Metrics(CREATED + 9, 0, file="a.txt", compiles=4)).view()
    assert fact(pieces, "run", "Metrics report").endswith("counted by the runtime, each piece separately.")


# -- small forms -----------------------------------------------------------------------------------------------------


def test_numbers_in_words() -> None:
    assert [seconds(value) for value in (0.0, 2e-7, 0.00085, 0.0412, 1.934, 99.0, 245.0)] == [
        *("0 s", "0.2 µs", "850 µs", "41.2 ms", "1.93 s", "99 s", "4 min 05 s")
    ]
    assert seconds(float("inf")) == "n/a"
    assert [clock(value) for value in (8.9, 61, 7_440, 10**7)] == ["8 s", "1 min 01 s", "2 h 04 min", "2,777 h 46 min"]
    assert [size(value) for value in (12, 3 * 2**20, 1.5 * 2**30)] == ["12 bytes", "3 MiB", "1.5 GiB"]
    assert [percent(value) for value in (0, 0.001, 0.5, 0.999, 1)] == [
        *("0 %", "less than 1 %", "50 %", "more than 99 %", "100 %")
    ]
    assert short("a\n  b" + "c" * 50, 10) == "a bcccccc…"


def test_pages_of_equal_views_are_equal(tmp_path: Path) -> None:
    run = recorded.failed(tmp_path)
    first, second = run.view(), run.view()
    assert first is not second
    assert isinstance(page(first), Page) and page(first) == page(second)
