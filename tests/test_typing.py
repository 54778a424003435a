"""What the type checker sees of a backend that does not fit the seam, and of a user's script with the wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.installed import ROOT, built, install

pytestmark = pytest.mark.process
IMPORTS = """
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tpu_magics
from tpu_magics.backends.protocols import Backend, Models, Results
from tpu_magics.backends.torch_tpu import TorchTpu
from tpu_magics.backends.torch_xla import TorchXla
"""
# The body of a backend, and what is said of it.
BROKEN = {
    "no such module": (
        """
    @property
    def results(self) -> Results:
        from tpu_magics.backends.torch import nowhere

        return nowhere
""",
        'has no attribute "nowhere"',
    ),
    "a module with other functions": (
        """
    @property
    def models(self) -> Models:
        from tpu_magics.backends.torch import weights

        return weights
""",
        'expected "Models"',
    ),
    "another argument": (
        """
    def rebuild(self, items: Sequence[tuple[str, Any]], copies: str) -> None: ...
""",
        'incompatible with supertype "tpu_magics.backends.torch.TorchBackend"',
    ),
    "another result": (
        """
    def refuse(self, precision: str = "", spmd: int | None = None, cache: str = "", hosts: str = "") -> bool:
        return False
""",
        'return type "None" in supertype',
    ),
}


def said(folder: Path, text: str, *options: str) -> str:
    """What mypy says of this text."""
    (folder / "script.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *options, "script.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300).stdout


def test_a_backend_fits_the_seam_or_mypy_says_so(tmp_path: Path) -> None:
    """One script for all, so that mypy reads the package once."""
    classes = [f"class Broken{n}(TorchXla):{body}" for n, (body, _) in enumerate(BROKEN.values())]
    lacking = ["class Lacking:\n    name = 'own'", "lacking: Backend = Lacking()"]
    good = ["fits: list[Backend] = [TorchXla(), TorchTpu()]"]
    text = said(tmp_path, "\n\n".join([IMPORTS, *classes, *lacking, *good]), "--cache-dir", str(ROOT / ".mypy_cache"))
    assert [words for _, words in BROKEN.values() if words not in text] == [], text
    assert 'expression has type "Lacking", variable has type "Backend"' in text
    assert "List item" not in text, text


SCRIPT = """
import tpu_magics

reveal_type(tpu_magics.train(print, processes=2))
reveal_type(tpu_magics.find_run("x"))
tpu_magics.find_run(3)
tpu_magics.no_such_name()
"""


def test_a_users_script_is_checked_with_the_wheel(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    environment = install(built(tmp_path_factory)[1], tmp_path_factory.mktemp("typed"))
    text = said(tmp_path, SCRIPT, "--python-executable", str(environment.python), "--no-incremental")
    for kind in ("tpu_magics.launch.results.TrainResult", "tpu_magics.runs.reader.Run"):
        assert f'Revealed type is "{kind}"' in text, text
    assert 'Argument 1 to "find_run" has incompatible type "int"' in text, text
    assert 'Module has no attribute "no_such_name"' in text, text
