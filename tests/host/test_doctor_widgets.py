"""The page's half of the widgets and our extension: present, enabled, of the right version, or not to be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_magics import __version__

from . import doctor_host, fake_hosts
from .doctor_host import examined, ill, one

GROUP = "Widgets and JupyterLab"
WIDGETS, MANAGER, OURS = "ipywidgets", "Widget manager", "JupyterLab extension"


REINSTALL = "%pip install --force-reinstall --no-deps tpu-magics"
ENABLE = "!jupyter labextension enable tpu-magics"


@pytest.mark.parametrize(
    ("changes", "name", "command"),
    [
        ({}, "", ""),
        ({"versions": {"ipywidgets": None}}, WIDGETS, ""),
        ({"versions": {"ipywidgets": "7.6.5"}, "manager": "3.1.11"}, WIDGETS, ""),
        ({"versions": {"ipywidgets": "7.7.1"}, "manager": "3.1.11"}, "", ""),
        ({"versions": {"ipywidgets": "7.7.1"}, "manager": "5.0.15"}, MANAGER, '%pip install "jupyterlab_widgets<2"'),
        ({"manager": "3.1.11"}, MANAGER, ""),
        ({"manager": ""}, MANAGER, '%pip install "jupyterlab_widgets>=3"'),
        ({"ours": ""}, OURS, REINSTALL),
        ({"ours": "0.0.9"}, OURS, f"{REINSTALL}=={__version__}"),
        ({"ours": "9.9"}, OURS, f"{REINSTALL}=={__version__}"),
        ({"disabled": {"tpu-magics": True}}, OURS, ENABLE),
        ({"disabled": ["tpu-magics"]}, OURS, ENABLE),
        ({"disabled": {"tpu-magics": False}}, "", ""),
        ({"disabled": ["@jupyter-widgets/jupyterlab-manager"]}, MANAGER, ""),
        ({"disabled": {"another": True}}, "", ""),
        ({"disabled": "nonsense"}, "", ""),
    ],
)
def test_what_is_missing_old_or_disabled_and_the_command_that_mends_it(tmp_path, changes, name, command):
    """No name: nothing is wrong. No command: another test has it."""
    host = fake_hosts.plain(tmp_path)
    of_jupyter = {key: value for key, value in changes.items() if key != "versions"}
    found = doctor_host.jupyter(host.root / "opt/venv", **of_jupyter)
    checks = examined(host, jupyter=found, versions=changes.get("versions", {}))
    assert ill(checks) == ({(GROUP, name): "warning"} if name else {})
    assert not command or one(checks, GROUP, name).command == command


def test_a_package_json_that_is_none_counts_as_missing(tmp_path):
    host = fake_hosts.plain(tmp_path)
    found = doctor_host.jupyter(host.root / "venv")
    fake_hosts.write(found.data[0] / "labextensions/tpu-magics/package.json", "{torn")
    assert one(examined(host, jupyter=found), GROUP, OURS).state == "warning"


def test_the_folder_that_counts_is_the_first(tmp_path):
    host = fake_hosts.plain(tmp_path)
    old, new = doctor_host.jupyter(host.root / "home/local", ours="0.0.1"), doctor_host.jupyter(host.root / "venv")
    both = doctor_host.Jupyter((*old.data, *new.data), ())
    check = one(examined(host, jupyter=both), GROUP, OURS)
    assert check.state == "warning" and "home/local" in check.what and "0.0.1" in check.what


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (fake_hosts.colab_cpu, "Colab's page is not JupyterLab and has its own widget manager."),
        (fake_hosts.kaggle_cpu, "Kaggle's page is not JupyterLab and has its own widget manager."),
    ],
)
def test_pages_that_are_no_jupyterlab(tmp_path, build, why):
    host = build(tmp_path)
    nothing = doctor_host.jupyter(host.root / "venv", manager="", ours="")
    checks = examined(host, jupyter=nothing)
    assert {one(checks, GROUP, name).why for name in (MANAGER, OURS)} == {why}
    assert ill(checks) == {}


def test_a_server_of_another_environment_is_not_guessed_at(tmp_path):
    host = fake_hosts.plain(tmp_path)
    host.environ["JPY_PARENT_PID"] = "50"
    nothing = doctor_host.jupyter(host.root / "venv", manager="", ours="")
    fake_hosts.add_process(host.root, 50, ("/opt/lab/bin/python3.12", "/opt/lab/bin/jupyter-lab"))
    check = one(examined(host, jupyter=nothing), GROUP, OURS)
    assert check.state == "not available" and "another environment (/opt/lab)" in check.why
    assert one(examined(host, jupyter=nothing, prefix=Path("/opt/lab")), GROUP, OURS).state == "warning"


def test_without_jupyterlab_nothing_is_said_of_a_page(tmp_path):
    host = fake_hosts.plain(tmp_path)
    nothing = doctor_host.jupyter(host.root / "venv", manager="", ours="")
    check = one(examined(host, jupyter=nothing, versions={"jupyterlab": None}), GROUP, OURS)
    assert check.state == "not available" and "JupyterLab is not installed" in check.why
