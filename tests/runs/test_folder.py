"""Making run folders, and run.json under pressure. The disk that fills up is a real, small one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.runs.builders import in_child, in_threads
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs import folder as folder_module
from tpu_magics.runs.files import RunFiles, fallback_root, read_info, runs_root
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.owner import process_started, same_process
from tpu_magics.runs.reader import Run


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


def test_a_new_run_has_its_folder_and_run_json(cwd: Path) -> None:
    run = RunFolder.create("first try", cwd=cwd)
    assert run.path.parent == cwd / ".tpu_runs"
    assert re.fullmatch(r"\d{8}T\d{6}Z-first try", run.path.name)
    assert run.warning == ""
    assert run.path.stat().st_mode & 0o777 == 0o700
    info = read_info(run.info_path)
    assert info == run.info
    assert {"v": 1, "id": run.path.name, "name": "first try", "status": "starting"}.items() <= info.items()
    assert (info["pid"], info["pid_started"]) == (os.getpid(), process_started(os.getpid()))
    for key in ("created", "plan", "host", "versions", "workers", "ended", "seconds", "failure", "models", "warnings"):
        assert key in info


def test_the_working_directory_is_taken_when_the_run_begins(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cwd)
    assert RunFolder.create("a").path.parent == cwd / ".tpu_runs"


def test_the_environment_chooses_the_place(cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_MAGICS_RUNS", str(tmp_path / "deep" / "runs"))
    assert RunFolder.create("a", cwd=cwd).path.parent == tmp_path / "deep" / "runs"
    assert list(cwd.iterdir()) == []


def test_a_relative_root_survives_a_change_of_directory(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cwd)
    run = RunFolder.create("a", root="runs")
    monkeypatch.chdir("/")
    run.update(status="running")
    assert read_info(cwd / "runs" / run.id / "run.json")["status"] == "running"


def test_runs_of_the_same_second_get_a_number(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module.time, "time", lambda: 1795239243.5)
    made = [RunFolder.create("a", cwd=cwd).id for _ in range(3)]
    assert made == ["20261121T053403Z-a", "20261121T053403Z-a-2", "20261121T053403Z-a-3"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("a/b", "it contains a slash"),
        (".hidden", "it begins with a dot"),
        ("..", "it begins with a dot"),
        ("a\0b", "it contains a control character"),
        ("a\nb", "it contains a control character"),
        ("a\x1b[31m", "it contains a control character"),
        ("a\ud800", "it contains a control character"),
        ("x" * 81, "it has 81 characters, and at most 80 are possible"),
        ("🚀" * 60, "it takes more than 200 bytes"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_before_anything_is_made(cwd: Path, name: str, why: str) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        RunFolder.create(name, cwd=cwd)
    assert caught.value.why == f"The name is part of a folder's name, and {why}."
    assert "1 to 80 characters without a slash" in caught.value.todo
    assert list(cwd.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 80, "ünïcode 名前", "-n", "a.b", "'\"$`;&|"])
def test_other_names_are_kept_as_they_are(cwd: Path, name: str) -> None:
    run = RunFolder.create(name, cwd=cwd)
    assert run.path.is_dir() and read_info(run.info_path)["name"] == name == run.name


def test_a_working_directory_that_cannot_hold_runs_falls_back(cwd: Path, tmp_path: Path) -> None:
    (cwd / ".tpu_runs").write_text("a file stands in the way")
    run = RunFolder.create("a", cwd=cwd)
    assert run.path.is_dir() and tmp_path / "tmp" in run.path.parents
    assert run.path.parent == fallback_root(runs_root(cwd))
    assert str(cwd / ".tpu_runs") in run.warning and str(run.path) in run.warning
    assert read_info(run.info_path)["warnings"] == [run.warning]
    for private in (run.path, run.path.parent, run.path.parent.parent):
        assert private.stat().st_mode & 0o777 == 0o700


@pytest.mark.process
def test_without_permission_it_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Really without permission: root may write anywhere, so there a child becomes another user first."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        closed, temporary = Path(place, "closed"), Path(place, "tmp")
        closed.mkdir()
        temporary.mkdir()
        for path, mode in ((place, 0o755), (closed, 0o555), (temporary, 0o777)):
            os.chmod(path, mode)
        monkeypatch.setattr("tempfile.tempdir", str(temporary))
        told = Path(temporary, "told")

        def work() -> int:
            if os.getuid() == 0:
                os.setuid(65534)
            run = RunFolder.create("a", cwd=closed)
            told.write_text(f"{run.warning}\n{read_info(run.info_path)['status']}")
            return 0

        assert in_child(work) == 0
        warning, status = told.read_text().splitlines()
        assert warning.startswith(f"{closed}/.tpu_runs cannot be written (Permission denied): this run is stored in ")
        assert str(temporary) in warning and status == "starting"


def test_a_removed_working_directory_falls_back_and_stays_removed(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cwd)
    cwd.rmdir()
    run = RunFolder.create("a")
    assert run.path.is_dir() and run.warning
    assert not cwd.exists()


def test_a_temporary_folder_that_others_can_write_is_not_used(cwd: Path, tmp_path: Path) -> None:
    (cwd / ".tpu_runs").touch()
    squatted = fallback_root(runs_root(cwd)).parent
    squatted.mkdir()
    squatted.chmod(0o777)
    run = RunFolder.create("a", cwd=cwd)
    assert squatted not in run.path.parents and tmp_path / "tmp" in run.path.parents
    assert run.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_another_puts_in_the_place_of_a_new_one_is_not_used(
    cwd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    """Whoever can write to the folder of the runs may be faster than the one who made it."""
    mkdir, root = Path.mkdir, cwd / ".tpu_runs"

    def exchanged(path: Path, *args: Any, **options: Any) -> None:
        mkdir(path, *args, **options)
        if path.parent == root:
            path.rename(root / "aside")
            (tmp_path / "theirs").mkdir(exist_ok=True)
            (tmp_path / "theirs" / "result-value-0.pkl").touch()
            path.symlink_to(tmp_path / "theirs") if link else (tmp_path / "theirs").rename(path)

    monkeypatch.setattr(Path, "mkdir", exchanged)
    folder = RunFolder.create("a", cwd=cwd)
    assert not folder.path.is_relative_to(root) and f"{root} cannot be written" in folder.warning


def test_the_folder_is_held_until_it_is_released(cwd: Path) -> None:
    folder = RunFolder.create("a", cwd=cwd)
    assert folder.own.path.samefile(folder.path) and not folder.replaced
    taken = folder.path.rename(cwd / "taken")
    folder.path.mkdir()
    assert folder.replaced and folder.own.path.samefile(taken)
    folder.update(status="done")
    assert Run(taken).status == "done" and list(folder.path.iterdir()) == []
    folder.release()
    assert folder.own.path == folder.path and not folder.replaced


def test_without_any_place_the_error_says_what_to_do(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cwd / ".tpu_runs").touch()
    monkeypatch.setattr("tempfile.tempdir", str(cwd / "not there"))
    with pytest.raises(TpuMagicsError, match="The run folder could not be written") as caught:
        RunFolder.create("a", cwd=cwd)
    assert "not there" in caught.value.why
    assert caught.value.todo == "Set TPU_MAGICS_RUNS to a folder that you can write, and run the cell again."


def test_update_merges_and_replaces_the_file_whole(cwd: Path) -> None:
    run = RunFolder.create("a", cwd=cwd)
    before = run.info_path.stat().st_ino
    run.update(status="running", plan={"path": Path("/x"), "loss": float("nan")})
    info = json.loads(run.info_path.read_text())
    assert (info["status"], info["name"], info["plan"]) == ("running", "a", {"path": "/x", "loss": "nan"})
    assert run.info_path.stat().st_ino != before
    assert sorted(os.listdir(run.path)) == ["run.json"]


def test_updates_from_many_threads_lose_nothing_and_are_never_seen_half(cwd: Path) -> None:
    run = RunFolder.create("a", cwd=cwd)
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(len(json.loads(run.info_path.read_bytes())))

    def write(number: int) -> None:
        for turn in range(25):
            run.update(**{f"field_{number}": turn, "padding": "x" * (turn * 400)})

    reader = threading.Thread(target=read)
    reader.start()
    in_threads(*(partial(write, number) for number in range(8)))
    stop.set()
    reader.join()
    assert seen and min(seen) > 10
    assert [read_info(run.info_path)[f"field_{number}"] for number in range(8)] == [24] * 8


@pytest.mark.process
def test_another_process_does_not_write_run_json(cwd: Path) -> None:
    run = RunFolder.create("a", cwd=cwd)

    def work() -> int:
        with pytest.raises(RuntimeError):
            run.update(status="stolen")
        return 7

    assert in_child(work) == 7
    assert read_info(run.info_path)["status"] == "starting"


def test_an_update_that_could_not_be_written_is_made_up_for_by_the_next(cwd: Path) -> None:
    run = RunFolder.create("a", cwd=cwd)
    blocked = run.path / ".run.json.new"
    blocked.mkdir()
    with pytest.raises(TpuMagicsError, match="The run folder could not be written") as caught:
        run.update(status="running")
    assert caught.value.why == f"{run.path}: Is a directory."
    assert read_info(run.info_path)["status"] == "starting"
    blocked.rmdir()
    run.update(seconds=1.0)
    assert {"status": "running", "seconds": 1.0}.items() <= read_info(run.info_path).items()


def test_a_folder_that_was_removed_is_told_as_that(cwd: Path) -> None:
    run = RunFolder.create("a", cwd=cwd)
    shutil.rmtree(run.path)
    with pytest.raises(TpuMagicsError, match="removed while it was in use") as caught:
        run.update(status="running")
    assert str(run.path) in caught.value.why and "only when they have ended" in caught.value.todo


FULL_DISK = """
import os, sys
from pathlib import Path
from typing import Any
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import Steps
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run
from tpu_magics.runs.writer import EventWriter
root = Path(sys.argv[1])
run = RunFolder.create("fits", cwd=root)
with open(root / "ballast", "wb", buffering=0) as ballast:
    try:
        while True: ballast.write(bytes(4096))
    except OSError as error: print(error.strerror)
for attempt in (lambda: run.update(plan={"text": "x" * 20_000}), lambda: RunFolder.create("late", cwd=root)):
    try: attempt()
    except TpuMagicsError as error: print(error.what, error.why)
writer = EventWriter(run.events_path(0), 0)
print(writer.write(Steps(1.0, 0)), writer.write(Steps(2.0, 0)), writer.failed)
print(sorted(path.name[17:] for path in (root / ".tpu_runs").iterdir()), sorted(os.listdir(run.path)))
(root / "ballast").unlink()
run.update(seconds=1.0)
print(len(run.info_path.read_text()) > 20_000)
"""


@pytest.mark.process
def test_a_full_disk_names_the_folder_and_the_free_bytes_and_does_not_stop_the_training(tmp_path: Path) -> None:
    """On a disk of 64 kB that is really full."""
    place = tmp_path / "small"
    place.mkdir()
    shell = 'mount -t tmpfs -o size=64k none "$1" || exit 77; exec "$2" -c "$3" "$1"'
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare to mount a small disk")
    command = [unshare, "-rm", "sh", "-c", shell, "sh", str(place), sys.executable, FULL_DISK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"may not mount a small disk here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    filled, updated, created, written, left, mended = done.stdout.splitlines()
    assert filled == "No space left on device"
    for line in (updated, created):
        assert line.startswith("The run folder could not be written: the disk is full.")
        assert re.search(re.escape(str(place)) + r"\S* is on a file system with 0 bytes free \(No space left", line)
    assert written == "0 0 rank-0.jsonl could not be written: No space left on device"
    assert left == "['fits'] ['rank-0.jsonl', 'run.json']"
    assert mended == "True", "what could not be written goes out with the next update"


def test_the_names_of_the_files() -> None:
    files = RunFiles("/r/x")
    assert [path.name for path in (files.info_path, files.supervisor_path)] == ["run.json", "supervisor.jsonl"]
    assert [files.events_path(3).name, files.log_path(3).name] == ["rank-3.jsonl", "rank-3.log"]
    assert files.value_path(3).name == "result-value-3.pkl"
    assert files.stacks_path(3).name == "rank-3.stacks" and files.display_path(2).name == "display-2.json"


@pytest.mark.process
def test_a_process_is_known_by_its_start_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_started(child.pid)
    assert started is not None and same_process(child.pid, started)
    assert not same_process(child.pid, started + 1), "another process that got the pid"
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not same_process(child.pid, started), "a zombie is no kernel"
    child.wait()
    assert process_started(child.pid) is None and not same_process(child.pid, started)


@pytest.mark.process
def test_a_process_name_with_brackets_is_parsed(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    child = subprocess.Popen([str(program), "60"])
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        started = process_started(child.pid)
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        assert started is not None and uptime - 120 < started / ticks <= uptime + 1
    finally:
        child.kill()
        child.wait()
