"""Fixtures of the preflight's tests: the compiler for TPUs, in two versions.

What lives here: whether it is there. A test that needs it and does not find it is skipped with the reason; in CI it is
there. What does not: programs to compile (stablehlo_programs.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight import installed

# jax 0.7.2 with libtpu 0.0.21.1, as Colab's TPU image has them; scripts/install.py puts them there.
COLAB = Path(__file__).resolve().parents[2] / ".venv" / "preflight-colab"


@pytest.fixture(scope="session")
def tpu_compiler() -> tuple[str, ...]:
    """The compiler of the installed versions: folders for `packages` (none)."""
    try:
        installed.versions()
    except TpuMagicsError as error:
        pytest.skip(error.what)
    return ()


@pytest.fixture(scope="session")
def colab_compiler() -> tuple[str, ...]:
    """The compiler of Colab's versions: folders for `packages`."""
    if sys.version_info < (3, 11):
        pytest.skip("jax 0.7.2 needs Python 3.11")
    if not (COLAB / "libtpu").is_dir():
        pytest.skip(f"{COLAB.name} is not installed: run scripts/install.py")
    return (str(COLAB),)


@pytest.fixture(scope="module", params=["newest", "colab"])
def packages(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Each of the two in turn."""
    return request.getfixturevalue({"newest": "tpu_compiler", "colab": "colab_compiler"}[request.param])
