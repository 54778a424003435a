"""The table that %tpu_init prints, on recorded hosts."""

from __future__ import annotations

import sys

import pytest

from tests.host import fake_hosts
from tpu_magics.backends.base import DEFAULT, TPU_LOCAL, Placement
from tpu_magics.host import Host, inspect_host
from tpu_magics.panel.host import host_table
from tpu_magics.panel.table import Table, to_html, to_text

NO_TPU = "none: XLA:CPU rehearsal on 2 cores"
ON_COLAB = f"{NO_TPU}\nOn Colab, choose an accelerator in Runtime > Change runtime type."
ON_KAGGLE = (
    f"{NO_TPU}\nOn Kaggle, choose an accelerator in Settings > Accelerator. If a TPU is chosen there, the notebook "
    "may be pinned to the image of an earlier session, without torch_xla and without a TPU: choose "
    '"Always use latest environment" in the notebook\'s settings, or remove docker_image from '
    "kernel-metadata.json before `kaggle kernels push`."
)


def tpu(chips: str, memory: int) -> str:
    return f"{chips}, {memory} GiB of memory per chip"


def inspect(fake) -> Host:
    return inspect_host(**fake.arguments())


def table_of(fake) -> Table:
    return host_table(inspect(fake))


def cells(table: Table) -> dict[str, str]:
    """The second cell by the first; several with the same first are joined."""
    found: dict[str, str] = {}
    for row in table.rows:
        label, text = row.cells
        found[label] = f"{found[label]}\n{text}" if label in found else text
    return found


def states(table: Table) -> dict[str, str]:
    return {row.cells[0]: row.state for row in table.rows}


@pytest.mark.parametrize(
    ("build", "place", "tpu", "training"),
    [
        ("plain", "local machine", NO_TPU, "CPU: 1 worker"),
        ("colab_cpu", "Colab", ON_COLAB, "CPU: 1 worker"),
        ("colab_gpu", "Colab", ON_COLAB, "CPU: 1 worker"),
        ("kaggle_cpu", "Kaggle", ON_KAGGLE, "CPU: 1 worker"),
        ("colab_v5e_1", "Colab", tpu("v5e, 1 chip (v5litepod-1)", 16), "TPU: 1 worker, one per chip"),
        ("kaggle_v5e_8", "Kaggle", tpu("v5e, 8 chips (v5litepod-8)", 16), "TPU: 8 workers, one per chip"),
        ("tpu_vm_v3", "TPU VM", tpu("v3, 4 chips (v3-8)", 32), "TPU: 4 workers, one per chip, 2 replicas in each"),
        ("tpu_vm_v4", "TPU VM", tpu("v4, 4 chips (v4-8)", 32), "TPU: 4 workers, one per chip"),
        ("gke", "Google Kubernetes Engine", tpu("v5e, 4 chips (v5litepod-4)", 16), "TPU: 4 workers, one per chip"),
    ],
)
def test_where_we_are(tmp_path, build, place, tpu, training):
    found = cells(table_of(getattr(fake_hosts, build)(tmp_path)))
    assert (found["Environment"], found["TPU"], found["Device"]) == (place, tpu, training)
    assert found["Set in the notebook"] == f"PJRT_DEVICE={training[:3]}: it was not set; cells train on this device."
    assert "HostProblem" not in found and "Warning" not in found


@pytest.mark.parametrize(
    ("build", "asked", "training"),
    [
        ("colab_gpu", (8, None), "CPU: 8 workers, a rehearsal of 8 ranks"),
        ("colab_gpu", (1, None), "CPU: 1 worker"),
        ("colab_gpu", (None, 8), "CPU: 1 worker (SPMD), which drives 8 virtual devices"),
        ("kaggle_v5e_8", (8, None), "TPU: 8 workers, one per chip"),
        ("kaggle_v5e_8", (1, None), "TPU: 1 worker"),
        ("kaggle_v5e_8", (None, 8), "TPU: 1 worker (SPMD), which drives 8 devices"),
    ],
)
def test_what_was_asked_of_the_cells_to_come(tmp_path, build, asked, training):
    host = inspect(getattr(fake_hosts, build)(tmp_path))
    assert cells(host_table(host, *asked))["Device"] == training


def test_versions_and_that_they_fit(tmp_path):
    table = table_of(fake_hosts.colab_v5e_1(tmp_path))
    found = cells(table)
    assert found["Notebook"] == "python 3.13.5, ipython 7.34.0, ipykernel 6.17.1, ipywidgets 7.7.1"
    assert found["Framework"] == (
        "torch 2.9.0, torch_xla 2.9.0, libtpu 0.0.21.1, accelerate 1.14.0, transformers 5.15.0, jax 0.7.2\n"
        "Versions are compatible."
    )
    assert states(table)["Framework"] == "ok"


def test_versions_that_do_not_fit_and_the_command(tmp_path):
    fake = fake_hosts.tpu_vm_v4(tmp_path)
    fake.versions["torch"] = "2.8.0"
    table = table_of(fake)
    found = cells(table)
    assert found["Framework"].endswith("See the problems below.")
    assert found["HostProblem"].split("\n") == [
        "torch 2.8.0 and torch_xla 2.9.0 are not compatible.",
        "Why: Each torch_xla is built for one version of torch. With another one its import fails, often with "
        '"undefined symbol" in _XLAC.',
        'Fix: %pip install "torch==2.9.0", then restart the kernel',
    ]
    assert states(table)["Framework"] == states(table)["HostProblem"] == "broken"


def test_nothing_installed_is_said(tmp_path):
    fake = fake_hosts.plain(tmp_path)
    fake.versions.clear()
    fake.versions["python"] = "3.12.0"
    found = cells(table_of(fake))
    assert found["Framework"] == "none installed\nSee the problems below."
    assert "torch and torch_xla are not installed." in found["HostProblem"]


def test_memory(tmp_path):
    fake = fake_hosts.plain(tmp_path)
    fake_hosts.add_memory(fake.root, 16 * 2**20, int(10.5 * 2**20))
    assert cells(table_of(fake))["Host memory"] == "10.5 GiB free of 16.0 GiB"


def test_memory_of_a_container(tmp_path):
    fake = fake_hosts.plain(tmp_path)
    fake_hosts.write(fake.root / "proc/self/cgroup", "0::/\n")
    fake_hosts.write(fake.root / "sys/fs/cgroup/memory.max", str(4 * 2**30))
    fake_hosts.write(fake.root / "sys/fs/cgroup/memory.current", str(2**30))
    assert cells(table_of(fake))["Host memory"] == ("3.0 GiB free of 4.0 GiB (cgroup limit, less than the machine has)")


def test_what_cannot_be_known_is_not_available_with_the_reason(tmp_path):
    found = cells(host_table(inspect_host({}, tmp_path / "nowhere", (), fake_hosts.LOCAL_VERSIONS)))
    assert found["Host memory"] == "n/a (/proc/meminfo could not be read)"
    assert found["TPU"] == "none: XLA:CPU rehearsal on cores: n/a (/proc could not be read)"
    assert found["TPU in use by"] == "n/a (this host has no TPU)"


def test_the_memory_of_an_unknown_generation_is_not_available(tmp_path):
    table = table_of(fake_hosts.tpu_vm_unknown(tmp_path))
    assert cells(table)["TPU"] == ("unknown generation (0x00aa), 4 chips; memory per chip n/a (unknown generation)")
    assert states(table)["TPU"] == "warning"


def test_nobody_holds_the_tpu(tmp_path):
    table = table_of(fake_hosts.tpu_vm_v4(tmp_path))
    assert (cells(table)["TPU in use by"], states(table)["TPU in use by"]) == ("no process", "ok")


def test_the_holder_with_pid_and_command(tmp_path):
    fake = fake_hosts.tpu_vm_v4(tmp_path)
    fake_hosts.add_process(fake.root, 999_999, ("python3", "train.py"), ("dev/accel0",))
    table = table_of(fake)
    assert cells(table)["TPU in use by"] == "process 999999: python3 train.py"
    assert states(table)["TPU in use by"] == "broken"
    assert "Fix: !kill 999999, then run %tpu_init again" in cells(table)["HostProblem"]


def test_whose_the_holder_is(tmp_path):
    import os

    fake = fake_hosts.tpu_vm_v4(tmp_path)
    fake_hosts.add_process(fake.root, os.getpid(), ("ipykernel",), ("dev/accel0",))
    fake_hosts.add_process(fake.root, 4_999_999, ("worker",), ("dev/accel1",), parent=os.getpid())
    assert cells(table_of(fake))["TPU in use by"].split("\n") == [
        f"process {os.getpid()} (this notebook): ipykernel",
        "process 4999999 (started by this notebook): worker",
    ]


def test_repairs_with_their_reasons(tmp_path):
    found = cells(table_of(fake_hosts.kaggle_v5e_8(tmp_path)))
    reason = (
        "Kaggle's image sets it for one process. With one worker per chip, libtpu stops with "
        '"Expected 8 worker addresses, got 1".'
    )
    assert found["Changed in the workers"].split("\n") == [
        f"TPU_PROCESS_ADDRESSES is unset (it is 'local' here): {reason}",
        f"CLOUD_TPU_TASK_ID is unset (it is '0' here): {reason}",
    ]


@pytest.mark.parametrize("build", ["plain", "colab_v5e_1", "tpu_vm_v4"])
def test_where_nothing_is_repaired_nothing_is_said(tmp_path, build):
    assert "Changed in the workers" not in cells(table_of(getattr(fake_hosts, build)(tmp_path)))


def test_a_pjrt_device_that_is_kept(tmp_path):
    fake = fake_hosts.plain(tmp_path)
    fake.environ["PJRT_DEVICE"] = "TPU"
    table = table_of(fake)
    found = cells(table)
    assert "Set in the notebook" not in found
    assert found["HostProblem"].startswith(
        "PJRT_DEVICE=TPU is wrong for this host, which has no TPU. It was not changed."
    )
    assert states(table)["Device"] == "broken"


def test_a_promised_tpu_is_marked(tmp_path):
    fake = fake_hosts.colab_v5e_1(tmp_path)
    for vendor in fake.root.glob("sys/bus/pci/devices/*/vendor"):
        vendor.unlink()
    table = table_of(fake)
    assert states(table)["TPU"] == "warning"
    assert cells(table)["Warning"].startswith("Colab reports a TPU on this host (COLAB_TPU_1VM=1)")


def test_notes_stand_below(tmp_path):
    table = table_of(fake_hosts.gke(tmp_path))
    assert len(table.notes) == 1
    assert table.notes[0] in to_html(table)


def test_a_command_line_cannot_write_html(tmp_path):
    fake = fake_hosts.tpu_vm_v4(tmp_path)
    fake_hosts.add_process(fake.root, 999_999, ("python3", "<script>alert(1)</script>"), ("dev/accel0",))
    html = to_html(table_of(fake))
    assert "<script" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.parametrize("build", ["plain", "colab_cpu", "kaggle_v5e_8", "tpu_vm_unknown", "gke"])
def test_text_and_html_say_the_same(tmp_path, build):
    table = table_of(getattr(fake_hosts, build)(tmp_path))
    text, html = to_text(table), to_html(table)
    assert max(map(len, text.split("\n"))) <= 100
    for row in table.rows:
        assert row.cells[0] in text and row.cells[0] in html
        for word in row.cells[1].split():
            assert word in text


def test_this_machine():
    assert cells(host_table(inspect_host()))["Notebook"].startswith(f"python {sys.version_info.major}.")


# -- TensorFlow ----------------------------------------------------------------------------------------------------


def tensorflow_table(fake, placed: Placement | None = None, **versions: str) -> Table:
    known = {**fake.versions, "tensorflow-cpu": None, "keras": "3.15.1", **versions}
    host = inspect_host(fake.environ, fake.root, fake.modules, known, framework="tensorflow")
    return host_table(host, placed=placed)


CPU = {"tensorflow-cpu": "2.21.0"}
TPU = {"tensorflow-tpu": "2.20.0", "libtpu": "0.0.52"}
ONE = "one replica: more cannot be rehearsed truthfully, and why."
NOT_YET = "n/a (TensorFlow is not connected yet: run %tpu_init)"


@pytest.mark.parametrize(
    ("build", "versions", "placed", "rows"),
    [
        (
            "plain",
            CPU,
            Placement(DEFAULT, None, 1, ONE),
            ("CPU", "`strategy`: the default strategy (no TPU)", ONE, "n/a (no TPU)"),
        ),
        (
            "kaggle_v5e_8",
            TPU,
            Placement(TPU_LOCAL, None, 8, "chips 2x4x1"),
            ("TPU", "`strategy`: TPUStrategy, on the TPU of this host", "8", "chips 2x4x1"),
        ),
        ("plain", CPU, None, ("CPU", NOT_YET, NOT_YET, NOT_YET)),
    ],
)
def test_where_tensorflow_trains(tmp_path, build, versions, placed, rows):
    table = tensorflow_table(getattr(fake_hosts, build)(tmp_path), placed, **versions)
    found = cells(table)
    device, *others = rows
    assert found["Device"] == f"{device}: in this notebook's process (TensorFlow does not survive a fork)"
    assert [found[label] for label in ("Strategy", "Replicas", "Topology")] == others
    assert "Set in the notebook" not in found and "Changed in the workers" not in found
    assert "HostProblem" not in found and "Warning" not in found


def test_versions_of_tensorflow(tmp_path):
    found = cells(tensorflow_table(fake_hosts.kaggle_v5e_8(tmp_path), **TPU))
    assert found["Framework"].split("\n") == [
        "tensorflow-tpu 2.20.0, keras 3.15.1, libtpu 0.0.52, transformers 4.55.0",
        "Versions are compatible.",
    ]


def test_a_tensorflow_that_cannot_use_the_tpu(tmp_path):
    table = tensorflow_table(fake_hosts.kaggle_v5e_8(tmp_path), **CPU)
    assert cells(table)["HostProblem"].startswith("TensorFlow does not find a TPU on this host.")
    assert states(table)["Framework"] == states(table)["HostProblem"] == "broken"
