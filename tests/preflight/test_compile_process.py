"""The compile process: what it is, how it ends, what it leaves."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from tests.conftest import leaving_nothing
from tests.preflight import stablehlo_programs as programs
from tests.preflight.stablehlo_programs import compile_some, graph
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight import compilation, compile_process
from tpu_magics.preflight.compilation import CompileProgress, default_limit
from tpu_magics.preflight.compile_process import environment
from tpu_magics.preflight.targets import parse

pytestmark = pytest.mark.process

SMALL = graph(programs.TRAINING)
SLOW = graph(programs.slow(2))  # a few seconds
MIB = 2**20
T = TypeVar("T")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders of this test are made; none may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


class Looked(Exception):
    """What was wanted of a compile that runs is known."""


def at_compiling(act: Callable[[], object]) -> Callable[[CompileProgress], None]:
    """`tell` that does something once, when the first compile has begun."""
    done: list[bool] = []

    def tell(progress: CompileProgress) -> None:
        if progress.state == "compiling" and not done:
            done.append(True)
            act()

    return tell


def when_compiling(look: Callable[[], T], packages: tuple[str, ...]) -> T:
    """What `look` gives while a graph is compiled; the compile is not waited for."""
    found: list[T] = []

    def act() -> None:
        found.append(look())
        raise Looked

    with pytest.raises(Looked):
        compile_some([SLOW], on_progress=at_compiling(act), packages=packages)
    return found[0]


def compiler() -> psutil.Process:
    """The compile process that this process has started."""
    return next(one for one in psutil.Process().children() if "tpu_magics.preflight.compiler" in one.cmdline())


# -- what it is -------------------------------------------------------------------------------------------------------


def test_it_holds_no_framework(tpu_compiler: tuple[str, ...], tmp_path: Path) -> None:
    code = """if True:
        import os, sys
        from pathlib import Path
        from tpu_magics.preflight.compiler.__main__ import main
        writing = os.dup(1)
        code = main(Path(sys.argv[1]), writing)
        print(*sorted({name.partition(".")[0] for name in sys.modules}))
        os._exit(code)
    """
    (tmp_path / "job").mkdir()
    job = compile_process._job(tmp_path / "job", {0: SMALL}, parse("v5e-4"), compile_process.compiler_versions())
    job.write(tmp_path / "job.json")
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "job.json")],
        env=environment(os.environ, tmp_path, tpu_compiler),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *events, modules = ended.stdout.splitlines()
    assert '"status": "fits"' in events[-1]
    loaded = set(modules.split())
    assert {"jaxlib", "libtpu"} <= loaded
    assert not loaded & {"torch", "torch_xla", "tensorflow", "transformers", "accelerate", "jax", "IPython", "psutil"}


def test_nothing_of_the_host_or_the_person_gets_into_it(
    tpu_compiler: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these alone would end the process or change the program."""
    for name, value in {
        "XLA_FLAGS": "--no_such_flag",
        "LIBTPU_INIT_ARGS": "--no_such_flag",
        "PJRT_DEVICE": "TPU",
        "JAX_PLATFORMS": "tpu",
        "TPU_LIBRARY_PATH": "/nowhere/libtpu.so",
        "TPU_PROCESS_ADDRESSES": "local",
        "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1",
        "CLOUD_TPU_TASK_ID": "3",
        "HOST_BOUNDS": "a,b,c",
        "CHIPS_PER_HOST_BOUNDS": "a,b,c",
        "WRAP": "a",
    }.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    assert compile_some([SMALL], packages=tpu_compiler)[0].status == "fits"
    assert dict(os.environ) == before


def test_modules_of_the_notebooks_folder_do_not_hide_others(
    tpu_compiler: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the notebook has a file of this name')")
    monkeypatch.chdir(tmp_path)
    assert compile_some([SMALL], packages=tpu_compiler)[0].status == "fits"


def open_files() -> list[str]:
    """Of the compile process, which closes some of them meanwhile."""
    found: list[str] = []
    for one in Path(f"/proc/{compiler().pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(one))
    return found


def test_it_takes_neither_chips_nor_their_lock(packages: tuple[str, ...]) -> None:
    files = when_compiling(open_files, packages)
    assert any(one.endswith("/output") for one in files)
    assert not [one for one in files if "libtpu_lockfile" in one or "/dev/accel" in one or "/dev/vfio" in one]


def test_two_compile_at_the_same_time(tpu_compiler: tuple[str, ...]) -> None:
    """libtpu's own lock would not let the second one start."""
    found = when_compiling(lambda: compile_some([SMALL], packages=tpu_compiler), tpu_compiler)
    assert [one.status for one in found] == ["fits"]


def test_the_kernel_takes_it_first_when_memory_runs_out_and_an_interrupt_of_the_session_spares_it(
    tpu_compiler: tuple[str, ...],
) -> None:
    def look() -> tuple[str, int, int]:
        pid = compiler().pid
        return Path(f"/proc/{pid}/oom_score_adj").read_text().strip(), os.getsid(pid), os.getpgid(pid)

    score, session, group = when_compiling(look, tpu_compiler)
    assert score == "1000" and session != os.getsid(0) and group != os.getpgid(0)


def test_flags_that_it_did_not_get_are_told(tpu_compiler: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the person's, and not those that torch_xla sets when it is imported."""
    monkeypatch.setenv("XLA_FLAGS", " --xla_cpu_enable_fast_math=false")
    monkeypatch.setenv(
        "LIBTPU_INIT_ARGS", "--xla_tpu_enable_flash_attention=false --xla_tpu_scoped_vmem_limit_kib=65536"
    )
    (found,) = compile_some([SMALL], packages=tpu_compiler)
    assert found.notes == (
        "LIBTPU_INIT_ARGS (--xla_tpu_scoped_vmem_limit_kib=65536) was ignored in this compile; a run with it may "
        "compile a different program",
    )


def test_a_notebook_with_many_open_files(tpu_compiler: tuple[str, ...]) -> None:
    """select(2) knows no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    opened = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(1100)]
    try:
        assert opened[-1] > 1023
        assert compile_some([SMALL], packages=tpu_compiler)[0].status == "fits"
    finally:
        for one in opened:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_nothing_is_left(
    tpu_compiler: tuple[str, ...], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(compile_process.os, "pipe", none_left)
    with leaving_nothing(), pytest.raises(OSError, match="Too many open files"):
        compile_some([SMALL], packages=tpu_compiler)


# -- how it ends ------------------------------------------------------------------------------------------------------


def broken(_: CompileProgress) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("tell", "kind"),
    [(at_compiling(lambda: os.kill(os.getpid(), signal.SIGINT)), KeyboardInterrupt), (broken, ZeroDivisionError)],
)
def test_an_interrupt_or_an_error_in_tell_leaves_nothing(
    tpu_compiler: tuple[str, ...], temporary: Path, tell: Callable[[CompileProgress], None], kind: type[BaseException]
) -> None:
    with leaving_nothing(), pytest.raises(kind):
        compile_some([SLOW], on_progress=tell, packages=tpu_compiler)


@pytest.mark.smoke
def test_a_compile_that_ends_leaves_nothing(tpu_compiler: tuple[str, ...], temporary: Path) -> None:
    with leaving_nothing():
        compile_some([SMALL], packages=tpu_compiler)


def test_it_is_stopped_at_its_bound_of_memory(
    tpu_compiler: tuple[str, ...], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "FLOOR", 0)
    with leaving_nothing():
        found = compile_some([SLOW], memory_limit=120 * MIB, packages=tpu_compiler)[0]
    assert found.status == "failed"
    assert "stopped at its limit of 0.12 GiB of host memory" in found.error
    assert "at graph 1 of 1 (1 kB of StableHLO)" in found.error
    assert found.peak is not None and found.peak > 120 * MIB


def test_the_bound_is_what_the_host_can_spare() -> None:
    limit, available = default_limit(), psutil.virtual_memory().available
    assert limit is not None
    assert limit < available


@pytest.mark.parametrize("asked", [0, None])
def test_too_little_memory_for_any_compile_is_said_at_once(
    tpu_compiler: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, asked: int | None
) -> None:
    monkeypatch.setattr(compilation, "default_limit", lambda: 10 * MIB)
    monkeypatch.setattr(compile_process, "start", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(TpuMagicsError, match=r"too little free host memory for a compile: 0\.0[01] GiB") as error:
        compile_some([SMALL], memory_limit=asked, packages=tpu_compiler)
    assert "needs at least 0.5 GiB" in error.value.why


def test_when_it_dies_the_other_graphs_are_compiled_all_the_same(tpu_compiler: tuple[str, ...]) -> None:
    tell = at_compiling(lambda: compiler().send_signal(signal.SIGSEGV))
    first, second = compile_some([SLOW, SMALL], on_progress=tell, packages=tpu_compiler)
    assert (first.status, second.status) == ("failed", "fits")
    # libtpu's own handler writes what it was, and may end with another signal.
    assert re.search(r"ended with signal SIG(SEGV|ABRT), at graph 1 of 2", first.error)
    assert "SIGSEGV" in first.error.partition("\n")[2], "the last lines of its stderr"
    assert first.versions == second.versions


def test_a_kill_is_explained(tpu_compiler: tuple[str, ...]) -> None:
    tell = at_compiling(lambda: compiler().kill())
    found = compile_some([SLOW], on_progress=tell, packages=tpu_compiler)[0]
    assert "signal SIGKILL (Linux sends it when memory runs out)" in found.error


def test_it_dies_with_its_parent(tpu_compiler: tuple[str, ...], temporary: Path) -> None:
    """And its folder goes with the next compile."""
    code = f"""if True:
        import os, signal, sys, tempfile
        import psutil
        from tests.preflight import stablehlo_programs as programs
        tempfile.tempdir = {str(temporary)!r}
        def tell(progress):
            if progress.state == "compiling":
                print(psutil.Process().children()[0].pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        programs.compile_some([programs.graph(programs.slow(2))], on_progress=tell, packages={tpu_compiler!r})
    """
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    pid, until = int(ended.stdout), time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert list(temporary.iterdir())
    compile_some([SMALL], packages=tpu_compiler)


# -- what is installed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "what", "todo"),
    [
        (12, "jaxlib and libtpu are not installed", r"Install them with: pip install 'tpu-magics\[preflight\]'"),
        (10, r"not available for this Python \(3\.10\)", ".*Python 3.11.*"),
    ],
)
def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch, python: int, what: str, todo: str) -> None:
    monkeypatch.setattr(compile_process, "_version", lambda *_: "")
    monkeypatch.setattr(compile_process.sys, "version_info", (3, python, 1, "final", 0))
    with pytest.raises(TpuMagicsError, match=what) as error:
        compile_some([SMALL])
    assert re.fullmatch(todo, error.value.todo)


def test_versions_that_are_too_old_are_named(tpu_compiler: tuple[str, ...], tmp_path: Path) -> None:
    _pretend(tmp_path, "libtpu", "0.0.14")
    with pytest.raises(TpuMagicsError, match="libtpu is too old for a preflight") as error:
        compile_some([SMALL], packages=(str(tmp_path), *tpu_compiler))
    assert "libtpu 0.0.14. Needed: libtpu 0.0.17 or newer" in error.value.why


def test_other_versions_in_the_process_are_no_answer(
    tpu_compiler: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the notebook has its jax from a folder that it put on sys.path itself."""
    _pretend(tmp_path, "libtpu", "9.0.1")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(TpuMagicsError, match="The TPU compiler cannot be used here") as error:
        compile_some([SMALL], packages=tpu_compiler)
    assert "The compile process finds different versions: libtpu 0.0." in error.value.why


def test_a_folder_of_packages_may_be_relative(colab_compiler: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(colab_compiler[0])
    monkeypatch.chdir(folder.parent)
    assert compile_some([SMALL], packages=(folder.name,))[0].versions["libtpu"] == "0.0.21.1"


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("libtpu", "def get_library_path():\n    return __file__\n", "Failed to open"),
        ("jaxlib", "", "ImportError"),  # laid out otherwise
    ],
)
def test_a_compiler_that_does_not_load(
    tpu_compiler: tuple[str, ...], tmp_path: Path, name: str, source: str, said: str
) -> None:
    _pretend(tmp_path, name, "9.0.1")
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(source)
    with pytest.raises(TpuMagicsError, match="The TPU compiler cannot be used here") as error:
        compile_some([SMALL], packages=(str(tmp_path), *tpu_compiler))
    assert f"{name} 9.0.1" in error.value.why and said in error.value.why


def _pretend(folder: Path, name: str, version: str) -> None:
    """What pip leaves behind of an install."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
