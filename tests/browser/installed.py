"""The sdist, the wheel that is made of it without Node.js, and an environment that has this wheel and sees the other
packages of .venv.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAME = "tpu-magics"
KEPT = ("HOME", "LANG", "PATH", "TMPDIR")


@dataclass(frozen=True)
class Environment:
    """A virtual environment with tpu_magics from a wheel. `folder` holds whatever its programs write."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    @property
    def shared(self) -> Path:
        return self.folder / "env" / "share" / "jupyter" / "labextensions" / NAME

    def variables(self, **more: str) -> dict[str, str]:
        """Nothing of the tree or of a person's settings is seen."""
        own = self.folder / "jupyter"
        return {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "JUPYTERLAB_DIR": str(Path(sys.prefix) / "share" / "jupyter" / "lab"),  # JupyterLab itself
            "JUPYTER_PREFER_ENV_PATH": "1",
            "JUPYTER_CONFIG_DIR": str(own / "config"),
            "JUPYTER_DATA_DIR": str(own / "data"),
            "JUPYTER_RUNTIME_DIR": str(own / "runtime"),
            "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(own / "workspaces"),
            "IPYTHONDIR": str(own / "ipython"),
            **more,
        }

    def run(self, *arguments: str) -> str:
        """What the environment's Python prints, stdout and stderr as one text; fails the test where it fails."""
        return checked([str(self.python), *arguments], self.folder, self.variables())


def built(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and its wheel, made once for all processes of pytest-xdist."""
    shared = factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "built"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            half = folder.with_suffix(".half-made")
            build(half)
            half.rename(folder)
    return next((folder / "sdist").glob("*.tar.gz")), next((folder / "wheel").glob("*.whl"))


def build(folder: Path) -> Path:
    """The sdist and its wheel, in folders of their own. Returns the wheel."""
    for each in ("sdist", "wheel"):
        (folder / each).mkdir(parents=True)
    return make_wheel(make_sdist(folder / "sdist"), folder / "wheel")


def make_sdist(folder: Path) -> Path:
    """With the bundle in it, which is made where that of the tree is not up to date."""
    checked([sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", "sdist"], ROOT)
    return next(folder.glob("*.tar.gz"))


def make_wheel(sdist: Path, folder: Path) -> Path:
    """Made of the sdist alone, where no Node.js can be found."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(folder)
    [tree] = (path for path in folder.iterdir() if path.is_dir())
    without_node = {name: value for name, value in os.environ.items() if name not in ("PATH", "PYTHONPATH")}
    empty = folder / "bin"
    empty.mkdir()
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", "wheel"]
    checked(command, tree, {**without_node, "PATH": str(empty)})
    # Neither installed nor built: .venv may have a Node.js of its own, which needs no PATH.
    made = [name for name in ("node_modules", "build", "lib") if (tree / "labextension" / name).exists()]
    assert not made, f"the wheel was not made of the sdist's bundle: labextension has {made}"
    return next(folder.glob("*.whl"))


def install(wheel: Path, folder: Path) -> Environment:
    """The wheel as a person's pip installs it, into an environment of its own."""
    environment = Environment(folder)
    folder.mkdir(exist_ok=True)
    place = folder / "env"
    checked([sys.executable, "-m", "venv", "--without-pip", str(place)], folder)
    command = [sys.executable, "-m", "pip", "--python", str(environment.python), "install", "--quiet", "--no-deps"]
    checked([*command, "--no-index", "--disable-pip-version-check", str(wheel)], folder)
    own = Path(environment.run("-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    (own / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    for other in ("@jupyter-widgets",):
        (environment.shared.parent / other).symlink_to(Path(sys.prefix) / "share/jupyter/labextensions" / other)
    news = environment.folder / "jupyter" / "settings" / "@jupyterlab" / "apputils-extension"
    news.mkdir(parents=True)
    (news / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')  # else it asks, over the page
    return environment


def checked(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
