"""Each error text that people meet: the check that sees it coming, or why none can.

The texts are those that libraries print; docs/doctor.md has the same list, and a test compares the two.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.check.rules import RULES
from tpu_magics.host.chips import find_device_files

from . import doctor_host, fake_hosts
from .doctor_host import GIB, Build, examined, ill, one
from .test_chips import as_nobody

DOCS = Path(__file__).resolve().parents[2] / "docs/doctor.md"
Ill = Callable[[fake_hosts.FakeHost], dict[str, Any]]
ANY_DEATH = "any worker that dies gives this text; the two rows above are the usual causes"
THE_PROGRAM = "it depends on the program; `%tpu_preflight` compiles it"


@dataclass(frozen=True)
class Pain:
    """`text`: what a library prints. Either `group` and `name` of the check that sees it on the host `build` after
    `make`, and what it `says` and is (`state`). Or `unseen`: why it cannot be seen beforehand."""

    text: str
    group: str = ""
    name: str = ""
    build: Build = fake_hosts.tpu_vm_v4
    make: Ill = field(default=lambda _: {})
    says: str = ""
    state: str = "broken"
    unseen: str = ""


def little_for_each(host: fake_hosts.FakeHost) -> dict[str, Any]:
    fake_hosts.add_memory(host.root, 16_000_000, 3_000_000)
    return {}


def little(host: fake_hosts.FakeHost) -> dict[str, Any]:
    fake_hosts.add_memory(host.root, 16_000_000, 900_000)
    return {}


def held(device: str) -> Ill:
    def make(host: fake_hosts.FakeHost) -> dict[str, Any]:
        fake_hosts.add_process(host.root, 77, ("python3", "other.py"), (device,))
        return {}

    return make


def pair(host: fake_hosts.FakeHost) -> dict[str, Any]:
    return {"versions": {"torch": "2.8.0"}}


def plain_tensorflow(host: fake_hosts.FakeHost) -> dict[str, Any]:
    return {"framework": "tensorflow", "versions": {"tensorflow": "2.20.0", "keras": "3.11.0"}}


def full_shared_memory(host: fake_hosts.FakeHost) -> dict[str, Any]:
    return {"disk": lambda path: (2**26, 2**12) if path.name == "shm" else (100 * GIB, 50 * GIB)}


def others_lock(host: fake_hosts.FakeHost) -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("only root can make another account's file")
    os.chown(fake_hosts.write(host.root / "tmp/libtpu_lockfile", ""), 65534, 65534)
    return {}


def closed(host: fake_hosts.FakeHost) -> dict[str, Any]:
    """Device files that another account alone may open, in a folder that this one may enter; root may open all."""
    root = Path(tempfile.mkdtemp())
    try:
        root.chmod(0o755)
        fake_hosts.add_accel(root, 4)
        (root / "dev/accel0").chmod(0)
        files = as_nobody(lambda: find_device_files(root))
    finally:
        shutil.rmtree(root)
    return {"devices": files}


MEMORY, HOLDS, LOCK = "Memory", "TPU in use by", "Lock file"
VERSIONS, VARIABLES = "Framework versions", "Environment variables"
PAINS = (
    Pain(
        "ProcessExitedException: process 0 terminated with signal SIGSEGV",
        MEMORY,
        "For each worker",
        make=little_for_each,
        says="SIGSEGV",
        state="warning",
    ),
    Pain(
        "ProcessExitedException: process 0 terminated with signal SIGKILL",
        MEMORY,
        "Host memory",
        fake_hosts.plain,
        little,
        "SIGKILL",
        "warning",
    ),
    Pain("A process in the process pool was terminated abruptly", unseen=ANY_DEATH),
    Pain(
        "Runtime is already initialized. Do not use the XLA device before calling xmp.spawn.",
        HOLDS,
        "This notebook's runtime",
        make=lambda _: {"runtime": True},
        says="Runtime is already initialized. Do not use the XLA device before calling xmp.spawn.",
    ),
    Pain(
        "The TPU is already in use by process with pid N. Not attempting to load libtpu.so in this process.",
        HOLDS,
        "Processes",
        make=held("dev/accel1"),
        says="process 77",
    ),
    Pain(
        'Internal error when accessing libtpu multi-process lockfile. Run "$ sudo rm /tmp/libtpu_lockfile".',
        LOCK,
        "/tmp/libtpu_lockfile",
        make=others_lock,
        says="Internal error when accessing libtpu multi-process lockfile",
        state="warning",
    ),
    Pain(
        "open(/dev/accel0): Operation not permitted",
        "Devices and permissions",
        "Device files",
        make=closed,
        says="dev/accel0): Operation not permitted",
    ),
    Pain(
        "open(/dev/vfio/1): Device or resource busy",
        HOLDS,
        "Processes",
        fake_hosts.tpu_vm_v5e,
        held("dev/vfio/1"),
        "process 77 (1)",
    ),
    Pain("_XLAC.so: undefined symbol", VERSIONS, "Framework", make=pair, says='"undefined symbol" in _XLAC'),
    Pain(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm.",
        unseen=THE_PROGRAM,
    ),
    Pain("RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom", unseen=THE_PROGRAM),
    Pain("Unsupported nprocs (8)", unseen="it is in the code; `%tpu_check` finds it (TPU404)"),
    Pain(
        "Failed to get 'tpu-env' from instance metadata",
        "Metadata server",
        "tpu-env",
        make=lambda _: {"ask_metadata": lambda: doctor_host.MISSING},
        says="Failed to get 'tpu-env' from instance metadata",
    ),
    Pain(
        "Can't get attribute '_mp_fn' on <module '__main__'>",
        unseen="starting processes by spawn from a notebook causes it; `%tpu_check` finds that (TPU410)",
    ),
    Pain(
        "Expected 4 worker addresses, got 1",
        VARIABLES,
        "Worker addresses",
        fake_hosts.kaggle_v5e_8,
        says="Expected 8 worker addresses, got 1",
        state="warning",
    ),
    Pain(
        "a silent hang: one rank waits in a collective that another never enters",
        unseen="it depends on the program; `%tpu_check` finds the usual form (TPU406), and `--timeout` ends it",
    ),
    Pain(
        "No OpKernel was registered to support Op 'ConfigureDistributedTPU'",
        VERSIONS,
        "Framework",
        make=plain_tensorflow,
        says="No OpKernel was registered to support Op 'ConfigureDistributedTPU'",
    ),
    Pain("SIGBUS in a DataLoader worker", "Disk", "/dev/shm", fake_hosts.plain, full_shared_memory, "SIGBUS"),
)
SEEN = [pain for pain in PAINS if not pain.unseen]


@pytest.mark.parametrize("pain", SEEN, ids=lambda pain: pain.text[:40])
@pytest.mark.process
def test_it_is_seen_beforehand(tmp_path: Path, pain: Pain) -> None:
    host = pain.build(tmp_path)
    checks = examined(host, **pain.make(host))
    assert ill(checks) == {(pain.group, pain.name): pain.state}, "this, and nothing else"
    check = one(checks, pain.group, pain.name)
    assert pain.says in f"{check.what} {check.why}"
    assert check.todo


@pytest.mark.parametrize(
    "pain", [pain for pain in SEEN if pain.build is not fake_hosts.kaggle_v5e_8], ids=lambda pain: pain.text[:40]
)
def test_it_is_not_seen_on_the_same_host_in_health(tmp_path: Path, pain: Pain) -> None:
    assert ill(examined(pain.build(tmp_path))) == {}


def rows_of_the_docs() -> dict[str, str]:
    """Text (without its code marks) -> what the docs say sees it."""
    table = DOCS.read_text(encoding="utf-8").partition("## Error texts")[2]
    cells = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    return {text.replace("`", ""): seen for text, seen in cells if text not in ("text", "---")}


def test_the_docs_have_the_same_list() -> None:
    told = {pain.text: f"not here: {pain.unseen}" if pain.unseen else f"{pain.group}, {pain.name}" for pain in PAINS}
    assert rows_of_the_docs() == told


def test_rules_that_are_named_for_what_is_unseen_exist() -> None:
    codes = {code for pain in PAINS for code in re.findall(r"TPU\d{3}", pain.unseen)}
    assert codes == {"TPU404", "TPU406", "TPU410"}
    assert codes <= {rule.code for rule in RULES}
