"""The extension's keyboard shortcuts clash with none that JupyterLab brings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

SCHEMA = Path(__file__).parents[1] / "labextension/schema/plugin.json"
KEY = "jupyter.lab.shortcuts"


def own() -> list[dict[str, Any]]:
    shortcuts: list[dict[str, Any]] = json.loads(SCHEMA.read_text(encoding="utf-8"))[KEY]
    return shortcuts


def jupyterlabs() -> Iterator[tuple[str, list[str]]]:
    """Each command of JupyterLab with its keys, as its own schemas declare them."""
    pytest.importorskip("jupyterlab")
    for file in sorted((Path(sys.prefix) / "share/jupyter/lab/schemas").rglob("*.json")):
        for shortcut in json.loads(file.read_text(encoding="utf-8")).get(KEY, []):
            yield shortcut["command"], [normal(key) for key in shortcut.get("keys") or []]
            yield shortcut["command"], [normal(key) for key in shortcut.get("macKeys") or []]


def normal(stroke: str) -> str:
    """A keystroke with its modifiers in one order; Accel is Ctrl or Cmd, which are taken for the same here."""
    *modifiers, key = stroke.split(" ")
    same = {"Accel": "Ctrl", "Cmd": "Ctrl"}
    return " ".join([*sorted({same.get(one, one) for one in modifiers}), key.upper()])


def clash(one: list[str], other: list[str]) -> bool:
    """Whether one is the beginning of the other: then the longer can be reached only by waiting, or not at all."""
    shared = min(len(one), len(other))
    return shared > 0 and one[:shared] == other[:shared]


def test_no_shortcut_clashes_with_jupyterlabs() -> None:
    theirs = [(command, keys) for command, keys in jupyterlabs() if any(keys)]
    assert len(theirs) > 50  # they were found
    found = [
        (mine["command"], command, keys)
        for mine in own()
        for command, keys in theirs
        if clash([normal(key) for key in mine["keys"]], keys)
    ]
    assert found == []


def test_none_clashes_with_another() -> None:
    keys = [[normal(key) for key in one["keys"]] for one in own()]
    assert keys
    assert not [pair for pair in combinations(keys, 2) if clash(*pair)]


def test_none_is_in_the_way_of_typing() -> None:
    """Plain letters work while a cell is selected and not while it is edited."""
    assert {one["selector"] for one in own()} == {
        ".jp-Notebook.jp-mod-commandMode:not(.jp-mod-readWrite) :focus",
    }


def test_each_command_has_a_place() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    menu = schema["jupyter.lab.menus"]["main"][0]["items"]
    submenu = next(item["submenu"] for item in menu if item.get("type") == "submenu")
    in_menu = {item["command"] for item in submenu["items"] if "command" in item}
    assert in_menu == {one["command"] for one in own()} and len(in_menu) == 6
    toolbar = {item["command"] for item in schema["jupyter.lab.toolbars"]["Notebook"]}
    assert toolbar == {"tpu-magics:train", "tpu-magics:check"}
