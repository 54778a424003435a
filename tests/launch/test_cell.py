"""How a `%%tpu_train` cell is read, from its text alone; ARGs: words of a line, expressions of the notebook."""

from __future__ import annotations

import ast
import sys
import types
from typing import Any

import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import cell


def read(text: str, **namespace: Any) -> cell.Cell:
    return cell.read_cell(text, "<cell>", namespace)


DEF = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (DEF, 1),
        ("lr = 0.1\n" + DEF, 1),
        ("async def f(): pass", 1),  # refused later, with the reason
        ("@decorated\n" + DEF, 1),
        (DEF + "f(1)", 3),
        (DEF + "'a text behind it'", 3),
        ("for x in y:\n    f(x).sum().backward()\n" + DEF, 3),  # a helper below the statements that train
        ("def main():\n    step()\ndef step():\n    loss.backward()\nmain()\n" + DEF, 3),
        ("model.fit(x, y, epochs=2)\n" + DEF, 3),
        ("scaler.fit(x)\nfor x in y: print(x)\n" + DEF, 1),
        ("def step():\n    loss.backward()\n" + DEF, 1),
        ("class A: pass", 3),
        ("x = 1", 3),
        ("f(1)", 3),
        ("from accelerate import notebook_launcher\n" + DEF + "notebook_launcher(f, (1,))", 2),
        ("from accelerate import notebook_launcher\nnotebook_launcher(f, (1,))\n" + DEF, 2),
        ("import torch_xla\ntorch_xla.launch(f, args=())", 2),
        ("import torch_xla as t\nt.launch(f)", 2),
        ("from torch_xla import launch as go\ngo(f)", 2),
        ("import torch_xla.distributed.xla_multiprocessing as xmp\nxmp.spawn(f, args=(1,))", 2),
        ("import torch_xla.distributed.xla_multiprocessing\ntorch_xla.distributed.xla_multiprocessing.spawn(f)", 2),
        ("from torch_xla.distributed import xla_multiprocessing as x\nx.spawn(f)", 2),
        ("from accelerate.launchers import notebook_launcher\nr = notebook_launcher(f)", 2),
        ("import accelerate\nif __name__ == '__main__':\n    accelerate.notebook_launcher(f)", 2),
        ("import accelerate\nwith x:\n    accelerate.notebook_launcher(f)", 2),
        ("import accelerate\ntry:\n    accelerate.notebook_launcher(f)\nfinally:\n    pass", 2),
        ("import accelerate\n" + "def g():\n    accelerate.notebook_launcher(f)\n", 1),  # not at the top level
        ("import accelerate\nfor i in range(2):\n    accelerate.notebook_launcher(f)", 3),
        ("def launch(f): pass\nlaunch(f)", 3),  # somebody's own
        ("other.launch(f)", 3),
        ("from elsewhere import notebook_launcher\nnotebook_launcher(f)", 3),
    ],
)
def test_the_three_forms(text: str, form: int) -> None:
    found = read(text)
    assert found.form == form
    assert found.function == ("f" if form == 1 and "def g" not in text else found.function)
    assert bool(found.calls) == (form == 2)


def test_launchers_are_known_by_what_they_are() -> None:
    """A name of the notebook stands for what it holds, whatever it is called."""
    spawn = types.FunctionType((lambda: 1).__code__, {}, "spawn")
    spawn.__module__, spawn.__qualname__ = "torch_xla.distributed.xla_multiprocessing", "spawn"
    module = types.ModuleType("accelerate")
    assert read("anything(f)", anything=spawn).calls[0][1] == "xmp.spawn"
    assert read("acc.notebook_launcher(f)", acc=module).calls[0][1] == "notebook_launcher"
    assert read("acc.notebook_launcher(f)", acc=3).form == 3
    assert "torch_xla" in sys.modules or read("torch_xla.launch(f)").form == 3


def test_every_launcher_has_a_kind() -> None:
    from tpu_magics.launch import train

    assert set(cell.LAUNCHERS.values()) == set(train._INTERCEPTORS)


def test_two_calls_are_both_found_and_replaced() -> None:
    found = read("import torch_xla\ntorch_xla.launch(f, args=(1,))\nx = torch_xla.launch(g)\n")
    assert [kind for _, kind in found.calls] == ["torch_xla.launch"] * 2
    text = ast.unparse(ast.fix_missing_locations(cell.replace_calls(found, "__ours__")))
    assert "__ours__(0, torch_xla.launch, f, args=(1,))" in text
    assert "x = __ours__(1, torch_xla.launch, g)" in text


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_cell(text: str) -> None:
    with pytest.raises(TpuMagicsError, match="is empty") as caught:
        read(text)
    assert "%tpu_train FUNCTION" in caught.value.todo


def test_a_cell_that_is_not_python() -> None:
    with pytest.raises(SyntaxError):
        read("def f(:")


def test_future_statements_may_stand_anywhere_as_in_ipython() -> None:
    found = read("import os\nfrom __future__ import annotations\nx: int = 1\n").tree
    assert [type(node) for node in found.body] == [ast.ImportFrom, ast.Import, ast.AnnAssign]
    cell.compile_tree(found, "<cell>", "exec")


def test_definitions_of_a_cell_of_statements_come_first() -> None:
    text = '"text"\nimport os\nclass A: pass\ndef f(): pass\nx = 1\ndef g(): pass\nx + 1\n'
    first, rest = cell.split_definitions(ast.parse(text))
    assert len(first.body) == 4 and ast.unparse(rest).startswith("x = 1")
    body, last = cell.split_last(rest)
    assert len(body.body) == 2 and last is not None and ast.unparse(last) == "x + 1"
    assert cell.split_last(ast.parse("x = 1"))[1] is None
    before, final = cell.split_final(ast.parse("x = 1\nx"))
    assert ast.unparse(before) == "x = 1" and ast.unparse(final) == "x"
    assert cell.split_final(ast.parse("x = 1"))[1].body == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  model   16 ", ["model", "16"]),
        ('m1 16 "cfg.lr * 2"', ["m1", "16", "cfg.lr * 2"]),
        ("m [1, 2] {'a': 1} f(1, 2) (3, 4)", ["m", "[1, 2]", "{'a': 1}", "f(1, 2)", "(3, 4)"]),
        ("key='a b' other=[1, 2]", ["key=a b", "other=[1, 2]"]),
        ("\"'text with spaces'\"", ["'text with spaces'"]),
        ("'a'+'b'", ["'a'+'b'"]),
        ("d['a b'] x", ["d['a b']", "x"]),
        ("--steps 5 model", ["--steps", "5", "model"]),
        ("f('(') x", ["f('(')", "x"]),
        ("a)b c", ["a)b", "c"]),
        ("\tm\tn", ["m", "n"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert cell.split_words(line) == words


@pytest.mark.parametrize(("line", "word"), [("f('a", "quote '"), ("[1, 2", "bracket"), ('"x', 'quote "')])
def test_what_is_never_closed(line: str, word: str) -> None:
    with pytest.raises(TpuMagicsError, match=word) as caught:
        cell.split_words(line)
    assert line in caught.value.why


def test_positional_and_named() -> None:
    assert cell.parse_arguments(["m", "1 + 1", "a == b", "lr=0.1", "f=x==y"]) == (
        ["m", "1 + 1", "a == b"],
        {"lr": "0.1", "f": "x==y"},
    )
    with pytest.raises(TpuMagicsError, match="follows a keyword ARG"):
        cell.parse_arguments(["a=1", "m"])
    for word in ("1 +", "a b", "lr=", "x=1 +", "def", "print 'x'"):
        with pytest.raises(TpuMagicsError, match="is not a Python expression"):
            cell.parse_arguments([word])


def test_values() -> None:
    space = {"cfg": {"lr": 0.5}, "n": 2}
    assert cell.evaluate_all(["cfg['lr']", "[n for _ in range(n)]"], {"k": "n * 2"}, space) == (
        [0.5, [2, 2]],
        {"k": 4},
    )
    with pytest.raises(TpuMagicsError, match="NameError") as caught:
        cell.evaluate("bert", space)
    assert "Define `bert` in an earlier cell; for a string, write \"'bert'\"" in caught.value.todo
    with pytest.raises(TpuMagicsError, match="KeyError") as caught:
        cell.evaluate("cfg['epochs']", space)
    assert "Fix the expression" in caught.value.todo
    assert isinstance(caught.value.__cause__, KeyError)
