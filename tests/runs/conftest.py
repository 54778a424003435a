"""Where runs and temporary folders of these tests are made: nowhere else than in the test's own folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.delenv("TPU_MAGICS_RUNS", raising=False)
    path = tmp_path / "tmp"
    path.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for runs, which is not there yet."""
    return tmp_path / "runs"
