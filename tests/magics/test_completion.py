"""Tab and Shift+Tab in the line of a magic: in a kernel, as JupyterLab, Notebook and Colab ask, and in a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import overlay
from tpu_magics.magics.completion import MOST, complete
from tpu_magics.magics.options import PARSERS

from .conftest import as_new
from .kernel import EITHER, LOAD, Kernel, python

NOTEBOOK = """
import functools, json
class Net: pass
def training_function(model, batch=8): pass
def evaluate(): pass
short = functools.partial(training_function, batch=2)
model, lr, batch_size = Net(), 0.1, 16
"""


def names() -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, found)
    return {name: value for name, value in found.items() if not name.startswith("_")}


def offered(line: str) -> list[str]:
    return complete(line, names())[1]


# -- what is offered ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", PARSERS)
def test_every_option_is_offered_and_none_twice(magic: str) -> None:
    spellings = [name for name in PARSERS[magic]().options if name.startswith("--")]
    assert set(offered(f"{magic} --")) == set(spellings)
    for spelling in spellings:
        assert spelling in offered(f"{magic} {spelling[:3]}")
        assert spelling not in offered(f"{magic} {spelling}=1 --")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%%tpu_train --st", ["--steps", "--strict"]),
        ("%%tpu_train --steps 3 --st", ["--strict"]),
        ("%%tpu_train model lr=1e-3 --str", ["--strict"]),
        ("result = %tpu_preflight training_function --an", ["--anew"]),
        ("%tpu_doctor ", ["--fix", "--json", "--help", "-h"]),
        ("%tpu_panel last ", ["--all", "--help", "-h"]),
        ("%%tpu_train --precision ", ["fp32", "bf16", "bf16-downcast"]),
        ("%%tpu_train --precision=bf", ["bf16", "bf16-downcast"]),
        ("%%tpu_train --precision 'bf", ["bf16", "bf16-downcast"]),
        ("%tpu_init --framework ten", ["tensorflow"]),
        ("%tpu_train --hoist auto --jit ", ["auto", "keep"]),
        ("%tpu_preflight f --target v6e-1", ["v6e-1", "v6e-16", "v6e-128"]),
        ("%tpu_preflight f --target=v5e-8,v6e-1", ["v5e-8,v6e-1", "v5e-8,v6e-16", "v5e-8,v6e-128"]),
        ("%tpu_preflight f --target v6e-1,v6e-1", ["v6e-1,v6e-16", "v6e-1,v6e-128"]),
        ("%%tpu_train --preflight v5litepod-12", ["v5litepod-128"]),
        ("%tpu_init --target v5e-12", ["v5e-128"]),
        ("%tpu_pod --target v5p-12", ["v5p-128", "v5p-12288"]),
        ("%tpu_check --select TPU40", [f"TPU40{n}" for n in range(1, 10)]),
        ("%tpu_check --ignore values,sha", ["values,shapes"]),
        ("%tpu_check ", ["Net", "evaluate", "training_function"]),
        ("%tpu_train ", ["evaluate", "short", "training_function"]),
        ("%tpu_train ev", ["evaluate"]),
        ("%tpu_pod tr", ["training_function"]),
        ("%tpu_preflight training_function --fit ", ["model", "batch", "batch_size"]),
        ("%tpu_preflight --target v5e-8 training_function --fit batch_", ["batch_size"]),
        ("%tpu_preflight --fit ", ["batch_size"]),
        # ARGs are expressions: the notebook's names, also as the value of a keyword
        ("%%tpu_train mo", ["model"]),
        ("%%tpu_train model lr=l", ["lr=lr"]),
        ("%tpu_train training_function ba", ["batch_size"]),
        ("%tpu_train training_function --steps 2 ba", ["batch_size"]),
        ("%tpu_pad ba", ["batch_size"]),
        # nothing of ours: a free value, within an expression, a script's own words, other text
        ("%%tpu_train --run-name ", []),
        ("%%tpu_train --steps ", []),
        ("%tpu_train training_function dict(mo", []),
        ("%tpu_train training_function [1, --st", []),
        ("%tpu_train train.py --st", []),
        ("%tpu_train training_function -- --st", []),
        ("%%tpu_train", []),
        ("%tpu_nothing --st", []),
        ("x = 7 %tpu_train --st", []),
        ("model --st", []),
        ("print('%tpu_panel ", []),
    ],
)
def test_what_is_offered(line: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert offered(line) == expected


def test_targets_are_short_names_of_the_newest_first_and_are_all_understood() -> None:
    from tpu_magics.preflight.targets import parse

    found = offered("%tpu_preflight f --target ")
    assert len(found) < MOST and [parse(name).name for name in found]
    assert found.index("v6e-8") < found.index("v5e-8") < found.index("v4-8")


def test_scripts_are_offered_where_a_script_can_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name in ("train.py", "my train.py", "notes.txt", "jobs/tiny.py"):
        (tmp_path / name).touch()
    assert offered("%tpu_train tr") == ["training_function", "train.py"]
    assert offered("%tpu_train jobs/") == ["jobs/tiny.py"]
    assert offered("%tpu_train 'my") == ["my train.py"] and offered("%tpu_train my") == []
    assert offered("%tpu_preflight tr") == ["training_function"]


def test_runs_are_offered_by_name_newest_first_and_by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_MAGICS_RUNS", str(tmp_path))
    for minute, name in enumerate(["digits", "text", "digits", "two words"]):
        (tmp_path / f"20260920T10{minute:02}00Z-{name}").mkdir()
    for magic in ("%tpu_panel", "%tpu_logs -r 1", "%tpu_stop", "%tpu_runs text", "%tpu_pad [1, 2] --run"):
        assert offered(f"{magic} ") == ["last", "digits", "text"], magic
    assert offered("%tpu_panel 'tw") == ["two words"]
    assert offered("%tpu_panel 20260920T1000") == ["20260920T100000Z-digits"]
    assert [one[-8:] for one in offered("%tpu_logs 2026")] == ["Z-digits", "00Z-text", "Z-digits"]
    for number in range(2 * MOST):
        (tmp_path / f"20260921T1000{number:02}Z-run{number}").mkdir()
    assert len(offered("%tpu_panel ")) == MOST


# -- in a shell -----------------------------------------------------------------------------------------------------

Tab = Callable[[str], list[str]]


@pytest.fixture(scope="module", params=EITHER)
def tab(request: pytest.FixtureRequest, kernels: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Press Tab at the | of a cell: the cell as it is after each of the matches, as JupyterLab puts them in."""
    with as_new(kernels(request.param), tmp_path_factory.mktemp("tab")) as kernel:
        kernel.run(NOTEBOOK).good()

        def press(cell: str) -> list[str]:
            reply = ask(kernel, "complete", cell)
            start, end, code = reply["cursor_start"], reply["cursor_end"], cell.replace("|", "")
            return [code[:start] + match + code[end:] for match in reply["matches"]]

        press.kernel = kernel  # type: ignore[attr-defined]
        yield press


def ask(kernel: Kernel, request: str, cell: str) -> dict[str, Any]:
    reply = getattr(kernel.client, request)(cell.replace("|", ""), cell.index("|"), reply=True, timeout=20)
    return dict(reply["content"])


@pytest.mark.process
@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%%tpu_train --st| model\ndef f(model): pass", ["--steps", "--strict"]),
        ("#@title Training\n%%tpu_train --precision=bf|", ["--precision=bf16", "--precision=bf16-downcast"]),
        ("x = 1\n%tpu_preflight f --target v5e-8,v6e-1|\ny", [f"v5e-8,v6e-{n}" for n in (1, 16, 128)]),
        ('%tpu_preflight f --target "v5e-8,v6e-1|"', [f'"v5e-8,v6e-{n}' for n in (1, 16, 128)]),
        ("%tpu_train ev|", ["evaluate"]),
        ("%%tpu_train mo|\ndef f(model): pass", ["model"]),
        ("found = %tpu_runs las|", ["last"]),
        ("%tpu_train training_function lr=l|", ["lr=lr"]),
    ],
)
def test_a_match_takes_the_place_of_the_word(tab: Tab, cell: str, expected: list[str]) -> None:
    before, after = cell.split("|")
    line = before.rindex(" ") + 1
    assert tab(cell) == [before[:line] + word + after for word in expected]


@pytest.mark.process
def test_the_rest_is_python_as_before(tab: Tab) -> None:
    assert "%tpu_train functools.partial" in tab("%tpu_train functools.par|")
    assert any(cell.endswith("[len(x) for x in json") for cell in tab("%tpu_pad [len(x) for x in jso|"))
    assert "training_function" in tab("training_f|") and "%%tpu_train" in tab("%%tpu_tr|")
    assert not [cell for cell in tab("%%tpu_train\ndef f():\n    x = --st|") if "--steps" in cell]


@pytest.mark.process
def test_errors_reach_nobody(tab: Any) -> None:
    """Not even that there is no function of this signature: IPython would print it into the cell."""
    kernel = tab.kernel
    kernel.run("largest = max").good()
    kernel.messages.clear()
    assert not [cell for cell in tab("%tpu_preflight largest --fit |") if cell.endswith("batch_size")]
    kernel.run("1")
    assert {one["msg_type"] for one in kernel.messages} <= {"status", "execute_input", "execute_result"}


@pytest.mark.process
@pytest.mark.parametrize("magic", ["%%tpu_train", "%tpu_train", "%%tpu_check", "%tpu_panel"])
def test_help_is_shown_at_the_magic(tab: Any, magic: str) -> None:
    """At a cell magic, front ends ask for the line magic of the same name: its help begins with the other's."""
    for cell in (f"{magic}| --st\npass", f"{magic} |"):
        assert f"usage: {magic} " in ask(tab.kernel, "inspect", cell)["data"]["text/plain"]
    [page] = tab.kernel.run(f"{magic}?").good().payloads
    assert f"usage: {magic} " in page["data"]["text/plain"]


@pytest.mark.process
def test_it_comes_and_goes_with_the_extension(tab: Any) -> None:
    kernel = tab.kernel
    kernel.run("%reload_ext tpu_magics").good()
    assert tab("%tpu_runs --pl|") == ["%tpu_runs --plain"]
    kernel.run("%unload_ext tpu_magics").good()
    assert tab("%tpu_runs --pl|") == []
    kernel.run(LOAD).good()
    assert tab("%tpu_runs --pl|") == ["%tpu_runs --plain"]


TERMINAL = f"""
import json, sys
from IPython.core.completer import provisionalcompleter
from IPython.terminal.interactiveshell import TerminalInteractiveShell
shell = TerminalInteractiveShell.instance()
shell.run_cell({LOAD!r})
shell.run_cell({NOTEBOOK!r})
loaded = [name for name in sys.modules if "completion" in name and "tpu_magics" in name]
def tab(line):
    with provisionalcompleter():
        return [line[:one.start] + one.text + line[one.end:] for one in shell.Completer.completions(line, len(line))]
lines = ["%%tpu_train --st", "%%tpu_train --precision=bf", "%tpu_train ev", "%tpu_pad batch_"]
print()  # IPython 7 has set the window's title
print(json.dumps([loaded, [tab(line) for line in lines], shell.complete("", "%tpu_train --st", 15)]))
"""


@pytest.mark.process
@pytest.mark.parametrize("old", [False] if overlay.is_host() else [False, True])
def test_in_a_terminal(old: bool, tmp_path: Path) -> None:
    own = {"PYTHONPATH": os.pathsep.join(map(str, (*overlay.old_kernel(), overlay.ROOT)))} if old else {}
    said = python(TERMINAL, tmp_path, IPYTHONDIR=str(tmp_path / "ipython"), **own)
    loaded, completed, one = json.loads(said.splitlines()[-1])
    assert loaded == [], "it is imported at the first Tab"
    assert completed == [
        ["%%tpu_train --steps", "%%tpu_train --strict"],
        ["%%tpu_train --precision=bf16", "%%tpu_train --precision=bf16-downcast"],
        ["%tpu_train evaluate"],
        ["%tpu_pad batch_size"],
    ]
    assert one == ["--st", ["--steps", "--strict"]]
