"""What the JupyterLab extension asks between cells, what is refused, and the comm's life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.panel import recorded
from tpu_magics.magics import front_ends, lab
from tpu_magics.magics.lab_requests import MOST_CODE, check_notebook
from tpu_magics.panel.messages import ProblemMessage, ProfileMessage
from tpu_magics.panel.requests import CheckedCell
from tpu_magics.panel.run_state import SharedView

from .conftest import Kernels, loaded_anew
from .front import OURS, Front, comms
from .kernel import LOAD, OWN, Kernel, python
from .samples import MODEL, TRAIN

pytestmark = pytest.mark.process

PURGE = """
import sys
import tpu_magics.magics
for name in [name for name in sys.modules if name.startswith("tpu_magics.magics.lab")]:
    del sys.modules[name]
del tpu_magics.magics.lab
from tpu_magics.magics import lab
"""
BRANCH = """import torch_xla
def training(model, loader):
    for batch in loader:
        loss = model(batch).mean()
        loss.backward()
        if loss > 1:
            print("high")
        torch_xla.sync()
"""


@pytest.fixture
def notebook(kernels: Kernels, tmp_path: Path) -> Iterator[Kernel]:
    with loaded_anew(kernels(OWN), tmp_path) as kernel:
        yield kernel


def train(kernel: Kernel, name: str, options: str = "") -> None:
    kernel.run(MODEL + TRAIN).good()
    kernel.run(f"%tpu_train train model --run-name {name} --plain {options}").good()


# -- runs --------------------------------------------------------------------------------------------------------------


def test_earlier_runs_are_listed_opened_and_compared(notebook: Kernel) -> None:
    front = Front(notebook)
    assert front.ask("runs")["runs"] == []
    train(notebook, "first")
    notebook.run("%%tpu_train --plain --run-name second\nraise ValueError('no')")
    [second, first] = front.ask("runs")["runs"]
    assert (first["name"], first["status"], first["steps"]) == ("first", "done", 3)
    assert first["compiles"] >= 1 and first["recompiles"] == 0 and first["curve"] == []
    assert (second["name"], second["status"], first["workers"]) == ("second", "failed", 1)
    assert 0 < first["seconds"] < 60 and first["created"] <= second["created"]
    opened = front.ask("open", run=first["id"])
    assert opened["seq"] == 0 and opened["record"]["state"] == "done"
    for name in ("current", "last"):
        assert front.ask("open", run=name)["record"]["name"] == "second"
    compared = front.ask("compare", runs=[first["id"], second["id"]])
    assert compared["runs"] == [first["id"], second["id"]]
    told = compared["comparison"]
    assert told["runs"] == ["first", "second"]
    assert told["different"][0] == {"label": "status", "cells": ["done", "failed"]}
    assert "ranks" in [row["label"] for row in told["equal"]] and len(told["charts"]) == 2
    assert set(told) == {"title", "runs", "different", "equal", "charts", "notes"}


def test_an_open_kernel_finds_its_run_from_another_folder(notebook: Kernel, tmp_path: Path) -> None:
    train(notebook, "here")
    front = Front(notebook)
    run = front.ask("open", run="current")["record"]["id"]
    (tmp_path / "elsewhere").mkdir()
    notebook.run(f"import os; os.chdir({str(tmp_path / 'elsewhere')!r})").good()
    assert front.ask("open", run=run)["record"]["id"] == run
    assert front.ask("runs")["runs"] == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"type": "nonsense"}, "`type` is 'nonsense'"),
        ({"type": None}, "`type` is None"),
        ({"type": ["open"]}, "`type` is ['open']"),
        ({"type": "open"}, "`run` is None; it should be a text of at most 200 characters."),
        ({"type": "open", "run": "nowhere"}, "There is no run yet."),
        ({"type": "open", "run": "../../etc"}, "There is no run yet."),
        ({"type": "open", "run": "x" * 100_000}, "it should be a text of at most 200 characters"),
        ({"type": "compare", "runs": ["x" * 100_000, "y"]}, "the ids of two runs"),
        ({"type": "check", "cells": [{"id": "x" * 1_000, "source": ""}]}, "a text of at most 200 characters"),
        ({"type": "x" * 100_000}, "`type` is 'xxx"),
        ({"type": "stop", "run": "nowhere"}, "This kernel cannot stop the run 'nowhere'."),
        ({"type": "compare", "runs": ["a"]}, "`runs` is ['a']"),
        ({"type": "compare", "runs": [1, 2]}, "the ids of two runs"),
        ({"type": "rate", "seconds": 0.01}, "a number from 0.1 to 10"),
        ({"type": "rate", "seconds": True}, "a number from 0.1 to 10"),
        ({"type": "rate", "seconds": "nan"}, "a number from 0.1 to 10"),
        ({"type": "check", "cells": "x"}, "a list of at most"),
        ({"type": "check", "cells": [{"id": "a"}]}, "`cells.source` is None"),
        ({"type": "check", "cells": [{"id": "a", "source": "", "number": "1"}]}, "`cells.number` is '1'"),
        ({"type": "hello", "v": 2}, "(kernel 1, extension 2)"),
        ({"type": "hello", "request": 5}, "`request` is 5"),
    ],
)
def test_what_cannot_be_done_is_told(notebook: Kernel, fields: dict[str, Any], told: str) -> None:
    front = Front(notebook)
    before = len(front.told())
    data = {"protocol": OURS, "v": 1, "request": "mine", **fields}
    front._send("comm_msg", {"comm_id": front.comm, "data": data}, {})
    notebook.wait_until(lambda: len(front.told()) > before)
    problem = front.told()[-1]
    assert problem["type"] == "problem" and set(problem) >= {"what", "why", "todo", "request"}
    assert told in f"{problem['what']} {problem['why']}"
    assert "x" * 200 not in str(problem), "an answer repeats little of what was asked"
    assert problem["request"] == (None if fields.get("request") == 5 else "mine")


def test_what_is_not_ours_is_let_be(notebook: Kernel) -> None:
    front = Front(notebook)
    for data in ({}, {"protocol": "other", "v": 1, "type": "hello"}, {"method": "update", "state": {}}):
        front._send("comm_msg", {"comm_id": front.comm, "data": data}, {})
    assert notebook.run("print('well')").good().printed == "well\n"
    assert {one["type"] for one in front.told()} == {"hello"}


# -- rules -------------------------------------------------------------------------------------------------------------


def test_a_notebook_is_checked_and_findings_name_their_cells(notebook: Kernel) -> None:
    front = Front(notebook)
    cells = [
        {"id": "one", "number": 3, "source": "import torch\n%matplotlib inline\n"},
        {"id": "two", "number": None, "source": BRANCH},
        {"id": "three", "number": 7, "source": BRANCH.replace("training", "another")},
        {"id": "four", "number": None, "source": "this is not python"},
    ]
    answer = front.ask("check", cells=cells)
    assert answer["checked"] == "4 cells of the notebook" and answer["type"] == "findings"
    found = {(one["site"]["cell_id"], one["site"]["path"], one["title"][:6]): one for one in answer["findings"]}
    one = found["two", "cell 2", "TPU101"]
    assert (one["site"]["line"], one["site"]["code"], one["tone"]) == (6, "if loss > 1:", "warning")
    assert one["kind"] == "rule" and one["text"] and one["fix"] and one["badge"].startswith("TPU101 ")
    assert ("three", "In [7]", "TPU101") in found
    assert len({one["site"]["id"] for one in answer["findings"]}) == len(answer["findings"])


def test_a_check_is_limited_to_what_takes_a_second() -> None:
    line = "x = [one + 1 for one in range(10)]\n"
    cells = [CheckedCell(f"c{at}", at, line * 100) for at in range(500)]
    found, checked = check_notebook(cells)
    many = MOST_CODE // len(line * 100)
    assert found == [] and checked == f"the first {many} of 500 cells; %tpu_check checks all"
    assert check_notebook(cells[:many])[1] == f"{many} cells of the notebook"


def test_what_the_magic_finds_is_told_too(notebook: Kernel) -> None:
    front = Front(notebook)
    front.greets()
    notebook.run(f"%%tpu_check\n{BRANCH}").good()
    notebook.wait_until(lambda: bool(front.told("findings")))
    [answer] = front.told("findings")
    assert answer["request"] is None and answer["checked"] == "this cell (it was not run)"
    [found] = [one for one in answer["findings"] if one["title"].startswith("TPU101 ")]
    assert found["site"]["line"] == 7 and found["site"]["path"].startswith("In [")


# -- the comm's life ---------------------------------------------------------------------------------------------------


def test_loading_again_opens_another_and_closes_the_first(notebook: Kernel) -> None:
    notebook.run("import tpu_magics; tpu_magics.load_ipython_extension(get_ipython())").good()
    notebook.run("%reload_ext tpu_magics").good()
    notebook.run("1").good()
    opened = comms(notebook)
    closed = [one["content"]["comm_id"] for one in notebook.messages if one["msg_type"] == "comm_close"]
    assert len(opened) == 3 and closed == opened[:2]
    assert Front(notebook).greets()["type"] == "hello"


def test_unloading_closes_it(notebook: Kernel) -> None:
    front = Front(notebook)
    front.greets()
    notebook.run("%unload_ext tpu_magics").good()
    notebook.run("1").good()
    assert [one["content"]["comm_id"] for one in notebook.messages if one["msg_type"] == "comm_close"] == [front.comm]
    left = "[c for c in get_ipython().kernel.comm_manager.comms.values() if c.target_name == 'tpu_magics']"
    assert notebook.value(f"({left}, 'tpu_magics' in get_ipython().kernel.comm_manager.targets)") == ([], False)
    notebook.run(LOAD).good()
    assert Front(notebook).greets()["type"] == "hello"


def test_reloaded_modules_leave_no_comm_of_the_old_ones(notebook: Kernel) -> None:
    notebook.run(PURGE).good()
    notebook.run("lab.load(get_ipython())").good()
    notebook.run("1").good()
    closed = [one["content"]["comm_id"] for one in notebook.messages if one["msg_type"] == "comm_close"]
    assert closed == comms(notebook)[:1]
    assert Front(notebook).greets()["type"] == "hello"
    notebook.run("lab.unload(get_ipython())").good()
    notebook.restart()
    notebook.run(LOAD).good()


def test_many_pages_one_after_the_other(notebook: Kernel) -> None:
    pages = [Front(notebook).opens() for _ in range(10)]
    assert pages[-1].greets()["type"] == "hello"
    closed = [one["content"]["comm_id"] for one in notebook.messages if one["msg_type"] == "comm_close"]
    assert closed == [page.comm for page in pages[:2]]
    assert pages[2].greets()["type"] == "hello"


def test_a_kernel_that_cannot_send_trains_all_the_same(notebook: Kernel) -> None:
    front = Front(notebook)
    front.greets()
    break_it = """
_kept = get_ipython().kernel.session.send
def _fails(stream, kind, *args, **more):
    if kind == "comm_msg" and more.get("ident", b"").startswith(b"comm-"):
        raise OSError("the line is cut")
    return _kept(stream, kind, *args, **more)
get_ipython().kernel.session.send = _fails
"""
    notebook.run(break_it + MODEL + TRAIN).good()
    cell = notebook.run("%tpu_train train model 3 --plain").good()
    notebook.run("get_ipython().kernel.session.send = _kept").good()
    assert cell.printed.startswith("status: done") and "cut" not in cell.printed
    assert front.ask("open", run="current")["record"]["state"] == "done"


def test_without_a_kernel_there_is_no_comm(tmp_path: Path) -> None:
    program = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for line in ("load_ext", "reload_ext", "unload_ext", "load_ext"):
    shell.run_line_magic(line, "tpu_magics")
from tpu_magics.magics import lab, front_ends
print(lab.current, front_ends.following())
"""
    assert python(program, tmp_path).strip() == "None None"


# -- without a kernel --------------------------------------------------------------------------------------------------


class Desk:
    """A Lab whose clock is the test's, with front ends that have a comm each."""

    def __init__(self, *comms: str) -> None:
        self.now, self.sent = 0.0, []
        manager = SimpleNamespace(targets={}, comms={}, register_comm=lambda wire: None)
        session = SimpleNamespace(send=lambda socket, kind, content, ident: self.sent.append(content))
        self.lab = lab.Lab(SimpleNamespace(comm_manager=manager, session=session, iopub_socket=None), lambda: self.now)
        for comm in comms:
            self.lab.adopt(comm, {})

    sent: list[dict[str, Any]]

    def says(self, comm: str, kind: str, **fields: Any) -> dict[str, Any]:
        """The answer, as far as there is one."""
        self.sent.clear()
        assert self.lab.take(comm, {"protocol": OURS, "v": 1, "type": kind, "request": "mine", **fields})
        return self.sent[-1]["data"] if self.sent else {}

    def told(self) -> list[str]:
        """The comms on which something is told."""
        self.sent.clear()
        self.lab.tell(ProblemMessage("What", "why", "to do", None))
        return [content["comm_id"] for content in self.sent]


def test_the_fastest_wish_told_lately_holds() -> None:
    desk = Desk("one", "two")
    assert desk.lab.every == lab.RATE
    desk.says("one", "rate", seconds=2.0)
    desk.says("two", "rate", seconds=0.2)
    assert desk.lab.every == 0.2
    desk.now += lab.LATELY + 1
    desk.says("one", "rate", seconds=5.0)
    assert desk.lab.every == 5.0
    desk.now += lab.LATELY + 1
    assert desk.lab.every == 5.0


def test_what_a_page_missed_is_told_when_it_is_heard() -> None:
    """The newest of each type."""
    desk = Desk("page")
    desk.lab._wires["page"].heard = None  # as after "Run All"
    desk.sent.clear()
    for what in ("first", "newest"):
        desk.lab.tell_or_keep(ProblemMessage(what, "why", "to do", None))
    desk.lab.tell_or_keep(ProfileMessage((), "train"))
    assert desk.sent == []
    desk.says("page", "rate", seconds=2.0)
    assert [content["data"].get("what", content["data"]["type"]) for content in desk.sent] == ["newest", "profile"]
    desk.sent.clear()
    desk.lab.tell_or_keep(ProfileMessage((), "train"))
    assert len(desk.sent) == 1 and desk.says("page", "rate", seconds=2.0) == {}


def test_a_front_end_that_wants_a_slower_rate_gets_it() -> None:
    desk = Desk("one")
    desk.says("one", "rate", seconds=0.2)
    desk.says("one", "rate", seconds=5.0)
    assert desk.lab.every == 5.0


@pytest.mark.parametrize("hears", [True, False])
def test_a_closed_page_is_not_told_for_ever(monkeypatch: pytest.MonkeyPatch, hears: bool) -> None:
    """As long as the kernel hears it: where it does not, an open page's silence says nothing."""
    desk = Desk("open", "closed")
    live = SimpleNamespace(live=True, hears=hears, answers=hears, files=SimpleNamespace(id="run"))
    monkeypatch.setattr(front_ends, "_newest", live)
    assert desk.told() == ["open", "closed"]
    for _ in range(6):
        desk.now += lab.SILENT / 5
        desk.says("open", "rate", seconds=1.0)
    assert desk.told() == (["open"] if hears else ["open", "closed"])
    desk.now += lab.SILENT + 1
    assert desk.lab.heard is not hears
    desk.says("closed", "rate", seconds=1.0)
    assert "closed" in desk.told(), "it was only asleep"


def test_a_run_that_is_followed_no_longer_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = recorded.running(tmp_path), []
    followed = front_ends.LabRun(run.files, lambda: asked.append(1), SharedView(run.files), True)
    monkeypatch.setattr(front_ends, "_newest", followed)
    followed.close("ValueError: no such part")
    desk = Desk("page")
    assert desk.says("page", "stop", run=run.files.id)["type"] == "stopping" and asked == [1]
    run.update(status="interrupted", seconds=60.0)
    assert desk.says("page", "stop", run=run.files.id)["what"].endswith("has ended already.")
