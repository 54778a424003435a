"""Fixes: edits, rounds, diffs, and files whose other bytes are unchanged."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.check.own_rules import RULES, edit, finding, notebook
from tpu_magics.check import check_cells
from tpu_magics.check.cells import CodeCell, cell_of, cells_of
from tpu_magics.check.finding import Edit, Finding
from tpu_magics.check.fixes import FixResult, apply_edits, diff, fix, new_bytes, write
from tpu_magics.errors import TpuMagicsError

TORCH = "import torch\n"


def check(cells: Sequence[CodeCell]) -> list[Finding]:
    return check_cells(cells, RULES)


def fixed_text(text: str, *findings: Finding) -> tuple[str, int]:
    """What one round with these findings makes of a text."""
    rounds = iter([list(findings)])
    found = fix([cell_of(text, "a.py")], lambda _: next(rounds, []))
    return found.cells[0].text, found.count


# -- edits ----------------------------------------------------------------------------------------------------------


def test_edits_replace_insert_and_delete() -> None:
    edits = [edit(1, 0, 1, "a"), edit(1, 2, 2, "é"), Edit((1, 5), (3, 1), ""), edit(4, 0, 0, "last")]
    assert apply_edits("xé€ab\ncd\nefg\n", edits) == "aéé€abfg\nlast"
    assert apply_edits("x€ = 1\ny = 2\n", [edit(1, 0, 2, "long"), edit(2, 4, 5, "3"), edit(3, 0, 0, "z\n")]) == (
        "long = 1\ny = 3\nz\n"
    )
    assert apply_edits("a\nb\nc\n", [Edit((1, 1), (3, 0), "")]) == "ac\n"


def test_of_edits_that_overlap_the_first_is_applied() -> None:
    first = finding(1, 1, edits=(edit(1, 0, 3, "abc"),))
    second = finding(1, 3, edits=(edit(1, 2, 4, "XX"),))
    assert fixed_text("x.y.z\n", first, second) == ("abc.z\n", 1)
    assert fixed_text("x.y.z\n", second, first) == ("abc.z\n", 1)
    assert fixed_text("x.y.z\n", first, finding(1, 4, edits=(edit(1, 3, 3, "d"),))) == ("abcd.z\n", 2)


def test_all_edits_of_a_finding_or_none() -> None:
    first = finding(1, 1, edits=(edit(1, 0, 1, "a"),))
    both = finding(1, 5, edits=(edit(1, 0, 1, "b"), edit(2, 0, 1, "b")))
    assert fixed_text("x = 1\nx = 2\n", first, both) == ("a = 1\nx = 2\n", 1)


def test_an_edit_that_two_findings_need_is_applied_once() -> None:
    add = edit(1, 0, 0, "import math\n")
    found = finding(2, 1, edits=(add, edit(2, 0, 1, "b"))), finding(3, 1, edits=(add,))
    assert fixed_text("x = 1\ny = 2\n", *found) == ("import math\nx = 1\nb = 2\n", 2)


def test_an_edit_that_leaves_no_python_is_not_written() -> None:
    good = finding(1, 1, edits=(edit(1, 0, 1, "a"),))
    bad = finding(2, 1, edits=(edit(2, 0, 1, "("),))
    late = finding(3, 1, edits=(Edit((3, 0), (3, 1), "b\nc"),))
    text = "x = 1\ny = 2\nz = 3\n"
    assert fixed_text(text, good, bad, late) == ("a = 1\ny = 2\nb\nc = 3\n", 2)
    assert fixed_text(text, bad) == (text, 0)


def test_rounds_go_on_until_nothing_is_left() -> None:
    cell = cell_of(TORCH + "red(red(red(1)))\nblue(red(2))\ngrey(3)\n", "a.py")
    found = fix([cell], check)
    assert found.cells[0].text == TORCH + "green(green(green(1)))\nblue(green(2))\ngray(3)\n"
    assert found.count == 5
    again = fix(found.cells, check)
    assert (again.changes, again.count) == ({}, 0)


def test_cells_of_a_running_notebook_are_fixed_each_by_its_own_edits() -> None:
    cells = [cell_of(TORCH + "red(1)\n", "In [1]"), cell_of("x = 1\nred(2)\n", "In [2]")]
    assert fix(cells, check).changes == {0: TORCH + "green(1)\n", 1: "x = 1\ngreen(2)\n"}


def test_edits_that_undo_each_other_come_to_an_end() -> None:
    def swap(cells: Sequence[CodeCell]) -> list[Finding]:
        new = "b" if cells[0].text[0] == "a" else "a"
        return [finding(1, 1, edits=(edit(1, 0, 1, new),))]

    assert fix([cell_of("a = 1\n", "a.py")], swap).cells[0].text == "a = 1\n"


# -- files ----------------------------------------------------------------------------------------------------------


def fixed_bytes(data: bytes, path: str = "a.py") -> bytes:
    return new_bytes(path, data, fix(cells_of(data, path), check))


@pytest.mark.parametrize(
    "data",
    [
        b"import torch\nred(1)\n",
        b"import torch\r\nred(1)\r\n",
        b"import torch\rred(1)\r",
        b"import torch\r\nx = 1\nred(1)\r\ny = '''\r\n\n'''\rred(2)",
        b"import torch\nred(1)",
        b"\xef\xbb\xbfimport torch\nred('\xc3\xa9')\n",
        b"# coding: latin-1\nimport torch\nred('\xe9')\n",
        b"import torch\n\x0c\nred(1)\n",
        b"import torch\nx = '\xe2\x80\xa8\x0b'; red('\xf0\x9f\x98\x80', red(1))\n",
        b"import torch\nred(1)\n\n\n",
        b"import torch\nif x:\n\tred(1)\n",
    ],
)
def test_only_what_is_edited_changes_in_a_python_file(data: bytes) -> None:
    assert fixed_bytes(data) == data.replace(b"red(", b"green(")
    assert fixed_bytes(fixed_bytes(data)) == fixed_bytes(data)


CELLS = (TORCH.strip(), ["%%time\n", "x = 'é\u2028'\n", "red(1)"], "red('''\n'''); grey(2)\n", ["blue(red(3))\n"], [])


@pytest.mark.parametrize(
    "options",
    [
        {"indent": 1, "ensure_ascii": False},
        {"indent": 1},
        {"indent": 2, "sort_keys": True},
        {"indent": 4, "ensure_ascii": False},
        {"indent": "\t"},
        {},
        {"separators": (",", ":")},
        {"separators": (" , ", " : "), "indent": 1},
    ],
)
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_only_what_is_edited_changes_in_a_notebook(options: dict[str, Any], end: str, mark: bytes) -> None:
    """Layout, order, escapes, outputs and markdown: as if the file had been written with the new code."""
    old, new = notebook(*CELLS), notebook(*CELLS)
    sources = [cell["source"] for cell in new["cells"]]
    sources[2][2], sources[3], sources[4][0] = "green(1)", "green('''\n'''); gray(2)\n", "blue(green(3))\n"
    new["cells"][3]["source"] = sources[3]
    data = mark + (json.dumps(old, **options) + end).encode()
    assert fixed_bytes(data, "a.ipynb") == mark + (json.dumps(new, **options) + end).encode()


def test_a_notebook_of_nbformat_3_is_fixed() -> None:
    cells = [{"cell_type": "code", "input": [TORCH, "red(1)"], "language": "python"}]
    data = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}, {"cells": cells}]}).encode()
    assert fixed_bytes(data, "a.ipynb") == data.replace(b"red(", b"green(")


@pytest.mark.parametrize(
    "source",
    [
        r'["import torch\n", "x = \u003c\/\n",   "red(1)\n" ,"red(2)"]',
        r'["import ", "torch\nx = 1", "\n", "red(1)\n"]',
        r'["import torch\r\n", "x = 1\r\n", "red(1)\r\n"]',
        r'"import torch\r\nred(1)"',
        r'["import torch; red(1)"]',
    ],
)
def test_odd_sources_keep_their_code(source: str) -> None:
    source = source.replace(r"x = \u003c\/", r"x = 1 \u003c 2 # \/")
    data = f'{{"cells": [ {{"source" : {source}, "cell_type": "code"}}], "x": {{}}}}'.encode()
    new = fixed_bytes(data, "a.ipynb")
    wanted = "".join(json.loads(source)).replace("red(", "green(")
    assert "".join(json.loads(new)["cells"][0]["source"]) == wanted
    assert new.startswith(b'{"cells": [ {"source" : ')
    assert new.endswith(b', "cell_type": "code"}], "x": {}}')
    assert (b"\\u003c" in new) == (b"\\u003c" in data)


def test_lines_that_are_added_take_the_layout_of_the_list() -> None:
    def adds(cells: Sequence[CodeCell]) -> list[Finding]:
        add = finding(1, 1, path="a.ipynb", cell=1, edits=(edit(1, 0, 0, "import math\n"),))
        return [] if "math" in cells[0].text else [add]

    data = (json.dumps(notebook(["x = 1\n", "y = 2"], ["x = 1"]), indent=2) + "\n").encode()
    wanted = (json.dumps(notebook(["import math\n", "x = 1\n", "y = 2"], ["x = 1"]), indent=2) + "\n").encode()
    assert new_bytes("a.ipynb", data, fix(cells_of(data, "a.ipynb"), adds)) == wanted


def test_a_character_that_the_encoding_lacks_leaves_the_file(tmp_path: Path) -> None:
    data = b"# coding: latin-1\nx = '\xe9'\n"
    cells = cells_of(data, "a.py")
    found = FixResult(cells, [cell_of(cells[0].text.replace("é", "€"), "a.py")], 1)
    with pytest.raises(TpuMagicsError, match="iso-8859-1 has no character '€'"):
        new_bytes("a.py", data, found)


# -- writing --------------------------------------------------------------------------------------------------------


def write_fixes(path: Path, data: bytes | None = None) -> None:
    data = path.read_bytes() if data is None else data
    write(str(path), data, fix(cells_of(data, str(path)), check))


def test_writing_keeps_the_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(TORCH + "red(1)\n")
    path.chmod(0o751)
    write_fixes(path)
    assert path.read_text() == TORCH + "green(1)\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert os.listdir(tmp_path) == ["a.py"]


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.py").write_text(TORCH + "red(1)\n")
    link = tmp_path / "b.py"
    link.symlink_to("real/a.py")
    write_fixes(link)
    assert link.is_symlink()
    assert (tmp_path / "real" / "a.py").read_text() == TORCH + "green(1)\n"


def test_nothing_to_fix_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(TORCH)
    before = path.stat()
    write_fixes(path)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_a_file_that_changed_meanwhile_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("other\n")
    with pytest.raises(TpuMagicsError, match="The file changed during the check"):
        write_fixes(path, (TORCH + "red(1)\n").encode())
    assert path.read_text() == "other\n"


def test_a_write_that_breaks_off_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text(TORCH + "red(1)\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TpuMagicsError, match="No space left on device"):
        write_fixes(path)
    assert path.read_text() == TORCH + "red(1)\n"
    assert os.listdir(tmp_path) == ["a.py"]


def test_a_read_only_file_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text(TORCH + "red(1)\n")
    path.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everything
    with pytest.raises(TpuMagicsError, match="the file is read-only"):
        write_fixes(path)
    assert path.read_text() == TORCH + "red(1)\n"


# -- diffs ----------------------------------------------------------------------------------------------------------


def test_the_diff_of_a_file() -> None:
    found = fix([cell_of(TORCH + "red(1)", "a.py")], check)
    assert diff(found) == (
        "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n import torch\n"
        "-red(1)\n\\ No newline at end of file\n+green(1)\n\\ No newline at end of file\n"
    )


def test_the_diff_of_a_notebook_names_its_cells() -> None:
    cells = [cell_of(text, "a.ipynb", n) for n, text in enumerate((TORCH, "red(1)\n", "x = 1\n", "grey(1)\n"), start=1)]
    found = diff(fix(cells, check))
    assert [line for line in found.splitlines() if line.startswith("---")] == [
        "--- a.ipynb, cell 2 (before)",
        "--- a.ipynb, cell 4 (before)",
    ]
    assert "-red(1)\n+green(1)\n" in found
