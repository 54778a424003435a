"""`python -m tpu_magics ...` where standard output takes nothing, or its reader has gone."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_magics.output import lost

pytestmark = pytest.mark.process

PYTHON = [sys.executable, "-m", "tpu_magics"]
FULL = Path("/dev/full")
FIXABLE = "import torch_xla.distributed.xla_multiprocessing as xmp\n\nxmp.spawn(print, nprocs=8)\n"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["doctor", "doctor --json", "runs", "nbval-sanitize", "check .", "check --diff ."])
def test_an_output_without_room_is_said_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    (tmp_path / "it.py").write_text(FIXABLE)
    with FULL.open("w") as full:
        done = subprocess.run([*PYTHON, *command.split()], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "The output could not be written: No space left on device.\n"
        "What to do: free space there, or write to another file.\n"
    )


@pytest.mark.parametrize("command", ["doctor", "runs", "check ."])
def test_a_reader_that_has_enough_ends_the_command_quietly(tmp_path: Path, command: str) -> None:
    shell = f"{sys.executable} -m tpu_magics {command} | head -c 0; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.ENOSPC, "No space left on device", "/a/file"), False),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/a/file"), False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), False),
        (ValueError("another"), False),
    ],
)
def test_only_errors_of_writing_are_taken_for_the_outputs(error: Exception, is_lost: bool) -> None:
    assert lost(error) is is_lost
