"""Checks of installed software: Python and packages, the frameworks' versions, libtpu, and by their files ipywidgets,
JupyterLab's widget manager and our JupyterLab extension.

libtpu is checked by package metadata and file names only: loading it would take the TPU."""

from __future__ import annotations

import json
import os.path
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpu_magics import __version__
from tpu_magics.backends.frameworks import FAMILIES, FRAMEWORKS
from tpu_magics.backends.torch.versions import has_other_libtpu
from tpu_magics.backends.version_checks import release
from tpu_magics.host.chips import TPU7X
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check, VariableFix, from_problems
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.memory import read
from tpu_magics.host.versions import judge_framework, judge_ipython, judge_ipywidgets, judge_libtpu

PACKAGES = "Python and packages"
OLDEST = (3, 10)
_NEEDED = ("psutil", "safetensors")
_LARGE = 8  # bytes of a pointer


def package_checks(facts: HostFacts) -> Iterator[Check]:
    """Python, IPython, missing requirements, and packages that changed after their import."""
    yield _python(facts)
    yield from from_problems(
        PACKAGES,
        "IPython",
        judge_ipython(facts.versions),
        f"IPython {facts.versions.get('ipython') or 'not installed (needed in notebooks only)'}",
    )
    yield _needed(facts)
    yield _changed(facts)


def _python(facts: HostFacts) -> Check:
    version = str(facts.versions["python"])
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if numbers < OLDEST:
        return Check(
            PACKAGES,
            "Python",
            BROKEN,
            f"Python {version} is older than 3.10.",
            "tpu_magics and the torch_xla releases that it supports need 3.10 or newer.",
            then="start the notebook with a newer Python",
        )
    if struct.calcsize("P") < _LARGE or sys.platform != "linux":
        return Check(
            PACKAGES,
            "Python",
            BROKEN,
            f"This is Python {version} for {sys.platform}, {8 * struct.calcsize('P')} bits.",
            "torch_xla and libtpu are built for 64-bit Linux only.",
            then="use a Linux machine, Colab, Kaggle, or a Linux container",
        )
    return Check(PACKAGES, "Python", OK, f"Python {version}")


def _needed(facts: HostFacts) -> Check:
    missing = [name for name in _NEEDED if not facts.versions.get(name)]
    if missing:
        return Check(
            PACKAGES,
            "Requirements",
            BROKEN,
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            "A run measures memory with psutil and transfers trained weights with safetensors.",
            f"%pip install {' '.join(missing)}",
            "run the cell again",
        )
    return Check(PACKAGES, "Requirements", OK, ", ".join(f"{name} {facts.versions[name]}" for name in _NEEDED))


def _installed(facts: HostFacts, module: str) -> str | None:
    """The version of the package that brings the module: tensorflow's has three names."""
    packages = FRAMEWORKS[module].packages if module in FRAMEWORKS else (module,)
    return next((found for name in packages if (found := facts.versions.get(name))), None)


def _changed(facts: HostFacts) -> Check:
    """pip changed a package after this process imported it: the old version stays in use until a restart."""
    changed = [
        f"{name} {loaded} (installed: {installed})"
        for name, loaded in facts.loaded.items()
        if (installed := _installed(facts, name)) and release(loaded) != release(installed)
    ]
    if changed:
        return Check(
            PACKAGES,
            "Imported packages",
            WARNING,
            f"This process still uses {', '.join(changed)}.",
            "The package changed after its import. This process and its workers keep the old version, but later "
            "imports from it get the new one.",
            then="restart the kernel",
        )
    what = ", ".join(f"{name} {version}" for name, version in facts.loaded.items()) or "no known package yet"
    return Check(PACKAGES, "Imported packages", OK, f"As installed: {what}")


# -- framework versions -----------------------------------------------------------------------------------------------

FRAMEWORK_VERSIONS = "Framework versions"
_OLDEST_ACCELERATE = (1, 10)


def framework_checks(facts: HostFacts) -> Iterator[Check]:
    """The framework that cells use, accelerate, and two frameworks in one process."""
    family = FAMILIES[facts.host.framework]
    tpu = facts.host.device == "TPU" if family.in_process else bool(facts.host.chips)
    found = [f"{name} {facts.versions[name]}" for name in family.packages if facts.versions.get(name)]
    fine = f"{', '.join(found)}: versions are compatible"
    problems = judge_framework(facts.versions, tpu, facts.host.framework, facts.host.environment.key)
    yield from from_problems(FRAMEWORK_VERSIONS, "Framework", problems, fine)
    if not family.in_process:
        yield _accelerate(facts)
    yield _together(facts)


def _accelerate(facts: HostFacts) -> Check:
    version = facts.versions.get("accelerate")
    if not version:
        return Check(
            FRAMEWORK_VERSIONS,
            "accelerate",
            NOT_AVAILABLE,
            "accelerate is not installed.",
            "Only cells that use Accelerator or the Trainer of transformers need it.",
            '%pip install "accelerate>=1.10"',
        )
    if release(version) < _OLDEST_ACCELERATE:
        return Check(
            FRAMEWORK_VERSIONS,
            "accelerate",
            WARNING,
            f"accelerate {version} is older than 1.10.",
            "tpu_magics is tested with 1.10 and newer.",
            '%pip install "accelerate>=1.10"',
            "restart the kernel",
        )
    return Check(FRAMEWORK_VERSIONS, "accelerate", OK, f"accelerate {version}")


def _together(facts: HostFacts) -> Check:
    if len({name for name in facts.loaded if name in FRAMEWORKS and not FRAMEWORKS[name].comes_along}) > 1:
        return Check(
            FRAMEWORK_VERSIONS,
            "One framework in a process",
            WARNING,
            "This process has imported both TensorFlow and torch_xla.",
            "Each has its own XLA. Which of the two still works depends on the order of the imports.",
            then="restart the kernel, and use only one of them in a notebook; for TensorFlow run "
            "%tpu_init --framework tensorflow, since %tpu_init alone imports torch_xla where it is installed",
        )
    return Check(FRAMEWORK_VERSIONS, "One framework in a process", OK, "No conflicting frameworks are imported")


# -- libtpu -----------------------------------------------------------------------------------------------------------

LIBTPU = "libtpu"
LIBRARY_PATH = "TPU_LIBRARY_PATH"
_KNOWS_7X = (0, 0, 22)  # 0.0.21.1 does not support tpu7x, 0.0.51 does; which one was the first is unknown


def libtpu_checks(facts: HostFacts) -> Iterator[Check]:
    """The package, the file, and whether it supports the TPU's generation."""
    yield from _libtpu_package(facts)
    if facts.versions.get("libtpu-nightly") and facts.versions.get("libtpu"):
        yield _twice(facts)
    if LIBRARY_PATH in facts.environ:
        yield _library_path(facts)
    if TPU7X in {chip.generation for chip in facts.host.chips} and facts.versions.get("libtpu"):
        yield _supports(facts)


def _libtpu_package(facts: HostFacts) -> Iterator[Check]:
    version, other = facts.versions.get("libtpu"), has_other_libtpu(facts.environ)
    problems = judge_libtpu(facts.versions, bool(facts.host.chips), other) if facts.host.framework == "torch" else []
    if problems or version:
        yield from from_problems(LIBTPU, "Package", problems, f"libtpu {version}")
    elif other:
        yield Check(
            LIBTPU, "Package", OK, f"Not the package: torch_xla's own libtpu, or the one that {LIBRARY_PATH} names"
        )
    else:
        why = (
            "pip installs it together with tensorflow-tpu."
            if facts.host.chips
            else "On this host only preflights need it."
        )
        yield Check(LIBTPU, "Package", NOT_AVAILABLE, "libtpu is not installed.", why)


def _twice(facts: HostFacts) -> Check:
    same, nightly = facts.versions["libtpu"], facts.versions["libtpu-nightly"]
    return Check(
        LIBTPU,
        "One libtpu",
        WARNING,
        f"libtpu {same} and libtpu-nightly {nightly} are both installed.",
        "They own the same files, so the one that was installed last is loaded.",
        f"!pip uninstall -y libtpu-nightly && pip install --force-reinstall --no-deps libtpu=={same}",
        "restart the kernel",
    )


def _library_path(facts: HostFacts) -> Check:
    path = facts.environ[LIBRARY_PATH]
    if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for a name that is too long
        return Check(LIBTPU, LIBRARY_PATH, OK, f"{LIBRARY_PATH} names an existing file: {path}")
    values = {LIBRARY_PATH: None}
    return Check(
        LIBTPU,
        LIBRARY_PATH,
        BROKEN if facts.host.chips else WARNING,
        f"{LIBRARY_PATH}={path}: there is no such file.",
        "torch_xla loads only the libtpu that it names.",
        change(values),
        "continue; if torch_xla is already imported, restart the kernel and run this first",
        VariableFix(values),
    )


def _supports(facts: HostFacts) -> Check:
    version = str(facts.versions["libtpu"])
    if release(version) >= _KNOWS_7X:
        return Check(
            LIBTPU, "Generation", OK, f"libtpu {version} is newer than the last version known not to support 7x"
        )
    return Check(
        LIBTPU,
        "Generation",
        BROKEN,
        f"libtpu {version} does not support a TPU of generation 7x.",
        "Version 0.0.21.1 and older do not know its name.",
        "%pip install -U libtpu",
        "restart the kernel",
    )


# -- widgets and JupyterLab -------------------------------------------------------------------------------------------


WIDGETS = "Widgets and JupyterLab"
MANAGER = "@jupyter-widgets/jupyterlab-manager"
OURS = "tpu-magics"
_RELOAD = "restart JupyterLab and reload the page"
_OWN_PAGE = ("colab", "kaggle")  # pages that are no JupyterLab
# ipywidgets' first number -> its manager's, and the package that brings it
_MANAGERS: Mapping[int, tuple[int, str]] = {7: (3, "jupyterlab_widgets<2"), 8: (5, "jupyterlab_widgets>=3")}


def widget_checks(facts: HostFacts) -> Iterator[Check]:
    """This kernel's side, then the page's."""
    yield from from_problems(
        WIDGETS,
        "ipywidgets",
        judge_ipywidgets(facts.versions),
        f"ipywidgets {facts.versions.get('ipywidgets')}, in the environment of this kernel",
    )
    reason = _unseen(facts)
    for name, judge in (("Widget manager", _manager), ("JupyterLab extension", _ours)):
        yield judge(facts) if not reason else Check(WIDGETS, name, NOT_AVAILABLE, "Not checked.", reason)


def _unseen(facts: HostFacts) -> str:
    """Why the page's extensions are not visible here; "" where they are."""
    if facts.host.environment.key in _OWN_PAGE:
        return f"{facts.host.environment.name}'s page is not JupyterLab and has its own widget manager."
    server = _server_prefix(facts)
    if server is not None and server.resolve() != facts.prefix.resolve():
        return f"The Jupyter server runs in another environment ({server}), whose extensions are not visible here."
    if server is None and not facts.versions.get("jupyterlab"):
        return "JupyterLab is not installed in this environment; this page may come from another one."
    return ""


def _server_prefix(facts: HostFacts) -> Path | None:
    """The environment of the server that started this kernel (jupyter_client sets JPY_PARENT_PID), by its command."""
    pid = facts.environ.get("JPY_PARENT_PID", "")
    words = (read(facts.root / "proc" / pid / "cmdline") or "").split("\0") if pid.isdigit() else []
    python = Path(words[0]) if words and words[0] else None
    if python is None or not python.is_absolute() or not python.name.startswith("python"):
        return None
    return python.parent.parent


# -- the widgets' manager -------------------------------------------------------------------------------------------


def _manager(facts: HostFacts) -> Check:
    package, _ = _package(facts, MANAGER)
    version, whole = str(package.get("version", "")), facts.versions.get("ipywidgets") or "8"
    wanted, install = _MANAGERS.get(release(whole)[0], _MANAGERS[8])
    command = f'%pip install "{install}"'
    name = "Widget manager"
    if not version:
        return Check(
            WIDGETS,
            name,
            WARNING,
            f"JupyterLab has no widget manager ({MANAGER}).",
            "The page shows a widget's text instead of the live panel.",
            command,
            _RELOAD,
        )
    if _disabled(facts, MANAGER):
        return _is_disabled(name, MANAGER, "The page shows a widget's text instead of the live panel.")
    if release(version)[:1] != (wanted,):
        return Check(
            WIDGETS,
            name,
            WARNING,
            f"JupyterLab's widget manager {version} does not support this kernel's ipywidgets {whole}.",
            f"ipywidgets {whole[:1]} needs version {wanted} of {MANAGER}. With another version, widgets may not "
            "appear.",
            command,
            _RELOAD,
        )
    return Check(WIDGETS, name, OK, f"{MANAGER} {version}, compatible")


# -- our extension --------------------------------------------------------------------------------------------------


def _ours(facts: HostFacts) -> Check:
    package, path = _package(facts, OURS)
    version, name = str(package.get("version", "")), "JupyterLab extension"
    why = "Without it, the panel below a cell still works, but the status bar, side panel and badges are missing."
    if not version:
        return Check(
            WIDGETS,
            name,
            WARNING,
            "The tpu_magics extension is not installed in this JupyterLab.",
            why,
            "%pip install --force-reinstall --no-deps tpu-magics",
            _RELOAD,
        )
    if _disabled(facts, OURS):
        return _is_disabled(name, OURS, why)
    if version != __version__:
        return Check(
            WIDGETS,
            name,
            WARNING,
            f"The extension in {path} has version {version}, but tpu_magics here has {__version__}.",
            "Different versions may not understand each other's messages.",
            f"%pip install --force-reinstall --no-deps tpu-magics=={__version__}",
            _RELOAD,
        )
    return Check(WIDGETS, name, OK, f"{version}, enabled, same version as this package")


def _is_disabled(name: str, extension: str, why: str) -> Check:
    return Check(
        WIDGETS,
        name,
        WARNING,
        f"{extension} is disabled in this JupyterLab.",
        why,
        f"!jupyter labextension enable {extension}",
        "reload the page",
    )


def _package(facts: HostFacts, name: str) -> tuple[Mapping[str, Any], Path | None]:
    """The extension's package.json and its folder, from the first folder that has it."""
    for folder in facts.jupyter.data:
        found = _json(folder / "labextensions" / name / "package.json")
        if found:
            return found, folder / "labextensions" / name
    return {}, None


def _disabled(facts: HostFacts, name: str) -> bool:
    """Whether page_config.json names it, in the folders that JupyterLab reads (the first that names it counts)."""
    files = [folder / "labconfig/page_config.json" for folder in facts.jupyter.config]
    files += [folder / "lab/settings/page_config.json" for folder in facts.jupyter.data]
    for each in (_json(file).get("disabledExtensions") for file in files):
        if isinstance(each, list) and name in each:
            return True
        if isinstance(each, dict) and name in each:
            return bool(each[name])
    return False


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read(path) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
