"""Every program of cases/recompiles, ours and the shared ones, through the launcher on one worker: how many compiles,
where, why, and what was read in the middle of a step. The programs know nothing of us.

The numbers of compiles in the programs are torch_xla's own: a test counts them without us.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.programs import OWN, ROOT, SHARED, Expected, Program, all_programs
from tests.launch.launching import run
from tpu_magics.launch.results import TrainResult
from tpu_magics.runs.events import CAUSES, Compile, Site, Transfer, only

PROGRAMS = all_programs()
# In `make test`: each cause in one or two forms, and what must not be told. The others are long.
FEW = {
    *("branch_if_loss", "branch_while", "code_accumulation", "code_freeze", "data_shape_nonzero", "data_shape_slice"),
    *("dtype_labels", "fallback_embedding_bag", "last_batch_evaluation", "last_batch_loader", "live_history"),
    *("live_kept_from_first", "mode_autocast", "mode_train_eval", "nothing_cosine", "nothing_read_every_third"),
    *(
        "no_sync_epochs",
        "nothing_two_sites",
        "number_crop",
        "number_step_counter",
        "read_kept_alive",
        "read_metrics_loop",
    ),
    *("read_through_helper", "reads_of_all_kinds", "shape_image_sizes", "state_adam", "state_and_shapes"),
    "trainer_evaluation",
}
SECONDS = 290
STEPS = ("sync", "loader", "finish")  # what triggers a step; anything else is a read, or a library that has its own way


def name_of(program: Program) -> str:
    return f"{'shared' if program.path.parent == SHARED else 'own'}-{program.name}"


# -- the programs themselves ------------------------------------------------------------------------------------------


def test_every_cause_has_two_programs_of_ours_and_four_recompile_nothing() -> None:
    ours = [program for program in PROGRAMS if program.path.parent == OWN]
    causes = Counter(cause for program in ours for cause in {entry.causes[0] for entry in program.recompiles})
    others = ("unknown", "graph-break")  # the last is TorchTPU's
    assert {cause: causes[cause] for cause in CAUSES if cause not in others and causes[cause] < 2} == {}
    assert set(causes) <= set(CAUSES)
    assert sum(not program.recompiles for program in ours) >= 4
    few = {cause for program in ours if program.name in FEW for entry in program.recompiles for cause in entry.causes}
    assert few == {cause for program in ours for entry in program.recompiles for cause in entry.causes}
    assert {program.name for program in ours} >= FEW


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_a_program_has_the_form(program: Program) -> None:
    assert program.on("CPU").compiles > len(program.on("CPU").recompiles)
    assert all(entry.causes and set(entry.causes) <= set(CAUSES) for entry in program.recompiles)
    assert not any(entry.causes for entry in program.reads)
    assert program.lines("site") and (program.lines("read") or not program.reads)
    for entry in (*program.recompiles, *program.reads):
        assert not entry.at or program.lines("site", entry.at) or program.lines("read", entry.at)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(SECONDS)
def test_torch_xla_itself_counts_as_many_compiles() -> None:
    command = [sys.executable, "-m", "tests.cases.plain_run", *(str(program.path) for program in PROGRAMS)]
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    told = {answer["path"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert {path: answer["error"] for path, answer in told.items() if answer["error"]} == {}
    counted = {program.name: told[str(program.path)]["compiles"] for program in PROGRAMS}
    assert counted == {program.name: program.compiles for program in PROGRAMS}
    # Nothing is left for the launcher's last sync to compile, so its count is the program's.
    assert {path: answer["after"] for path, answer in told.items() if answer["after"] != answer["compiles"]} == {}


# -- what a worker reports of them ------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.usefixtures("fresh_session", "libraries")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name_of(program), marks=[] if program.name in FEW else [pytest.mark.long])
        for program in PROGRAMS
    ],
)
def test_a_run_tells_what_the_program_does(program: Program) -> None:
    result = run(program.train(), workers=1)
    program = program.on(result.run.info["plan"]["branch"])
    problems = [*wrong_counts(program, result), *wrong_recompiles(program, result), *wrong_reads(program, result)]
    assert not problems, "\n".join([*problems, "what was told:", *told(result)])


def compiles_of(result: TrainResult) -> list[Compile]:
    return only(result.run.events(rank=0), Compile)


def wrong_counts(program: Program, result: TrainResult) -> Iterator[str]:
    events = compiles_of(result)
    numbers = {
        "compile events": (len(events), program.compiles),
        "TrainResult.compiles": (result.compiles, program.compiles),
        "recompile events": (sum(event.recompile for event in events), len(program.recompiles)),
        "TrainResult.recompiles": (result.recompiles, len(program.recompiles)),
    }
    for what, (is_, should_be) in numbers.items():
        if is_ != should_be:
            yield f"{what}: {is_}, expected {should_be}"
    seen: Counter[int] = Counter()
    for event in events:
        if (event.nth, event.recompile) != (seen[event.site.id], seen[event.site.id] > 0):
            yield f"[{event.site.id}/{event.nth}] is compile {seen[event.site.id]} of its site"
        seen[event.site.id] += 1
        marked = program.lines("site")
        if event.trigger not in STEPS:
            marked = marked | program.lines("read")
        yield from wrong_site(program, event.site, marked)


def wrong_recompiles(program: Program, result: TrainResult) -> Iterator[str]:
    recompiles = [event for event in compiles_of(result) if event.recompile]
    for event, expected in zip(recompiles, program.recompiles, strict=False):
        name = f"[{event.site.id}/{event.nth}]"
        if event.cause not in expected.causes:
            yield f"{name}: cause {event.cause!r}, expected {' or '.join(expected.causes)}"
        if expected.normal not in (None, event.expected):
            yield f"{name}: needs no action: {event.expected}, expected {expected.normal}"
        yield from (f"{name}: {problem}" for problem in wrong_words(event, expected))
        if expected.at:
            lines = program.lines("site", expected.at) | program.lines("read", expected.at)
            yield from wrong_site(program, event.site, lines)


def wrong_words(event: Compile, expected: Expected) -> Iterator[str]:
    explanation = " ".join((event.text, *event.difference, event.fix))
    yield from (f"{word!r} is not mentioned" for word in expected.mentions if word not in explanation)
    for field, text in (("text", event.text), ("fix", event.fix)):
        if not text.strip() or "\n" in text:
            yield f"the {field} is not one sentence: {text!r}"
    if event.nearest is None or not 0 <= event.nearest < event.nth:
        yield f"compared with compile {event.nearest}"


def wrong_reads(program: Program, result: TrainResult) -> Iterator[str]:
    last = {event.site: event for event in only(result.run.events(rank=0), Transfer)}
    marks = sorted(program.lines("read"))
    for number, expected in enumerate(program.reads):
        lines = {marks[number]} if len(marks) == len(program.reads) else set(marks)
        lines = program.lines("read", expected.at) if expected.at else lines
        if not any(site.line in lines and mentions(last[site], expected) for site in last):
            yield f"no read at line {sorted(lines)} that mentions {expected.mentions}"
    for site, event in last.items():
        yield from wrong_site(program, site, set(marks) if program.reads else set())
        if not event.count or not event.code or not event.text or not event.fix:
            yield f"a read without count, code, text or fix: {event}"


def mentions(event: Transfer, expected: Expected) -> bool:
    explanation = f"{event.code} {event.text} {event.fix}"
    return all(word in explanation for word in expected.mentions)


def wrong_site(program: Program, site: Site, lines: set[int]) -> Iterator[str]:
    if Path(site.path) != program.path or site.line not in lines:
        expected = f"line {sorted(lines)} of {program.path.name}"
        yield f"site {site.path}:{site.line} ({site.code.strip()}), expected {expected}"


def told(result: TrainResult) -> Iterator[str]:
    for event in compiles_of(result):
        yield (
            f"  [{event.site.id}/{event.nth}] line {event.site.line} by {event.trigger!r}: {event.cause or 'first'}; "
            f"{event.text} Fix: {event.fix} Difference: {'; '.join(event.difference)}"
        )
    for read in {event.site: event for event in only(result.run.events(rank=0), Transfer)}.values():
        yield f"  read at line {read.site.line} x {read.count}: {read.text}"
