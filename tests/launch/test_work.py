"""A file that is run as a module."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import pytest

from tpu_magics.launch.work import execute, new_module


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delitem(sys.modules, "a_training", raising=False)
    return tmp_path / "a_training.py"


def test_another_text_of_the_same_size_and_second_is_what_runs(file: Path) -> None:
    for rate in ("0.1", "0.2"):
        file.write_text(f"rate = {rate}\n")
        os.utime(file, (10**9, 10**9))
        module = new_module("a_training", file)
        execute(module)
        assert module.rate == float(rate) and sys.modules["a_training"] is module
    assert [path.name for path in file.parent.iterdir()] == [file.name], "byte code was left beside the person's file"


def test_it_is_a_module_like_any_other(file: Path) -> None:
    file.write_text('"""What it does."""\nimport sys\nassert __name__ in sys.modules\n1 / 0\n')
    module = new_module("a_training", file)
    with pytest.raises(ZeroDivisionError) as caught:
        execute(module)
    assert (module.__file__, module.__name__, module.__doc__) == (str(file), "a_training", "What it does.")
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "1 / 0"
