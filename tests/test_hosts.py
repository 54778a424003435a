"""scripts/hosts.py: which Python it takes, and that it stops where a version changes, with a real pip. The suites in
its environments are `make test-hosts`."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.lacking import LACKS
from tests.notebooks.test_first_cell import write_wheel

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("hosts_script", ROOT / "scripts" / "hosts.py")
    assert spec and spec.loader
    script: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hosts_script", script)  # its dataclass looks there
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "FOLDER", tmp_path / "hosts")
    return script


def test_what_came_in_addition_is_no_change(hosts: Any) -> None:
    assert hosts.changes({"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}) == []
    assert hosts.changes({"a": "1", "b": "2"}, {"a": "1.1"}) == ["a 1 -> 1.1", "b 2 -> gone"]


def test_every_host_has_a_list_and_overlays_that_there_are(hosts: Any) -> None:
    names = {row[0] for row in hosts.install.OVERLAYS}
    for host in hosts.HOSTS.values():
        assert "torch==" in host.packages.read_text() and set(host.overlays) <= names
    named = [name for host in hosts.HOSTS.values() for name in (*host.suites, *host.left_out)]
    named += [*hosts.NOT_THERE, *hosts.SUITES]
    paths = [name for name in named if "/" in name]
    assert [name for name in paths if not (ROOT / name).exists()] == []


@pytest.mark.process
def test_the_python_of_the_image_is_taken_where_it_is(hosts: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    fake_python = tmp_path / "versions" / "3.99.4" / "bin" / "python"
    fake_python.parent.mkdir(parents=True)
    fake_python.write_text("#!/bin/sh\necho 3.99\n")
    fake_python.chmod(0o755)
    assert hosts.find_python(hosts.Host("colab", "3.99", ())) == fake_python


@pytest.mark.process
def test_another_python_is_taken_with_a_word(hosts: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("PYENV_ROOT", "/nowhere")
    assert hosts.find_python(hosts.Host("colab", "3.99", ())) == Path(sys.executable)
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said = capsys.readouterr().out
    assert f"colab: its image has Python 3.99, which is not on this machine; taken instead: {own}" in said


def test_an_unknown_host_is_refused(hosts: Any) -> None:
    with pytest.raises(SystemExit, match="There is no host azure; there are: colab, kaggle"):
        hosts.main(["azure"])


@pytest.fixture
def environment(hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A host whose environment has one package, of which there is a newer version."""
    index = tmp_path / "index"
    index.mkdir()
    for version in ("1.0", "2.0"):
        write_wheel(index, "tiny-there", version)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    host = hosts.Host("colab", "3.13", ())
    subprocess.run([sys.executable, "-m", "venv", str(host.folder)], check=True)
    subprocess.run([str(host.interpreter), "-m", "pip", "install", "-q", "tiny-there==1.0"], check=True)
    return host


def made_wheel(folder: Path, *needs: str) -> Path:
    folder.mkdir()
    write_wheel(folder, "tpu-magics", "9.9", *needs)
    return next(folder.glob("tpu_magics-9.9*.whl"))


@pytest.mark.long
@pytest.mark.process
def test_a_wheel_that_changes_a_version_stops_it_and_another_goes_in_again_and_again(
    hosts: Any, environment: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = made_wheel(tmp_path / "harmless", "tiny-there>=1")
    for _ in range(2):
        hosts.install_wheel(environment, wheel)
        assert "changed: nothing; came with it: nothing" in capsys.readouterr().out
    assert hosts.listed(environment)["tpu-magics"] == "9.9"
    with pytest.raises(SystemExit, match=r"Installing tpu_magics changed what colab ships: tiny-there 1\.0 -> 2\.0"):
        hosts.install_wheel(environment, made_wheel(tmp_path / "newer", "tiny-there>=2"))


def test_every_row_finds_a_test() -> None:
    """One that is renamed would run, and fail, on Colab and Kaggle only."""
    for each in (each.replace("\\", "") for lack in LACKS for each in lack.tests):
        file, _, test = each.partition("::")
        name = re.search(r"scenario_\w+", test) or re.search(r"^\w+", test)
        assert name and f"def {name[0]}" in (ROOT / "tests" / file).read_text(encoding="utf-8"), each
