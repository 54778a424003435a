"""The functions for Python code."""

from __future__ import annotations

from pathlib import Path

import pytest

import tpu_magics
from tpu_magics.check import check_function, check_paths, check_text
from tpu_magics.errors import TpuMagicsError

BROKEN = """\
import torch
def f(x: torch.Tensor):
    return helper(x)
def helper(x):
    return x[x > 0]
def g(x: torch.Tensor):
    return x.nonzero()
"""


def test_paths_are_walked_and_rules_chosen(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(BROKEN)
    (tmp_path / "notes.txt").write_text(BROKEN)
    assert [one.code for one in check_paths([tmp_path])] == ["TPU201", "TPU203"]
    assert [one.code for one in check_paths([tmp_path / "code.py"], select=["TPU203"])] == ["TPU203"]
    assert [one.code for one in check_paths([tmp_path], ignore=["shapes"])] == []
    with pytest.raises(TpuMagicsError, match="There is no file or folder"):
        check_paths([tmp_path / "nothing.py"])
    with pytest.raises(TpuMagicsError, match="no rule matches"):
        check_paths([tmp_path], select=["TPU999"])


def test_a_function_is_checked_with_what_it_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checked_code.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    import checked_code  # type: ignore[import-not-found]

    assert [(one.code, one.line) for one in check_function(checked_code.f)] == [("TPU201", 5)]
    assert [(one.code, one.line) for one in check_function(checked_code.g)] == [("TPU203", 7)]
    with pytest.raises(TpuMagicsError, match="is not available"):
        check_function(len)


def test_the_room_is_there_by_its_name() -> None:
    assert tpu_magics.check.check_text is check_text
    assert [one.code for one in check_text(BROKEN)] == ["TPU201", "TPU203"]
