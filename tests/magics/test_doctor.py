"""`%tpu_doctor`, `tpu_magics.doctor` and the command, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .kernel import Kernel

pytestmark = pytest.mark.process

FRAMEWORKS = "sorted({'torch', 'torch_xla', 'tensorflow', 'jax', 'accelerate', 'ray'} & set(__import__('sys').modules))"
GENEROUS = 60.0  # seconds; a question without a limit would take longer


def test_the_magic_shows_all_groups_and_imports_no_framework(module_kernel: Kernel) -> None:
    [shown] = module_kernel.run("%tpu_doctor").good().displays
    assert set(shown) == {"text/plain", "text/html"}
    assert "Widgets and JupyterLab" in shown["text/plain"] and "<details" in shown["text/html"]
    assert module_kernel.value(FRAMEWORKS) == []


def test_what_is_set_in_the_notebook_is_seen_and_mended(module_kernel: Kernel) -> None:
    module_kernel.run("import os; os.environ.update(PJRT_DEVICE='CUDA', CPU_NUM_DEVICES='2')").good()
    [shown] = module_kernel.run("%tpu_doctor").good().displays
    assert (
        "✗ broken: Environment variables, PJRT_DEVICE" in shown["text/plain"]
        and "%env PJRT_DEVICE=CPU" in shown["text/plain"]
    )
    [shown] = module_kernel.run("%tpu_doctor --fix").good().displays
    text = " ".join(shown["text/plain"].split())
    assert "PJRT_DEVICE=CPU was set (before: 'CUDA'), in this session." in text
    assert "CPU_NUM_DEVICES was unset (before: '2'), in this session." in text
    assert module_kernel.value("[os.environ.get(n) for n in ('PJRT_DEVICE', 'CPU_NUM_DEVICES')]") == ["CPU", None]


def test_looking_starts_no_runtime(kernel: Kernel) -> None:
    kernel.run("import torch_xla\n%tpu_doctor --fix").good()
    assert kernel.value("torch_xla._XLAC._xla_runtime_is_initialized()") is False


def test_the_function_gives_what_the_magic_shows(kernel: Kernel) -> None:
    kernel.run("import tpu_magics\ndiagnosis = tpu_magics.doctor()").good()
    [shown] = kernel.run("diagnosis").good().displays
    assert shown["text/plain"] == kernel.run("print(diagnosis)").good().printed.rstrip("\n")
    assert kernel.value("len(diagnosis.broken)") == 0
    assert (
        kernel.value("sorted({check.state for check in diagnosis.checks} - {'ok', 'warning', 'not available'})") == []
    )


# -- the command ---------------------------------------------------------------------------------------------------


def command(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "tpu_magics", "doctor", *words],
        cwd=folder,
        env={**kept, **environ},
        capture_output=True,
        text=True,
    )


def test_the_command_ends_with_0_where_nothing_is_broken(tmp_path: Path) -> None:
    began = time.monotonic()
    done = command(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert " checks: " in done.stdout and time.monotonic() - began < GENEROUS


def test_the_command_ends_with_1_and_speaks_as_a_shell_does(tmp_path: Path) -> None:
    done = command(tmp_path, PJRT_DEVICE="CUDA")
    assert done.returncode == 1
    assert "Fix:\n      export PJRT_DEVICE=CPU\n" in done.stdout and "%env" not in done.stdout


def test_the_command_cannot_change_its_shell_and_says_so(tmp_path: Path) -> None:
    done = command(tmp_path, "--fix", "--json", PJRT_DEVICE="CUDA")
    told = json.loads(done.stdout)
    assert (done.returncode, told["counts"]["broken"], told["done"]) == (1, 1, [])
    [left] = told["left"]
    assert left["command"] == "export PJRT_DEVICE=CPU" and "variables of the shell" in left["reason"]


def test_a_run_folder_that_cannot_be_written_is_broken(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = json.loads(command(tmp_path, "--json", TPU_MAGICS_RUNS=str(tmp_path / "file" / "runs")).stdout)
    assert [check["name"] for check in told["checks"] if check["state"] == "broken"] == ["Run folder"]


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C"}])
def test_a_terminal_without_marks_gets_question_marks(tmp_path: Path, environ: dict[str, str]) -> None:
    done = command(tmp_path, **environ, PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "? ok" in done.stdout


def test_the_command_names_this_interpreter_where_python_is_another(tmp_path: Path) -> None:
    """`PATH` without this environment: "python -m pip" would install into another one."""
    (tmp_path / "ipython-1.0.dist-info").mkdir()
    (tmp_path / "ipython-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: ipython\nVersion: 1.0\n")
    code = "import sys; from tpu_magics.__main__ import main; sys.exit(main(['doctor']))"
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert f'{sys.executable} -m pip install "ipython>=7.34"' in done.stdout
