"""The kind of environment that a notebook runs in (Kaggle, Colab, GKE, a TPU VM or a local machine), and the
environment variables that workers and notebook need changed there. Nothing here writes to os.environ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.errors import ENVIRONMENT, HostProblem, plural

if TYPE_CHECKING:
    from tpu_magics.host import Host


Environ = Mapping[str, str]
HOUR = 3600.0


@dataclass(frozen=True)
class Environment:
    """The environment of a notebook.

    `key`: "kaggle", "colab", "gke", "tpu-vm" or "plain"; `name`: for display; `menu`: where the user selects the
    accelerator ("" where there is no such menu); `chosen`: why there may be none although it is selected, and what
    helps; `promise`: the variable that says that this host has a TPU ("" where
    none does; only /sys can prove it); `restart`: how to get a fresh host; `hosts`: the names of all hosts of the
    slice; `limit`: seconds after which the service ends a session, however busy (None: it does not, or it is unknown).
    """

    key: str
    name: str
    menu: str = ""
    chosen: str = ""
    promise: str = ""
    restart: str = ""
    hosts: tuple[str, ...] = ()
    limit: float | None = None

    @property
    def how_to_select(self) -> str:
        """What the user does to have a TPU; "" where there is no menu."""
        return f"On {self.name}, choose an accelerator in {self.menu}.{self.chosen}" if self.menu else ""


# Read: kaggle-cli, issue 1197 (2026-09).
_PINNED = (
    " If a TPU is chosen there, the notebook may be pinned to the image of an earlier session, without torch_xla and "
    'without a TPU: choose "Always use latest environment" in the notebook\'s settings, or remove docker_image from '
    "kernel-metadata.json before `kaggle kernels push`."
)


def session_since() -> float | None:
    """When this host's session began, in unix seconds: the start of its first process. None where that is unknown."""
    import psutil

    try:
        return float(psutil.Process(1).create_time())
    except psutil.Error:
        return None


LOCAL = Environment(key="plain", name="local machine")


@dataclass(frozen=True)
class _Signs:
    environ: Environ
    modules: Collection[str]
    chips: int


def find_environment(environ: Environ, modules: Collection[str] = (), chips: int = 0) -> Environment:
    """The environment, from the variables, the names of imported `modules` and the number of TPU `chips`."""
    signs = _Signs(environ, modules, chips)
    return next((found for found in (find(signs) for find in _FINDERS) if found is not None), LOCAL)


def _kaggle(signs: _Signs) -> Environment | None:
    # Before Colab: Kaggle builds its images on Colab's, so Colab's variables can be found there too.
    environ = signs.environ
    if not environ.get("KAGGLE_KERNEL_RUN_TYPE"):
        return None
    return Environment(
        key="kaggle",
        name="Kaggle",
        menu="Settings > Accelerator",
        chosen=_PINNED,
        promise="ISTPUVM=1" if environ.get("ISTPUVM") == "1" else "",
        restart="stop the session and start it again",
        hosts=_hosts(environ),
        limit=9 * HOUR if environ.get("ISTPUVM") == "1" else 12 * HOUR,  # kaggle.com/docs/notebooks, docs/tpu
    )


def _colab(signs: _Signs) -> Environment | None:
    environ = signs.environ
    if "google.colab" not in signs.modules and not environ.get("COLAB_RELEASE_TAG"):
        return None
    return Environment(
        key="colab",
        name="Colab",
        menu="Runtime > Change runtime type",
        # The variable exists, empty, on Colab's GPU and CPU machines.
        promise="COLAB_TPU_1VM=1" if environ.get("COLAB_TPU_1VM") == "1" else "",
        restart="Runtime > Disconnect and delete runtime, and connect again",
        hosts=_hosts(environ),
        limit=12 * HOUR,  # research.google.com/colaboratory/faq.html; up to 24 hours with Pro+
    )


def _gke(signs: _Signs) -> Environment | None:
    # All four, since a person may set single ones on a TPU VM or for an ahead-of-time compile.
    environ, names = signs.environ, ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_TOPOLOGY")
    if not all(environ.get(name) for name in names) or environ.get("TPU_SKIP_MDS_QUERY", "").lower() != "true":
        return None
    return Environment(
        key="gke",
        name="Google Kubernetes Engine",
        promise=f"TPU_TOPOLOGY={environ['TPU_TOPOLOGY']}",
        restart="give the pod the resource google.com/tpu and a node pool that has TPUs",
        hosts=_hosts(environ),
    )


def _tpu_vm(signs: _Signs) -> Environment | None:
    return Environment(key="tpu-vm", name="TPU VM", hosts=_hosts(signs.environ)) if signs.chips else None


def _hosts(environ: Environ) -> tuple[str, ...]:
    return tuple(name.strip() for name in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip())


_FINDERS: tuple[Callable[[_Signs], Environment | None], ...] = (_kaggle, _colab, _gke, _tpu_vm)


# -- environment variables --------------------------------------------------------------------------------------------


PJRT = "PJRT_DEVICE"
ACCELERATOR_TYPE = "TPU_ACCELERATOR_TYPE"  # tells libraries which TPU it is


@dataclass(frozen=True)
class VariableChange:
    """A variable that the workers get with another `value` (None: unset), and the `reason`; `before`: its value in the
    notebook."""

    name: str
    value: str | None
    reason: str
    before: str


_KAGGLE_REASON = (
    "Kaggle's image sets it for one process. With one worker per chip, libtpu stops with "
    '"Expected {chips} worker addresses, got 1"'
)
_KAGGLE_UNSET = ("TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID")


def worker_changes(environ: Mapping[str, str], place: Environment, chips: int) -> tuple[VariableChange, ...]:
    """The variables that differ between workers and notebook; none outside Kaggle's TPU machines."""
    if place.key != "kaggle" or not (chips or place.promise):
        return ()
    reason = _KAGGLE_REASON.format(chips=chips or "several")
    return tuple(VariableChange(name, None, reason, environ[name]) for name in _KAGGLE_UNSET if name in environ)


def notebook_environment(host: Host) -> dict[str, str]:
    """The variables that %tpu_init sets in the notebook: PJRT_DEVICE, where it is not set and torch_xla will read
    it."""
    return {} if host.pjrt_device or host.framework != "torch" else {PJRT: host.device}


def choose_device(pjrt_device: str, chips: int) -> str:
    """ "TPU" or "CPU", what cells train on. PJRT_DEVICE=CPU on a TPU host means a rehearsal there."""
    return "TPU" if chips and _family(pjrt_device) != "CPU" else "CPU"


def judge_pjrt(pjrt_device: str, chips: int, torch: bool = True) -> list[HostProblem]:
    """The problem of a PJRT_DEVICE that is wrong for this host. TensorFlow does not read it, but CPU on a TPU host
    means a rehearsal with TensorFlow (not `torch`) too."""
    fitting = "TPU" if chips else "CPU"
    if not pjrt_device or _family(pjrt_device) == fitting:
        return []
    rehearsal = bool(chips) and _family(pjrt_device) == "CPU"
    if not torch and not rehearsal:
        return []
    has = f"{plural(chips, 'TPU chip')}" if chips else "no TPU"
    effect = "Cells train on the CPU and do not use the TPU." if rehearsal else "The XLA runtime would fail to start."
    return [
        HostProblem(
            about=ENVIRONMENT,
            what=f"{PJRT}={pjrt_device} is wrong for this host, which has {has}. It was not changed.",
            why=f"It was set in this notebook or before the notebook started. {effect}",
            command=f"%env {PJRT}={fitting}",
            then="run %tpu_init again",
            state="warning" if rehearsal else "broken",
        )
    ]


def _family(pjrt_device: str) -> str:
    # As torch_xla reads it: "TPU_C_API" is a TPU.
    return pjrt_device.split("_")[0]
