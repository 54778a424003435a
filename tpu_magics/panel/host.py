"""The host as one table, shown by %tpu_init. What could not be found out is n/a, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tpu_magics.backends.base import DEFAULT, TPU_LOCAL, Placement
from tpu_magics.backends.frameworks import FAMILIES, TorchChoice
from tpu_magics.errors import plural
from tpu_magics.host import (
    BROKEN,
    ENVIRONMENT,
    IN_USE,
    TPU,
    VERSIONS,
    Host,
    HostProblem,
    VariableChange,
    notebook_environment,
)
from tpu_magics.host.device_owners import DeviceOwner
from tpu_magics.host.environments import ACCELERATOR_TYPE
from tpu_magics.launch.pods.pod import Pod
from tpu_magics.panel import protocol
from tpu_magics.panel.table import Row, Table

NOTEBOOK = ("python", "ipython", "ipykernel", "ipywidgets")
_CALLED = {
    DEFAULT: "the default strategy (no TPU)",
    TPU_LOCAL: "TPUStrategy, on the TPU of this host",
}


def host_table(
    host: Host,
    processes: int | None = None,
    spmd: int | None = None,
    placed: Placement | None = None,
    pod: Pod | None = None,
    chosen: TorchChoice | None = None,
) -> Table:
    """One table of two columns, problems last, each with its fix.

    Args:
        host: what was found.
        processes: `-n` of the cells to come.
        spmd: `--spmd` of the cells to come.
        placed: where a framework of this process trains.
        pod: the hosts of the cells to come, where they are several.
        chosen: the framework of PyTorch that trains.
    """
    rows = tuple(_rows(host, processes, spmd, placed, pod, chosen))
    return Table("tpu_magics: this host", None, rows, host.notes)


def _rows(
    host: Host,
    processes: int | None,
    spmd: int | None,
    placed: Placement | None,
    pod: Pod | None = None,
    chosen: TorchChoice | None = None,
) -> Iterator[Row]:
    yield Row(("Environment", host.environment.name))
    yield Row(("TPU", _tpu(host)), _state(host, TPU) if host.chips or host.environment.promise else "")
    if pod is not None:
        yield Row(("Device", _on_pod(pod)), "ok")
    elif host.framework == "torch":
        yield Row(("Device", _training(host, processes, spmd)), _state(host, ENVIRONMENT))
    else:
        yield from _placing(host, placed)
    yield Row(("Notebook", _versions(host, NOTEBOOK)))
    yield Row(("Framework", _framework(host, chosen)), _state(host, VERSIONS))
    yield Row(("Host memory", _memory(host)))
    yield Row(("TPU in use by", _holders(host)), _state(host, IN_USE) if host.chips else "")
    for name, value in notebook_environment(host).items():
        yield Row(("Set in the notebook", f"{name}={value}: it was not set; cells train on this device."))
    for repair in host.variable_changes:
        yield Row(("Changed in the workers", _repair(repair)))
    for problem in host.problems:
        yield _problem(problem)


def host_summary(
    host: Host,
    processes: int | None = None,
    spmd: int | None = None,
    placed: Placement | None = None,
    pod: Pod | None = None,
) -> protocol.KernelHost:
    """The host in one line, for a status bar. Arguments: as those of `host_table`."""
    rehearsal = host.device == "CPU"
    if rehearsal:
        title = "XLA:CPU rehearsal"
    else:
        kind = host.generation.name if host.generation is not None else ""
        title = f"TPU {kind}, {plural(len(host.chips), 'chip')}" if kind else host.tpu or "TPU"
    if pod is not None:
        title, rehearsal = f"{plural(len(pod.hosts), 'host')}, {plural(pod.ranks, 'rank')}", pod.device == "CPU"
    rows = (row.cells for row in _rows(host, processes, spmd, placed, pod) if row.cells[0] in ("TPU", "Device"))
    return protocol.KernelHost(title, rehearsal, len(host.chips) or None, "\n".join(": ".join(cells) for cells in rows))


def _state(host: Host, about: str) -> str:
    # Problems are sorted with the broken first.
    return next((problem.state for problem in host.problems if problem.about == about), "ok")


def _tpu(host: Host) -> str:
    if not host.chips:
        cores = plural(host.cpus, "core") if host.cpus else "cores: n/a (/proc could not be read)"
        select = host.environment.how_to_select
        return f"none: XLA:CPU rehearsal on {cores}\n{select}".rstrip()
    count = len(host.chips)
    chips = plural(count, "chip")
    if host.generation is None:
        return f"{host.tpu}, {chips}; memory per chip n/a (unknown generation)"
    kind = host.generation
    return f"{kind.name}, {chips} ({kind.type_string(count)}), {kind.hbm_gib} GiB of memory per chip"


def _on_pod(pod: Pod) -> str:
    kind = f"TPU {pod.target}" if pod.target else "a rehearsal on their CPUs"
    return f"{plural(len(pod.hosts), 'host')} of the Ray cluster {pod.address}: {plural(pod.ranks, 'rank')}, {kind}"


def _training(host: Host, processes: int | None, spmd: int | None) -> str:
    kind = next((one.value for one in host.variable_changes if one.name == ACCELERATOR_TYPE), None)
    tpu = f"the place of a {kind}" if kind else "a TPU's place"
    place = f" in {tpu} (libraries take their TPU branch)" if (host.device, host.branch) == ("CPU", "TPU") else ""
    if spmd is not None:
        return f"{host.device}{place}: 1 worker (SPMD), which drives {plural(spmd, _kind(host))}"
    if host.device == "CPU":
        ranks = processes or host.workers
        return f"CPU{place}: {plural(ranks, 'worker')}{f', a rehearsal of {ranks} ranks' if ranks > 1 else ''}"
    if processes == 1:
        return "TPU: 1 worker"
    workers = plural(host.workers, "worker")
    replicas = f", {host.replicas} replicas in each" if host.replicas > 1 else ""
    return f"TPU: {workers}, one per chip{replicas}"


# -- a framework of this process -----------------------------------------------------------------------------------


def _placing(host: Host, placed: Placement | None) -> Iterator[Row]:
    process = "in this notebook's process (TensorFlow does not survive a fork)"
    yield Row(("Device", f"{placed.device if placed else host.device}: {process}"), _state(host, ENVIRONMENT))
    for label, told in _PLACING.items():
        yield Row((label, told(placed) if placed else "n/a (TensorFlow is not connected yet: run %tpu_init)"))


def _replicas(placed: Placement) -> str:
    return placed.topology if placed.kind == DEFAULT else str(placed.replicas)


def _topology(placed: Placement) -> str:
    return "n/a (no TPU)" if placed.kind == DEFAULT else placed.topology


_PLACING: Mapping[str, Callable[[Placement], str]] = {
    "Strategy": lambda placed: f"`strategy`: {_CALLED[placed.kind]}",
    "Replicas": _replicas,
    "Topology": _topology,
}


# -- shared rows --------------------------------------------------------------------------------------------------


def _kind(host: Host) -> str:
    return "virtual device" if host.device == "CPU" else "device"


def _versions(host: Host, names: tuple[str, ...]) -> str:
    found = [f"{name} {host.versions[name]}" for name in names if host.versions.get(name)]
    return ", ".join(found) or "none installed"


def _framework(host: Host, chosen: TorchChoice | None) -> str:
    fits = _state(host, VERSIONS) == "ok"
    family = FAMILIES[host.framework]
    to_choose = any(host.versions.get(one.name) for one in family.members if one.comes_along)
    trains = f"Cells train with {chosen.package}: {chosen.reason}.\n" if chosen and to_choose else ""
    return (
        f"{_versions(host, family.shown)}\n{trains}{'Versions are compatible.' if fits else 'See the problems below.'}"
    )


def _memory(host: Host) -> str:
    memory = host.memory
    if memory.total is None or memory.available is None:
        return f"n/a ({memory.reason})"
    limit = " (cgroup limit, less than the machine has)" if memory.limited_by != "machine" else ""
    return f"{_gib(memory.available)} free of {_gib(memory.total)}{limit}"


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _holders(host: Host) -> str:
    if not host.chips:
        return "n/a (this host has no TPU)"
    none = "no process that this account can see" if host.unseen else "no process"
    lines = [_holder(holder) for holder in host.owners] or [none]
    if host.unseen:
        lines.append(f"n/a for processes of other accounts ({host.unseen})")
    return "\n".join(lines)


def _holder(holder: DeviceOwner) -> str:
    whose = " (this notebook)" if holder.own else " (started by this notebook)" if holder.child else ""
    return f"process {holder.pid}{whose}: {holder.command}"


def _repair(repair: VariableChange) -> str:
    change = f"{repair.name} is unset" if repair.value is None else f"{repair.name}={repair.value}"
    return f"{change} ({f'it is {repair.before!r}' if repair.before else 'not set'} here): {repair.reason}."


def _problem(problem: HostProblem) -> Row:
    lines = [problem.what, f"Why: {problem.why}", f"Fix: {problem.todo}" if problem.todo else ""]
    title = "HostProblem" if problem.state == BROKEN else "Warning"
    return Row((title, "\n".join(line for line in lines if line)), problem.state)
