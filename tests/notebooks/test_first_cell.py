"""The first cell of every numbered notebook: what Colab and Kaggle lack is installed, and nothing else changes.

It is the same in all, names what the notebook imports and the hosts do not have, and does what it says in an IPython
with a real pip and packages made on the spot.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("[0-9]*.ipynb"))
FIRST = """\
# On Colab and Kaggle this installs what is missing there, and changes nothing else. Elsewhere it does nothing.
import importlib.util
import os

needed = {%s}
missing = " ".join(package for module, package in needed.items() if importlib.util.find_spec(module) is None)
if missing and ("COLAB_RELEASE_TAG" in os.environ or "KAGGLE_KERNEL_RUN_TYPE" in os.environ):
    !pip list --format=freeze > /tmp/installed.txt
    !pip install --quiet --constraint /tmp/installed.txt {missing}"""
# Before that, in notebooks that need TensorFlow: told before anything is installed.
NO_TPU = """\
if os.environ.get("COLAB_TPU_1VM") == "1" or os.environ.get("ISTPUVM") == "1":
    print("TensorFlow finds no TPU on Colab and Kaggle; this notebook goes on with their CPU.")
    os.environ["PJRT_DEVICE"] = "CPU"
"""
# Modules that the TPU images of Colab and of Kaggle both have (googlecolab/backend-info, Kaggle/docker-python, 2026-08).
# Colab's images without a TPU lack torch_xla and libtpu: which torch_xla fits is %tpu_init's business.
SHIPPED = {"IPython", "accelerate", "jax", "libtpu", "matplotlib", "numpy", "psutil", "sklearn", "tokenizers", "torch"}
SHIPPED |= {"torch_xla", "tqdm", "transformers"}
BROUGHT = {"tensorflow": {"keras"}}  # modules that come with another
MACHINES = {"colab": {"COLAB_RELEASE_TAG": "release-colab_20260801"}, "kaggle": {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}}


def code_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def needed_by(cell: str) -> dict[str, str]:
    """Module and package, as the cell's dict has them."""
    [line] = re.findall(r"^needed = \{(.+)\}$", cell, re.MULTILINE)
    pairs = [re.fullmatch(r'"(\w+)": "([\w.\[\]-]+)"', each) for each in line.split(", ")]
    return {pair[1]: pair[2] for pair in pairs if pair}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_the_same_in_all_but_for_what_is_needed(path: Path) -> None:
    first = code_of(path)[0]
    needed = needed_by(first)
    assert needed["tpu_magics"] == "tpu-magics"
    expected = FIRST % ", ".join(f'"{module}": "{package}"' for module, package in needed.items())
    if "tensorflow" in needed:
        expected = expected.replace("\nneeded =", f"\n{NO_TPU}needed =")
    assert first == expected


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_needs_what_the_notebook_imports_and_a_host_lacks(path: Path) -> None:
    first, *cells = code_of(path)
    imported = {name for cell in cells for name in re.findall(r"^\s*(?:from|import) (\w+)", cell, re.MULTILINE)}
    needed = set(needed_by(first))
    there = needed.union(SHIPPED, sys.stdlib_module_names, *(BROUGHT.get(module, ()) for module in needed))
    assert imported <= there


# -- what it does ---------------------------------------------------------------------------------------------------
NAMES = 'needed = {"tiny_there": "tiny-there", "tiny_missing": "tiny-missing"}'
PROGRAM = """
import sys
sys.path[:0] = sys.argv[2:]
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
result = shell.run_cell(open(sys.argv[1]).read())
result.raise_error()
"""


def write_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    """A package of one empty module."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {need}" for need in needs]
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Machine:
    """A virtual environment with a pip of its own and an index of four small packages. `run`: the cell, in an IPython
    that sees what this environment has."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, folder / "index"
        self.index.mkdir()
        write_wheel(self.index, "tiny-there", "1.0")
        write_wheel(self.index, "tiny-there", "2.0")
        write_wheel(self.index, "tiny-missing", "1.0", "tiny-there>=1", "tiny-brought")
        write_wheel(self.index, "tiny-brought", "1.0")
        subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
        self.pip("install", "--quiet", "tiny-there==1.0")
        self.packages = next((folder / "env" / "lib").glob("python*/site-packages"))

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "COLAB", "KAGGLE", "PYTHONPATH"))}
        own = {"PATH": f"{self.folder / 'env' / 'bin'}:{os.environ['PATH']}", "PIP_CONFIG_FILE": "/dev/null"}
        own |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return {**kept, **own, "IPYTHONDIR": str(self.folder / "ipython"), **more}

    def pip(self, *arguments: str) -> str:
        command = [str(self.folder / "env" / "bin" / "pip"), *arguments]
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=True).stdout

    def listed(self) -> dict[str, str]:
        lines = self.pip("list", "--format=freeze").splitlines()
        return dict(line.split("==") for line in lines if line.startswith("tiny"))

    def run(self, **environment: str) -> str:
        """What the cell prints and what goes wrong in it."""
        cell, program = self.folder / "cell.txt", self.folder / "program.py"
        cell.write_text(re.sub(r"^needed = .*$", NAMES, FIRST, flags=re.MULTILINE))
        program.write_text(PROGRAM)
        command = [sys.executable, str(program), str(cell), str(self.packages)]
        done = subprocess.run(
            command, env=self.environment(**environment), capture_output=True, text=True, cwd=self.folder
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("machine"))


@pytest.mark.process
def test_on_a_machine_of_ones_own_it_does_nothing_and_prints_nothing(machine: Machine) -> None:
    assert machine.run() == ""
    assert machine.listed() == {"tiny-there": "1.0"}


@pytest.mark.process
@pytest.mark.parametrize("host", ["colab", pytest.param("kaggle", marks=pytest.mark.long)])
def test_there_it_installs_what_is_missing_and_keeps_every_version(machine: Machine, host: str) -> None:
    """A newer tiny-there is in the index, and the package that is installed would be as glad of it."""
    if "tiny-missing" in machine.listed():
        machine.pip("uninstall", "--yes", "tiny-missing", "tiny-brought")
    machine.run(**MACHINES[host])
    assert machine.listed() == {"tiny-there": "1.0", "tiny-missing": "1.0", "tiny-brought": "1.0"}
    assert machine.run(**MACHINES[host]) == "", "run again, it has nothing to do"


@pytest.mark.process
def test_what_cannot_be_had_without_a_change_is_not_installed(machine: Machine) -> None:
    if "tiny-missing" in machine.listed():
        machine.pip("uninstall", "--yes", "tiny-missing", "tiny-brought")
    newer = machine.index / "tiny_missing-2.0-py3-none-any.whl"
    older = next(machine.index.glob("tiny_missing-1.0*"))
    kept = older.rename(older.with_suffix(".aside"))
    write_wheel(machine.index, "tiny-missing", "2.0", "tiny-there>=2")
    try:
        said = machine.run(**MACHINES["colab"])
    finally:
        newer.unlink()
        kept.rename(older)
    assert "Cannot install tiny-missing==2.0" in said
    assert machine.listed() == {"tiny-there": "1.0"}
