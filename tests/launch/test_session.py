"""What one notebook process remembers between cells."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.launch.launching import FakeNotebook, fake_notebook, run
from tpu_magics.backends import frameworks
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.notebook import PlainProgram

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def test_without_init_the_first_run_sets_up_what_it_would() -> None:
    assert not session.current.initialised
    run(int)
    assert session.current.initialised and session.current.host is not None
    assert session.current.last is not None and session.current.active_run is None


def test_the_host_is_looked_at_anew_for_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    original = session.inspect_host

    def inspect_host() -> object:
        looks.append(1)
        return original()

    monkeypatch.setattr(session, "inspect_host", inspect_host)
    run(int)
    run(int)
    assert len(looks) == 2


def test_init_keeps_what_a_person_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    session.initialise(precision="bf16", processes=1)
    assert os.environ["PJRT_DEVICE"] == "CPU"
    assert (session.current.precision, session.current.processes) == ("bf16", 1)
    session.initialise()
    assert (session.current.precision, session.current.processes) == ("", None)


def test_the_notebook_is_a_plain_program_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(session.Session().notebook, PlainProgram)
    PlainProgram().say("a line")
    assert capsys.readouterr().out == "a line\n"
    assert PlainProgram().namespace is vars(sys.modules["__main__"]) and PlainProgram().cell_names() == {}
    assert isinstance(fake_notebook(), FakeNotebook)


def test_the_session_imports_no_framework() -> None:
    code = """
import sys
from tpu_magics.backends import frameworks
from tpu_magics.launch import session
session.current.fork_blockers.record(session.current.backend, "In [1]")  # what the extension does after every cell
assert session.current.fork_blockers.cells == {}
assert not {"torch", "torch_xla", "accelerate", "jax", "tensorflow", "psutil", "ipywidgets"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=60)


def test_a_number_of_another_type_is_refused() -> None:
    with pytest.raises(TpuMagicsError, match=r"processes=1\.5 is not valid"):
        session.initialise(processes=1.5)  # type: ignore[arg-type]


# -- torch_xla or TorchTPU --------------------------------------------------------------------------------------------


TORCHES = ("torch_xla", "torch_tpu")


@pytest.mark.parametrize(
    ("there", "imported", "cells", "chosen", "reason"),
    [
        ({"torch_xla"}, set(), (), "torch_xla", "it is installed"),
        ({"torch_tpu"}, set(), (), "torch_tpu", "it is installed"),
        ({"torch_tpu"}, {"torch_tpu"}, ("import torch_xla",), "torch_tpu", "it is installed"),
        (set(), set(), (), "torch_xla", "neither is installed"),
        ({"torch_xla", "torch_tpu"}, {"torch_xla"}, ('model.to("tpu")',), "torch_xla", "has imported torch_xla"),
        ({"torch_xla", "torch_tpu"}, {"torch_tpu"}, ('model.to("tpu")',), "torch_tpu", "code uses torch_tpu"),
        (
            {"torch_xla", "torch_tpu"},
            set(),
            ("model.to('tpu:0')", "xm.mark_step()"),
            "torch_xla",
            "code uses torch_xla",
        ),
        ({"torch_xla", "torch_tpu"}, set(), ("import torch",), "torch_xla", "no code of this notebook shows"),
    ],
)
def test_what_is_installed_or_used_decides(
    there: set[str],
    imported: set[str],
    cells: tuple[str, ...],
    chosen: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frameworks, "_installed", lambda package: package in there)
    for name in TORCHES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in imported:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    found = frameworks.choose_torch(cells)
    assert found.package == chosen and reason in found.reason


def test_the_session_has_the_backend_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = session.Session(notebook=FakeNotebook())
    fresh.notebook.namespace["In"] = ["", 'model.to("tpu")']
    monkeypatch.setattr(session, "choose_torch", lambda cells: frameworks.TorchChoice("torch_tpu", list(cells)[-1]))
    assert (fresh.backend.name, fresh.torch.reason) == ("torch_tpu", 'model.to("tpu")')


def test_what_no_cell_has_shown_yet_is_decided_by_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "_installed", lambda package: package in TORCHES)
    for name in TORCHES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    fresh = session.Session(notebook=FakeNotebook())
    cells = fresh.notebook.namespace["In"] = ["", "%load_ext tpu_magics"]
    assert fresh.backend.name == "torch_xla"
    cells.append('model.to("tpu")')
    assert fresh.backend.name == "torch_tpu"
    cells.append("import torch_xla")
    assert fresh.backend.name == "torch_tpu"  # once shown, it stays
