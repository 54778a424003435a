"""Calls the doctor on a recorded host (fake_hosts.py), with a disk, a Jupyter and a metadata server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tpu_magics import __version__
from tpu_magics.host.doctor import Check, HostFacts, collect_facts, examine
from tpu_magics.host.doctor.facts import Answer, Jupyter

from . import fake_hosts

GIB = 2**30
ROOMY = lambda _: (100 * GIB, 50 * GIB)  # noqa: E731 - a disk with room
# As a v5litepod-4 answers, shortened: ACCELERATOR_TYPE is what is read of it.
TPU_ENV = "ACCELERATOR_TYPE: 'v5litepod-4'\nCHIPS_PER_HOST_BOUNDS: '2,2,1'\nHOST_BOUNDS: '1,1,1'\nWORKER_ID: '0'\n"
DESCRIBES = Answer(200, TPU_ENV)
MISSING = Answer(404, "not found")
SILENT = Answer(0, "no answer")
COMPLETE = {"psutil": "5.9.5", "safetensors": "0.6.2", "jupyterlab": "4.4.0", "jupyterlab_widgets": "3.0.15"}


def jupyter(folder: Path, *, manager: str = "5.0.15", ours: str = __version__, disabled: Any = None) -> Jupyter:
    """A Jupyter's folders with these extensions ("": it has none) and this page_config.json."""
    data, config = folder / "share/jupyter", folder / "etc/jupyter"
    for name, version in {"@jupyter-widgets/jupyterlab-manager": manager, "tpu-magics": ours}.items():
        if version:
            text = json.dumps({"name": name, "version": version})
            fake_hosts.write(data / "labextensions" / name / "package.json", text)
    if disabled is not None:
        fake_hosts.write(config / "labconfig/page_config.json", json.dumps({"disabledExtensions": disabled}))
    return Jupyter((data,), (config,))


def facts(host: fake_hosts.FakeHost, **changes: Any) -> HostFacts:
    """The facts of a recorded host. `changes`: arguments of `collect_facts`; `modules`: names, or names with
    versions."""
    names = changes.pop("modules", host.modules)
    versions = names if isinstance(names, Mapping) else dict.fromkeys(names, None)
    (host.root / "dev/shm").mkdir(parents=True, exist_ok=True)
    arguments: dict[str, Any] = {
        "environ": host.environ,
        "root": host.root,
        "modules": {name: SimpleNamespace(__version__=version) for name, version in versions.items()},
        "versions": {**COMPLETE, **host.versions, **changes.pop("versions", {})},
        "runs": host.root / "home/.tpu_runs",
        "disk": ROOMY,
        "ask_metadata": lambda: DESCRIBES,
        "prefix": Path("/opt/venv"),
        "runtime": False,
        **changes,
    }
    if "jupyter" not in arguments:
        arguments["jupyter"] = jupyter(host.root / "opt/venv")
    (host.root / "home").mkdir(exist_ok=True)
    devices = arguments.pop("devices", None)  # as another account would see them
    if devices is None:
        return collect_facts(**arguments)
    found = collect_facts(**arguments)
    return dataclasses.replace(found, host=dataclasses.replace(found.host, devices=devices))


def examined(host: fake_hosts.FakeHost, **changes: Any) -> tuple[Check, ...]:
    return examine(facts(host, **changes))


def ill(checks: tuple[Check, ...]) -> dict[tuple[str, str], str]:
    """(group, name) -> state, of what is broken or a warning."""
    return {(one.group, one.name): one.state for one in checks if one.state in ("broken", "warning")}


def one(checks: tuple[Check, ...], group: str, name: str) -> Check:
    """The check of this name; there must be exactly one."""
    [found] = [each for each in checks if (each.group, each.name) == (group, name)]
    return found


Build = Callable[[Path], fake_hosts.FakeHost]
