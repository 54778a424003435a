"""The compiler for TPUs, in two versions. Without it, tests that need it are skipped with the reason; in CI it is
there.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import overlay
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.preflight import compile_process


@pytest.fixture(scope="session")
def tpu_compiler() -> tuple[str, ...]:
    """The compiler of the installed versions: folders for `packages` (none)."""
    try:
        compile_process.compiler_versions()
    except TpuMagicsError as error:
        pytest.skip(error.what)
    return ()


@pytest.fixture
def own_cache(
    fresh_session: session.Session, tpu_compiler: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A session in which nothing that was compiled before is known; nothing of a trace may be left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    fresh_session.backend.prepare()
    yield
    assert list((tmp_path / "tmp").glob("tpu_magics*")) == []


@pytest.fixture(scope="session")
def colab_compiler() -> tuple[str, ...]:
    """The compiler of Colab's versions: folders for `packages`."""
    if sys.version_info < (3, 11):
        pytest.skip("jax 0.7.2 needs Python 3.11")
    if overlay.is_colab():
        return (sysconfig.get_path("platlib"),)
    if not (overlay.COLAB_COMPILER / "libtpu").is_dir():
        pytest.skip(f"{overlay.COLAB_COMPILER.name} is not installed: run scripts/install.py")
    return (str(overlay.COLAB_COMPILER),)


COLAB = (
    [] if overlay.is_host() else [pytest.param("colab", marks=pytest.mark.long)]
)  # `make test-hosts` has it as its own


@pytest.fixture(scope="module", params=["newest", *COLAB])
def packages(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Each of the two in turn; in the environment of a host its own."""
    return request.getfixturevalue({"newest": "tpu_compiler", "colab": "colab_compiler"}[request.param])
