"""Workers on the hosts of a Ray cluster: each host forks its own (pods/host_process.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.host import Host
from tpu_magics.launch import process, session, streams, supervisor
from tpu_magics.launch.errors import diagnosis
from tpu_magics.launch.errors import failure as failures
from tpu_magics.launch.options import NO_SPMD, Options
from tpu_magics.launch.plan import Plan
from tpu_magics.launch.pods import cluster, host_selection, host_start
from tpu_magics.launch.pods.bundle import Bundle
from tpu_magics.launch.pods.payload import HOSTS, pack_run
from tpu_magics.launch.pods.pod import HostTask, Pod
from tpu_magics.launch.pods.remote_supervisor import Link, RemoteSupervisor, make_links
from tpu_magics.launch.resume import saving
from tpu_magics.launch.run import TrainingRun
from tpu_magics.launch.strategies.forked import ForkedStrategy
from tpu_magics.launch.streams import Relay


class RayStrategy(ForkedStrategy):
    """Trains on the hosts of `pod`. `bundle`: the data to send, until the run has started."""

    says_tpu_menu = False
    forks = False

    def __init__(self, pod: Pod) -> None:
        super().__init__()
        self.pod = pod
        self.bundle: Bundle | None = None

    # -- before the run -------------------------------------------------------------------------------------------
    def plan(self, options: Options) -> tuple[Host, Plan]:
        host = session.known_host()
        require_alive(self.pod)
        self.pod = with_options(self.pod, options)
        return host, pod_plan(self.pod, options)

    def require_memory(self, planned: Plan, models_bytes: int, force: bool) -> None:  # noqa: ARG002
        host_selection.require_memory(self.pod, models_bytes, force)

    def attach(self, run: TrainingRun) -> None:
        """Pack the bundle. Raises TpuMagicsError that names what cannot be pickled."""
        super().attach(run)
        self.snapshot = self.take_snapshot(run)
        self.bundle = pack_run(run, self.snapshot, HOSTS)

    # -- the run --------------------------------------------------------------------------------------------------
    def start_workers(self, run: TrainingRun) -> None:
        assert self.bundle is not None
        run.folder.update(hosts=host_records(self.pod))
        with deferred_interrupts() as interrupted:
            stored = host_start.store_bundle(self.bundle)
            actors, descriptions = host_start.start_actors(self.pod, run.folder.name, interrupted)
            try:
                hosts, shell = len(self.pod.hosts), streams.running_shell() is not None
                task = HostTask(0, "", hosts, self.pod.workers, run.plan, shell=shell)
                host_start.start_processes(self.pod, actors, task, descriptions, stored, interrupted)
                self.watch = watch = self._make_supervisor(run, actors)
            except BaseException:
                host_start.close_actors(actors)
                raise
        record = run.start_record(background=run.options.background, hosts=len(self.pod.hosts))
        run.folder.update(status="running", workers=watch.table(), sent=stored.bytes, **record)

    def supervise(self, run: TrainingRun) -> None:
        if run.options.background:
            self.bundle = None  # already sent, and it keeps the models' memory alive
        super().supervise(run)

    def _make_supervisor(self, run: TrainingRun, actors: list[Any]) -> RemoteSupervisor:
        links = make_links(self.pod, actors)
        workers = [worker for link in links for worker in link.workers]
        relay, ranks = Relay(run.folder, self.screen(run)), range(self.pod.ranks)
        return RemoteSupervisor(
            run.folder,
            workers,
            relay,
            run.plan.timeout,
            run.observer,
            ranks,
            saves=run.plan.checkpoints is not None,
            links=links,
        )

    def request_save(self, run: TrainingRun) -> None:  # noqa: ARG002
        if self.watch is not None:
            self.watch.ask_to_save(saving.NOW)

    def explain_failure(self, run: TrainingRun, watch: supervisor.Supervisor) -> TrainingFailed:
        assert isinstance(watch, RemoteSupervisor)
        if watch.unwritten is not None:
            return failures.cannot_read_results(watch.unwritten, run.folder)
        record = failures.record(run, watch, self.memory)
        culprit = diagnosis.blame(record)
        for link in watch.links:
            if culprit is not None and culprit.rank in link.ranks and link.state:
                record = replace(record, **_host_memory_fields(link))
        return diagnosis.diagnose(
            replace(
                record,
                hosts={rank: link.host.name for link in watch.links for rank in link.ranks},
                lost=tuple((link.host.name, link.ranks, link.lost) for link in watch.lost),
                refused=tuple(_refusal_fields(link) for link in watch.refused),
            )
        )


# -- before the run ---------------------------------------------------------------------------------------------------


def require_alive(pod: Pod) -> None:
    """Raise TpuMagicsError if hosts are gone: Ray would wait for them, or start a new cluster here."""
    todo = "Run %tpu_init --hosts again to find the current hosts."
    if not cluster.is_connected():
        raise TpuMagicsError(
            "The connection to the Ray cluster is closed.",
            f"%tpu_init --hosts connected this notebook to {pod.address}. Since then ray.shutdown() was called, or the "
            "cluster ended.",
            todo,
        )
    cluster.require_answer()
    alive = {node.id for node in cluster.nodes()}
    gone = [host.name for host in pod.hosts if host.node not in alive]
    if gone:
        raise TpuMagicsError(
            f"{'Host' if len(gone) == 1 else 'Hosts'} {', '.join(gone)} left the cluster since %tpu_init.",
            f"A run uses all hosts that %tpu_init found: {', '.join(host.name for host in pod.hosts)}.",
            todo,
        )


def with_options(pod: Pod, options: Options) -> Pod:
    """The pod with this cell's number of ranks. Raises TpuMagicsError for options that need one host."""
    if options.spmd not in (None, NO_SPMD):
        raise TpuMagicsError(
            "--spmd is not available on several hosts.",
            "Each host has its own processes, one for each chip.",
            "Remove --spmd, or train on this host only: %tpu_init --hosts off",
        )
    if options.keep_partial:
        raise TpuMagicsError(
            "--keep-partial is not available on several hosts.",
            "Results are fetched from the hosts only after a successful run.",
            "Remove --keep-partial and save checkpoints (%tpu_init --checkpoints), or train on this host only: "
            "%tpu_init --hosts off",
        )
    return host_selection.with_ranks(pod, options.processes)


def pod_plan(pod: Pod, options: Options) -> Plan:
    """The plan of a run on these hosts; `workers`: of all hosts together."""
    current = session.current
    return Plan.from_options(
        options,
        current.precision,
        current.collective_timeout,
        device=pod.device,
        workers=len(pod.hosts) * pod.workers,
        replicas=pod.replicas,
        environment=dict(options.environment),
        cache=current.cache,
    )


def host_records(pod: Pod) -> list[dict[str, Any]]:
    """The hosts for run.json: which ranks each has."""
    each = pod.workers * pod.replicas
    return [
        {
            "index": host.index,
            "name": host.name,
            "address": host.address,
            "ranks": list(range(host.index * each, (host.index + 1) * each)),
        }
        for host in pod.hosts
    ]


def _host_memory_fields(link: Link) -> dict[str, Any]:
    """The memory of a failed worker's own host."""
    state = link.state
    return {
        "memory_total": state["memory_total"],
        "memory_available_at_start": state["memory_at_start"],
        "memory_low": state["memory_low"],
        "oom_kills": state["oom_kills"],
    }


def _refusal_fields(link: Link) -> tuple[str, str, str, str]:
    error = link.refused or {}
    return link.host.name, error.get("what", ""), error.get("why", ""), error.get("todo", "")


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Defers interrupts: the function that it yields returns whether one came, so that it is raised where nothing is
    half done. Outside the main thread there are no interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    with process.interrupts_held() as late:

        def interrupted() -> bool:
            came = bool(late)
            late.clear()
            return came

        yield interrupted
