"""`make test-hosts`: the test suites in environments with the packages of Colab's and of Kaggle's TPU image; and
`make test-torch-tpu`: those that TorchTPU has to pass too, which does not go beside torch_xla.

Makes the environments (.hosts/NAME, or .venv/torch-tpu, from tests/hosts/NAME.txt), installs our wheel into them with
pip, checks that this changes no version, and runs the suites of all at once. tests/hosts/lacking.py lists what a host
lacks.

Usage: .venv/bin/python scripts/hosts.py [NAME...] [-- PYTEST_ARGUMENT...]
       .venv/bin/python scripts/hosts.py --make NAME   the environment alone
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import install  # it lies beside this script

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".hosts"
LISTS = ROOT / "tests" / "hosts"
TOOLS, OVERRIDES = LISTS / "tests.txt", LISTS / "overrides.txt"
SUITES = tuple(f"tests/{room}" for room in ("launch", "host", "preflight", "hosts"))
NOT_THERE = ("tests/launch/pods",)  # many hosts on Ray: neither Colab nor Kaggle is one of several
# For each host: much of a test is waiting for processes that begin or end.
WORKERS = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-m", "not long", "--durations=20")
UV = [sys.executable, "-m", "uv"]


@dataclass(frozen=True)
class Host:
    """`python`: the version that the image has; `overlays`: rows of install.OVERLAYS that the tests need beside the
    packages of the image; `suites`: what is tested there; `left_out`: what is not of it; `pythons`: other versions that
    do; `image`: it is one, which stands for itself: there is no other Python, no such host; `imports`: large ones."""

    name: str
    python: str
    overlays: tuple[str, ...]
    suites: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    image: bool = True
    imports: tuple[str, ...] = ("accelerate, jax, torch_xla, transformers.trainer", "tensorflow")

    @property
    def folder(self) -> Path:
        return (FOLDER if self.image else install.VENV) / self.name

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return LISTS / f"{self.name}.txt"

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.name}.log"


def test_files(room: str, *names: str) -> tuple[str, ...]:
    """Of a room; a name may have a folder of it before it."""
    paths = (Path("tests", room, name) for name in names)
    return tuple(str(path.with_name(f"test_{path.name}.py")) for path in paths)


HOSTS = {
    # Its front end is the oldest (IPython 7.34), its Python the newest: the magics, and what renders and parses most.
    # Its image has no TensorFlow; with one beside it, as a person installs it, cells train (magics/test_tensorflow.py).
    # Left out: programs with dozens of runs, which Kaggle's TensorFlow passes, what torch_xla alone decides (it is the
    # one of .venv), and the ways to a preflight beside the compiler itself, whose figures test_analysis.py checks.
    "colab": Host(
        "colab",
        "3.13",
        ("tensorflow",),
        (
            *SUITES,
            "tests/magics",
            *test_files("panel", "html", "live", "text", "page_of_run"),
            *test_files("check", "cells", "fixes", "recall", "rule_docs", "samples"),
        ),
        (
            *test_files("launch/strategies", "in_process"),
            *test_files("launch/resume", "keras"),
            *test_files("launch", "rehearsal", "rehearsal_killed", "spmd", "traps"),
            *test_files("preflight", "closed_forms", "planted", "precheck", "run"),
        ),
    ),
    # torch, torch_xla and libtpu are older than in .venv, and TensorFlow is among its packages: what they decide, with
    # the observer's hooks in torch_xla. Its front end is the one of .venv, its Python lies between those of .venv and
    # of Colab: left out is what only reads programs or watches processes, new processes in the place of forks (Colab's
    # lane has them), and the ways to a preflight beside the one that preflight/test_run.py takes.
    "kaggle": Host(
        "kaggle",
        "3.12",
        (),
        (
            *SUITES,
            *test_files("magics", "forms", "init", "preflight", "tensorflow", "trainer"),
            *test_files("backends/torch_xla", "trace_reads", "observe/observer"),
        ),
        (
            *test_files("launch", "endings", "hoist", "hoist_declined", "process", "spawned", "streams", "supervisor"),
            *test_files("preflight", "closed_forms", "command", "compile_process", "planted", "precheck"),
        ),
    ),
    # TorchTPU, rehearsed. Each operation outside of torch.compile is compiled the first time, for 30 to 400 ms: so the
    # one test of launch/resume that starts a dozen workers is left out.
    "torch-tpu": Host(
        "torch-tpu",
        "3.12",
        (),
        (
            *test_files("backends/torch", "pickling", "tied_weights", "weights"),
            "tests/backends/torch_tpu",
            *test_files("launch", "endings", "spawned", "state", "train", "trainer", "traps"),
            *test_files("launch/resume", "objects", "resume"),
            *("-k", "not killed_again_and_again"),
            *("-p", "tests._notebooks", "--nbval-lax", "--nbval-current-env", "notebooks/09_torch_tpu.ipynb"),
        ),
        pythons=("3.13",),
        image=False,
        imports=("accelerate, transformers.trainer",),
    ),
}


def main(arguments: list[str]) -> None:
    only_make = arguments[:1] == ["--make"]
    arguments = arguments[only_make:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:split], arguments[split + 1 :]
    if set(names) - set(HOSTS):
        raise SystemExit(f"There is no host {', '.join(set(names) - set(HOSTS))}; there are: {', '.join(HOSTS)}")
    hosts = [HOSTS[name] for name in names or [name for name, host in HOSTS.items() if host.image]]
    if hosts := [host for host in hosts if is_possible(host)]:
        make_and_test(hosts, options, only_make)


def is_possible(host: Host) -> bool:
    """Whether there is a Python for it; if not, a line says so. In CI there has to be one."""
    if host.image or find_python(host) is not None:
        return True
    wanted = f"{host.name} needs Python {' or '.join((host.python, *host.pythons))}, which is not on this machine"
    if os.environ.get("CI", "").lower() in ("true", "1"):
        stop(f"{wanted}; in CI nothing may be skipped.")
    install.say(f"skipped: {wanted} (on the path, or under pyenv)")
    return False


def make_and_test(hosts: list[Host], options: list[str], only_make: bool) -> None:
    # Otherwise hundreds of processes would compile the packages' modules, or the installer would compile all of them
    # (50 s more). `warm` compiles those that all tests import, once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    wheel = build_wheel()
    with ThreadPoolExecutor() as both:
        for done in [both.submit(prepare, host, wheel) for host in hosts]:
            done.result()
    if not only_make:
        test(hosts, options)


def prepare(host: Host, wheel: Path) -> None:
    make(host)
    install_wheel(host, wheel)
    warm(host)


# -- the environments -------------------------------------------------------------------------------------------------


def make(host: Host) -> None:
    """The host's environment, unless it is there as its list wants it."""
    python = find_python(host)
    assert python is not None
    stamp, wanted = host.folder / ".made", key(host, python)
    if stamp.is_file() and stamp.read_text() == wanted:
        install.say(f"{host.name}: {host.folder.relative_to(ROOT)} is up to date")
        return
    version = install.version_of(python)
    install.say(f"{host.name}: making {host.folder.relative_to(ROOT)} with {python} (Python {version})")
    run([*UV, "venv", "--quiet", "--clear", "--python", python, host.folder])
    add(host, "-r", host.packages, "--overrides", OVERRIDES, "pip")
    before = listed(host)
    add(host, "-r", TOOLS)
    refuse_changes(host, before, "The tools of the tests")
    for overlay in (row for row in install.OVERLAYS if row[0] in host.overlays):
        add_overlay(host, *overlay)
    stamp.write_text(wanted)


def find_python(host: Host) -> Path | None:
    """A Python of the image's version; where there is none, the one that runs this, and a line that says so. None where
    it is no image, and there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in (host.python, *host.pythons):
        there = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
        on_path = shutil.which(f"python{version}")
        for candidate in (Path(sys.executable), *map(Path, filter(None, [on_path])), *reversed(there)):
            if install.version_of(candidate) == version:
                return candidate
    if not host.image:
        return None
    own = install.version_of(Path(sys.executable))
    install.say(f"{host.name}: its image has Python {host.python}, which is not on this machine; taken instead: {own}")
    return Path(sys.executable)


def key(host: Host, python: Path) -> str:
    """Changes whenever the environment has to be made anew."""
    overlays = [row for row in install.OVERLAYS if row[0] in host.overlays]
    lists = [path.read_text() for path in (host.packages, TOOLS, OVERRIDES)]
    parts = [*lists, str(python), str(install.version_of(python)), repr(overlays)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def add(host: Host, *what: str | Path) -> None:
    run([*UV, "pip", "install", "--quiet", "--python", host.interpreter, *what])


def add_overlay(host: Host, name: str, packages: tuple[str, ...], _oldest: tuple[int, int], with_needs: bool) -> None:
    """A folder of packages that do not go beside the host's own, as scripts/install.py makes them for .venv."""
    add(host, *([] if with_needs else ["--no-deps"]), "--target", host.folder / name, *packages)


def listed(host: Host) -> dict[str, str]:
    """Version by name of every package that the host's environment has."""
    command = [*UV, "pip", "list", "--quiet", "--format", "json", "--python", host.interpreter]
    found = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {package["name"]: package["version"] for package in json.loads(found)}


def refuse_changes(host: Host, before: dict[str, str], who: str) -> None:
    """Stop where a package that was there has another version now, or is gone."""
    changed = changes(before, listed(host))
    if changed:
        stop(f"{who} changed what {host.name} ships: {'; '.join(changed)}")


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """What is not as it was; packages that came in addition are none."""
    return [f"{name} {old} -> {after.get(name, 'gone')}" for name, old in before.items() if after.get(name) != old]


# -- our wheel --------------------------------------------------------------------------------------------------------


def build_wheel() -> Path:
    folder = FOLDER / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], stdout=subprocess.DEVNULL)
    return next(folder.glob("*.whl"))


def install_wheel(host: Host, wheel: Path) -> None:
    """With the host's own pip and nothing that holds it back, as in a notebook there; nothing may change by it."""
    run([*UV, "pip", "uninstall", "--quiet", "--python", host.interpreter, "tpu-magics"], stderr=subprocess.DEVNULL)
    before = listed(host)
    run([host.interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel])
    refuse_changes(host, before, "Installing tpu_magics")
    came = sorted(listed(host).keys() - before.keys() - {"tpu-magics"})
    install.say(f"{host.name}: tpu_magics is installed; changed: nothing; came with it: {', '.join(came) or 'nothing'}")


def warm(host: Host) -> None:
    """Import the large packages once, so that Python stores their byte code. An import that fails is reported by the
    suites."""
    tensorflow = {"PYTHONPATH": str(host.folder / "tensorflow")} if "tensorflow" in host.overlays else {}
    for modules in host.imports:
        command = [host.interpreter, "-c", f"import {modules}"]
        variables = tensorflow if modules == "tensorflow" else {}
        subprocess.run(command, cwd=FOLDER, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)


# -- the suites -------------------------------------------------------------------------------------------------------


def test(hosts: list[Host], options: list[str]) -> None:
    """The suites of all hosts at once; the log of one that fails is shown."""
    began = time.monotonic()
    going = {host.name: start(host, options) for host in hosts}
    told = began
    while any(process.poll() is None for process in going.values()):
        time.sleep(1)
        now = time.monotonic()
        if now - told > min(60, 5 + (told - began) / 10):
            told = now
            print("    " + ", ".join(f"{host.name}: {how_far(host)}" for host in hosts), flush=True)
    failed = [host for host in hosts if going[host.name].returncode]
    for host in hosts:
        said = host.log.read_text(errors="replace")
        print(f"\n==> {host.name}\n{said if host in failed else said.splitlines()[-1]}", flush=True)
    minutes = (time.monotonic() - began) / 60
    if failed:
        stop(f"The suites failed on {' and '.join(host.name for host in failed)}, after {minutes:.1f} minutes.")
    install.say(f"the suites passed on {' and '.join(host.name for host in hosts)} in {minutes:.1f} minutes")


def start(host: Host, options: list[str]) -> subprocess.Popen[bytes]:
    """pytest in the host's environment, writing to its log."""
    without = f" without {', '.join(host.left_out)}" if host.left_out else ""
    install.say(f"{host.name}: running the suites{without}, log in {host.log.relative_to(ROOT)}")
    left_out = [f"--ignore={name}" for name in (*NOT_THERE, *host.left_out)]
    command = [
        host.interpreter,
        "-m",
        "pytest",
        "-p",
        "tests._ci",
        "-p",
        "tests.hosts.lacking",
        "-p",
        "no:cacheprovider",
    ]
    environment = {
        **os.environ,
        "JUPYTER_PREFER_ENV_PATH": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(host.folder / "hypothesis"),
    }
    with host.log.open("wb") as log:
        words = [*map(str, command), *(options or [*host.suites, *left_out, *WORKERS, "-q"])]
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def how_far(host: Host) -> str:
    """The last percentage in the log."""
    found = [line for line in host.log.read_text(errors="replace").splitlines() if line.endswith("%]")]
    return found[-1].rpartition("[")[2].strip(" ]") if found else "beginning"


def run(command: list[str | Path], **options: int) -> None:
    words = list(map(str, command))
    if subprocess.run(words, cwd=ROOT, **options).returncode:  # type: ignore[call-overload]
        stop(f"This failed; the messages above are its own: {' '.join(words)}")


def stop(text: str) -> NoReturn:
    raise SystemExit(f"\n{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
