"""The three ways to write a cell, `%tpu_train FUNCTION` and `%tpu_train script.py`, in a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import overlay

from .kernel import Kernel
from .samples import MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process


@pytest.fixture
def notebook(kernel: Kernel) -> Kernel:
    """A notebook with a model and a function that trains it."""
    kernel.run(MODEL + TRAIN).good()
    return kernel


# -- form 1 -----------------------------------------------------------------------------------------------------------


def test_a_model_that_the_cell_builds_is_named(kernel: Kernel) -> None:
    cell = kernel.run("%%tpu_train\nimport torch\nfor _ in range(1):\n    net = torch.nn.Linear(2, 2)").good()
    assert "cell: done; set in the notebook: net\n" in cell.printed
    assert kernel.value("(_tpu.made, str(net.weight.device))") == (["net"], "cpu")


@pytest.mark.smoke
def test_the_last_function_is_trained_and_statements_before_it_run_here(notebook: Kernel) -> None:
    cell = notebook.run(
        """%%tpu_train model 5
import os
here = os.getpid()
print("in the notebook")
def helper():
    return 1
def training_function(model, steps):
    print("in a worker:", os.getpid() != here)
    return train(model, steps)
"""
    ).good()
    assert cell.printed.startswith("in the notebook\nin a worker: True\n")
    assert "tpu_magics: training_function: done; updated in the notebook: model\n" in cell.printed
    assert cell.printed.endswith("; updated in the notebook: model\n")
    assert notebook.value(TRAINED) and notebook.value("str(model.weight.device)") == "cpu"
    assert notebook.value("(_tpu.value > 0, len(_tpu.values), _tpu.steps, list(_tpu.models))") == (
        True,
        1,
        5,
        ["model"],
    )
    assert notebook.value("callable(training_function) and helper()") == 1


def test_weights_are_those_of_the_same_training_on_the_cpu(notebook: Kernel) -> None:
    """The worker's result against the same steps done here by hand, on the CPU."""
    notebook.run(
        """
import copy
twin = copy.deepcopy(model)
optimizer = torch.optim.SGD(twin.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    twin(torch.ones(4, 8)).pow(2).mean().backward()
    optimizer.step()
del optimizer
"""
    ).good()
    notebook.run("%tpu_train train model").good()
    assert notebook.value("torch.allclose(model.weight, twin.weight, atol=1e-6)")


def test_args_are_expressions_of_the_notebook(notebook: Kernel) -> None:
    notebook.run("class cfg: lr = 0.5\nrows = [1, 2]").good()
    notebook.run(
        """%%tpu_train model 16 "cfg.lr * 2" rows[1] [1, 2] {"lr": 1} "'a text'" flag=True both={1,2} w="'b c'" t=(1, 2)
def given(*args, **kwargs):
    return args[1:], kwargs
"""
    ).good()
    args = (16, 1.0, 2, [1, 2], {"lr": 1}, "a text")
    kwargs = {"flag": True, "both": {1, 2}, "w": "b c", "t": (1, 2)}
    assert notebook.value("_tpu.value") == (args, kwargs)


def test_decorated_and_default_arguments(notebook: Kernel) -> None:
    notebook.run(
        """%%tpu_train model
import functools
def twice(f):
    @functools.wraps(f)
    def inner(*args):
        return [f(*args), f(*args)]
    return inner
@twice
def decorated(model, steps=2):
    train(model, steps)
    return steps
"""
    ).good()
    assert notebook.value("_tpu.value") == [2, 2] and notebook.value("_tpu.steps") == 4
    assert notebook.value(TRAINED)


def test_magic_lines_in_the_cell_and_in_the_function(notebook: Kernel) -> None:
    cell = notebook.run(
        f"""%%tpu_train
!echo from the notebook
listed = {overlay.output_of("echo kept")}
%env TPU_MAGICS_TEST=here
def commands():
    import os
    !echo from the worker
    inner = {overlay.output_of("echo caught")}
    %time x = 1
    return inner[0], os.environ["TPU_MAGICS_TEST"]
"""
    ).good()
    told = [cell.printed.index(text) for text in ("from the notebook", "from the worker", "Wall time")]
    assert told == sorted(told)
    assert notebook.value("_tpu.value") == ("caught", "here") and notebook.value("list(listed)") == ["kept"]


def test_steps_stops_cleanly_with_the_models_as_they_were(notebook: Kernel) -> None:
    cell = notebook.run("%tpu_train train model 50 --steps 2").good()
    assert "train: stopped" in cell.printed and "the notebook's models are unchanged" in cell.printed
    assert notebook.value(f"(_tpu.steps, _tpu.status, _tpu.value, {TRAINED})") == (2, "stopped", None, False)


def test_plain_ends_with_a_summary_that_is_the_same_each_time(notebook: Kernel) -> None:
    told = [notebook.run("%tpu_train train model --plain").good().printed for _ in range(2)]
    assert told == ["status: done\nranks: 1\nsteps: 3\ncompiles: 1\nrecompiles: 0\nvalues: none\nmodels: model\n"] * 2


# -- form 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_notebook_launcher_with_statements_around_it(notebook: Kernel) -> None:
    cell = notebook.run(
        """%%tpu_train
from accelerate import notebook_launcher
print("before")
def main(net, steps):
    print("training")
    return train(net, steps)
notebook_launcher(main, (model, 4), num_processes=8, mixed_precision="no")
print("after", _tpu.steps)
6 * 7
"""
    ).good()
    assert [line for line in cell.printed.splitlines() if not line.startswith("tpu_magics")] == [
        "before",
        "training",
        "after 4",
    ]
    asked = "The call requests 8 processes: 8 ranks are rehearsed on XLA:CPU (-n 1 trains with one)."
    assert asked in cell.printed and notebook.value("len(_tpu.values)") == 8
    assert "updated in the notebook: model" in cell.printed
    assert [output.text for output in cell.of("execute_result")] == ["42"]
    assert notebook.value(TRAINED)


@pytest.mark.parametrize(
    ("earlier", "call"),
    [
        ("import torch_xla.distributed.xla_multiprocessing as xmp", "xmp.spawn(main, args=(model,), nprocs=None)"),
        ("import torch_xla.distributed.xla_multiprocessing as fork", "fork.spawn(main, (model,), start_method='fork')"),
        ("from torch_xla.distributed.xla_multiprocessing import spawn as go", "go(main, args=[model])"),
        ("import torch_xla as px", "px.launch(main, args=(model,))"),
        ("from torch_xla import launch", "result = launch(main, args=(model,), debug_single_process=True)"),
    ],
)
def test_torch_xlas_launchers_under_any_name(notebook: Kernel, earlier: str, call: str) -> None:
    """They give the index first, and are found under aliases from an earlier cell, and below the usual `if`."""
    notebook.run(earlier).good()
    cell = notebook.run(
        f"""%%tpu_train
def main(index, model):
    print("index", index)
    train(model)
if __name__ == "__main__":
    {call}
"""
    ).good()
    assert cell.printed.startswith("index 0\n")
    assert notebook.value(f"({TRAINED}, list(_tpu.models))") == (True, ["model"])


def test_a_model_that_the_function_builds_is_not_the_notebooks(notebook: Kernel) -> None:
    """It has the same name, and the notebook's own stays as it is."""
    notebook.run("before = model.weight.detach().clone()").good()
    cell = notebook.run(
        """%%tpu_train
def own():
    model = torch.nn.Linear(8, 2)
    train(model)
"""
    ).good()
    assert "updated in the notebook: the function's own model (_tpu.models['model'])" in cell.printed
    assert notebook.value("torch.equal(before, model.weight) and _tpu.models['model'] is not model")


def test_two_launches_in_one_cell(notebook: Kernel) -> None:
    cell = notebook.run(
        """%%tpu_train
from accelerate import notebook_launcher as go
go(train, (model,))
first = _tpu
try:
    go(train, args=(model, 1))
finally:
    print("both done")
"""
    ).good()
    assert notebook.value("(first.steps, _tpu.steps)") == (3, 1) and "both done" in cell.printed


def test_args_have_no_place_beside_a_launcher_or_plain_statements(notebook: Kernel) -> None:
    cell = notebook.run(
        "%%tpu_train model\nfrom accelerate import notebook_launcher\nnotebook_launcher(train, (model,))"
    )
    assert (
        "This cell takes no ARGs, but got: model" in cell.error and "the arguments of that call are used" in cell.error
    )
    cell = notebook.run("%%tpu_train model\nx = 1")
    assert "no function below them that it would" in cell.error


# -- form 3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_plain_statements_bring_their_names_home(notebook: Kernel) -> None:
    cell = notebook.run(
        """%%tpu_train
import math, os
class Point:
    def __init__(self, x):
        self.x = x
def double(x):
    return 2 * x
loss = train(model)
on_device = torch.full((2,), 3.0, device="xla")
nested = {"outputs": [on_device + 1], "n": 5}
point = Point(4)
pid = os.getpid()
import statistics as st
same = model
{"loss is": loss > 0}
"""
    ).good()
    assert [data["text/plain"] for data in cell.displays] == ["{'loss is': True}"]
    assert notebook.value("(on_device.tolist(), str(on_device.device), nested['outputs'][0].tolist())") == (
        [3.0, 3.0],
        "cpu",
        [4.0, 4.0],
    )
    assert notebook.value("(point.x, double(2), math.floor(1.5), st.mean([1, 3]), same is model)") == (4, 4, 1, 2, True)
    assert notebook.value("pid != os.getpid() and loss > 0")
    assert notebook.value(TRAINED)


def test_what_cannot_travel_is_named_and_the_rest_comes_home(notebook: Kernel) -> None:
    cell = notebook.run(
        """%%tpu_train
x = 1
callback = lambda: 1
file = open("/dev/null")
class Late: pass
late = Late()
y = 2
"""
    ).good()
    [told] = [line for line in cell.printed.splitlines() if "Not updated in the notebook" in line]
    assert [name in told for name in ("`callback`", "`file`", "`late`", "`x`")] == [False, True, False, False]
    assert list(notebook.value("_tpu.left")) == ["file"]
    assert notebook.value("(x, y, callback(), isinstance(late, Late))") == (1, 2, 1, True)
    assert notebook.run("file").error_type == "NameError"


def test_a_failed_cell_changes_no_name(notebook: Kernel) -> None:
    notebook.run("x = 'old'").good()
    cell = notebook.run("%%tpu_train\nx = 'new'\nloss = train(model)\n1 / 0")
    assert "ZeroDivisionError" in cell.error
    assert notebook.value(f"(x, 'loss' in globals(), {TRAINED})") == ("old", False, False)


# -- functions and scripts --------------------------------------------------------------------------------------------


def test_a_function_that_exists_already(notebook: Kernel) -> None:
    notebook.run("import functools\nbound = functools.partial(train, steps=2)").good()
    cell = notebook.run("%tpu_train train model 2 lr=0.5 -o first").good()
    assert "train: done" in cell.printed and notebook.value("first.steps") == 2
    notebook.run("%tpu_train bound model").good()
    assert notebook.value("_tpu.steps") == 2
    notebook.run('%tpu_train "lambda m: train(m, 1)" model').good()
    assert notebook.value("_tpu.steps") == 1


def test_a_script_with_mp_fn(notebook: Kernel, tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside.py").write_text("VALUE = 7\n")
    (folder / "script.py").write_text(
        """
import sys
import beside
def _mp_fn(index):
    import torch_xla
    print("index", index, torch_xla.device(), sys.argv[1:])
    return beside.VALUE
if __name__ == "__main__":
    print("never")
"""
    )
    before = notebook.value("(__import__('sys').argv, __import__('sys').path)")
    notebook.run("epochs = 2; words = 'two words'").good()
    cell = notebook.run('%tpu_train --run-name scripted scripts/script.py --epochs {epochs} -n 4 "$words" {1:2}').good()
    assert cell.printed.startswith("index 0 xla:0 ['--epochs', '2', '-n', '4', 'two words', '{1:2}']\n")
    assert "scripted: done" in cell.printed and notebook.value("_tpu.value") == 7
    assert notebook.value("(__import__('sys').argv, __import__('sys').path)") == before


def test_a_script_without_mp_fn_runs_as_main(notebook: Kernel, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
print(__name__, parser.parse_args().epochs)
"""
    )
    assert notebook.run("%tpu_train main.py --epochs 2").good().printed.startswith("__main__ 2\n")
    (tmp_path / "main.py").write_text("def f():\n    return [][1]\n\nf()\n")
    cell = notebook.run("%tpu_train main.py")
    assert "IndexError" in cell.error and "main.py, line 2, in f" in cell.error and "runpy" not in cell.error


def test_exit_and_quit_end_the_function_as_in_a_script(notebook: Kernel, tmp_path: Path) -> None:
    cell = notebook.run("%%tpu_train\ndef leaves():\n    exit()\n    print('went on')\n")
    assert "called sys.exit(" in cell.said and "went on" not in cell.printed
    cell = notebook.run("%%tpu_train\nprint('here')\nquit(3)\nprint('went on')\n")
    assert "called sys.exit(3)" in cell.said and "went on" not in cell.printed
    (tmp_path / "main.py").write_text("print('here')\nquit(4)\nprint('went on')\n")
    cell = notebook.run("%tpu_train main.py")
    assert "called sys.exit(4)" in cell.said and cell.printed.startswith("here\n") and "went on" not in cell.printed


# -- safe to fork -----------------------------------------------------------------------------------------------------


def test_cpu_work_of_all_kinds_before_the_fork(notebook: Kernel) -> None:
    """A matmul, a forward pass, a whole training loop with backward(): each starts thread pools that a fork loses."""
    notebook.run(
        """
big = torch.randn(1000, 1000) @ torch.randn(1000, 1000)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(3):
    net(torch.randn(128, 64)).sum().backward()
    optimizer.step()
del optimizer
"""
    ).good()
    for _ in range(2):
        notebook.run(
            """%%tpu_train model
def training_function(model):
    import psutil
    me = psutil.Process()
    torch.randn(1000, 1000) @ torch.randn(1000, 1000)
    before = {thread.id: thread.user_time for thread in me.threads()}
    for _ in range(20):
        torch.randn(1000, 1000) @ torch.randn(1000, 1000)
    worked = [t.id for t in me.threads() if t.user_time - before.get(t.id, 0) > 0.05]
    train(model)
    return torch.get_num_threads(), len(worked)
"""
        ).good()
        threads = notebook.value("torch.get_num_threads()")
        assert notebook.value("_tpu.value[0]") == threads
        assert notebook.value("_tpu.value[1]") >= threads, "not all cores were at work"
        assert notebook.value(TRAINED)


# -- the same checks on every road -----------------------------------------------------------------------------------

# Each rank trains a model of its own on all of the data: what is wrong with it does not depend on how it is started.
DATA = """
import torch, torch_xla, tpu_magics
import torch_xla.distributed.xla_multiprocessing as xmp
from torch.utils.data import DataLoader, TensorDataset
import torch_xla.runtime as xr
data = TensorDataset(torch.ones(8, 8), torch.ones(8, 2))
"""
BUILT = """model = torch.nn.Linear(8, 2)
loader = DataLoader(data, batch_size=4)
"""
ALONE = """device = torch_xla.device()
model = model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
for x, y in loader:
    torch.nn.functional.mse_loss(model(x.to(device)) * (1 + xr.global_ordinal()), y.to(device)).backward()
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
"""


def _function(head: str, body: str) -> str:
    return head + "".join(f"    {line}\n" for line in body.splitlines())


ROADS = {
    "function": (DATA + BUILT, lambda body: "%%tpu_train model -n 2\n" + _function("def f(model):\n", body)),
    "loader as argument": (
        DATA + BUILT,
        lambda body: "%%tpu_train model loader -n 2\n" + _function("def f(model, loader):\n", body),
    ),
    "builds its model": (DATA, lambda body: "%%tpu_train -n 2\n" + _function("def f():\n", BUILT + body)),
    "statements": (DATA + BUILT, lambda body: "%%tpu_train -n 2\n" + body),
    "magic on a line": (DATA + BUILT, lambda body: _function("def f(model):\n", body) + "%tpu_train f model -n 2\n"),
    "train()": (
        DATA + BUILT,
        lambda body: _function("def f(model):\n", body) + "result = tpu_magics.train(f, model, processes=2)\n",
    ),
    "xmp.spawn": (
        DATA + BUILT,
        lambda body: "%%tpu_train -n 2\n" + _function("def f(index, model):\n", body) + "xmp.spawn(f, args=(model,))\n",
    ),
    "notebook_launcher": (
        DATA + "from accelerate import notebook_launcher\n" + BUILT,
        lambda body: "%%tpu_train\n" + _function("def f(model):\n", body) + "notebook_launcher(f, (model,), 2)\n",
    ),
    "script": ("", lambda body: f"open('s.py', 'w').write({DATA + BUILT + body!r});\n%tpu_train -n 2 s.py\n"),
    "script with main": (
        "",
        lambda body: (
            f"open('s.py', 'w').write({DATA + _function('def main():', chr(10) + BUILT + body) + 'main()'!r});\n"
            "%tpu_train -n 2 s.py\n"
        ),
    ),
    "script with _mp_fn": (
        "",
        lambda body: (
            f"open('s.py', 'w').write({DATA + _function('def _mp_fn(index):', chr(10) + BUILT + body)!r});\n"
            "%tpu_train -n 2 s.py\n"
        ),
    ),
}


@pytest.mark.parametrize("road", ROADS)
def test_what_is_wrong_is_found_on_every_road(kernel: Kernel, road: str) -> None:
    before, cell = ROADS[road]
    kernel.run(before).good()
    said = " ".join(kernel.run(cell(ALONE.format(rate=0.1))).good().printed.split())
    assert "Some ranks ended with different weights than rank 0" in said and "(rank 1)" in said
    found = "sorted({one.code for one in _tpu.run.events('finding')} & {'TPU405', 'TPU407'})"
    assert kernel.value(found.replace("_tpu", "result") if road == "train()" else found) == ["TPU405", "TPU407"]


@pytest.mark.parametrize("road", ["function", "script"])
def test_weights_that_are_not_finite_are_told_on_every_road(kernel: Kernel, road: str) -> None:
    before, cell = ROADS[road]
    kernel.run(before).good()
    done = kernel.run(cell(ALONE.format(rate="float('inf')")).replace("-n 2", "")).good()
    assert "The trained weights are not finite" in done.printed


def test_a_script_that_exits_with_0_is_done(kernel: Kernel) -> None:
    for code, text in (("0", "done"), ("None", "done"), ("3", "failed")):
        cell = kernel.run(f"open('s.py', 'w').write('import sys\\nsys.exit({code})');\n%tpu_train s.py\n")
        assert ("s: done" in cell.printed) is (text == "done"), cell.shown
        assert ("called sys.exit(3)" in cell.said) is (text == "failed")


def test_a_script_that_turns_spmd_on_itself(kernel: Kernel) -> None:
    text = (
        "import torch, torch_xla\nfrom torch_xla import runtime as xr\nxr.use_spmd()\n"
        "print(xr.global_runtime_device_count(), torch.ones(2, device=torch_xla.device()).sum().item())\n"
    )
    kernel.run(f"open('s.py', 'w').write({text!r})").good()
    cell = kernel.run("%tpu_train s.py").good()
    assert cell.printed.startswith("tpu_magics: The code calls use_spmd(): one worker drives all devices")
    assert "\n8 2.0\n" in cell.printed and "Warning" not in cell.printed
    refused = kernel.run("%tpu_train -n 2 s.py")
    assert "The code calls use_spmd(), but this run does not use SPMD." in refused.said and "--spmd" in refused.said


def test_an_error_where_the_working_directory_was_removed(kernel: Kernel, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    kernel.run(f"import os\nos.mkdir({str(gone)!r})\nos.chdir({str(gone)!r})\nos.rmdir({str(gone)!r})").good()
    cell = kernel.run("%%tpu_train\ndef f():\n    raise ValueError('my own')\n")
    assert "raised ValueError: my own" in cell.said and "FileNotFoundError" not in cell.shown
