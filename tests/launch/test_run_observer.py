"""Who looks on while a run is watched: called at each tick, able to stop the run, and never able to break it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import tpu_magics
from tests.launch.launching import FakeNotebook, run, wait_until
from tpu_magics.launch import session
from tpu_magics.launch.notebook import RunObserver
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.reader import Run

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


class FakePanel:
    """An observer that notes what it is asked to do; `breaks` names a call that raises."""

    def __init__(self, files: RunFiles, stop: Callable[[], None], breaks: str = "") -> None:
        self.files, self.stop, self.breaks = files, stop, breaks
        self.looks = 0
        self.settled: list[str] = []
        self.closed: list[str] = []
        self.threads: set[str] = set()

    def look(self) -> None:
        self.looks += 1
        self.threads.add(threading.current_thread().name)
        self._break("look")

    def settle(self) -> None:
        self.settled.append(Run(self.files.path).status)
        self._break("settle")

    def close(self, why: str) -> None:
        self.closed.append(why)
        self._break("close")

    def _break(self, name: str) -> None:
        if name in self.breaks.split():
            raise ValueError(f"{name} is\nbroken")


class Watching(FakeNotebook):
    """A notebook with a panel."""

    def __init__(self, breaks: str = "") -> None:
        super().__init__()
        self.breaks = breaks
        self.panels: list[FakePanel] = []

    def panel(self, files: RunFiles, stop: Callable[[], None], background: bool) -> RunObserver:
        if self.breaks == "panel":
            raise ImportError("no widgets here")
        self.panels.append(FakePanel(files, stop, self.breaks))
        return self.panels[-1]


def watching(breaks: str = "") -> Watching:
    notebook = Watching(breaks)
    session.current.notebook = notebook
    return notebook


def short(seconds: float = 0.3) -> str:
    time.sleep(seconds)
    return "done"


def for_ever() -> None:
    time.sleep(1000)


def test_it_looks_at_each_tick_and_settles_when_all_is_home() -> None:
    notebook = watching()
    assert run(short).value == "done"
    [panel] = notebook.panels
    assert panel.looks >= 3 and panel.threads == {threading.main_thread().name}
    assert panel.settled == ["done"] and not panel.closed


def test_a_plain_run_is_not_looked_at() -> None:
    notebook = watching()
    run(short, plain=True)
    assert notebook.panels == []


def test_a_failed_run_is_settled_with_its_failure() -> None:
    notebook = watching()
    with pytest.raises(tpu_magics.TrainingFailed):
        run(int, "x")
    assert notebook.panels[0].settled == ["failed"]


def test_it_may_stop_the_run_from_any_thread() -> None:
    notebook = watching()

    def stop_it() -> None:
        wait_until(lambda: notebook.panels and notebook.panels[0].looks > 3)
        notebook.panels[0].stop()

    stopper = threading.Thread(target=stop_it)
    stopper.start()
    with pytest.raises(tpu_magics.TrainingInterrupted):
        run(for_ever)
    stopper.join()
    assert notebook.panels[0].settled == ["interrupted"]


def test_in_the_background_it_looks_from_the_watching_thread_and_settles_twice() -> None:
    notebook = watching()
    result = run(short, background=True)
    [panel] = notebook.panels
    assert wait_until(lambda: panel.settled == ["running"]), "it settles without any cell"
    result.wait()
    assert panel.settled == ["running", "done"] and panel.threads == {f"tpu_magics-watch-{result.run.name}"}


def test_it_can_begin_to_look_at_a_run_that_goes_on() -> None:
    notebook = watching()
    result = run(for_ever, background=True, plain=True)
    going = session.current.active_run
    assert going is not None and notebook.panels == []
    panel = FakePanel(going.folder, going.request_stop)
    going.set_observer(panel)
    assert wait_until(lambda: panel.looks > 3)
    panel.stop()
    with pytest.raises(tpu_magics.TrainingInterrupted):
        result.wait()
    assert panel.settled == ["running", "interrupted"]


def test_a_run_has_one_more_observer_which_may_break_too() -> None:
    """Also where there is no panel, and it stays when another panel takes over."""
    made: list[FakePanel] = []

    def observe(files: RunFiles) -> FakePanel:
        made.append(FakePanel(files, int))
        return made[-1]

    run(short, plain=True, observe=observe)
    assert made[0].looks >= 3 and made[0].settled == ["done"]
    result = run(for_ever, background=True, observe=observe)
    going = session.current.active_run
    assert going is not None
    panel = FakePanel(going.folder, going.request_stop)
    going.set_observer(panel)
    wait_until(lambda: panel.looks > 3)
    looks = made[1].looks
    assert wait_until(lambda: made[1].looks > looks)
    panel.stop()
    with pytest.raises(tpu_magics.TrainingInterrupted):
        result.wait()
    assert made[1].settled == panel.settled == ["running", "interrupted"]


@pytest.mark.parametrize("breaks", ["look", "make"])
def test_an_observer_besides_the_panel_that_breaks_is_told_by_its_name(breaks: str) -> None:
    notebook = watching()

    def observe(files: RunFiles) -> FakePanel:
        if breaks == "make":
            raise OSError("no disk")
        return FakePanel(files, int, breaks)

    assert run(short, observe=observe).value == "done"
    assert notebook.panels[0].settled == ["done"] and notebook.panels[0].closed == []
    [line] = [line for line in notebook.lines if "TensorBoard" in line]
    assert line.startswith("Writing for TensorBoard ") and "the run continues" in line


@pytest.mark.parametrize("breaks", ["look", "settle", "look close", "panel"])
@pytest.mark.parametrize("background", [False, True])
def test_one_that_breaks_leaves_the_run_alone_and_is_told_once(breaks: str, background: bool) -> None:
    notebook = watching(breaks)
    assert run(short, background=background).wait().value == "done"
    told = [line for line in notebook.lines if "panel" in line]
    name = breaks.split()[0]
    assert told == [
        "The panel could not be opened, the run continues: ImportError: no widgets here"
        if name == "panel"
        else f"The panel stopped because of an error, the run continues: ValueError: {name} is broken"
    ]
    for panel in notebook.panels:
        assert panel.closed == [f"ValueError: {name} is broken"]
        assert panel.looks == 1 or name != "look"


def test_without_a_panel_nothing_is_told() -> None:
    notebook: Any = FakeNotebook()
    session.current.notebook = notebook
    assert run(short).value == "done"
    assert notebook.lines == []
