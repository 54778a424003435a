"""The list of what a host's libtpu lacks, in a real pytest: what it skips, and that CI allows these skips only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
LISTED = "def test_every_second_device_of_7x(): assert False, 'it ran'\n"
OTHER = "import pytest\ndef test_every_second_device_of_7x(): pass\ndef test_x(): pytest.skip('no browser here')\n"
OTHERWISE = "import pytest\ndef test_every_second_device_of_7x(): pytest.skip('no browser here')\n"


def run_pytest(folder: Path, source: str, libtpu: str, *plugins: str) -> subprocess.CompletedProcess[str]:
    """In CI, with a libtpu of that version: only its name is looked at."""
    (folder / "preflight").mkdir()
    (folder / "preflight" / "test_targets.py").write_text(source)
    fake_libtpu = folder / "packages" / f"libtpu-{libtpu}.dist-info"
    fake_libtpu.mkdir(parents=True)
    (fake_libtpu / "METADATA").write_text(f"Metadata-Version: 2.1\nName: libtpu\nVersion: {libtpu}\n")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    path = os.pathsep.join([str(folder / "packages"), str(ROOT)])
    environment = {**kept, "PYTHONPATH": path, "CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    options = [word for plugin in plugins for word in ("-p", plugin)]
    command = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


BOTH = ("tests._ci", "tests.hosts.lacking")


def test_what_is_listed_is_skipped_with_its_reason_and_ci_allows_it(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LISTED + "def test_another(): pass\n", "0.0.17", *BOTH)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "libtpu 0.0.17 does not know the generation 7x" in done.stdout


def test_a_libtpu_that_is_not_listed_has_to_pass(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LISTED, "0.0.52", *BOTH)
    assert done.returncode == 1 and "it ran" in done.stdout


@pytest.mark.parametrize("source", [OTHER, OTHERWISE], ids=["another test", "another reason"])
def test_another_skip_fails_the_run(tmp_path: Path, source: str) -> None:
    done = run_pytest(tmp_path, source, "0.0.17", "tests._ci")
    assert done.returncode == 1 and "not allowed in CI" in done.stdout
