"""How many steps a training has in all, as recorded while loops over loaders run; without a framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpu_magics.backends.observe.progress import TrainingProgress
from tpu_magics.backends.observe.sites import Sites
from tpu_magics.runs.events import Total, from_line, only
from tpu_magics.runs.meter import StepMeter
from tpu_magics.runs.writer import EventWriter


class Training:
    """A rank whose steps are counted, and whose loaders tell of themselves as hooks do."""

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.writer = EventWriter(path, 0)
        self.meter = StepMeter(self.writer)
        self.pending = False
        self.progress = TrainingProgress(self.writer, self.meter, Sites({}, {}), limit)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.meter.step()

    def loader(self, batches: int) -> FakeLoader:
        return FakeLoader(self, batches)

    def xla_loader(self, batches: int) -> FakeLoader:
        """Its batches are steps."""
        return FakeLoader(self, batches, is_xla=True)

    def totals(self) -> list[tuple[int, str]]:
        lines = self.writer.path.read_bytes().splitlines() if self.writer.path.exists() else []
        return [(one.steps, one.source) for one in only(filter(None, map(from_line, lines)), Total)]


class FakeLoader:
    def __init__(self, training: Training, batches: int, is_xla: bool = False) -> None:
        self.training = training
        self.batches = batches
        self.is_xla = is_xla

    def __iter__(self) -> FakeIterator:
        self.training.progress.on_loader(sys._getframe(1), self, lambda one: one and one.batches + 0, self.is_xla)
        return FakeIterator(self)


class FakeIterator:
    def __init__(self, loader: FakeLoader) -> None:
        self.loader = loader
        self._num_yielded = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        training, is_xla = self.loader.training, self.loader.is_xla
        if is_xla and (self._num_yielded or training.pending):
            training.step()  # it syncs, also what was pending before
            training.pending = False
        if self._num_yielded == self.loader.batches:
            raise StopIteration
        self._num_yielded += 1
        if training.progress.learning:
            training.progress.on_batch(None if is_xla else self)
        return self._num_yielded


# -- programs, with what is recorded of them ---------------------------------------------------------------------------


def plain(run: Training) -> None:
    loader = run.loader(5)
    for _epoch in range(3):
        for _batch in loader:
            run.step()


def accumulates(run: Training) -> None:
    loader = run.loader(12)
    for _epoch in range(3):
        for batch in loader:
            if batch % 4 == 0:
                run.step()


def two_steps_a_batch(run: Training) -> None:
    loader = run.loader(5)
    for _epoch in range(3):
        for _batch in loader:
            run.step()
            run.step()


def pending_before(run: Training) -> None:
    run.pending = True
    loader = run.xla_loader(2)
    for _epoch in range(100):
        for _batch in loader:
            pass


def more_in_the_first_batch(run: Training) -> None:
    loader = run.loader(5)
    run.step()
    for _epoch in range(100):
        for _batch in loader:
            run.step(2 if run.meter.total < 2 else 1)


def one_batch_an_epoch(run: Training) -> None:
    loader = run.loader(1)
    for _epoch in range(100):
        for _batch in loader:
            run.step()


def evaluates(run: Training) -> None:
    loader, evaluation = run.xla_loader(5), run.xla_loader(3)
    for _epoch in range(4):
        for _batch in loader:
            pass
        for _batch in evaluation:
            pass


def evaluates_without_steps(run: Training) -> None:
    loader, evaluation = run.loader(5), run.loader(3)
    for epoch in range(4):
        for _batch in loader:
            run.step()
        if epoch % 2:
            for _batch in evaluation:
                pass


def two_trainings(run: Training) -> None:
    first, second = run.loader(5), run.loader(4)
    for epoch in range(10):
        for _batch in first:
            run.step()
        if epoch == 1:
            break
    for _epoch in range(2):
        for _batch in second:
            run.step()


def ends_each_epoch_early(run: Training) -> None:
    loader = run.loader(50)
    for _epoch in range(3):
        for batch in loader:
            run.step()
            if batch == 10:
                break


def no_two_batches_alike(run: Training) -> None:
    loader = run.loader(7)
    for _epoch in range(3):
        for batch in loader:
            run.step(batch % 3)


THREE, FIVE = "5 batches x 3 epochs", "5 batches x 100 epochs"
CASES: dict[Callable[[Training], None], tuple[int, list[tuple[int, str]]]] = {
    plain: (15, [(15, THREE)]),
    accumulates: (9, [(9, "12 batches x 3 epochs")]),
    two_steps_a_batch: (30, [(30, THREE)]),
    pending_before: (201, [(201, "2 batches x 100 epochs")]),
    more_in_the_first_batch: (502, [(501, FIVE), (502, FIVE)]),
    one_batch_an_epoch: (100, [(100, "1 batch x 100 epochs")]),
    evaluates: (32, [(20, "5 batches x 4 epochs"), (32, "5 batches x 4 epochs + 3 batches x 4 epochs")]),
    evaluates_without_steps: (20, [(20, "5 batches x 4 epochs")]),
    two_trainings: (18, [(50, "5 batches x 10 epochs"), (18, "5 batches x 2 epochs + 4 batches x 2 epochs")]),
    ends_each_epoch_early: (30, [(150, "50 batches x 3 epochs"), (30, "50 batches x 3 epochs")]),
    no_two_batches_alike: (21, [(21, "7 batches x 3 epochs")]),
}


@pytest.mark.parametrize("program", CASES)
def test_the_total_is_what_is_done_in_the_end(program: Callable[[Training], None], tmp_path: Path) -> None:
    run = Training(tmp_path / "rank-0.jsonl")
    program(run)
    steps, totals = CASES[program]
    assert (run.meter.total, run.totals()) == (steps, totals)


# -- what is not known -------------------------------------------------------------------------------------------------


def while_loop(run: Training) -> None:
    loader = run.xla_loader(5)
    while run.meter.total < 15:
        for _batch in loader:
            pass


def some_epochs_evaluate(run: Training) -> None:
    loader, evaluation = run.xla_loader(5), run.xla_loader(3)
    for epoch in range(4):
        for _batch in loader:
            pass
        if epoch % 2:
            for _batch in evaluation:
                pass


def evaluates_in_an_epoch(run: Training) -> None:
    loader, evaluation = run.xla_loader(8), run.xla_loader(3)
    for batch in loader:
        if batch == 4:
            for _batch in evaluation:
                pass


def epochs_that_differ(run: Training) -> None:
    loader = run.loader(8)
    for epoch in range(4):
        for _batch in loader:
            if epoch < 2 or _batch < 4:
                run.step()


@pytest.mark.parametrize("program", [some_epochs_evaluate, evaluates_in_an_epoch, epochs_that_differ])
def test_a_total_that_does_not_hold_is_withdrawn(program: Callable[[Training], None], tmp_path: Path) -> None:
    run = Training(tmp_path / "rank-0.jsonl")
    program(run)
    assert [steps for steps, _ in run.totals()][1:] == [0]


def test_a_while_loop_has_no_total(tmp_path: Path) -> None:
    run = Training(tmp_path / "rank-0.jsonl")
    while_loop(run)
    assert run.meter.total == 15 and run.totals() == []


def test_steps_that_come_later_than_in_the_first_batches_are_noticed(tmp_path: Path) -> None:
    run, seen = Training(tmp_path / "rank-0.jsonl"), []

    def program() -> None:
        for batch in run.loader(100):
            run.step(3 if batch > 10 else 1)
            run.progress.check()
            seen.append(len(run.totals()))

    program()
    assert run.totals() == [(100, "100 batches"), (0, "")] and seen[9] == 1 and seen[12] == 2


def test_the_limit_bounds_it(tmp_path: Path) -> None:
    run = Training(tmp_path / "rank-0.jsonl", limit=7)
    plain(run)
    assert run.totals() == [(7, "--steps")]


# -- a library's loop --------------------------------------------------------------------------------------------------


def test_a_librarys_training(tmp_path: Path) -> None:
    run = Training(tmp_path / "rank-0.jsonl")
    run.step(2)
    run.progress.on_training(sys._getframe(), 10, "Library")
    run.step(4)
    run.progress.on_training(sys._getframe(), 0, "Library")  # it has ended early
    plain(run)
    assert run.totals() == [(12, "Library"), (6, "Library"), (21, THREE)]


def test_a_training_in_a_loop_is_not_the_whole(tmp_path: Path) -> None:
    run = Training(tmp_path / "rank-0.jsonl")

    def folds() -> None:
        for _fold in range(2):
            run.progress.on_training(sys._getframe(), 10, "Library")
        run.progress.on_training(sys._getframe(), None, "")

    folds()
    assert run.totals() == []


def test_an_error_in_it_is_contained(tmp_path: Path) -> None:
    run = Training(tmp_path / "rank-0.jsonl")
    plain(run)

    def program() -> None:
        loader = run.loader(3)
        del loader.batches
        for _batch in loader:
            pass

    with pytest.raises(AttributeError):
        program()
    assert run.progress.stopped and run.totals() == [(15, THREE), (0, "")]
