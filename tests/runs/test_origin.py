"""Whose code a line is, where a library was installed apart. The rest of origin.py: tests/launch/test_stacks.py."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tpu_magics.runs import origin


@pytest.fixture
def keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package `keras` as `pip install --target` leaves it; the path of a file of it."""
    (tmp_path / "apart" / "keras-3.dist-info").mkdir(parents=True)
    module = ModuleType("keras")
    module.__file__ = str(tmp_path / "apart" / "keras" / "__init__.py")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setitem(sys.modules, "keras", module)
    return str(tmp_path / "apart" / "keras" / "layer.py")


def test_what_lies_beside_an_imported_package_is_a_library(keras: str) -> None:
    beside = keras.replace("/keras/", "/optree/")
    assert origin.is_library(keras) and origin.package_of(keras) == "keras"
    assert origin.is_library(beside) and origin.package_of(beside) == "optree"
    assert origin.package_of(keras.replace("/keras/layer.py", "/six.py")) == "six"


def test_it_is_known_from_its_import_on(keras: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "keras")
        assert not origin.is_library(keras) and origin.package_of(keras) == ""
    assert origin.is_library(keras)


def test_the_persons_own_folders_are_none(keras: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not origin.is_library(str(tmp_path / "train.py"))
    assert not origin.is_library(str(tmp_path / "apart-of-mine" / "train.py"))
    origin._installs.cache_clear()
    monkeypatch.chdir(tmp_path / "apart")  # installed into the working folder, which holds the person's code as well
    assert not origin.is_library(str(tmp_path / "apart" / "train.py"))
    origin._installs.cache_clear()


def test_a_package_in_a_folder_of_sources_makes_no_library_of_it(keras: str, tmp_path: Path) -> None:
    (tmp_path / "apart" / "keras-3.dist-info").rmdir()
    origin._installs.cache_clear()
    assert not origin.is_library(keras)
    origin._installs.cache_clear()


def test_what_autograph_makes_of_a_function_is_no_line_of_the_persons() -> None:
    path = "/tmp/__autograph_generated_filevypzxuhu.py"
    assert origin.is_library(path) and origin.package_of(path) == "tensorflow"
