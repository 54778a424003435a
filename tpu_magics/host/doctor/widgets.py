"""Checks of ipywidgets, JupyterLab's widget manager and our JupyterLab extension, by the files of this environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tpu_magics import __version__
from tpu_magics.host.doctor.check import NOT_AVAILABLE, OK, WARNING, Check, from_problems
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.system_files import read
from tpu_magics.host.versions import judge_ipywidgets, release

GROUP = "Widgets and JupyterLab"
MANAGER = "@jupyter-widgets/jupyterlab-manager"
OURS = "tpu-magics"
_RELOAD = "restart JupyterLab and reload the page"
_OWN_PAGE = ("colab", "kaggle")  # pages that are no JupyterLab
# ipywidgets' first number -> its manager's, and the package that brings it
_MANAGERS: Mapping[int, tuple[int, str]] = {7: (3, "jupyterlab_widgets<2"), 8: (5, "jupyterlab_widgets>=3")}


def checks(facts: HostFacts) -> Iterator[Check]:
    """This kernel's side, then the page's."""
    yield from from_problems(
        GROUP,
        "ipywidgets",
        judge_ipywidgets(facts.versions),
        f"ipywidgets {facts.versions.get('ipywidgets')}, in the environment of this kernel",
    )
    reason = _unseen(facts)
    for name, judge in (("Widget manager", _manager), ("JupyterLab extension", _ours)):
        yield judge(facts) if not reason else Check(GROUP, name, NOT_AVAILABLE, "Not checked.", reason)


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
            GROUP,
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
            GROUP,
            name,
            WARNING,
            f"JupyterLab's widget manager {version} does not support this kernel's ipywidgets {whole}.",
            f"ipywidgets {whole[:1]} needs version {wanted} of {MANAGER}. With another version, widgets may not "
            "appear.",
            command,
            _RELOAD,
        )
    return Check(GROUP, name, OK, f"{MANAGER} {version}, compatible")


# -- our extension --------------------------------------------------------------------------------------------------


def _ours(facts: HostFacts) -> Check:
    package, path = _package(facts, OURS)
    version, name = str(package.get("version", "")), "JupyterLab extension"
    why = "Without it, the panel below a cell still works, but the status bar, side panel and badges are missing."
    if not version:
        return Check(
            GROUP,
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
            GROUP,
            name,
            WARNING,
            f"The extension in {path} has version {version}, but tpu_magics here has {__version__}.",
            "Different versions may not understand each other's messages.",
            f"%pip install --force-reinstall --no-deps tpu-magics=={__version__}",
            _RELOAD,
        )
    return Check(GROUP, name, OK, f"{version}, enabled, same version as this package")


def _is_disabled(name: str, extension: str, why: str) -> Check:
    return Check(
        GROUP,
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
