"""What is said where the compiler is too old, on a host that trains and on one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host import fake_hosts
from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight import compile_process

OLD = {"jaxlib": "0.6.0", "libtpu": "0.0.14", "torch_xla": "2.7.1"}  # of a host whose image has not been renewed


def refused(monkeypatch: pytest.MonkeyPatch, root: Path, found: dict[str, str], packages: tuple[str, ...] = ()) -> str:
    monkeypatch.setattr(compile_process, "HOST_ROOT", root)
    monkeypatch.setattr(compile_process, "_version", lambda name, _: found.get(name, ""))
    with pytest.raises(TpuMagicsError, match="jaxlib and libtpu are too old for a preflight") as error:
        compile_process.compiler_versions(packages)
    return f"{error.value.why} {error.value.todo}"


def test_a_host_that_trains_keeps_its_libtpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = refused(monkeypatch, fake_hosts.kaggle_v5e_8(tmp_path).root, OLD)
    assert "torch_xla uses the installed libtpu on this host's TPU" in said
    assert said.endswith(
        "on another machine (it needs no TPU), and install there: pip install -U 'tpu-magics[preflight]'"
    )


@pytest.mark.parametrize("why", ["no TPU", "no torch_xla", "folders of their own"])
def test_elsewhere_newer_ones_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str) -> None:
    host = fake_hosts.kaggle_cpu(tmp_path) if why == "no TPU" else fake_hosts.kaggle_v5e_8(tmp_path)
    found = {**OLD, **({"torch_xla": ""} if why == "no torch_xla" else {})}
    packages = (str(tmp_path),) if why == "folders of their own" else ()
    said = refused(monkeypatch, host.root, found, packages)
    assert "another machine" not in said and "trains" not in said
    assert said.endswith("Install newer ones with: pip install -U 'tpu-magics[preflight]'")
