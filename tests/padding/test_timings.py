"""Seconds per compile and token, from real run records."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.panel.recorded import (
    CREATED,
    PRINTED,
    Recorded,
    began,
    first_compile,
    inputs,
    myself,
    optimizer_state,
    recompile,
)
from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.timings import check_given, seconds
from tpu_magics.runs.events import Site, Steps


def steps(n: int, spent: float, compiled: int = 0, compiled_seconds: float = 0.0) -> Steps:
    return Steps(CREATED + 30, 0, total=n, n=n, seconds=spent, compiled=compiled, compiled_seconds=compiled_seconds)


def tpu(created: float) -> dict[str, object]:
    return {"created": created, "host": {"device": "TPU", "tpu": "v5e"}}


def test_without_runs_nothing_is_known(runs: Path) -> None:
    found = seconds()
    assert (found.compile, found.token) == (None, None)
    assert found.compile_text == (
        "Seconds of compiles: n/a. No earlier run here measured them. Train once with %%tpu_train, or "
        "pass --compile-seconds."
    )
    Recorded(runs).write(*began(CREATED))
    assert "None of the 1 earlier runs here measured them" in seconds().compile_text


def test_compiles_for_another_shape_are_what_counts(runs: Path) -> None:
    """Not the first one, which also starts the compiler, nor that of the optimiser's state."""
    run = Recorded(runs, "train").write(*began(CREATED), first_compile(CREATED + 1, seconds=9.0))
    run.write(optimizer_state(CREATED + 2, 1))
    run.write(*(recompile(CREATED + n, n, 128 + n, seconds=n / 2) for n in (2, 3, 4)))
    found = seconds()
    assert found.compile == 1.5 and found.device == "CPU"
    assert found.compile_text == (
        "One compile: 1.5 s, the median of 3 recompiles for another input shape in run 'train' on XLA:CPU."
    )


def test_without_these_the_compiles_of_the_busiest_line_count(runs: Path) -> None:
    printed = Site(1, "In [12]", 3, "train", PRINTED)
    run = Recorded(runs, "train").write(*began(CREATED), first_compile(CREATED + 1, seconds=3.0))
    run.write(*(first_compile(CREATED + n, seconds=0.1, site=printed, nth=n) for n in range(5)))
    run.write(optimizer_state(CREATED + 2, 1))
    assert seconds().compile == pytest.approx((3.0 + 1.21) / 2)
    assert "the median of 2 compiles in run 'train'" in seconds().compile_text


def test_a_token_costs_its_part_of_a_steady_step(runs: Path) -> None:
    run = Recorded(runs, "train").write(*began(CREATED), first_compile(CREATED + 1), optimizer_state(CREATED + 2, 1))
    run.write(steps(22, 5.0, compiled=2, compiled_seconds=3.0))
    found = seconds()
    assert found.token == pytest.approx(0.1 / (32 * 128))
    assert found.token_text == (
        "One step of [32, 128] token ids: 100 ms, from 20 steady steps. Time is assumed to be proportional to "
        "tokens, including padding."
    )


def test_steps_of_several_shapes_tell_no_seconds_of_a_token(runs: Path) -> None:
    run = Recorded(runs, "train").write(*began(CREATED), first_compile(CREATED + 1), recompile(CREATED + 2, 1))
    run.write(steps(22, 5.0, 2, 3.0))
    assert seconds().token is None
    assert "The steps of run 'train' had 2 shapes, and times per shape are not recorded" in seconds().token_text


def test_a_few_steps_tell_nothing(runs: Path) -> None:
    Recorded(runs, "train").write(*began(CREATED), first_compile(CREATED + 1), steps(6, 5.0, 2, 3.0))
    assert seconds().token is None
    assert "Run 'train' has fewer than 5 steps without a compile" in seconds().token_text


def test_runs_of_one_name_and_device_are_taken_together(runs: Path) -> None:
    for at, (name, took) in enumerate((("train", 1.0), ("train", 3.0), ("other", 50.0), ("train", 5.0))):
        Recorded(runs, name, created=CREATED + at).write(first_compile(CREATED + at, seconds=took))
    assert seconds().compile == 3.0
    assert "the median of 3 compiles in 3 runs named 'train' on XLA:CPU" in seconds().compile_text
    assert seconds("other").compile == 50.0
    with pytest.raises(TpuMagicsError, match="There is no run 'none'"):
        seconds("none")


def test_seconds_of_a_tpu_go_before_those_of_a_cpu(runs: Path) -> None:
    Recorded(runs, "train", **tpu(CREATED)).write(first_compile(CREATED, seconds=40.0))
    Recorded(runs, "train", created=CREATED + 9).write(first_compile(CREATED + 9, seconds=1.0))
    assert (seconds().compile, seconds().device) == (40.0, "TPU")


def test_runs_with_token_ids_go_before_others(runs: Path) -> None:
    Recorded(runs, "text", created=CREATED).write(first_compile(CREATED, seconds=4.0))
    Recorded(runs, "images", created=CREATED + 9).write(first_compile(CREATED + 9, seconds=1.0, inputs=()))
    assert seconds().compile == 4.0


def test_ids_of_another_name_are_known_by_their_form(runs: Path) -> None:
    renamed = tuple(type(each)(each.name.replace("input_ids", "x"), each.shape, each.dtype) for each in inputs(64)[::2])
    run = Recorded(runs, "train").write(first_compile(CREATED, inputs=renamed), steps(22, 5.0, 2, 3.0))
    assert run.files.path.exists()
    assert seconds().token == pytest.approx(0.1 / (32 * 64))


def test_what_the_person_knows_goes_first(runs: Path) -> None:
    Recorded(runs, "train").write(first_compile(CREATED))
    found = seconds(one=20, rate=50_000)
    assert (found.compile, found.token) == (20, 1 / 50_000)
    assert (found.compile_text, found.token_text) == (
        "One compile: 20 s, as given.",
        "Tokens: 50,000 per second, as given.",
    )


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_numbers_that_cannot_be_are_refused(wrong: float) -> None:
    with pytest.raises(TpuMagicsError, match="--compile-seconds is"):
        check_given(None, wrong)
    with pytest.raises(TpuMagicsError, match="--tokens-per-second is"):
        check_given(wrong, None)


def test_what_no_run_should_hold_does_no_harm(runs: Path) -> None:
    run = Recorded(runs, "train", host="a text").write(first_compile(CREATED, seconds=-1.0))
    run.write(first_compile(CREATED, seconds=float("nan")), first_compile(CREATED, seconds=2.0), steps(0, -1.0))
    run.files.events_path(0).open("ab").write(b"not json\n{")
    assert seconds().compile == 2.0
    assert "on an unknown device" in seconds().compile_text


def test_this_notebooks_runs_come_first_and_anothers_are_named(runs: Path) -> None:
    theirs = {"notebook": "/home/me/eval.ipynb", "kernel": "k", "pid": 1, "pid_started": 2}
    other = Recorded(runs, "train", created=CREATED + 100, **theirs).write(*began(CREATED))
    other.write(*(recompile(CREATED + n, n, 128 + n, seconds=50.0) for n in (2, 3)))
    found = seconds()
    assert found.compile == 50.0
    assert "in run 'train' (of another notebook, eval.ipynb) on XLA:CPU." in found.compile_text
    mine = Recorded(runs, "train", created=CREATED, **myself()).write(*began(CREATED))
    mine.write(recompile(CREATED + 2, 1, 130, seconds=1.0))
    assert seconds().compile == seconds("train").compile == seconds("last").compile == 1.0
    assert seconds(other.files.id).compile == 50.0, "it was named"
