"""The rules that hold for the whole tree: who may import whom, what an import costs, what is shipped."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from size import PACKAGE, ROOT, Import, circles, framework_lines, imported_modules, imports, parsed, shared_names

from tests.browser.installed import built

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10; pytest brings tomli there
    import tomli as tomllib

MODULES = sorted(PACKAGE.rglob("*.py"))

# Who may import whom: a room imports rooms of lower rank, and itself. Equal ranks stand side by side and do not meet.
RANKS = {
    "errors": 0,
    "output": 0,
    "runs": 1,
    "check": 2,
    "padding": 2,
    "checkpoints": 2,
    "backends": 2,
    "host": 3,
    "launch": 4,
    "preflight": 5,
    "tf": 5,
    "panel": 6,
    "magics": 7,
    "__init__": 8,
    "__main__": 8,
}
FRAMEWORKS = {
    "torch",
    "torch_xla",
    "accelerate",
    "transformers",
    "tensorflow",
    "keras",
    "jax",
    "jaxlib",
    "libtpu",
    "ray",
}
FRAMEWORK_PARTS = {"safetensors.torch", "safetensors.tensorflow", "safetensors.flax"}
MAY_IMPORT_FRAMEWORKS = ("backends/", "preflight/", "launch/pods/")
SLOW_IMPORTS = {"psutil", "ipywidgets"}  # about 90 ms: only inside functions
NOT_AT_LOAD = {"torch", "torch_xla", "tensorflow", "jax", "accelerate", "ray"}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room(path: Path) -> str:
    return Path(relative(path)).parts[0].removesuffix(".py")


def is_framework(name: str) -> bool:
    return name.split(".")[0] in FRAMEWORKS or any(f"{name}.".startswith(f"{part}.") for part in FRAMEWORK_PARTS)


def may_import_room(importer: str, name: str) -> bool:
    """Whether the room `importer` may import `name`, a dotted name under tpu_magics."""
    parts = name.split(".")
    if parts[0] != "tpu_magics" or parts[1:] in ([], ["__version__"]):
        return True
    imported = parts[1] if parts[1] in RANKS else "__init__"
    return imported == importer or RANKS[imported] < RANKS[importer]


# -- imports ------------------------------------------------------------------------------------------------------


def test_every_room_is_known() -> None:
    assert {room(path) for path in MODULES} <= set(RANKS)


@pytest.fixture(scope="module")
def all_imports() -> list[tuple[Path, Import]]:
    return [(path, each) for path in MODULES for each in imports(path)]


def test_imports_go_one_way(all_imports: list[tuple[Path, Import]]) -> None:
    wrong = [
        f"{each.where} imports {each.name}" for path, each in all_imports if not may_import_room(room(path), each.name)
    ]
    assert not wrong, "imports against the direction of the rooms:\n" + "\n".join(wrong)


def test_no_modules_import_each_other() -> None:
    """Not by an import inside a function either. `scripts/size.py` shows the circles."""
    assert not circles(imported_modules(MODULES))


def test_each_class_has_a_name_of_its_own() -> None:
    assert not shared_names(MODULES)


def test_a_docstring_says_what_it_is_about() -> None:
    """In help() and on hover nothing stands above it."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [(path, node) for path in MODULES for node in ast.walk(parsed(path)) if isinstance(node, kinds)]
    bare = re.compile(r"(The same|Those|Of|As)\b")
    wrong = [f"{relative(path)}: {node.name}" for path, node in nodes if bare.match(ast.get_docstring(node) or "")]
    assert len(nodes) > 5_000 and not wrong, "\n".join(wrong)


def test_the_circle_check_sees() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_frameworks_stay_in_their_rooms(all_imports: list[tuple[Path, Import]]) -> None:
    wrong = [
        f"{each.where} imports {each.name}"
        for path, each in all_imports
        if is_framework(each.name) and not relative(path).startswith(MAY_IMPORT_FRAMEWORKS)
    ]
    assert not wrong, "a framework outside backends/, preflight/ and launch/pods/:\n" + "\n".join(wrong)


def test_frameworks_are_named_in_their_table() -> None:
    """backends/frameworks.py, so that one more is a folder and a row. `scripts/size.py` counts, without check/."""
    found = framework_lines(MODULES)
    assert len(found) <= 5 and sum(found.values()) <= 20, found


def test_slow_libraries_are_imported_inside_functions(all_imports: list[tuple[Path, Import]]) -> None:
    found = [each for _, each in all_imports if each.runs_at_import and each.name.split(".")[0] in SLOW_IMPORTS]
    assert not found, "\n".join(f"{each.where} imports {each.name} at the top" for each in found)


def test_the_package_itself_imports_its_rooms_only_inside_functions() -> None:
    rooms = ("tpu_magics.errors", "tpu_magics.__version__")
    found = [
        each
        for each in imports(PACKAGE / "__init__.py")
        if each.runs_at_import and each.name.startswith("tpu_magics.") and not each.name.startswith(rooms)
    ]
    assert not found, "\n".join(f"{each.where} imports {each.name} at the top" for each in found)


@pytest.mark.parametrize(
    ("importer", "source", "allowed"),
    [
        ("launch/plan.py", "from tpu_magics.runs.writer import EventWriter", True),
        ("launch/plan.py", "from tpu_magics.magics import train", False),
        ("launch/plan.py", "def f():\n    from tpu_magics import panel", False),
        ("launch/plan.py", "from tpu_magics import train", False),
        ("launch/plan.py", "from ..magics import train", False),
        ("launch/plan.py", "from . import fork", True),
        ("launch/plan.py", "from tpu_magics import __version__", True),
        ("check/engine.py", "from tpu_magics.backends import base", False),
        ("host/chips.py", "import importlib\nimportlib.import_module('tpu_magics.panel.table')", False),
        ("errors.py", "from tpu_magics.runs import events", False),
    ],
)
def test_the_direction_check_sees(importer: str, source: str, allowed: bool) -> None:
    path = PACKAGE / importer
    assert all(may_import_room(room(path), each.name) for each in imports(path, source)) is allowed


@pytest.mark.parametrize(
    "source",
    [
        "import torch.nn as nn",
        "from torch_xla.core import xla_model",
        "__import__('jax')",
        "import safetensors.torch",
        "from safetensors.torch import save_file",
        "from safetensors import torch",
        "def f():\n    import accelerate",
    ],
)
def test_the_framework_check_sees(source: str) -> None:
    assert any(is_framework(each.name) for each in imports(PACKAGE / "launch" / "plan.py", source))


@pytest.mark.parametrize(
    "code",
    [
        "import tpu_magics",
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'tpu_magics')\n"
        "assert 'tpu_magics' in shell.extension_manager.loaded, 'not loaded'",
    ],
    ids=["import", "load_ext"],
)
@pytest.mark.process
def test_loading_imports_no_framework(code: str, tmp_path: Path) -> None:
    report = "import sys; print(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "tpu_magics" in loaded
    assert not loaded & (NOT_AT_LOAD | SLOW_IMPORTS)


# -- text ---------------------------------------------------------------------------------------------------------


def test_every_module_has_a_docstring() -> None:
    empty = {path for path in MODULES if path.name == "__init__.py" and not parsed(path).body}
    silent = [relative(path) for path in MODULES if path not in empty and not ast.get_docstring(parsed(path))]
    assert not silent, f"without a docstring: {silent}"


# Written so that this file does not hold what it looks for.
MACHINE_PATHS = re.compile(r"(?<![\w.~$}*-])/(?:work/|root/[.]|opt/pypi|opt/wheels)")
TEXT_FILES = {".py", ".md", ".toml", ".cfg", ".ipynb", ".json", ".yml", ".ts", ".tsx", ".css", ".txt", ""}
NOT_OURS = {".git", ".hypothesis", ".venv", ".hosts", ".demo", ".bench", ".tpu_runs", "node_modules", "dist", "build"}
OTHERS = ("_cache", "__pycache__", ".egg-info")


def own_files() -> list[Path]:
    found: list[Path] = []
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in NOT_OURS and not name.endswith(OTHERS)]
        found += (path for path in map(Path(folder).joinpath, names) if path.suffix in TEXT_FILES and path.is_file())
    return sorted(found)


def test_no_text_names_a_path_of_the_machine_it_was_written_on() -> None:
    found = []
    for path in own_files():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [
            f"{path.relative_to(ROOT)}:{n}: {line}" for n, line in enumerate(lines, 1) if MACHINE_PATHS.search(line)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("first", ["work/main", "root/.cache"])
def test_the_path_check_sees(first: str) -> None:
    assert MACHINE_PATHS.search(f"see /{first}/x.py")
    assert not MACHINE_PATHS.search(f"docs/{first}/x.md")


# -- what is shipped ----------------------------------------------------------------------------------------------


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_base_requirements_are_the_four_and_have_floors_only() -> None:
    """So that installing on Colab changes nothing that Colab ships."""
    forms = [re.fullmatch(r"([A-Za-z0-9_.-]+)(>=[0-9.]+)?", requirement) for requirement in project()["dependencies"]]
    assert all(forms), project()["dependencies"]
    assert {form[1] for form in forms if form} == {"ipython", "ipywidgets", "psutil", "safetensors"}


def test_the_floors_are_not_above_what_colab_ships() -> None:
    colab = {"ipython": (7, 34, 0), "ipywidgets": (7, 7, 1), "psutil": (5, 9, 5)}
    for requirement in project()["dependencies"]:
        name, _, floor = requirement.partition(">=")
        if floor:
            assert tuple(map(int, floor.split("."))) <= colab[name], requirement


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[tarfile.TarFile, zipfile.ZipFile]:
    """The sdist and the wheel of this tree."""
    sdist, wheel = built(tmp_path_factory)
    return tarfile.open(sdist), zipfile.ZipFile(wheel)


@pytest.mark.process
def test_the_wheel_holds_the_package_and_nothing_else(shipped: tuple[tarfile.TarFile, zipfile.ZipFile]) -> None:
    names = shipped[1].namelist()
    assert "tpu_magics/nbval_sanitize.cfg" in names
    assert {relative(path) for path in MODULES} <= {name.removeprefix("tpu_magics/") for name in names}
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"tpu_magics"}


@pytest.mark.process
def test_the_wheel_asks_for_the_four_and_for_no_framework(shipped: tuple[tarfile.TarFile, zipfile.ZipFile]) -> None:
    """Unless an extra is named. On Colab or Kaggle it would be another version than theirs."""
    wheel = shipped[1]
    [metadata] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    asked = re.findall(r"^Requires-Dist: ([\w.-]+)(.*)$", wheel.read(metadata).decode(), re.MULTILINE)
    assert {name for name, rest in asked if "extra ==" not in rest} == {
        "ipython",
        "ipywidgets",
        "psutil",
        "safetensors",
    }


@pytest.mark.process
def test_the_sdist_can_run_the_two_commands(shipped: tuple[tarfile.TarFile, zipfile.ZipFile]) -> None:
    names = {name.partition("/")[2] for name in shipped[0].getnames()}
    needed = {"Makefile", ".ci/run", "scripts/install.py", "scripts/run_notebook.py", "LICENSE", "README.md"}
    needed |= {"notebooks/01_quickstart.ipynb", "tests/test_project.py", "tpu_magics/nbval_sanitize.cfg"}
    assert needed <= names, needed - names
