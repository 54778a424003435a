"""The doctor's checks on recorded hosts, on this machine, and what `--fix` may do."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tpu_magics.host import doctor
from tpu_magics.host.chips import find_chips
from tpu_magics.host.doctor import Check, apply_fixes, collect_facts, examine
from tpu_magics.host.doctor.check import VariableFix
from tpu_magics.host.doctor.commands import by_python, change, to_shell
from tpu_magics.host.doctor.facts import Answer
from tpu_magics.host.doctor.machine import _closed
from tpu_magics.host.memory import HostMemory
from tpu_magics.host.versions import version_of

from . import doctor_host, fake_hosts
from .doctor_host import GIB, examined, ill, one
from .test_chips import as_nobody
from .test_device_owners import LOCK, running

TITLES = [
    "Python and packages",
    "Framework versions",
    "libtpu",
    "Devices and permissions",
    "TPU in use by",
    "Lock file",
    "Environment variables",
    "Memory",
    "Disk",
    "Widgets and JupyterLab",
    "Metadata server",
]


def test_the_groups_are_those_of_the_issue_in_its_order(tmp_path):
    assert [name for name, _ in doctor.GROUPS] == TITLES
    checks = examined(fake_hosts.tpu_vm_v4(tmp_path))
    assert list(dict.fromkeys(check.group for check in checks)) == TITLES, "each group says something"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (fake_hosts.plain, {}),
        (fake_hosts.cloud_machine, {}),
        (fake_hosts.colab_cpu, {}),
        (fake_hosts.colab_gpu, {}),
        (fake_hosts.colab_v5e_1, {}),
        (fake_hosts.kaggle_cpu, {}),
        (fake_hosts.kaggle_v5e_8, {("Environment variables", "Worker addresses"): "warning"}),
        (fake_hosts.tpu_vm_v2, {}),
        (fake_hosts.tpu_vm_v4, {}),
        (fake_hosts.tpu_vm_v6e, {}),
        (fake_hosts.tpu_vm_7x, {("libtpu", "Generation"): "broken"}),
        (fake_hosts.tpu_vm_unknown, {("Devices and permissions", "Chips"): "warning"}),
        (
            fake_hosts.gke,
            {
                ("Environment variables", "TPU description"): "broken",
                ("Environment variables", "Hosts of the slice"): "warning",
            },
        ),
    ],
)
def test_recorded_hosts(tmp_path, build, expected):
    """The recorded GKE host has only the signs by which it is told; CASES has one that is described."""
    assert ill(examined(build(tmp_path))) == expected


@pytest.mark.process
def test_this_machine_can_be_looked_at_without_a_framework_or_a_runtime(tmp_path):
    code = (
        "import sys, json; from tpu_magics.host.doctor import collect_facts, examine\n"
        "checks = examine(collect_facts())\n"
        "print(json.dumps([[c.group, c.state] for c in checks]))\n"
        "print(sorted({'torch', 'torch_xla', 'jax', 'jaxlib', 'libtpu', 'tensorflow', 'accelerate', 'ipywidgets',"
        " 'jupyterlab', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said, imported = done.stdout.splitlines()
    assert imported == "[]"
    assert list(dict.fromkeys(group for group, _ in json.loads(said))) == TITLES


def test_a_check_that_fails_itself_does_not_hide_the_others(tmp_path):
    def dies(_):
        raise ValueError("a surprise")

    checks = examined(fake_hosts.plain(tmp_path), disk=dies)
    broken = one(checks, "Disk", "This check")
    assert (broken.state, broken.what) == ("not available", "This check failed with ValueError: a surprise")
    assert {check.group for check in checks} == set(TITLES)


def test_a_state_is_one_of_four():
    with pytest.raises(ValueError, match="not 'fine'"):
        Check("g", "n", "fine", "")


# -- single checks -------------------------------------------------------------------------------------------------

PACKAGES, FRAMEWORKS, LIBTPU, DEVICES, _, _, VARIABLES, *_ = TITLES


@dataclass(frozen=True)
class Case:
    """The only check that is not well on a host with these variables and facts. `what`, `todo`: their whole texts;
    `why`: a part of the reason; `fix`: whether `--fix` does something about it."""

    group: str
    name: str
    state: str
    command: str | None = None
    build: doctor_host.Build = fake_hosts.tpu_vm_v4
    environ: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    what: str | None = None
    why: str = ""
    todo: str | None = None
    fix: bool = False


def package(name: str, version: str | None, group: str, check: str, state: str, command: str) -> Case:
    return Case(group, check, state, command, facts={"versions": {name: version}})


def changed(module: str, version: str, installed: Mapping[str, str], what: str) -> Case:
    """A package that was changed after its import; its module may have another name."""
    facts = {"modules": {module: version, "os": None}, "versions": installed}
    what = f"This process still uses {what}."
    todo = "restart the kernel"
    return Case(PACKAGES, "Imported packages", "warning", "", fake_hosts.plain, facts=facts, what=what, todo=todo)


def variable(name: str, value: str, state: str = "warning", check: str = "", group: str = VARIABLES, **of: Any) -> Case:
    return Case(group, check or name, state, environ={name: value}, **of)


def unset(name: str) -> str:
    return f'import os; os.environ.pop("{name}", None)'


def address(name: str, value: str, what: str, why: str) -> Case:
    return variable(name, value, "broken", "Worker addresses", command=unset(name), what=what, why=why)


PATH = "TPU_LIBRARY_PATH"
NIGHTLY = "!pip uninstall -y libtpu-nightly && pip install --force-reinstall --no-deps libtpu==0.0.21"
TWO_FRAMEWORKS = {"modules": {"torch_xla": "2.9.0", "tensorflow": "2.20.0"}, "versions": {"tensorflow-cpu": "2.20.0"}}
GKE_DESCRIBES = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_HOST_BOUNDS": "1,2,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
}
PROMISED = "Colab reports a TPU on this host (COLAB_TPU_1VM=1), but /sys shows no TPU chip."
NO_TPU = "no TensorFlow since March 2025"
ONE_ADDRESS = "Expected 4 worker addresses, got 1"
CASES = [
    package("python", "3.9.18", PACKAGES, "Python", "broken", ""),
    package("psutil", None, PACKAGES, "Requirements", "broken", "%pip install psutil"),
    package("ipython", "7.31.1", PACKAGES, "IPython", "broken", '%pip install "ipython>=7.34"'),
    package("accelerate", "0.34.2", FRAMEWORKS, "accelerate", "warning", '%pip install "accelerate>=1.10"'),
    package("torch", "2.8.0", FRAMEWORKS, "Framework", "broken", '%pip install "torch==2.9.0"'),
    package("libtpu", None, LIBTPU, "Package", "broken", '%pip install "torch_xla[tpu]==2.9.0"'),
    package("libtpu-nightly", "0.1.dev20240731", LIBTPU, "One libtpu", "warning", NIGHTLY),
    Case(FRAMEWORKS, "Framework", "broken", "", fake_hosts.colab_v5e_1, {}, {"framework": "tensorflow"}, why=NO_TPU),
    Case(FRAMEWORKS, "One framework in a process", "warning", build=fake_hosts.plain, facts=TWO_FRAMEWORKS),
    changed("torch", "2.8.0+cu126", {}, "torch 2.8.0+cu126 (installed: 2.9.0)"),
    changed("IPython", "9.1.0", {"ipython": "9.2.0"}, "ipython 9.1.0 (installed: 9.2.0)"),
    changed("tensorflow", "2.19.0", {"tensorflow-cpu": "2.20.0"}, "tensorflow 2.19.0 (installed: 2.20.0)"),
    variable(PATH, "/no", "broken", group=LIBTPU, command=unset(PATH), fix=True),
    variable(PATH, "/no", group=LIBTPU, command=unset(PATH), build=fake_hosts.plain, fix=True),
    variable(PATH, "/" + 100_000 * "a", group=LIBTPU, build=fake_hosts.plain, fix=True),
    variable("COLAB_TPU_1VM", "1", check="Chips", group=DEVICES, build=fake_hosts.colab_cpu, what=PROMISED),
    variable("PJRT_DEVICE", "CUDA", "broken", fix=True),
    variable("PJRT_DEVICE", "CPU"),
    variable("TPU_VISIBLE_CHIPS", "0", check="Selected chips"),
    variable("TPU_PROCESS_BOUNDS", "1,1,1", check="Selected chips"),
    variable("XLA_USE_BF16", "1"),
    variable("XLA_DOWNCAST_BF16", "1"),
    variable("XLA_FLAGS", "--xla_dump_to=/tmp/x"),
    variable("XRT_TPU_CONFIG", "localservice;0;localhost:51011"),
    variable("TPU_SKIP_MDS_QUERY", "1", "broken", "TPU description"),
    variable("CPU_NUM_DEVICES", "2", build=fake_hosts.plain, fix=True),
    address("TPU_PROCESS_ADDRESSES", "local", "TPU_PROCESS_ADDRESSES=local is set.", ONE_ADDRESS),
    address("TPU_PROCESS_ADDRESSES", "", "TPU_PROCESS_ADDRESSES= is set.", ONE_ADDRESS),
    address("CLOUD_TPU_TASK_ID", "0", "CLOUD_TPU_TASK_ID=0 is set.", "each worker would get the same number"),
    # GKE's node selector calls it so; torch_xla wants Google's type string.
    variable("TPU_ACCELERATOR_TYPE", "tpu-v5-lite-podslice", "broken", "Type of the TPU", build=fake_hosts.colab_v5e_1),
    Case(VARIABLES, "Hosts of the slice", "warning", build=fake_hosts.gke, environ=GKE_DESCRIBES),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{','.join(case.environ.values())}"[:60])
def test_one_thing_that_is_not_well(tmp_path, case):
    host = case.build(tmp_path)
    host.environ.update(case.environ)
    checks = examined(host, **case.facts)
    assert ill(checks) == {(case.group, case.name): case.state}
    check = one(checks, case.group, case.name)
    assert case.what in (check.what, None) and case.why in check.why
    assert check.todo and case.todo in (check.todo, None)
    assert check.command == case.command if case.command is not None else check.command or case.group != VARIABLES
    assert (check.fix is not None) is case.fix


@pytest.mark.parametrize(
    ("build", "environ"),
    [
        (fake_hosts.plain, {"XLA_USE_BF16": "0"}),
        (fake_hosts.plain, {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}),
        (fake_hosts.plain, {"CPU_NUM_DEVICES": "1"}),
        (fake_hosts.tpu_vm_v4, {"CPU_NUM_DEVICES": "2"}),  # virtual CPU devices are no matter on a TPU
        (fake_hosts.colab_v5e_1, {"TPU_VISIBLE_CHIPS": "0"}),  # one worker may be told its chip
        (fake_hosts.tpu_vm_v4, {"TPU_PROCESS_ADDRESSES": ",".join(4 * ["localhost:8476"])}),  # as many as workers
        (fake_hosts.tpu_vm_v4, {PATH: __file__}),
        (fake_hosts.plain, {PATH: __file__}),
    ],
)
def test_variables_that_disturb_nothing(tmp_path, build, environ):
    host = build(tmp_path)
    host.environ.update(environ)
    assert ill(examined(host)) == {}


def test_a_local_build_of_the_same_release_is_the_same(tmp_path):
    checks = examined(fake_hosts.plain(tmp_path), modules={"torch": "2.9.0+cpu"})
    assert one(checks, PACKAGES, "Imported packages").state == "ok"


def test_device_files_that_are_missing(tmp_path):
    host = fake_hosts.tpu_vm_v5e(tmp_path)
    (host.root / "dev/vfio/3").unlink()
    checks = examined(host)
    assert one(checks, "Devices and permissions", "Files of all chips").what == "4 chips but 3 device files."
    for number in range(3):
        (host.root / f"dev/vfio/{number}").unlink()
    assert one(examined(host), "Devices and permissions", "Device files").state == "broken"
    assert len(find_chips(host.root)) == 4


def test_the_runtime_of_the_notebook(tmp_path):
    host = fake_hosts.plain(tmp_path)
    states = [
        one(examined(host, runtime=up), "TPU in use by", "This notebook's runtime").state for up in (True, False, None)
    ]
    assert states == ["broken", "ok", "not available"]


def test_memory_is_not_available_where_it_cannot_be_read(tmp_path):
    host = fake_hosts.plain(tmp_path)
    (host.root / "proc/meminfo").unlink()
    check = one(examined(host), "Memory", "Host memory")
    assert (check.state, check.why) == ("not available", "/proc/meminfo could not be read")
    assert collect_facts(root=host.root).host.memory == HostMemory(None, None, reason="/proc/meminfo could not be read")


@pytest.mark.parametrize(
    ("free", "state"), [(5 * GIB, "ok"), (GIB, "ok"), (GIB - 1, "warning"), (2**26, "warning"), (-1, "broken")]
)
@pytest.mark.parametrize("name", ["Run folder", "/tmp", "/dev/shm"])
def test_room_on_each_disk(tmp_path, name, free, state):
    """Docker's 64 MiB of /dev/shm stop nothing but DataLoader workers, even when some of it is in use."""
    if free < 0:
        free = 2**20 - 1 if name == "/dev/shm" else 2**26 - 1
    host = fake_hosts.plain(tmp_path)
    folder = {"Run folder": "home/.tpu_runs", "/tmp": "tmp", "/dev/shm": "dev/shm"}[name]
    room = lambda path: (100 * GIB, free) if path == host.root / folder else doctor_host.ROOMY(path)  # noqa: E731
    checks = examined(host, disk=room)
    assert one(checks, "Disk", name).state == state
    assert len(ill(checks)) == (state != "ok")


# -- --fix ---------------------------------------------------------------------------------------------------------


def test_fix_unsets_what_kaggles_image_bakes_in_and_all_is_well(tmp_path):
    host = fake_hosts.kaggle_v5e_8(tmp_path)
    mended = apply_fixes(examined(host), host.environ, host.root)
    assert mended.done == (
        "TPU_PROCESS_ADDRESSES was unset (before: 'local'), "
        "CLOUD_TPU_TASK_ID was unset (before: '0'), in this session.",
    )
    assert mended.left == () and ill(examined(host)) == {}


@pytest.mark.parametrize(("build", "device"), [(fake_hosts.plain, "CPU"), (fake_hosts.tpu_vm_v4, "TPU")])
def test_fix_sets_a_pjrt_device_that_cannot_start(tmp_path, build, device):
    host = build(tmp_path)
    host.environ["PJRT_DEVICE"] = "CUDA"
    assert apply_fixes(examined(host), host.environ, host.root).done == (
        f"PJRT_DEVICE={device} was set (before: 'CUDA'), in this session.",
    )
    assert ill(examined(host)) == {}


def test_fix_leaves_a_rehearsal_on_a_tpu_host_alone(tmp_path):
    host = fake_hosts.tpu_vm_v4(tmp_path)
    host.environ["PJRT_DEVICE"] = "CPU"
    assert apply_fixes(examined(host), host.environ, host.root).done == ()
    assert host.environ == {"PJRT_DEVICE": "CPU"}


def test_a_shells_environment_is_left_to_the_shell(tmp_path):
    host = fake_hosts.kaggle_v5e_8(tmp_path)
    before = dict(host.environ)
    mended = apply_fixes(examined(host), host.environ, host.root, in_session=False)
    [(check, reason)] = mended.left
    assert check.name == "Worker addresses" and "variables of the shell" in reason
    assert (mended.done, host.environ) == ((), before)


@pytest.fixture
def left_over(tmp_path):
    host = fake_hosts.tpu_vm_v4(tmp_path)
    return host, fake_hosts.write(host.root / "tmp/libtpu_lockfile", "")


def test_fix_removes_a_lock_file_whose_holder_is_gone(left_over):
    host, path = left_over
    checks = examined(host)
    assert ill(checks) == {("Lock file", "/tmp/libtpu_lockfile"): "warning"}
    assert apply_fixes(checks, {}, host.root).done == (f"{path} was removed. Its process is gone.",)
    assert not path.exists() and ill(examined(host)) == {}


@pytest.mark.process
def test_a_lock_file_that_somebody_has_locked_meanwhile_stays(left_over):
    """A real process, which the recorded /proc does not show: as one of another container with this /tmp."""
    host, path = left_over
    checks = examined(host)
    with running(LOCK, path):
        mended = apply_fixes(checks, {}, host.root)
    assert mended.done == () and path.exists()
    assert "is locked by a process that is not visible here" in mended.left[0][1]


def test_a_lock_file_that_is_held_by_now_stays(left_over):
    host, path = left_over
    checks = examined(host)
    fake_hosts.add_process(host.root, 77, ("python3", "train.py"), ("dev/accel0",))
    mended = apply_fixes(checks, {}, host.root)
    assert mended.done == () and path.exists() and "in use now" in mended.left[0][1]


def test_a_lock_file_that_is_gone_by_now_is_no_error(left_over):
    host, path = left_over
    checks = examined(host)
    path.unlink()
    assert apply_fixes(checks, {}, host.root).left[0][1] == f"{path} is already gone."


def test_a_link_in_the_place_of_the_lock_file_is_not_followed(left_over, tmp_path):
    host, path = left_over
    checks = examined(host)
    precious = fake_hosts.write(tmp_path / "precious", "kept")
    path.unlink()
    path.symlink_to(precious)
    assert apply_fixes(checks, {}, host.root).done == ()
    assert precious.read_text() == "kept" and path.is_symlink()


def test_our_own_lock_is_let_go_of(left_over):
    host, path = left_over
    other = path.with_name("other")
    os.link(path, other)
    apply_fixes(examined(host), {}, host.root)
    with open(other, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another account's file")
def test_another_accounts_lock_file_is_never_removed(left_over):
    host, path = left_over
    os.chown(path, 65534, 65534)
    checks = examined(host)
    check = one(checks, "Lock file", "/tmp/libtpu_lockfile")
    assert (check.state, check.command, check.fix) == ("warning", f"!sudo rm {path}", None)
    assert apply_fixes(checks, {}, host.root).done == () and path.exists()


# -- commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "notebook", "shell"),
    [
        ({"A": "1"}, "%env A=1", "export A=1"),
        ({"A": None}, 'import os; os.environ.pop("A", None)', "unset A"),
        (
            {"A": "1,2", "B": None, "C": "x y", "D": None},
            'import os; os.environ.update(A="1,2", C="x y"); os.environ.pop("B", None); os.environ.pop("D", None)',
            "export A=1,2 C='x y' && unset B D",
        ),
        (
            {"A": 'a b;rm "x",$HOME,{1}\\'},
            'import os; os.environ.update(A="a b;rm \\"x\\",$HOME,{1}\\\\")',
            "export A='a b;rm \"x\",$HOME,{1}\\'",
        ),
    ],
)
def test_variables_in_a_notebook_and_in_a_shell(values, notebook, shell):
    assert (change(values), to_shell(change(values))) == (notebook, shell)
    environ = {"B": "b", "D": "d", "A": "a"} | dict.fromkeys(values, "before")
    if notebook.startswith("import"):
        own = dict(environ)
        exec(notebook.removeprefix("import os; "), {"os": type("os", (), {"environ": own})})
        VariableFix(values).apply(environ, doctor_host.Path("/"))
        assert own == environ


@pytest.mark.parametrize(
    ("notebook", "shell"),
    [
        ('%pip install "torch==2.9.0"', 'python -m pip install "torch==2.9.0"'),
        ("!kill 77", "kill 77"),
        ("%tpu_init --hosts ray", "# in a notebook: %tpu_init --hosts ray"),
        ("", ""),
    ],
)
def test_other_commands_in_a_shell(notebook, shell):
    assert to_shell(notebook) == shell


def test_pip_is_that_of_this_environment():
    """`!pip` in a cell, and `python` in a shell, are the first on PATH, which may be of another environment."""
    two = "!pip uninstall -y tensorflow && pip install tensorflow-cpu==2.20.0"
    assert by_python(two, "python") == two
    assert by_python(two, "/o v/python") == (
        "!'/o v/python' -m pip uninstall -y tensorflow && '/o v/python' -m pip install tensorflow-cpu==2.20.0"
    )
    assert by_python("%pip install torch", "/v/python") == "%pip install torch"
    assert to_shell("%pip install torch", "/v/python") == "/v/python -m pip install torch"
    assert to_shell(two) == "python -m pip uninstall -y tensorflow && python -m pip install tensorflow-cpu==2.20.0"


def test_every_ill_check_of_this_file_has_something_to_do(tmp_path):
    """What is broken names the command that mends it, or the step that does."""
    host = fake_hosts.gke(tmp_path)
    host.environ.update(PJRT_DEVICE="CUDA", XLA_USE_BF16="1", TPU_VISIBLE_CHIPS="0", TPU_LIBRARY_PATH="/no")
    fake_hosts.add_process(host.root, 77, ("python3", "train.py"), ("dev/vfio/0",))
    checks = examine(doctor_host.facts(host, runtime=True, disk=lambda _: (GIB, 1)))
    assert len(ill(checks)) > 8
    assert all(check.todo and check.why for check in checks if check.state in ("broken", "warning"))


# -- what people have tried ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "set_"),
    [
        (
            fake_hosts.tpu_vm_v4,
            {
                "TPU_WORKER_ID": "0",
                "TPU_HOST_BOUNDS": "1,1,1",
                "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
                "TPU_ACCELERATOR_TYPE": "v4-8",
            },
        ),
        (fake_hosts.tpu_vm_v2, {"TPU_WORKER_ID": "0", "TPU_ACCELERATOR_TYPE": "v2-8"}),
    ],
)
def test_other_variables_that_torch_xla_reads_as_well_describe_the_tpu(tmp_path, build, set_):
    host = build(tmp_path)
    host.environ.update(set_, TPU_SKIP_MDS_QUERY="1")
    assert ill(examined(host)) == {}
    del host.environ["TPU_WORKER_ID"]
    check = one(examined(host), "Environment variables", "TPU description")
    assert check.what == "TPU_SKIP_MDS_QUERY is set, and TPU_WORKER_ID is not."


def test_a_package_whose_metadata_is_broken_is_one_that_is_not_there(tmp_path, monkeypatch):
    (tmp_path / "torch-9.dist-info").mkdir()
    (tmp_path / "torch-9.dist-info/METADATA").write_bytes(b"Name: torch\nVersion: \xff\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version_of("torch") is None


def test_a_run_folder_in_a_home_that_nobody_has(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_MAGICS_RUNS", "~nobody-has-this-name/runs")
    check = one(examined(fake_hosts.plain(tmp_path), runs=None), "Disk", "Run folder")
    assert (check.state, check.command) == ("broken", "%env TPU_MAGICS_RUNS=/tmp/tpu_runs")
    assert check.what == "TPU_MAGICS_RUNS=~nobody-has-this-name/runs is not a valid folder."


def test_a_run_folder_that_is_a_file_is_below_one_or_has_no_possible_name(tmp_path):
    host = fake_hosts.plain(tmp_path)
    file = fake_hosts.write(tmp_path / "file", "")
    none = f"{file} is a file, not a folder."
    for runs, why in ((file, none), (file / "runs", none), (tmp_path / ("a" * 300), "File name too long.")):
        check = one(examined(host, runs=runs), "Disk", "Run folder")
        assert (check.state, check.what) == ("broken", f"{runs} cannot be written: {why}")
        assert check.command == "%env TPU_MAGICS_RUNS=/tmp/tpu_runs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
@pytest.mark.process
def test_a_run_folder_that_this_account_may_not_reach():
    with tempfile.TemporaryDirectory() as folder:
        closed = doctor_host.Path(folder) / "closed"
        closed.mkdir(mode=0o700)
        os.chmod(folder, 0o755)
        assert as_nobody(lambda: _closed(closed / "runs/x")) == f"{closed}/runs/x cannot be written: Permission denied."
        assert as_nobody(lambda: _closed(closed)) == f"This account has no permission to write in {closed}."
        assert _closed(closed / "runs/x") == ""


def test_a_host_without_shared_memory(tmp_path):
    host = fake_hosts.plain(tmp_path)
    seen = doctor_host.facts(host)
    (host.root / "dev/shm").rmdir()
    check = one(examine(seen), "Disk", "/dev/shm")
    assert (check.state, check.what) == ("warning", f"There is no {host.root}/dev/shm.")


def test_a_lock_file_with_the_other_kind_of_lock_stays(left_over):
    """flock and lockf do not see each other; which one a process of another container took is not known."""
    host, path = left_over
    checks = examined(host)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        mended = apply_fixes(checks, {}, host.root)
    assert mended.done == () and path.exists()


def test_a_folder_for_temporary_files_that_is_not_writable_or_small(tmp_path):
    host = fake_hosts.plain(tmp_path)
    host.environ["TMPDIR"] = str(fake_hosts.write(tmp_path / "file", ""))
    check = one(examined(host), "Disk", "TMPDIR")
    assert (check.state, check.command) == ("broken", 'import os; os.environ.pop("TMPDIR", None)')
    host.environ["TMPDIR"] = str(tmp_path)
    assert one(examined(host), "Disk", "TMPDIR").state == "ok"
    small = lambda path: (2**24, 2**22) if path == tmp_path else doctor_host.ROOMY(path)  # noqa: E731
    check = one(examined(host, disk=small), "Disk", "TMPDIR")
    assert check.what == f"Only 4.0 MiB free of 16.0 MiB in {tmp_path}."


@pytest.mark.parametrize(
    ("build", "environ", "name", "command"),
    [
        (fake_hosts.kaggle_v5e_8, {"TPU_SKIP_MDS_QUERY": "1"}, "TPU description", 'TPU_CHIPS_PER_HOST_BOUNDS="2,4,1"'),
        (fake_hosts.colab_v5e_1, {"TPU_ACCELERATOR_TYPE": "tpu-v5-lite"}, "Type of the TPU", "TYPE=v5litepod-1"),
    ],
)
def test_the_values_that_are_told_to_be_set_are_the_hosts(tmp_path, build, environ, name, command):
    host = build(tmp_path)
    host.environ.update(environ)
    assert command in one(examined(host), VARIABLES, name).command


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_matters_on_a_tpu_host_only(tmp_path, name):
    host = fake_hosts.tpu_vm_v4(tmp_path / "tpu")
    host.environ[name] = "http://proxy:3128"
    assert ill(examined(host)) == {("Metadata server", "Proxy"): "warning"}
    host = fake_hosts.cloud_machine(tmp_path / "cloud")
    host.environ[name] = "http://proxy:3128"
    assert ill(examined(host)) == {}


def test_only_an_answer_of_success_describes_a_tpu():
    assert Answer(200, doctor_host.TPU_ENV).accelerator == "v5litepod-4"
    assert Answer(500, doctor_host.TPU_ENV).accelerator == ""
