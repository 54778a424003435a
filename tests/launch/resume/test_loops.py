"""Finding training loops, where one is in them, and getting there again: without a device."""

from __future__ import annotations

import ast
import linecache
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.resume import locals as local_names
from tpu_magics.launch.resume import rewrite
from tpu_magics.launch.resume.loops import LoopLevel, TrainingLoops, resumable
from tpu_magics.launch.resume.rewrite import LoopSite
from tpu_magics.launch.resume.setup_record import differences


class Numbers:
    """Python's random states."""

    def read(self, device: bool = True) -> Any:
        return random.getstate()

    def write(self, states: Any) -> None:
        random.setstate(states)

    def write_unmoved(self, states: Any, before: Any) -> None:
        random.setstate(states)

    def moved(self, before: Any, now: Any) -> set[str]:
        return {"python"} if before != now else set()

    def loader_state(self, loader: Any) -> Any:
        return None

    def set_loader_state(self, loader: Any, state: Any) -> None:
        pass


class Stopped(Exception):
    """Ends a run in the middle."""


class Listener:
    """Saves at item number `at`, with the local variables of all functions, and ends the run."""

    def __init__(self, at: int = -1, names: Sequence[dict[str, Any]] = ()) -> None:
        self.at = at
        self.names = list(names)
        self.items = 0
        self.position: list[LoopLevel] = []
        self.shared: set[str] = set()
        self.again: list[str] = []
        self.unknown = 0

    def first_loop(self, frames: Sequence[FrameType], objects: Any) -> Numbers:
        return Numbers()

    def between_items(self, loops: TrainingLoops, frames: Sequence[FrameType]) -> None:
        self.unknown += not loops.known
        if self.items == self.at:
            self.names = [dict(local_names.live(one)) for one in frames if one.f_code.co_name in NAMES]
            self.position = [LoopLevel(**vars(one)) for one in loops.position()]
            raise Stopped
        self.items += 1

    def to_set(self, frame: FrameType, names: Any) -> Any:
        return names

    def repeated(self, site: LoopSite) -> None:
        self.again.append(site.head)

    def draws_between(self, site: LoopSite, names: set[str]) -> None:
        self.shared = names

    def arrived(self, loops: TrainingLoops, frames: Sequence[FrameType]) -> None:
        inside = [one for one in frames if one.f_code.co_name in NAMES]
        for frame, names in zip(inside, self.names, strict=True):
            local_names.assign(frame, names)


def step() -> float:
    """Stands for an optimizer's."""
    return random.random()


def backward() -> float:
    return step()


def nested(epochs: int = 3) -> Any:
    """Epochs, batches in a random order, running sums of numbers and tuples."""
    total, seen = 0.0, ()
    for epoch in range(epochs):
        order = random.sample(range(5), 5)
        for position, item in enumerate(order):
            total += backward() * (item + 1)
            seen = (*seen, (epoch, position, item))
    return total, seen


def one_epoch(scale: float) -> float:
    part = 0.0
    for item in range(4):
        part += scale * item * backward()
    return part


def in_functions() -> Any:
    """The batches in a function of their own; its result is added to what is on the stack."""
    total = 1.0
    for epoch in range(4):
        total += one_epoch(epoch + 1.0)
    return total


def two_phases() -> Any:
    first = []
    for item in range(3):
        first = [*first, item * backward()]
    second = sum(first)
    for item in range(4):
        second += item * backward()
    return first, second


def folds() -> Any:
    """Three levels, with a break, a continue and an else."""
    found: tuple[Any, ...] = ()
    for fold in range(2):
        for epoch in range(3):
            for item in range(4):
                if item == 2 and epoch == 1:
                    continue
                value = backward()
                found = (*found, (fold, epoch, item, value))
                if epoch == 2 and item == 1:
                    break
            else:
                found = (*found, "whole")
    return found


def until() -> Any:
    """A `while` loop around, whose body needs what the loop in it has found; the same function called in two places."""
    first = one_epoch(2.0)
    total, found = one_epoch(3.0), []
    while total < 30:
        scale = random.random()
        for item in range(4):
            total += backward()
            found.append(item * scale)
        total += sum(found) / len(found)
    return total, found, first


def noisy(items: Iterable[int]) -> Iterator[float]:
    """Draws from the same numbers as the body of its loop."""
    for item in items:
        yield item * random.random()


def one_ahead(items: Iterable[float]) -> Iterator[float]:
    """As accelerate's loaders, which know the last item before it is used."""
    iterator = iter(items)
    item = next(iterator)
    for following in iterator:
        yield item
        item = following
    yield item


def drawing() -> Any:
    found = []
    for epoch in range(2):
        for item in noisy(range(4)):
            found.append((epoch, item * backward()))
        for item in one_ahead(noisy(range(5))):
            found.append((epoch, item - backward()))
    return found


PROGRAMS = (nested, in_functions, two_phases, folds, until, drawing)
NAMES = {one.__name__ for one in (*PROGRAMS, one_epoch)}
FUNCTIONS = (*PROGRAMS, one_epoch, backward, step)


@pytest.fixture
def rewritten() -> Iterator[rewrite.TrainingCode]:
    code = rewrite.change_functions(FUNCTIONS, {}, NAMES)
    yield code
    code.restore()


as_work = eval("lambda function: function()", {"__name__": "tpu_magics.launch.work"})  # ends the person's frames


def run(code: rewrite.TrainingCode, function: Callable[[], Any], listener: Listener, resume: Any = ()) -> Any:
    loops = TrainingLoops(code.sites, listener, resume)
    rewrite.install(loops.begin, loops.loop)
    random.seed(7)
    return as_work(function)


@pytest.mark.parametrize("function", PROGRAMS)
def test_from_every_item_it_goes_on_to_the_same_end(
    function: Callable[[], Any], rewritten: rewrite.TrainingCode
) -> None:
    whole = Listener()
    expected = run(rewritten, function, whole)
    after = random.getstate()
    assert whole.items > 6
    for at in range(whole.items):
        stopped = Listener(at)
        with pytest.raises(Stopped):
            run(rewritten, function, stopped)
        again = Listener(names=stopped.names)
        assert run(rewritten, function, again, stopped.position) == expected, f"from item {at}"
        assert random.getstate() == after
        assert again.items == whole.items - at - 1


def test_what_the_rewriting_finds(rewritten: rewrite.TrainingCode) -> None:
    found = {key: (site.outer, site.head) for key, site in rewritten.sites.items()}
    assert found["nested#0"] == (True, "for epoch in range(epochs)")
    assert found["nested#1"] == (False, "for (position, item) in enumerate(order)")
    assert found["in_functions#0"][0]
    assert not found["one_epoch#0"][0]
    assert not rewritten.left


def test_a_function_gets_its_own_code_back() -> None:
    before = nested.__code__
    code = rewrite.change_functions([nested, backward, step], {}, [nested.__name__])
    assert nested.__code__ is not before
    code.restore()
    assert nested.__code__ is before
    random.seed(1)
    assert nested(1)[0] > 0


def test_other_loops_are_left_alone() -> None:
    def prepares(rows: list[int]) -> list[int]:
        found = []
        for row in rows:
            found.append(row + 1)
        return found

    before = prepares.__code__
    assert not rewrite.change_functions([prepares], {}, [prepares.__name__]).sites
    assert prepares.__code__ is before


def test_a_generator_that_draws_as_the_body_does_is_told(rewritten: rewrite.TrainingCode) -> None:
    listener = Listener()
    run(rewritten, drawing, listener)
    assert listener.shared == {"python"}
    listener = Listener()
    run(rewritten, nested, listener)
    assert not listener.shared


# -- the text of a function -------------------------------------------------------------------------------------------

CELL = """
import helper
def train(items):
    total = 0
    for item in items:
        total += helper.backward(item in {"b", "a"})
    return total
"""


def defined(text: str, parts: Callable[[ast.Module], list[ast.Module]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`train` of a cell, compiled in parts."""
    name = "<cell of a test>"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
    space: dict[str, Any] = {"__name__": "__main__", "helper": type("helper", (), {"backward": int})}
    for part in parts(ast.parse(text)):
        exec(compile(part, name, "exec"), {**space} if "import" in ast.unparse(part) else space)
    return space["train"]


@pytest.mark.parametrize("text", [CELL, CELL.replace("import helper", "import random")])
def test_a_cell_may_import_what_its_function_calls(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython compiles each statement by itself: `helper.backward()` is then another bytecode than in a whole cell."""

    def apart(tree: ast.Module) -> list[ast.Module]:
        return [ast.Module([one], []) for one in tree.body if not isinstance(one, ast.Import)]

    function = defined(text, apart, monkeypatch)
    code = rewrite.change_functions([function], {}, [function.__name__])
    assert [*code.sites] == ["train#0"] and not code.left
    code.restore()


def test_a_function_of_another_text_is_left_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    function = defined(CELL.replace("import helper", ""), lambda tree: [tree], monkeypatch)
    for other in (CELL.replace("import helper", "").replace('"a"', '"c"'), ""):
        entry = (len(other), None, other.splitlines(keepends=True), "<cell of a test>")
        monkeypatch.setitem(linecache.cache, "<cell of a test>", entry)
        code = rewrite.change_functions([function], {}, [function.__name__])
        assert not code.sites and "source" in code.left["train"]
        assert code.reasons()[0].startswith("`train`: ")


def test_a_call_is_known_by_its_place_in_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by its bytecode, which differs with the text around the function."""
    text = "def train():\n    helper.here()\n    for one in [1]:\n        helper.here(helper\n            .here())\n"
    found: list[int] = []
    helper = types.SimpleNamespace(here=lambda *_: found.append(local_names.call_number(sys._getframe(1))))
    monkeypatch.setitem(sys.modules, "helper", helper)
    for whole in (text, "import helper\n\n\n" + text):
        space: dict[str, Any] = {"helper": helper}
        exec(compile(whole, "<cell>", "exec"), space)
        space["train"]()
    assert found[:3] == found[3:] and len({*found}) == 3


def listed() -> Any:
    return [one_epoch(1.0) for _ in range(3)]


def mapped() -> Any:
    return list(map(one_epoch, (1.0, 2.0)))


@pytest.mark.parametrize(("function", "unknown"), [(listed, 8), (mapped, 4), (until, 0), (in_functions, 0)])
def test_what_repeats_a_loop_without_a_statement_is_told(
    function: Callable[[], Any], unknown: int, rewritten: rewrite.TrainingCode
) -> None:
    """Then there is no checkpoint after the first pass."""
    listener = Listener()
    run(rewritten, function, listener)
    assert listener.unknown == unknown and bool(listener.again) == bool(unknown)
    assert {*listener.again} <= {"for item in range(4)"}


def test_iterators_that_begin_anew_are_named() -> None:
    def trains(items: list[int]) -> None:
        old, endless = iter(items), iter(items)
        for _ in range(5):
            own = iter(items)
            try:
                backward() + next(old) + next(own)
            except StopIteration:
                old = iter(items)
            next(endless)

    code = rewrite.change_functions([trains, backward, step], {}, [trains.__name__])
    code.restore()
    assert {*next(iter(code.sites.values())).nexts} == {"old", "endless"}


def test_loops_of_other_kinds_are_named() -> None:
    def trains(items: list[int]) -> list[float]:
        while items:
            backward()
            items.pop()
        return [backward() for _ in items]

    def epochs() -> None:
        for _ in range(2):
            while random.random() < 0.5:
                backward()

    code = rewrite.change_functions([trains, epochs, backward, step], {}, [trains.__name__])
    code.restore()
    assert [one.split("`")[1] for one in code.others] == ["while items", "[backward() for _ in items]"]
    inside = next(iter(code.sites.values())).inside
    assert len(inside) == 1 and inside[0].startswith("`while random.random() < 0.5` (line ")


def test_shorter_data_are_an_error(rewritten: rewrite.TrainingCode) -> None:
    stopped = Listener(13)
    with pytest.raises(Stopped):
        run(rewritten, nested, stopped)
    stopped.position[-1].taken = 99
    with pytest.raises(TpuMagicsError) as caught:
        run(rewritten, nested, Listener(names=stopped.names), stopped.position)
    assert "shorter" in caught.value.what


def test_other_loops_than_at_the_save_are_an_error(rewritten: rewrite.TrainingCode) -> None:
    stopped = Listener(5)
    with pytest.raises(Stopped):
        run(rewritten, nested, stopped)
    with pytest.raises(TpuMagicsError) as caught:
        run(rewritten, two_phases, Listener(names=stopped.names), stopped.position)
    assert "other training loops" in caught.value.what


def test_resumable_only_iterates_outside_of_a_run() -> None:
    assert list(resumable([1, 2], epochs=2)) == [1, 2, 1, 2]


# -- local variables --------------------------------------------------------------------------------------------------


def observed(items: Iterable[Any], see: Callable[[FrameType], None]) -> Iterator[Any]:
    for item in items:
        see(sys._getframe(1))
        yield item


def test_only_what_is_read_again_is_live() -> None:
    seen = []

    def function() -> Any:
        total, constant, last = 0, 5, None
        for item in observed(range(3), lambda frame: seen.append(set(local_names.live(frame)))):
            temporary = item * constant
            total += temporary
            last = item
        return total, last

    assert function() == (15, 2)
    assert seen[-1] == {"total", "constant", "last"} | ({"seen"} & seen[-1])


def test_local_variables_are_set_from_outside() -> None:
    def change(frame: FrameType) -> None:
        if local_names.all_of(frame)["item"] == 1:
            local_names.assign(frame, {"total": 100})

    def function() -> int:
        total, item = 0, -1
        for item in observed(range(4), change):
            total += item
        return total

    assert function() == 105


def test_an_exceptions_handler_reads_its_names() -> None:
    seen: list[set[str]] = []

    def function() -> Any:
        step, kept = 0, "x"
        try:
            for step in observed(range(2), lambda frame: seen.append(set(local_names.live(frame)))):
                print("", end="")
        except ValueError:
            return kept
        return step

    assert function() == 1
    assert "kept" in seen[0] or sys.version_info < (3, 11)


# -- what differs -----------------------------------------------------------------------------------------------------


def test_differences_are_told_line_by_line() -> None:
    before = {"values": {"f: lr": "0.1", "n": "3"}, "code": {"f": "def f():\n    a = 1\n    return a"}}
    now = {"values": {"f: lr": "0.2", "m": "3"}, "code": {"f": "def f():\n    a = 2\n    return a"}}
    assert differences(before, now) == ["f: lr: 0.1 -> 0.2", "f: a = 1 -> a = 2"]
    assert differences(before, before) == []
