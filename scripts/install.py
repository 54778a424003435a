"""The first step of `make`: .venv with this package and its extras, and packages that are incompatible with these in
folders of their own. A stamp says when it is complete; an interrupted install is repeated.

It uses only the Python that runs it, and changes nothing on the system.

Usage: python3 scripts/install.py EXTRA[,EXTRA...]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".installed"
# Folders in .venv that go before .venv's own packages on PYTHONPATH: name, packages, the oldest Python that has them,
# and whether what they need comes with them (else it is .venv's own).
OVERLAYS = (
    # The kernel of Colab's TPU image (2026-08), for tests; the unpinned ones are what it needs besides what .venv has.
    (
        "ipykernel6",
        (
            *("ipykernel==6.17.1", "ipython==7.34.0", "ipywidgets==7.7.1", "traitlets==5.7.1"),
            *("backcall", "decorator", "ipython-genutils", "nest-asyncio", "pickleshare"),
        ),
        (3, 10),
        False,
    ),
    # TensorFlow, which does not go into one process with torch_xla.
    ("tensorflow", ("tensorflow-cpu>=2.20",), (3, 10), True),
    # The TPU compiler of Colab's TPU image (2026-08), for tests.
    ("preflight-colab", ("jax==0.7.2", "jaxlib==0.7.2", "libtpu==0.0.21.1"), (3, 11), False),
    # Frameworks whose programs are tested (tests/programs), with what they import beside what .venv has: by their own
    # requirements some of them would change PyTorch.
    (
        "frameworks/site-packages",
        (
            *("lightning", "pytorch-lightning", "lightning-utilities", "torchmetrics"),
            *("fastai", "fastcore", "fastdownload", "fastprogress", "fasttransform", "plum-dispatch", "beartype"),
            *("python-fasthtml", "itsdangerous", "starlette", "uvicorn", "python-multipart", "tensorboard==2.21.0"),
        ),
        (3, 10),
        False,
    ),
    # More of them, apart from the others because transformers, where it finds some of these, imports them each time.
    # torchvision is the one for torch 2.9.0.
    (
        "libraries/site-packages",
        (
            *("trl==1.16.0", "sentence-transformers==6.2.0", "timm==1.0.31", "torchvision==0.24.0"),
            *("datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19", "pyarrow==26.0.1", "xxhash==4.1.0"),
            *("ultralytics==8.4.190", "opencv-python-headless==5.0.0.93"),
        ),
        (3, 11),
        False,
    ),
)
INTERRUPTED = "an install began here and has not ended"

# Measured on Linux x86-64 with CPython 3.11, torch 2.9.0, tensorflow-cpu 2.21.0, libtpu 0.0.52 and 0.0.21.1: the sizes
# of the wheels, and of .venv afterwards.
NOTICE = """\
    The first time, this downloads about 5.2 GB and takes about 11 GB of disk: 4.1 GB of the download is PyTorch's
    default build with its CUDA libraries, which nothing here uses. Where PyTorch's own wheel index can be reached, its
    CPU build of about 0.2 GB does as well; to take it, stop here (Ctrl-C) and run:
        UV_TORCH_BACKEND=cpu make {goal}"""


def main(arguments: list[str]) -> None:
    """Bring .venv up to date with pyproject.toml, or say in one line that it is."""
    extras = arguments[0]
    wanted = key(extras)
    if STAMP.is_file() and STAMP.read_text() == wanted and version_of(PYTHON) == version_of(Path(sys.executable)):
        say(f".venv is up to date (Python {version_of(PYTHON)}, extras: {extras})")
        return
    make_venv()
    STAMP.write_text(INTERRUPTED)
    say(f"installing tpu_magics with extras {extras} into .venv")
    if os.environ.get("UV_TORCH_BACKEND"):
        print(f"    UV_TORCH_BACKEND={os.environ['UV_TORCH_BACKEND']}: PyTorch comes from its own index.", flush=True)
    else:
        print(NOTICE.format(goal=os.environ.get("GOAL", "demo")), flush=True)
    install_uv()
    command: list[str | Path] = [PYTHON, "-m", "uv", "pip", "install", "--python", PYTHON, "-e", f".[{extras}]"]
    # JupyterLab's extension needs Node.js and is made when it is first used, by scripts/bundle.py.
    run(command, "the packages", TPU_MAGICS_NO_BUNDLE="1")
    for overlay in OVERLAYS:
        install_overlay(*overlay)
    STAMP.write_text(wanted)
    say("installed")


def key(extras: str) -> str:
    """What the stamp holds: changes whenever .venv has to be brought up to date."""
    version = version_of(Path(sys.executable)) or ""
    parts = [(ROOT / "pyproject.toml").read_text(), extras, version, str(ROOT), repr(OVERLAYS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def version_of(python: Path) -> str | None:
    """ "3.11" and the like, or None where `python` does not run."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def make_venv() -> None:
    """A .venv that runs and has this Python's version; where there is none, or a half-made one, it is made anew."""
    found, wanted = version_of(PYTHON), version_of(Path(sys.executable))
    interrupted = STAMP.is_file() and STAMP.read_text() == INTERRUPTED
    if found == wanted and not interrupted:
        return
    if not can_make_pip():
        stop(
            f"{sys.executable} cannot make virtual environments.",
            "Its ensurepip module is missing; Debian and Ubuntu ship it as a package of its own.",
            f"install it (sudo apt install python{wanted}-venv), or name another Python: make PYTHON=/path/to/python3",
        )
    if not VENV.exists():
        say(f"making .venv with {sys.executable} (Python {wanted})")
    elif interrupted:
        say("making .venv anew: its last install was interrupted (what was downloaded is kept in uv's cache)")
    elif found:
        say(f"making .venv anew: the one that is there has Python {found}, asked for is {wanted}")
    else:
        say("making .venv anew: the one that is there does not run")
    run([maker(), "-m", "venv", "--clear", VENV], "the virtual environment")


def maker() -> Path:
    """This Python; or, where .venv is activated and so is this Python, the one that it was made with."""
    executable = Path(sys.executable)
    return executable.resolve() if Path(sys.prefix).resolve() == VENV else executable


def install_uv() -> None:
    """uv from the package index into .venv, by pip, unless it is there."""
    if answers("uv", "--version"):
        return
    if not answers("pip", "--version"):
        run([PYTHON, "-m", "ensurepip"], "pip")
    run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"], "uv")


def install_overlay(name: str, packages: tuple[str, ...], oldest: tuple[int, int], with_needs: bool) -> None:
    """A row of OVERLAYS, made anew; left out where this Python is older than its packages."""
    folder = VENV / name
    shutil.rmtree(folder, ignore_errors=True)
    if sys.version_info < oldest:
        return
    command: list[str | Path] = [PYTHON, "-m", "uv", "pip", "install", "--quiet", "--python", PYTHON]
    needs = [] if with_needs else ["--no-deps"]
    run([*command, *needs, "--target", folder, *packages], f"{packages[0]} beside the packages")


def answers(module: str, *arguments: str) -> bool:
    """Whether `python -m module` works in .venv."""
    return subprocess.run([PYTHON, "-m", module, *arguments], capture_output=True).returncode == 0


def can_make_pip() -> bool:
    """Whether this Python has what its venv module needs for a pip of its own."""
    done = subprocess.run([sys.executable, "-c", "from ensurepip import bootstrap"], capture_output=True)
    return done.returncode == 0


def run(command: list[str | Path], what: str, **environment: str) -> None:
    """Run a command with its output shown; stop with a clear text where it fails."""
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment})
    if result.returncode:
        stop(
            f"Installing {what} failed.",
            "The messages above are its own.",
            "mend what they name and run the same make command again; what was downloaded is kept.",
        )


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def stop(what: str, why: str, todo: str) -> NoReturn:
    raise SystemExit(f"\n{what}\nWhy: {why}\nWhat to do: {todo}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit("\nStopped. Run the same make command again; what was downloaded is kept.") from None
