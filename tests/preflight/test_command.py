"""`python -m tpu_magics preflight`: from a file to the call that is preflighted, and what a person reads on the way."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests import overlay
from tests.panel.preflights import fitted
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session, train
from tpu_magics.magics import preflight_command
from tpu_magics.magics.file_program import PreflightCall, call_of, program_of
from tpu_magics.preflight.run import SearchInterrupted

TRAIN = "def f(model, lr=0.1):\n    return model, lr\n"
LAUNCHER = "from accelerate import notebook_launcher\n"


@pytest.fixture(autouse=True)
def _here(fresh_session: session.Session, runs: Path) -> Iterator[None]:
    """A session and a shell of each test's own; nothing may be left of the shell, and nothing is ever trained."""
    InteractiveShell.clear_instance()
    yield
    assert not InteractiveShell.initialized()
    assert not list(runs.glob("*/run.json"))


def write(name: str, *cells: str, tags: Mapping[int, Sequence[str]] | None = None, **metadata: Any) -> str:
    """A notebook of these code cells. `tags`: those of a cell, by its number."""
    found: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": "# Title"}]
    for number, text in enumerate(cells, start=1):
        own = {"tags": list((tags or {}).get(number, ()))}
        found.append({"cell_type": "code", "metadata": own, "source": text.splitlines(keepends=True), "outputs": []})
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(json.dumps({"cells": found, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}))
    return name


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    preflight_command.add_arguments(parser)
    return parser.parse_args(words)


def call(file: str, function: str = "f", *words: str) -> PreflightCall:
    """What the command would preflight."""
    found = parsed(file, "--function", function, "--target", "v5e-1", *words)
    with program_of(Path(file), function, preflight_command._say) as program:
        return call_of(program, found)


def refused(file: str, function: str = "f", *words: str) -> str:
    with pytest.raises(TpuMagicsError) as caught:
        call(file, function, *words)
    return str(caught.value)


def given(found: PreflightCall) -> tuple[list[Any], dict[str, Any]]:
    return list(found.args), dict(found.kwargs)


# -- which cells are run ----------------------------------------------------------------------------------------------


def test_cells_up_to_the_functions_are_run_in_the_notebooks_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("deep").mkdir()
    Path("deep/data.txt").write_text("42")
    Path("deep/beside.py").write_text("value = 7")
    write("deep/a.ipynb", "x = int(open('data.txt').read())", "", "import beside\nprint('hello')", TRAIN, "boom")
    found = call("deep/a.ipynb", "f", "--args", "x", "lr=beside.value")
    assert given(found) == ([42], {"lr": 7})
    assert found.function(1) == (1, 0.1)
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("cell ")] == [
        "cell 1 of 4: x = int(open('data.txt').read())",
        "cell 3 of 4: import beside",
        "cell 4 of 4: def f(model, lr=0.1):",
    ]
    assert Path.cwd() != Path("deep").absolute()
    assert "" not in sys.path and sys.modules["__main__"].__dict__.get("x") is None


@pytest.mark.process
def test_cells_run_as_in_a_kernel_under_their_own_numbers() -> None:
    write(
        "a.ipynb",
        "%load_ext tpu_magics\n%matplotlib inline\n%config InlineBackend.figure_format = 'retina'",
        "",
        "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nbackend = plt.get_backend()",
        "import asyncio\nawait asyncio.sleep(0)\nget_ipython().run_line_magic('tpu_runs', '-h')",
        f"%%capture\nshouted = {overlay.output_of('echo loud')}\n",
        "%%bash\nexit 0\n",
        TRAIN + "name = f.__code__.co_filename; main = __name__",
    )
    with program_of(Path("a.ipynb"), "f", preflight_command._say) as program:
        program.run()
        names = dict(program.namespace)
        assert session.current.notebook.namespace is program.namespace
        assert session.current.notebook.cell_names()[names["name"]] == "In [7]"
        assert os.environ["MPLBACKEND"] == "agg"
    assert names["main"] == "__main__" and names["backend"].lower() == "agg" and names["shouted"] == ["loud"]


@pytest.mark.parametrize(
    ("cells", "last"),
    [
        (["f = 1", TRAIN, "x = 3", TRAIN.replace("0.1", "0.2"), "y = 1"], 4),
        (["f = 1", TRAIN, "f = max(f, f, key=id)", "y = 1"], 2),  # the `def` is the function, what wraps it comes later
        (["import functools", "f = functools.partial(print, 1)", "y = 1"], 2),
        (["if True:\n    from functools import partial as f", "y = 1"], 1),
        (["%%time\n" + TRAIN, "y = [f for f in ()]"], 1),
        (["%%tpu_check\n" + TRAIN, "def f():\n    pass", "def g():\n    f = 1"], 2),
        (["from math import *", "from os.path import *", "y = 1"], None),
    ],
)
def test_the_cell_that_defines_the_function(cells: list[str], last: int | None) -> None:
    write("a.ipynb", "%load_ext tpu_magics", *cells)
    name = "f" if last else "basename"
    with program_of(Path("a.ipynb"), name, preflight_command._say) as program:
        program.run()
        assert callable(program.function())
        assert ("y" in program.namespace) is (len(cells) == last)


def test_tags_of_cells() -> None:
    tags = {1: ["raises-exception"], 2: ["skip-execution"]}
    write("a.ipynb", "1 / 0", "boom", TRAIN, tags=tags)
    assert call("a.ipynb", "f", "--args", "1").args == [1]


def test_a_name_with_dots() -> None:
    write("a.ipynb", "class T:\n    def step(self):\n        return 5\n", "t = T()", "boom")
    assert call("a.ipynb", "t.step").function() == 5
    assert "has no attribute 'stop'" in refused("a.ipynb", "t.stop")


# -- nothing is trained -----------------------------------------------------------------------------------------------


def test_trainings_before_it_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "a.ipynb",
        "%load_ext tpu_magics\nimport tpu_magics\nran = []\nmodel = 'M'",
        "%%tpu_train model\nran.append('before the def')\ndef first(model):\n    ran.append('trained')\n",
        "%tpu_train first model\nran.append('behind')",
        "%%tpu_train\nimport math\ndef helper():\n    pass\nran.append('statement')",
        "_tpu.value",
        f"%%tpu_train\n{LAUNCHER}notebook_launcher(first, args=(model,), num_processes=1)\nran.append('form 2')",
        LAUNCHER + "notebook_launcher(first, (model,), 1)",
        "result = tpu_magics.train(first, model)",
        "open('x.py', 'w').write('boom')\n%tpu_train x.py",
        TRAIN + "helper, math",
    )
    with program_of(Path("a.ipynb"), "f", preflight_command._say) as program:
        original = train.start
        program.run()
        assert train.start is original
        assert program.namespace["ran"] == ["before the def", "behind", "form 2"]
    said = capsys.readouterr().err.splitlines()
    left_out = [line.partition(" is skipped")[0] for line in said if "is skipped" in line]
    assert left_out == [
        "cell 2: the training of `first`",
        "cell 3: the training of `first`",
        "cell 4: the code below %%tpu_train (except the imports, functions and classes at its start)",
        "cell 6: the training of `first`",
        "cell 7: the training of `first`",
        "cell 8: the training of `first`",
        "cell 9: the script x.py",
    ]
    assert "cell 5 failed (it may need a training that was skipped); continuing." in said


@pytest.mark.process
def test_everything_else_runs_for_real() -> None:
    """A loop that a cell writes out, a program that it starts, and a train() that a trainer has of its own."""
    loop = "class Own:\n    def train(self):\n        return 7\nran = [Own().train() for _ in range(2)]"
    write("a.ipynb", loop, "!echo trained > ran.txt", TRAIN, "!echo behind > behind.txt")
    found = call("a.ipynb", "f", "--args", "ran")
    assert found.args == [[7, 7]] and Path("ran.txt").read_text() == "trained\n"
    assert not Path("behind.txt").exists()


def test_preflights_before_it_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "found = tpu_magics.preflight(g, target='v5e-1')\n%tpu_preflight g --target v5e-1"
    write("a.ipynb", "import tpu_magics\ndef g():\n    pass", asked, f"%%tpu_train 1 --preflight v5e-1\n{TRAIN}")
    assert call("a.ipynb").args == [1]
    said = [line for line in capsys.readouterr().err.splitlines() if "is skipped" in line]
    assert said == [
        *["cell 2: the preflight of the cell is skipped: nothing is trained here."] * 2,
        "cell 3: the training of `f` is skipped: nothing is trained here.",
    ]


def test_the_functions_own_cell_may_need_the_training_that_was_left_out() -> None:
    write("a.ipynb", "import tpu_magics", TRAIN + "assert tpu_magics.train(f, 4).status == 'done'")
    assert call("a.ipynb").args == [4]
    write("a.ipynb", TRAIN, "import tpu_magics\ntpu_magics.train(f, 4).status\n" + TRAIN)
    assert "Cell 2 of a.ipynb failed: AttributeError" in refused("a.ipynb"), "the first `f` is not the one that counts"


LAUNCHES = {
    "notebook_launcher": "import accelerate\naccelerate.notebook_launcher(f, args=(3,))",
    "through a function": "import accelerate.launchers as a\ndef main():\n    a.notebook_launcher(f, [3])\nmain()",
    "xmp.spawn": "import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f, args=(3,), nprocs=1)",
    "torch_xla.launch": "import torch_xla\ntorch_xla.launch(f, args=(3,))",
    "below if": "from accelerate import *\nimport accelerate\nif True:\n    accelerate.notebook_launcher(f, (3,))",
}


@pytest.mark.parametrize("how", LAUNCHES)
def test_a_launchers_arguments_are_the_functions(how: str) -> None:
    ranked = how in ("xmp.spawn", "torch_xla.launch")
    write("a.ipynb", f"def f({'index, ' * ranked}x):\n    raise SystemExit\n" + LAUNCHES[how])
    assert call("a.ipynb").args == ([0, 3] if ranked else [3])


def test_what_the_launcher_is_told_counts() -> None:
    cell = LAUNCHER + TRAIN + "notebook_launcher(f, (1,), num_processes=8, mixed_precision='bf16')"
    found = call(write("a.ipynb", cell))
    assert (found.precision, found.processes, found.spmd) == ("bf16", None, False), "ranks are those of the target"
    assert found.environment == {"ACCELERATE_MIXED_PRECISION": "bf16"}
    found = call("a.ipynb", "f", "--precision", "fp32", "-n", "4", "--args", "2")
    assert (found.args, found.precision, found.processes) == ([2], "fp32", 4)
    found = call("a.ipynb", "f", "--spmd")
    assert (found.processes, found.spmd) == (None, True)
    assert call(write("a.ipynb", LAUNCHER + TRAIN + "notebook_launcher(f, (1,), num_processes=1)")).processes == 1


def test_a_trainer_does_not_train_and_the_function_finds_it_whole(capsys: pytest.CaptureFixture[str]) -> None:
    write(
        "a.ipynb",
        "import torch\nfrom transformers import Trainer\nclass Mine(Trainer):\n    def __init__(self):\n        pass\n",
        "torch.nn.Linear(1, 1).train()\nMine().train()",
        "def f():\n    return Mine().train()",
    )
    found = call("a.ipynb")
    assert "cell 2: Trainer.train() is skipped: nothing is trained here." in capsys.readouterr().err
    with pytest.raises(AttributeError):  # the real one, which needs what __init__ sets
        found.function()


KERAS = [
    "import keras, numpy as np\nx, y = np.zeros((4, 3)), np.zeros((4, 1))",
    "model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')",
    "weights = model.get_weights()[0].copy()\nmodel.fit(x, y)\nmodel.evaluate(x, y)",
    "import tensorflow as tf\nguessed = tf.keras.Model.predict(model, x)",
    "def f():\n    same = (model.get_weights()[0] == weights).all()\n"
    "    return same and guessed is None and 'fit' not in vars(keras.Model)",
]
AS_COMMAND = """
from tests.preflight.test_command import call
found = call("a.ipynb")
print(found.function(), found.function.__globals__["model"].predict(found.function.__globals__["x"]).shape)
"""


@pytest.mark.long
@pytest.mark.process
def test_a_keras_model_does_not_train_and_can_afterwards() -> None:
    """In a process of its own: TensorFlow and torch_xla do not go into one."""
    environment = {**os.environ, "PYTHONPATH": overlay.python_path(), "TF_CPP_MIN_LOG_LEVEL": "2"}
    write("a.ipynb", *KERAS)
    done = subprocess.run([sys.executable, "-c", AS_COMMAND], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["True (4, 1)"], done.stderr
    said = [line.partition(" is skipped")[0] for line in done.stderr.splitlines() if " is skipped" in line]
    assert said == ["cell 3: Model.fit()", "cell 3: Model.evaluate()", "cell 4: Model.predict()"]


# -- the arguments ----------------------------------------------------------------------------------------------------


def test_arguments_and_options_of_its_own_training_cell() -> None:
    write("a.ipynb", "%load_ext tpu_magics\nm = 5", f"%%tpu_train m lr=m*2 --precision bf16 -n 2\n{TRAIN}")
    found = call("a.ipynb")
    assert given(found) == ([5], {"lr": 10})
    assert (found.precision, found.processes, found.spmd) == ("bf16", None, False)
    found = call("a.ipynb", "f", "--args", "m + 1")
    assert given(found) == ([6], {}) and found.precision == "bf16"
    write("a.ipynb", "%load_ext tpu_magics\n%tpu_init --spmd 4\nm = 5", f"%%tpu_train m\n{TRAIN}")
    assert call("a.ipynb").spmd
    assert not call("a.ipynb", "f", "-n", "4").spmd
    write("a.ipynb", "%load_ext tpu_magics\nm = 5", f"%%tpu_train m --spmd\n{TRAIN}")
    assert call("a.ipynb").spmd


def test_a_later_cell_that_trains_it_gives_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    cells = ("%load_ext tpu_magics", TRAIN, "boom", "m = 4\n%tpu_train f m lr=3 -n 1", "not_reached = 1 / 0")
    found = call(write("a.ipynb", *cells))
    assert given(found) == ([4], {"lr": 3}) and found.processes == 1
    said = capsys.readouterr().err
    assert "`f` needs arguments: continuing to cell 4, which trains it.\ncell 3 of 4: boom" in said
    assert "cell 3 failed; continuing.\n" in said
    assert given(call("a.ipynb", "f", "--args", "1")) == ([1], {})
    assert "cell 4" not in capsys.readouterr().err
    write("a.ipynb", "def f(x=1):\n    pass", "boom\n%tpu_train f 3")
    assert given(call("a.ipynb")) == ([], {})


# -- what is wrong ----------------------------------------------------------------------------------------------------


def test_files_that_are_no_notebooks() -> None:
    write("other.ipynb", "x = 1")
    assert "none.ipynb does not exist.\nWhy: Notebooks in that folder: other.ipynb." in refused("none.ipynb")
    assert "is a folder" in refused(".")
    Path("a.ipynb").write_text("{\n 'cells'")
    assert "a.ipynb is not a notebook: not valid JSON: " in (said := refused("a.ipynb")) and "(line 2)" in said
    Path("a.ipynb").write_text("[]")
    assert "is not a notebook: the JSON has no cells" in refused("a.ipynb")
    assert "a.ipynb has no code cells." in refused(write("a.ipynb"))
    write("a.ipynb", "x <- 1", kernelspec={"language": "R", "name": "ir"})
    assert (
        "has no code cells.\nWhy: A preflight runs the Python cells of a notebook. Its kernel language is r."
        in refused("a.ipynb")
    )


def test_no_cell_defines_it(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.ipynb", "def training_function():\n    pass", "%%tpu_train\ndef helper():\n    pass", "def broken(:")
    said = refused("a.ipynb", "trainig_function")
    assert said.startswith("No cell defines `trainig_function`; did you mean `training_function`?\n")
    assert "Defined functions: training_function, helper. " in said and "cell 3, line 1 cannot be read: " in said
    assert capsys.readouterr().err == "", "cells were run"
    assert "No functions are defined there." in refused(write("a.ipynb", "x = 1"))
    said = refused(write("a.ipynb", "from math import *"), "nowhere")
    assert said.startswith("`nowhere` is not defined after all 1 cells of a.ipynb have run.")


def test_a_cell_fails(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.ipynb", "x = 1", "def g():\n    return undefined\ng()", TRAIN)
    said = refused("a.ipynb")
    assert said.startswith("Cell 2 of a.ipynb failed: NameError: name 'undefined' is not defined\nWhy: ")
    assert "up to cell 3, which defines `f`," in said and 'the tag "skip-execution"' in said
    shown = capsys.readouterr().out
    assert "Traceback" in shown and "2     return undefined" in shown
    assert "Cell 1 of a.ipynb failed: SyntaxError: " in refused(write("a.ipynb", "def g(:", TRAIN))
    assert "Cell 1 of a.ipynb failed: ZeroDivisionError: " in refused(write("a.ipynb", TRAIN + "1 / 0"))
    own = write("a.ipynb", "%load_ext tpu_magics\n%tpu_init -n 0", TRAIN)
    assert "Cell 1 of a.ipynb failed: -n 0 is not valid." in refused(own)


def test_an_interrupt_ends_it() -> None:
    write("a.ipynb", "raise KeyboardInterrupt", TRAIN)
    assert preflight_command.run(parsed("a.ipynb", "--function", "f", "--target", "v5e-1")) == 130


def test_an_interrupted_search_shows_what_it_had_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(_: argparse.Namespace) -> None:
        raise SearchInterrupted(fitted(), kept=True)

    monkeypatch.setattr(preflight_command, "_preflight_of", stopped)
    words = ("a.ipynb", "--function", "f", "--target", "v5e-1", "--format", "json")
    assert preflight_command.run(parsed(*words)) == 130
    said = capsys.readouterr()
    assert len(json.loads(said.out)["fit"]) == len(fitted().fit) and "was interrupted." in said.err


def test_statements_of_a_training_cell_are_no_definition() -> None:
    write("a.ipynb", "%load_ext tpu_magics\n", f"%%tpu_train\nx = 1\n{TRAIN}f(1)")
    said = refused("a.ipynb")
    assert said.startswith("Cell 2 of a.ipynb has run, and `f` is not defined.\n")
    assert said.endswith("What to do: Move `f` to a cell of its own.")


def test_arguments_that_do_not_do() -> None:
    write("a.ipynb", "n = 1", TRAIN + "def g(a, b, *, c):\n    yield\nh = 3")
    assert refused("a.ipynb") == (
        "f(model, lr=0.1) needs `model`.\n"
        "Why: No --args were given, and no executed cell or call trains it with any.\n"
        "What to do: After --args, give an expression for each parameter, evaluated in the notebook: --args model"
    )
    said = refused("a.ipynb", "g", "--args", "n")
    assert said.startswith("g(a, b, *, c) needs `b`, `c`.\nWhy: --args gives n.\n") and said.endswith("a b c=...")
    assert "too many positional" in refused("a.ipynb", "f", "--args", "1", "2", "3")
    assert "unexpected keyword argument 'k'" in refused("a.ipynb", "f", "--args", "1", "k=2")
    assert "The ARG 'nowhere' cannot be evaluated: NameError" in refused("a.ipynb", "f", "--args", "nowhere")
    assert "`g` is a generator function" in refused("a.ipynb", "g", "--args", "1", "2", "c=3")
    assert "`3` is not a function." in refused("a.ipynb", "h", "--args")


# -- Python files -----------------------------------------------------------------------------------------------------

FILE = """
import sys
from beside import value
from accelerate import notebook_launcher

def f(x, y=value):
    return x, y, size

size = 8
print("imported as", __name__)
notebook_launcher(f, (1,))
if __name__ == "__main__":
    boom
"""


def test_a_python_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("src").mkdir()
    Path("src/beside.py").write_text("value = 7")
    Path("src/some_training.py").write_text(FILE)
    found = parsed("src/some_training.py", "--function", "f", "--target", "v5e-1")
    with program_of(Path("src/some_training.py"), "f", preflight_command._say) as program:
        made = call_of(program, found)
        assert session.current.notebook.namespace is program.namespace
        program.namespace["size"] = 9  # as --fit does
        assert made.args == [1] and made.function(*made.args) == (1, 7, 9)
    assert "imported as some_training" in capsys.readouterr().out
    assert given(call("src/some_training.py", "f", "--args", "size", "y=2")) == ([8], {"y": 2})
    said = refused("src/some_training.py", "g")
    assert said.startswith(f"{Path('src/some_training.py').absolute()} does not define `g`.")


def test_a_python_file_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a_file.py").write_text("def f():\n    pass\n1 / 0\n")
    assert refused("a_file.py").startswith("a_file.py failed: ZeroDivisionError: division by zero\n")
    shown = capsys.readouterr().err
    assert 'a_file.py", line 3, in <module>' in shown and "importlib" not in shown
    Path("a_file.py").write_text("def f(:\n")
    assert refused("a_file.py").startswith("a_file.py failed: SyntaxError: ")
    Path("a_file.py").write_text("def f():\n    pass\ndel f\n")
    assert refused("a_file.py").startswith("a_file.py has run, and `f` is not defined.")


# -- the command itself -----------------------------------------------------------------------------------------------


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tpu_magics", "preflight", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.process
def test_what_is_wrong_at_once_is_told_before_cells_run() -> None:
    write("a.ipynb", "print('ran')", TRAIN)
    for words, said in (
        (["--target", "v99-1"], "v99-1"),
        (["--target", "v5e-1", "--steps", "0"], "--steps 0 is not valid."),
        (["--target", "v5e-1", "-n", "0"], "-n 0 is not valid."),
        (["--target", "v5e-1", "--args", "1 +"], "The ARG '1 +'"),
        ([], "the following arguments are required: --target"),
    ):
        done = command("a.ipynb", "--function", "f", *words)
        assert done.returncode == 2 and done.stdout == "" and said in done.stderr
        assert "ran" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.process
def test_standard_output_is_for_the_result_alone() -> None:
    loud = "import os\nprint('one')\n!echo two\nos.write(1, b'three\\n')\n'four'"
    done = command(write("a.ipynb", loud, TRAIN), "--function", "f", "--target", "v5e-1", "--format", "json")
    assert done.returncode == 2 and done.stdout == ""
    assert all(
        word in done.stderr for word in ("one\n", "two\n", "three\n", "Out[1]: 'four'", "f(model, lr=0.1) needs")
    )


STEPS = """%%tpu_train Net(width) --precision bf16
def training_function(model):
    import torch_xla
    print("not for standard output")
    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(1000):
        loss = model(torch.rand(rows, width, device=device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
"""


def preflighted(rows: str, *words: str) -> subprocess.CompletedProcess[str]:
    net = "class Net(torch.nn.Sequential):\n    def __init__(self, n):\n        super().__init__(torch.nn.Linear(n, n))"
    cells = ("%load_ext tpu_magics\nimport torch", f"rows, width = {rows}, 256", net, STEPS, "1 / 0")
    return command(write("a.ipynb", *cells), "--function", "training_function", "--target", "v5e-1", *words)


@pytest.mark.process
def test_a_notebook_is_preflighted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tpu_compiler: object) -> None:
    """With the compiler itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = preflighted("64", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (result,) = found["results"]
    assert found["fits"] and result["status"] == "fits" and result["trace"]["settled"]
    assert result["trace"]["precision"] == "bf16" and result["bf16_share"] > 0.95
    assert result["trace"]["graphs"][-1]["site"]["path"] == "In [4]"


@pytest.mark.long
@pytest.mark.process
def test_what_does_not_fit_ends_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tpu_compiler: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = preflighted("2**26")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("Preflight of training_function: bf16; no step was executed\n")
    assert "In [4], line 9" in done.stdout


@pytest.mark.process
def test_help_is_there() -> None:
    done = command("-h")
    assert done.returncode == 0 and "--fit NAME" in done.stdout and "bf16-downcast" in done.stdout
