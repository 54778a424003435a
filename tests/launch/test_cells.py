"""A cell that was read becomes a run: the three forms and scripts, without a shell."""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import sys
import types
from pathlib import Path

import numpy
import pytest
import torch

from tests.launch.launching import FakeNotebook, digest, error_of, fake_notebook
from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.launch import session, train
from tpu_magics.launch.options import Options
from tpu_magics.launch.results import TrainResult
from tpu_magics.launch.work import fresh_logging

OPTIONS = Options(hoist="off", timeout=60.0)


@pytest.fixture
def notebook(fresh_session: session.Session, monkeypatch: pytest.MonkeyPatch) -> FakeNotebook:
    """Its names are those of `__main__`, as in a kernel: pickles look classes up there."""
    notebook = fake_notebook()
    module = types.ModuleType("__main__")
    notebook.names = vars(module)
    monkeypatch.setitem(sys.modules, "__main__", module)
    return notebook


def cell(text: str, *words: str, options: Options = OPTIONS) -> TrainResult | None:
    """Run a cell; its first line stands for the magic's own."""
    return train.train_cell(train.CellSource("\n" + text, "<cell>"), words, options)


# -- form 1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_the_last_function_is_trained_with_the_args(notebook: FakeNotebook) -> None:
    notebook.names["cfg"] = {"lr": 0.5}
    result = cell(
        "import os\nwhere = os.getpid()\ndef helper(): return where\ndef f(a, b, *, c=0): return helper(), a, b, c\n",
        "1 + 1",
        "cfg['lr']",
        "c=len('abc')",
    )
    assert result is not None and result.value == (os.getpid(), 2, 0.5, 3)
    assert notebook.names["where"] == os.getpid()  # statements before it ran in the notebook
    assert callable(notebook.names["f"]) and result.run.name == "f"


@pytest.mark.process
def test_models_are_known_by_the_text_of_their_arg(notebook: FakeNotebook) -> None:
    model = notebook.names["net"] = torch.nn.Linear(2, 2)
    notebook.names["many"] = [model]
    before = digest(model)
    text = "def f(m):\n    m.to('xla')\n    m.weight.data.fill_(4)\n"
    result = cell(text, "net")
    assert result is not None and list(result.models) == ["net"] and digest(model) != before
    result = cell(text, "many[0]")
    assert result is not None and list(result.models) == ["m"]


@pytest.mark.process
def test_the_line_of_a_failure_is_that_of_the_cell(notebook: FakeNotebook) -> None:
    with pytest.raises(TrainingFailed) as caught:
        cell("\ndef f():\n    x = 1\n    raise ValueError(x)\n")
    assert "<cell>, line 5, in f" in "\n".join(caught.value.details)


@pytest.mark.parametrize(
    ("text", "words", "word"),
    [
        ("def f(): pass", ["1"], "too many positional arguments"),
        ("def f(m): pass", ["nothing_of_this_name"], "NameError: name 'nothing_of_this_name'"),
        ("def f(m): pass", ["1 +"], "The ARG"),
        ("def f(m): pass", ["1/0"], "ZeroDivisionError"),
        ("def f(m): yield m", ["1"], "is a generator function"),
        ("def f(:", [], "The cell is not valid Python"),
        ("return 3", [], "The cell is not valid Python"),
        ("await f()\nreturn 3", [], "The cell is not valid Python"),
        ("x = 1\nawait f()", [], "call asyncio.run(main()) in its place"),
        ("async for x in f(): pass", [], "line 2. The kernel's event loop"),
        ("x = 1", ["1"], "This cell takes no ARGs, but got: 1"),
        ("import torch_xla\ntorch_xla.launch(print)", ["a=1"], "This cell takes no ARGs, but got: a"),
        ("", [], "is empty"),
        ("class A: pass", [], "has nothing to train"),
    ],
)
def test_bad_cells_are_refused(notebook: FakeNotebook, runs: Path, text: str, words: list[str], word: str) -> None:
    caught = error_of(cell, text, *words)
    assert word in str(caught), caught
    assert not runs.exists()


@pytest.mark.process
def test_a_coroutine_runs_in_a_worker(notebook: FakeNotebook) -> None:
    """What the error about `await` says to write."""
    cell("import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 7\nx = asyncio.run(main())")
    assert notebook.names["x"] == 7


# -- form 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_notebook_launcher_goes_through_us(notebook: FakeNotebook) -> None:
    result = cell(
        "from accelerate import notebook_launcher\n"
        "def f(a, b):\n    import os\n    return a + b, os.environ.get('ACCELERATE_MIXED_PRECISION')\n"
        "notebook_launcher(f, (1, 2), num_processes=3, mixed_precision='bf16')\n"
        "after = True\n"
    )
    assert result is not None and result.value == (3, "bf16")
    assert result.run.info["plan"]["precision"] == "bf16"
    assert notebook.names["after"] is True and train.INTERCEPT not in notebook.names
    asked = "The call requests 3 processes: 3 ranks are rehearsed on XLA:CPU (-n 1 trains with one)."
    assert asked in notebook.lines and result.values == [(3, "bf16")] * 3
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ


@pytest.mark.process
def test_spawn_and_launch_give_the_rank_first(notebook: FakeNotebook) -> None:
    for call in (
        "import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f, args=('x',), nprocs=1)",
        "import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f, args=('x',), start_method='fork')",
        "import torch_xla\nif __name__ == '__main__':\n    torch_xla.launch(f, args=('x',))",
        "import torch_xla\ntorch_xla.launch(f, args=('x',), debug_single_process=True)",
    ):
        result = cell("def f(index, a): return index, a\n" + call)
        assert result is not None and result.value == (0, "x"), call


def test_calls_with_wrong_arguments_are_refused(notebook: FakeNotebook) -> None:
    for call, word in (
        ("from accelerate import notebook_launcher\nnotebook_launcher(f, (1, 2, 3))", "too many positional arguments"),
        ("from accelerate import notebook_launcher\nnotebook_launcher(f, (1,), num_nodes=2)", "num_nodes=2"),
        ("import torch_xla\ntorch_xla.launch(f, args=(1, 2))", "after the process index"),
    ):
        caught = error_of(cell, "def f(a): return a\n" + call)
        assert word in str(caught), caught
        assert train.INTERCEPT not in notebook.names


def test_a_call_that_is_never_reached_trains_nothing(notebook: FakeNotebook, runs: Path) -> None:
    assert cell("import torch_xla\nif False:\n    torch_xla.launch(print)\n") is None
    assert not runs.exists()


# -- form 3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_name_that_the_notebook_assigned_during_a_background_run_is_kept(notebook: FakeNotebook) -> None:
    notebook.names["both"] = notebook.names["gone"] = 0
    text = "def more():\n    global counted\n    counted = 5\nboth = gone = 1\nmore()\nnew, taken = 2, 3"
    result = cell(text, options=dataclasses.replace(OPTIONS, background=True))
    assert result is not None
    notebook.names.update(both="mine", taken="mine")
    del notebook.names["gone"]
    result.wait()
    assert {name: notebook.names.get(name) for name in ("both", "gone", "new", "taken", "counted")} == {
        "both": "mine",
        "gone": None,
        "new": 2,
        "taken": "mine",
        "counted": 5,
    }
    assert result.left == dict.fromkeys(("both", "gone", "taken"), "changed in the notebook during the run")


@pytest.mark.process
def test_statements_run_in_the_worker_and_their_names_come_home(notebook: FakeNotebook) -> None:
    model = notebook.names["model"] = torch.nn.Linear(2, 2)
    notebook.names["old"] = [1]
    result = cell(
        "import os, math\n"
        "class Config:\n    width = 3\n"
        "def helper(x): return x * 2\n"
        "pid = os.getpid()\n"
        "config = Config()\n"
        "config.width = 8\n"
        "made = helper(4)\n"
        "old.append(2)\n"
        "kept = old\n"
        "model.to('xla')\n"
        "model.weight.data.fill_(3)\n"
        "loss = model.weight.sum()\n"
        "outs = [loss, {'a': loss}]\n"
        "alias = model\n"
        "m = math\n"
        "stuck = (i for i in range(3))\n"
        "class Late: pass\n"
        "late = Late()\n"
        "_private = 1\n"
    )
    names = notebook.names
    assert result is not None
    assert names["pid"] != os.getpid() and names["made"] == 8 and names["kept"] == [1, 2]
    assert names["config"].width == 8 and isinstance(names["config"], names["Config"])
    assert names["loss"].device.type == "cpu" and float(names["loss"].detach()) == 12.0
    assert names["outs"][1]["a"].device.type == "cpu" and float(names["outs"][1]["a"].detach()) == 12.0
    assert torch.equal(model.weight, torch.full((2, 2), 3.0)) and names["alias"] is model
    import math

    assert names["m"] is math
    assert set(result.left) == {"stuck"} and "generator" in result.left["stuck"]
    assert type(names["late"]).__name__ == "Late"
    assert "_private" not in names and "stuck" not in names
    told = "\n".join(notebook.lines)
    assert "stuck" in told and "late" not in told


@pytest.mark.process
def test_names_that_a_cell_deletes_are_deleted_in_the_notebook(notebook: FakeNotebook) -> None:
    notebook.names.update(gone=[1], again=1, error="as it was", kept=2)
    result = cell(
        "made = 1\ndel gone, again, made\nagain = 3\n"
        "try:\n    kept.nothing\nexcept AttributeError as error:\n    pass\n"
        "if not kept:\n    del kept\n"
    )
    assert result is not None and not result.left
    assert not {"gone", "made", "error"} & notebook.names.keys()
    assert (notebook.names["again"], notebook.names["kept"]) == (3, 2)


@pytest.mark.process
def test_a_helper_below_the_statements_does_not_make_them_the_notebooks(notebook: FakeNotebook) -> None:
    result = cell(
        "import os, torch, torch_xla\nnet = torch.nn.Linear(2, 1).to('xla')\n"
        "net(torch.ones(1, 2, device='xla')).sum().backward()\ntorch_xla.sync()\nwhere = os.getpid()\n"
        "def helper(): return 5\n"
    )
    assert result is not None and notebook.names["where"] != os.getpid() and notebook.names["helper"]() == 5
    assert "`helper`, which is defined at its end, is not called" in "".join(notebook.lines)
    with pytest.raises(TpuMagicsError, match="takes no ARGs"):
        cell("loss.backward()\ndef f(x): return x\n", "1")


@pytest.mark.process
def test_an_attribute_that_cannot_come_takes_no_object_with_it(notebook: FakeNotebook) -> None:
    cell(
        "import threading, torch\n"
        "class Job:\n    def __init__(self): self.net, self.lock = torch.nn.Linear(2, 1), threading.Lock()\n"
        "job = Job()\njob.steps = 3\n"
    )
    job = notebook.names["job"]
    assert job.steps == 3 and job.net.weight.shape == (1, 2) and not hasattr(job, "lock")
    assert "`job.lock` (a lock)" in "".join(notebook.lines)


@pytest.mark.process
def test_an_item_that_cannot_come_takes_no_container_with_it(notebook: FakeNotebook) -> None:
    result = cell(
        "import threading, torch\nfrom torch.nn.utils import parametrizations\n"
        "normed = parametrizations.weight_norm(torch.nn.Linear(2, 3))\n"
        "found = {4: {'loss': 0.5, 'lock': threading.Lock(), 'net': normed}, 'all': [1, threading.Lock(), 3]}\n"
        "seen = normed(torch.ones(1, 2)).tolist()\n"
        "ring = {'number': 1, 'lock': threading.Lock()}\nring['self'] = [ring]\n"
    )
    found, normed = notebook.names["found"], notebook.names["normed"]
    assert found[4]["loss"] == 0.5 and list(found[4]) == ["loss", "net"] and found["all"] == [1, None, 3]
    assert result is not None and notebook.names["ring"] == {"number": 1}
    assert set(result.left) == {"found[4]['lock']", "found['all'][1]", "ring['lock']", "ring['self']"}
    assert torch.allclose(normed(torch.ones(1, 2)), torch.tensor(notebook.names["seen"]))
    assert found[4]["net"] is normed and torch.nn.utils.parametrize.is_parametrized(normed)


@pytest.mark.process
def test_settings_of_the_process_come_home(notebook: FakeNotebook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = list(sys.path)
    with numpy.errstate():
        cell(
            "import sys, numpy\nsys.path.insert(0, '/to/mine')\nsys.path.append('/at/the/end')\n"
            "numpy.seterr(over='raise')\n"
        )
        assert sys.path == ["/to/mine", *before, "/at/the/end"]
        assert numpy.geterr()["over"] == "raise"


@pytest.mark.process
def test_an_iterator_that_is_used_up_has_its_line(notebook: FakeNotebook) -> None:
    """torch_xla hands what a rank raises through a generator, which makes a RuntimeError of it."""
    with pytest.raises(TrainingFailed) as caught:
        cell("batches = iter([1])\nnext(batches)\nbatch = next(batches)\n")
    text = " ".join(str(caught.value).split())
    assert text.startswith("Rank 0 raised StopIteration Why: It was raised at <cell>, line 4, in <module>.")
    assert "an iterator that has none left" in text


@pytest.mark.process
def test_the_last_expression_is_shown(notebook: FakeNotebook) -> None:
    cell("x = 20\nx + 1\n")
    assert notebook.printed.strip() == "21"
    notebook.shown.clear()
    cell("x = 20\nNone\n")
    assert notebook.printed == ""


@pytest.mark.process
def test_a_cell_that_fails_leaves_the_names_alone(notebook: FakeNotebook) -> None:
    notebook.names["x"] = "as it was"
    with pytest.raises(TrainingFailed):
        cell("x = 2\ny = 3\nraise ValueError('no')\n")
    assert notebook.names["x"] == "as it was" and "y" not in notebook.names


@pytest.mark.process
def test_steps_brings_no_names_home(notebook: FakeNotebook) -> None:
    options = Options(hoist="off", timeout=60.0, steps=1)
    text = "import torch, torch_xla\nx = 1\nt = torch.ones(2, device='xla') + 1\ntorch_xla.sync()\ny = 2\n"
    result = cell(text, options=options)
    assert result is not None and result.status == "stopped" and "x" not in notebook.names


# -- functions and scripts --------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_function_that_exists_is_trained_by_name(notebook: FakeNotebook) -> None:
    notebook.names["f"] = lambda a, b=1: (a, b)
    assert train.train_function(["f", "2", "b=3"], OPTIONS).value == (2, 3)
    with pytest.raises(TpuMagicsError, match="needs something to train"):
        train.train_function([], OPTIONS)
    with pytest.raises(TpuMagicsError, match="NameError"):
        train.train_function(["missing"], OPTIONS)
    notebook.names["n"] = 3
    with pytest.raises(TpuMagicsError, match="is not a function"):
        train.train_function(["n"], OPTIONS)


MP_FN = """
import sys
import argparse
def _mp_fn(index):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    print("rank", index, parser.parse_args().epochs, __name__, sys.argv[0])
    return index
"""
MAIN = """
import sys, neighbour
if __name__ == "__main__":
    print("main", sys.argv[1:], neighbour.NAME)
"""


@pytest.mark.process
def test_scripts(notebook: FakeNotebook, tmp_path: Path) -> None:
    (tmp_path / "mp.py").write_text(MP_FN)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "neighbour.py").write_text("NAME = 'found'")
    before, path = list(sys.argv), list(sys.path)
    result = train.train_function(["mp.py", "--epochs", "2"], OPTIONS)
    assert result.value == 0 and result.run.name == "mp"
    assert f"rank 0 2 mp {tmp_path}/mp.py" in notebook.printed
    train.train_function([str(tmp_path / "main.py"), "--lr", "0.1"], OPTIONS)
    assert "main ['--lr', '0.1'] found" in notebook.printed
    assert sys.argv == before and sys.path == path and "mp" not in sys.modules


LOGS = """
import logging
logging.getLogger("torch").debug("a library's logger stays")
logging.basicConfig(level="INFO", format="%(levelname)s:%(name)s:%(message)s")
logging.info("from the root")
own = logging.getLogger("of.the.notebook")
own.addHandler(logging.StreamHandler())
own.info("once and once")
"""


@pytest.mark.process
def test_a_script_finds_logging_as_a_new_python_has_it(notebook: FakeNotebook, tmp_path: Path) -> None:
    """The notebook's own set-up neither keeps basicConfig() from working nor shows lines twice; and it stays."""
    (tmp_path / "logs.py").write_text(LOGS)
    root, own = logging.getLogger(), logging.getLogger("of.the.notebook")
    handler = logging.StreamHandler(io.StringIO())
    level = root.level
    root.addHandler(handler)
    own.addHandler(handler)
    try:
        with fresh_logging():
            assert root.handlers == own.handlers == [] and root.level == logging.WARNING
        assert handler in root.handlers and own.handlers == [handler] and root.level == level
        train.train_function(["logs.py"], OPTIONS)
    finally:
        root.removeHandler(handler)
        own.removeHandler(handler)
    lines = [line for line in notebook.printed.splitlines() if "from the root" in line or "once" in line]
    assert lines == ["INFO:root:from the root", "once and once", "INFO:of.the.notebook:once and once"]


ARGUMENTS = """
import os, sys, torch
import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
def _mp_fn(index, flags):
    print("rank", index, flags)
if __name__ == "__main__":
    os.environ["OF_THE_SCRIPT"] = "1"
    torch.set_grad_enabled(False)
    torch.manual_seed(7)
    torch_xla.launch(_mp_fn, args=(sys.argv[1:],))
    xmp.spawn(_mp_fn, ("again",), nprocs=2)
"""


@pytest.mark.process
def test_a_script_launches_with_its_own_arguments(notebook: FakeNotebook, tmp_path: Path) -> None:
    """Nothing of it stays in the notebook."""
    (tmp_path / "own.py").write_text(ARGUMENTS)
    state = torch.get_rng_state()
    session.initialise(processes=2)
    train.train_function(["own.py", "--x"], OPTIONS)
    printed = [next(tmp_path.glob(f"runs/*/rank-{rank}.log")).read_text().splitlines() for rank in (0, 1)]
    assert printed == [[f"rank {rank} ['--x']", f"rank {rank} again"] for rank in (0, 1)]
    assert torch.is_grad_enabled() and "OF_THE_SCRIPT" not in os.environ and torch.equal(state, torch.get_rng_state())


@pytest.mark.process
def test_a_launch_in_a_rank_is_for_as_many(notebook: FakeNotebook, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(ARGUMENTS)
    with pytest.raises(TrainingFailed, match="nprocs=2, inside the function"):
        train.train_function(["own.py"], OPTIONS)


@pytest.mark.process
def test_a_script_that_fails_shows_its_line(notebook: FakeNotebook, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\ndef _mp_fn(index):\n    raise ValueError('here')\n")
    with pytest.raises(TrainingFailed) as caught:
        train.train_function(["bad.py"], OPTIONS)
    assert "bad.py, line 3, in _mp_fn" in str(caught.value)


def test_scripts_that_cannot_be_read(notebook: FakeNotebook, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    with pytest.raises(TpuMagicsError, match=r"bad\.py is not valid Python"):
        train.train_function(["bad.py"], OPTIONS)
    with pytest.raises(TpuMagicsError, match="cannot be read: No such file") as caught:
        train.train_function(["missing.py"], OPTIONS)
    assert str(tmp_path) in caught.value.why
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TpuMagicsError):
        train.train_function(["bytes.py"], OPTIONS)
