"""The kernel reads a cell as the JupyterLab extension does, which puts `%%tpu_train` with its arguments on top.

The cases are those of the extension's own test (labextension/src/__tests__/trainline.json).
"""

from __future__ import annotations

import ast
import json
import types
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.launch import cell

CASES = json.loads(
    (Path(__file__).parents[2] / "labextension/src/__tests__/trainline.json").read_text(encoding="utf-8")
)
MODULES = ("torch_xla", "torch_xla.distributed.xla_multiprocessing")


def namespace_of(others: list[str]) -> dict[str, Any]:
    """What the imports of other cells have left in the notebook. No framework is imported for it: of a module and of
    a function, the reader looks at the names only."""
    found: dict[str, Any] = {}
    for other in others:
        for local, name in cell._imports(ast.parse(other)).items():
            module, _, function = name.rpartition(".")
            found[local] = types.ModuleType(name) if name in MODULES else types.FunctionType((lambda: 0).__code__, {})
            if name not in MODULES:
                found[local].__module__, found[local].__qualname__ = module, function
    return found


def needed(tree: ast.Module) -> tuple[list[str], list[str]]:
    """The last function's parameters without a default: by position, and by keyword only."""
    function = tree.body[-1]
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    given = function.args
    positional = [one.arg for one in (*given.posonlyargs, *given.args)]
    named = [one.arg for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return positional[: len(positional) - len(given.defaults)], named


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_cases_of_the_extension(case: dict[str, Any]) -> None:
    read = cell.read_cell(case["source"], "<cell>", namespace_of(case["others"]))
    assert read.form == case["form"]
    magic, *words = cell.split_words(case["line"])
    assert magic == "%%tpu_train"
    positional, named = cell.parse_arguments(words)
    wanted = needed(read.tree) if read.form == 1 else ([], [])
    assert (positional, list(named)) == wanted
    assert all(name == value for name, value in named.items())
