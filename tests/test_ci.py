"""The plugin that allows no skips in CI, in a real pytest; and the scripts behind `make`, in a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parent.parent
PASSES = "def test_it(): pass\n"
SKIPS = "import pytest\ndef test_it(): pytest.skip('no browser here')\n"
SKIPS_ALL = "import pytest\npytest.importorskip('a_library_that_is_not_there')\n" + PASSES
FAILS = "def test_it(): assert False\n"


def run_pytest(folder: Path, source: str, *options: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_sample.py").write_text(source + "\n\ndef test_another(): pass\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "CI"))}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | ({"CI": ci} if ci else {})
    command = [sys.executable, "-m", "pytest", "-p", "tests._ci", "-p", "no:cacheprovider", *options, "test_sample.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("source", [SKIPS, SKIPS_ALL], ids=["test", "module"])
def test_in_ci_a_skip_fails_the_run(tmp_path: Path, source: str) -> None:
    done = run_pytest(tmp_path, source, ci="true")
    assert done.returncode != 0
    assert "not allowed in CI" in done.stdout and "test_sample.py" in done.stdout


def test_in_ci_other_runs_end_as_they_do_elsewhere(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, PASSES, ci="true").returncode == 0
    failed = run_pytest(tmp_path, FAILS, ci="true")
    assert failed.returncode == 1 and "not allowed in CI" not in failed.stdout


def test_in_ci_a_skip_under_xdist_fails_the_run(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, SKIPS, "-p", "xdist", "-n", "2", ci="true")
    assert done.returncode == 1
    assert "test_sample.py::test_it: skipped" in done.stdout


def test_elsewhere_a_skip_is_a_skip(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPS).returncode == 0


# -- make ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with what installing needs."""
    for name in ("Makefile", "pyproject.toml", "scripts"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`make` with an index that cannot be reached: what these tests look at comes before the first download."""
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1"}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "MAKE", "MFLAGS", "UV_"))}
    command = ["make", *arguments]
    environment = kept | offline | environment
    return subprocess.run(command, cwd=tree, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def python(tree: Path) -> str:
    return f"PYTHON={Path(sys.executable).resolve()}"


def test_make_alone_tells_what_there_is(tree: Path) -> None:
    done = make(tree)
    assert done.returncode == 0
    for goal in ("demo", "test", "lint", "format", "bench", "clean"):
        assert f"  make {goal}\t" in done.stdout


def test_an_old_python_is_refused_with_the_way_out(tree: Path) -> None:
    fake_python = tree / "fake_python3"
    fake_python.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.8.18' && exit 0\nexit 1\n")
    fake_python.chmod(0o755)
    done = make(tree, "demo", f"PYTHON={fake_python}")
    assert done.returncode != 0
    assert "needs Python 3.10 or newer" in done.stdout and "Python 3.8.18" in done.stdout
    assert "make demo PYTHON=" in done.stdout
    assert not (tree / ".venv").exists()


def test_no_python_at_all(tree: Path) -> None:
    done = make(tree, "test", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "needs Python 3.10 or newer" in done.stdout and "make test PYTHON=" in done.stdout


def test_a_python_without_venv_is_refused_with_the_way_out(tree: Path) -> None:
    """As on Debian without its python3-venv package, where ensurepip cannot be imported."""
    (tree / "fake_debian").mkdir()
    (tree / "fake_debian" / "ensurepip.py").write_text("raise ModuleNotFoundError(\"No module named 'ensurepip'\")\n")
    done = make(tree, "demo", python(tree), PYTHONPATH=str(tree / "fake_debian"))
    assert done.returncode != 0
    assert "cannot make virtual environments" in done.stderr
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"What to do: install it (sudo apt install python{version}-venv)" in done.stderr
    assert not (tree / ".venv").exists()


@pytest.mark.long
def test_an_install_that_fails_is_done_again_and_one_that_is_up_to_date_is_left_alone(tree: Path) -> None:
    first = make(tree, "demo", python(tree))
    assert first.returncode != 0
    assert "==> making .venv with" in first.stdout and "downloads about" in first.stdout
    assert "UV_TORCH_BACKEND=cpu make demo" in first.stdout
    assert "Installing uv failed." in first.stderr
    marker = tree / ".venv" / "half-made"
    marker.touch()
    second = make(tree, "demo", python(tree), UV_TORCH_BACKEND="cpu")
    assert "its last install was interrupted" in second.stdout
    assert "PyTorch comes from its own index" in second.stdout
    assert not marker.exists()
    # As if the download had succeeded.
    code = "import install; install.STAMP.write_text(install.key('torch,rehearsal,preflight,pods,dev'))"
    subprocess.run([sys.executable, "-c", code], cwd=tree / "scripts", check=True)
    again = make(tree, "install", python(tree))
    assert again.returncode == 0, again.stderr
    assert ".venv is up to date" in again.stdout
    with (tree / "pyproject.toml").open("a") as file:
        file.write("\n# one more extra\n")
    changed = make(tree, "install", python(tree))
    assert "installing tpu_magics with extras torch,rehearsal,preflight,pods,dev" in changed.stdout
    assert "making .venv" not in changed.stdout


# -- make lab -----------------------------------------------------------------------------------------------------

WHERE = "import importlib.util as u; print([bool(u.find_spec(name)) for name in ('tensorflow', 'keras', 'tpu_magics')])"


def test_make_lab_has_a_kernel_with_tensorflow_and_copies_all_notebooks_once(tree: Path) -> None:
    for name in ("bin", "lib", "pyvenv.cfg", "tensorflow"):  # an environment of its own, with the packages of .venv
        (tree / ".venv").mkdir(exist_ok=True)
        (tree / ".venv" / name).symlink_to(Path(sys.prefix) / name)
    (tree / "notebooks").symlink_to(ROOT / "notebooks")
    (tree / ".demo/lab").mkdir(parents=True)
    (tree / ".demo/lab/01_quickstart.ipynb").write_text("mine")
    done = make(tree, "lab-folder")
    assert done.returncode == 0, done.stderr
    copied = {path.relative_to(tree / ".demo/lab") for path in (tree / ".demo/lab").rglob("*.ipynb")}
    assert copied == {path.relative_to(ROOT / "notebooks") for path in (ROOT / "notebooks").rglob("[0-9]*.ipynb")}
    assert (tree / ".demo/lab/01_quickstart.ipynb").read_text() == "mine"
    specs = KernelSpecManager(kernel_dirs=[str(tree / ".venv/share/jupyter/kernels")])
    chosen = nbformat.read(tree / ".demo/lab/06_tensorflow.ipynb", as_version=4).metadata.kernelspec
    assert specs.get_kernel_spec(chosen.name).display_name == chosen.display_name
    executed = NotebookClient(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(WHERE)]),
        km=KernelManager(kernel_name=chosen.name, kernel_spec_manager=specs),
    ).execute()
    assert executed.cells[0].outputs[0].text == "[True, True, True]\n"
