"""Stacks as text: real exceptions, real crash dumps, real threads."""

from __future__ import annotations

import faulthandler
import json
import linecache
import os
import signal
import sys
import sysconfig
import threading
from collections import namedtuple
from dataclasses import make_dataclass
from pathlib import Path

import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import process, stacks
from tpu_magics.runs import origin
from tpu_magics.runs.events import Frame

STDLIB = sysconfig.get_path("stdlib")
SITE = sysconfig.get_path("purelib")
OURS = str(Path(stacks.__file__).parent / "worker.py")
CELL = "/tmp/ipykernel_4711/1234567890.py"
CELLS = {CELL: "In [12]"}


def run_cell(code: str, path: str = CELL) -> dict[str, object]:
    """Run code as a cell is run: compiled under a file name that linecache knows and no disk has."""
    linecache.cache[path] = (len(code), None, code.splitlines(keepends=True), path)
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, path, "exec"), space)
    return space


def raised_by(code: str, path: str = CELL) -> BaseException:
    with pytest.raises(BaseException) as caught:
        run_cell(code, path)
    return caught.value


def user(
    path: str = "In [12]", line: int = 14, function: str = "training_function", code: str = "loss.backward()"
) -> Frame:
    return Frame(path, line, function, code)


def library(package: str = "torch", function: str = "f") -> Frame:
    return Frame(f"{SITE}/{package}/x.py", 3, function, "pass", library=True)


# -- whose code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "package"),
    [
        (f"{SITE}/torch/nn/modules/module.py", "torch"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy"),
        (f"{SITE}/six.py", "six"),
        (f"{STDLIB}/threading.py", "Python"),
        (json.__file__, "Python"),
        ("<frozen importlib._bootstrap>", "Python"),
        ("<decorator-gen-53>", "Python"),
        (OURS, "tpu_magics"),
    ],
)
def test_library_code_is_known_by_its_package(path: str, package: str) -> None:
    assert origin.is_library(path)
    assert origin.package_of(path) == package


@pytest.mark.parametrize(
    "path",
    [
        CELL,
        "train.py",
        "/home/me/train.py",
        "/home/me/torch/train.py",
        "<ipython-input-3-0a1b>",
        "<stdin>",
        "<string>",
        __file__,
    ],
)
def test_all_else_is_the_users(path: str) -> None:
    assert not origin.is_library(path)
    assert origin.package_of(path) == ""


def test_methods_that_python_generates_are_not_the_users() -> None:
    for method in (make_dataclass("Data", ["x"]).__init__, namedtuple("Row", ["x"]).__new__):
        where = method.__code__.co_filename, method.__code__.co_name
        assert origin.is_library(*where) and origin.package_of(*where) == "Python"
    assert not origin.is_library("<string>", "<module>")
    assert not origin.is_library("<string>", "train")


# -- exceptions ---------------------------------------------------------------------------------------------------


def test_an_exception_has_cell_line_function_and_code() -> None:
    error = raised_by("def training_function():\n    x = 1\n    raise ValueError('bad')\n\ntraining_function()\n")
    stack = stacks.from_exception(error, CELLS)
    assert stack[-2:] == (
        Frame("In [12]", 5, "<module>", "training_function()"),
        Frame("In [12]", 3, "training_function", "raise ValueError('bad')"),
    )


def test_frames_through_torch_end_in_the_users_line() -> None:
    torch = pytest.importorskip("torch")
    error = raised_by("import torch\nnet = torch.nn.Sequential(torch.nn.Linear(4, 2))\nnet(torch.ones(3, 5))\n")
    assert isinstance(error, RuntimeError) and torch is not None
    stack = stacks.from_exception(error, CELLS)
    assert stack[-1].library
    assert stacks.last_user_frame(stack) == Frame("In [12]", 3, "<module>", "net(torch.ones(3, 5))")
    assert stacks.libraries_below(stack) == ["torch"]
    count = sum(1 for frame in stack if "torch" in origin.package_of(frame.path))
    assert stacks.fold(stack)[-2:] == [
        "In [12], line 3, in <module>: net(torch.ones(3, 5))",
        f"... {count} frames in torch ...",
    ]
    assert count > 3


def test_a_syntax_error_points_to_its_place() -> None:
    error = raised_by("exec(compile('a = 1\\nb = = 2\\n', 'made_up.py', 'exec'))\n")
    assert stacks.from_exception(error, {**CELLS, "made_up.py": "In [3]"})[-1] == Frame("In [3]", 2, "", "b = = 2")


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("raise ValueError('plain')", "ValueError", "plain"),
        ("raise SystemExit(3)", "SystemExit", "3"),
        (
            "import argparse\nargparse.ArgumentParser('x.py').parse_args(['--lr'])",
            "SystemExit",
            "2 (x.py: error: unrecognized arguments: --lr)",
        ),
        ("class Mine(Exception): pass\nraise Mine('own')", "Mine", "own"),
        (
            "try:\n    try:\n        {}['x']\n    except KeyError as e:\n        raise OSError('middle') from e\n"
            "except OSError as e:\n    raise ValueError('outer') from e",
            "ValueError",
            "outer (caused by KeyError: 'x')",
        ),
        (
            "try:\n    1 / 0\nexcept ZeroDivisionError:\n    int('a')",
            "ValueError",
            "(while handling ZeroDivisionError: division by zero)",
        ),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise ValueError('alone') from None", "ValueError", "alone"),
        pytest.param(
            "raise ExceptionGroup('two', [ExceptionGroup('one', [KeyError('x')]), OSError('y')])",
            "ExceptionGroup",
            "two (2 sub-exceptions) (caused by KeyError: 'x')",
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has groups"),
        ),
        ("import json\njson.loads('{')", "json.decoder.JSONDecodeError", "Expecting property name"),
        (
            "class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad",
            "Bad",
            "no text: RuntimeError in __str__",
        ),
    ],
)
def test_type_and_text_with_the_deepest_cause(code: str, kind: str, text: str) -> None:
    found_kind, found_text = stacks.describe(raised_by(code))
    assert found_kind == kind
    assert text in found_text
    assert ("(caused by" in found_text) == ("caused by" in text)


def test_tensorflows_way_to_an_op_and_colours_are_no_part_of_the_text() -> None:
    stack = 'Stack trace for op definition: \nFile "<frozen runpy>", line 198, in _run\nFile "/a.py", line 2, in f\n\n'
    error = ValueError(
        f"\x1b[1mMatrix size-incompatible\x1b[0m\n\n{stack}\t [[node]]\nThe op is created at: \nFile x\nEnd"
    )
    assert stacks.describe(error)[1] == "Matrix size-incompatible\n\n[[node]]\nEnd"


def test_a_cycle_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert stacks.describe(first) == ("ValueError", "a (caused by ValueError: b)")


def test_our_own_errors_keep_their_text() -> None:
    error = TpuMagicsError("What.", "Because.", "Do.")
    error.__cause__ = OSError("inner")
    assert stacks.describe(error) == ("tpu_magics.errors.TpuMagicsError", "What.\nWhy: Because.\nWhat to do: Do.")


def test_deep_recursion_is_bounded_and_counted() -> None:
    error = raised_by("def f(n):\n    return f(n + 1)\nf(0)\n")
    stack = stacks.from_exception(error, CELLS)
    assert len(stack) == 101
    left_out = next(frame for frame in stack if frame.path == origin.LEFT_OUT)
    assert left_out.line > 700
    text = stacks.fold(stack)
    assert any(f"... {left_out.line} frames ..." == line for line in text)
    assert any(line.startswith("In [12], line 2, in f: return f(n + 1) (") for line in text)
    assert len(text) < 8


def test_the_users_outermost_call_is_shown_whatever_called_it() -> None:
    calling = [Frame("/lib/a.py", number, "launch", library=True) for number in range(50)]
    first, again = Frame("In [1]", 4, "train"), Frame("In [1]", 3, "visit")
    stack = stacks._bounded([*calling, first, *[again] * 900])
    assert stack[0].path == origin.LEFT_OUT and stack[0].line == 48 and stack[1:4] == (*calling[48:], first)
    assert len(stack) == 101 and sum(one.line if one.path == origin.LEFT_OUT else 1 for one in stack) == 951
    of_library = stacks._bounded([*calling * 4, *[again] * 80])  # the user's code is among the innermost frames
    assert len(of_library) == 101 and of_library[:20] == tuple(calling[:20]) and of_library[-80:] == (again,) * 80


# -- crash dumps --------------------------------------------------------------------------------------------------


CRASHING = """import os, signal, threading

def training_function():
    total = 0
    os.kill(os.getpid(), signal.SIGSEGV)
    threading.Event().wait()
"""


def dump_of(function: object, path: Path, in_thread: bool) -> tuple[int, str]:
    """Fork, crash, and read what faulthandler wrote. In a worker, too, the function runs in a new thread."""
    pid = os.fork()
    if pid == 0:
        try:
            process.dump_stacks_to(path)
            if in_thread:
                thread = threading.Thread(target=function)
                thread.start()
                thread.join()
            else:
                function()  # type: ignore[operator]
        finally:
            os._exit(9)
    status = os.waitpid(pid, 0)[1]
    return status, path.read_text()


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.process
def test_a_true_crash_dump(tmp_path: Path, in_thread: bool) -> None:
    function = run_cell(CRASHING)["training_function"]
    status, text = dump_of(function, tmp_path / "stack", in_thread)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert "Segmentation fault" in text
    threads = stacks.from_faulthandler(text, CELLS)
    stack = [one for one in threads.values() if any(frame.path == "In [12]" for frame in one)]
    assert len(stack) == 1
    assert stacks.last_user_frame(stack[0]) in (
        Frame("In [12]", 5, "training_function", "os.kill(os.getpid(), signal.SIGSEGV)"),
        Frame("In [12]", 6, "training_function", "threading.Event().wait()"),
    )
    assert not in_thread or stack[0][0].function == "_bootstrap"


def test_a_dump_on_request_of_one_thread_and_of_all(tmp_path: Path) -> None:
    path = tmp_path / "stack"
    space = {"dump": lambda file, every: faulthandler.dump_traceback(file, all_threads=every)}
    code = "def here(file, every):\n    dump(file, every)\n"
    linecache.cache[CELL] = (len(code), None, code.splitlines(keepends=True), CELL)
    exec(compile(code, CELL, "exec"), space)
    for every in (False, True):
        with path.open("w") as file:
            space["here"](file, every)
        threads = stacks.from_faulthandler(path.read_text(), CELLS)
        first = next(iter(threads.values()))
        assert Frame("In [12]", 2, "here", "dump(file, every)") in first


FAKE_DUMP = f"""Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "{STDLIB}/threading.py", line 320 in wait
  File "{OURS}", line 5 in main
  File "{CELL}", line 1 in <module>
  File "{SITE}/IPython/core/interactiveshell.py", line 3000 in run_code

Thread 0x00007f0000000002 (most recent call first):
  File "{SITE}/torch/autograd/graph.py", line 829 in _engine_run_backward
  File "{CELL}", line 4 in training_function
  File "{OURS}", line 9 in _train
  File "{STDLIB}/threading.py", line 975 in run

Thread 0x00007f0000000003 (most recent call first):
  File "/home/me/d\\xe9j\\u00e0.py", line 7 in load
  File "{STDLIB}/threading.py", line 975 in run

Current thread 0x00007f0000000004 (most recent call first):
  <no Python frame>

Extension modules: numpy.core._multiarray_umath (total: 1)
"""


def test_the_thread_that_trains_is_found_among_others() -> None:
    threads = stacks.from_faulthandler(FAKE_DUMP, CELLS)
    assert list(threads) == [f"0x00007f000000000{n}" for n in (4, 1, 2, 3)]
    assert threads["0x00007f0000000004"] == ()
    stack = stacks.training_thread(threads)
    assert stacks.last_user_frame(stack) == Frame("In [12]", 4, "training_function", stack[-2].code)
    assert stack[0].function == "run"


def test_the_notebooks_own_stack_is_not_taken_for_the_training() -> None:
    only_main = FAKE_DUMP.split("\n\nThread 0x00007f0000000002")[0]
    assert stacks.training_thread(stacks.from_faulthandler(only_main, CELLS)) == ()


def test_a_crashing_thread_of_the_users_own_comes_first() -> None:
    text = FAKE_DUMP.replace("Current thread", "Thread").replace(
        "Thread 0x00007f0000000003", "Current thread 0x00007f0000000003"
    )
    stack = stacks.training_thread(stacks.from_faulthandler(text, CELLS))
    assert stack[-1] == Frame("/home/me/déjà.py", 7, "load", "")


def test_the_last_of_several_dumps_counts() -> None:
    again = FAKE_DUMP.replace("line 4 in training_function", "line 5 in training_function")
    stack = stacks.training_thread(stacks.from_faulthandler(FAKE_DUMP + again, CELLS))
    line = stacks.last_user_frame(stack)
    assert line is not None and line.line == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no dump at all",
        'File "x.py", line 3 in f',
        'Current thread\'s C stack trace (most recent call first):\n  Binary file "/usr/bin/python", at _start+0x21',
    ],
)
def test_text_that_is_no_dump_gives_no_threads(text: str) -> None:
    assert stacks.from_faulthandler(text, CELLS) == {}
    assert stacks.training_thread({}) == ()


def test_unknown_lines_and_names_of_newer_pythons() -> None:
    text = f'Current thread 0x00007f01 [MainThread] (most recent call first):\n  File "{CELL}", line ??? in f\n  ...\n'
    assert stacks.from_faulthandler(text, CELLS) == {"0x00007f01": (Frame("In [12]", 0, "f", ""),)}
    assert stacks.place(Frame("In [12]", 0, "f")) == "In [12], line ?, in f"


# -- folding ------------------------------------------------------------------------------------------------------


def test_runs_of_library_frames_become_one_line() -> None:
    stack = [library("accelerate"), user(), *[library("accelerate")] * 2, *[library("torch")] * 5]
    assert stacks.fold(stack) == [
        "... 1 frame in accelerate ...",
        "In [12], line 14, in training_function: loss.backward()",
        "... 7 frames in accelerate/torch ...",
    ]


def test_what_only_passes_a_call_on_is_not_named() -> None:
    ours = Frame(OURS, 3, "to", "moved = plain(tensor, device)", library=True)
    assert stacks.libraries_below([user(), ours]) == []
    assert stacks.libraries_below([user(), ours, library()]) == ["torch"]
    raised = Frame(OURS, 4, "log", "raise ValueError(value)", library=True)
    assert stacks.libraries_below([user(), raised]) == ["tpu_magics"]


def test_many_packages_are_cut() -> None:
    assert stacks.fold([library(name) for name in "abcdef"]) == ["... 6 frames in a/b/c/d/... ..."]


def test_a_line_without_code_and_a_file_in_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert stacks.fold([user(str(tmp_path / "lib" / "train.py"), 2, "main", "")]) == ["lib/train.py, line 2, in main"]
    assert stacks.fold([user("/elsewhere/train.py", 2, "main", "")]) == ["/elsewhere/train.py, line 2, in main"]


def test_nothing_folds_to_nothing() -> None:
    assert stacks.fold([]) == []
    assert stacks.last_user_frame([library()]) is None
    assert stacks.libraries_below([library(), user()]) == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("learning_rate = 1\nlearning_rte", "name 'learning_rte' is not defined. Did you mean: 'learning_rate'?"),
        ("def f():\n    batches = 1\n    batche\nf()", "name 'batche' is not defined. Did you mean: 'batches'?"),
        ("import math\nmath.factoril(1)", "module 'math' has no attribute 'factoril'. Did you mean: 'factorial'?"),
        ("zzz", "name 'zzz' is not defined"),
        ("raise NameError('mine')", "mine"),
        ("class A:\n    def __dir__(self): raise OSError\nA().x", "'A' object has no attribute 'x'"),
    ],
)
def test_the_name_that_was_meant(code: str, text: str) -> None:
    """Python tells it only with the whole traceback."""
    assert stacks.describe(raised_by(code))[1] == text
