"""A run on many hosts: where it differs from a run on this host (launch/forked_run.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tpu_magics.backends.base import COLLECTIVE_TIMEOUT
from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.launch import forked_run, object_graph, plan, preconditions, process, session, streams, supervisor
from tpu_magics.launch.errors import diagnosis
from tpu_magics.launch.errors import failure as failures
from tpu_magics.launch.forked_run import ForkedRun
from tpu_magics.launch.plan import Options, Plan
from tpu_magics.launch.pods import cluster, host_start, payload
from tpu_magics.launch.pods.bundle import Bundle
from tpu_magics.launch.pods.host_selection import require_memory, with_ranks
from tpu_magics.launch.pods.host_task import HostTask
from tpu_magics.launch.pods.pickling_errors import pack_payload
from tpu_magics.launch.pods.pod import Pod
from tpu_magics.launch.pods.remote_supervisor import Link, RemoteSupervisor, make_links
from tpu_magics.launch.relay import Relay
from tpu_magics.launch.request import Request
from tpu_magics.runs.folder import RunFolder


def prepare(pod: Pod, request: Request, options: Options) -> RayRun:
    """The run, with all checks done before anything is sent. Raises TpuMagicsError."""
    current = session.current
    host = session.known_host()
    backend = current.backend
    require_alive(pod)
    pod = with_options(pod, options)
    planned = pod_plan(pod, options)
    preconditions.require_alone()
    backend.prepare()
    if planned.rehearsed:
        preconditions.require_rehearsal(backend, planned.ranks)
    models = object_graph.find_models(iter(request.items), backend.is_model)
    preconditions.check(
        preconditions.LaunchContext(backend, host, current.fork_blockers, request.items, models, request.source)
    )
    hoists = forked_run.make_hoist_plan(request, options, planned)
    if hoists is not None:
        taken = set(models)
        models = {**models, **{forked_run.free_name(name, taken): model for name, model in hoists.models.items()}}
    size = sum(backend.model_bytes(model) for model in models.values())
    require_memory(pod, size, options.force)
    folder = RunFolder.create(options.run_name or request.folder_name)
    try:
        plan.require_disk(folder.path, size, options.force)
        run = RayRun(
            request, options, planned, host, folder, request.make(models, hoists), models, size, hoists, pod=pod
        )
        run.pack()
    except TpuMagicsError as error:
        failures.record_refused(folder, error)
        raise
    if folder.warning:
        current.notebook.say(folder.warning)
    return run


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
    if options.spmd not in (None, plan.NO_SPMD):
        raise TpuMagicsError(
            "--spmd is not available on several hosts.",
            "Each host has its own processes, one for each chip.",
            "Remove --spmd, or train on this host only: %tpu_init --hosts off",
        )
    if options.keep_partial:
        raise TpuMagicsError(
            "--keep-partial is not available on several hosts.",
            "Results are fetched from the hosts only after a successful run.",
            "Remove --keep-partial and save checkpoints, or train on this host only: %tpu_init --hosts off",
        )
    return with_ranks(pod, options.processes)


def pod_plan(pod: Pod, options: Options) -> Plan:
    """The plan of a run on these hosts; `workers`: of all hosts together."""
    current = session.current
    return Plan(
        device=pod.device,
        workers=len(pod.hosts) * pod.workers,
        replicas=pod.replicas,
        precision=options.precision or current.precision,
        environment=dict(options.environment),
        steps=options.steps,
        timeout=options.timeout,
        max_recompiles=options.max_recompiles,
        strict=options.strict,
        cache=current.cache,
        collective_timeout=options.collective_timeout or current.collective_timeout or COLLECTIVE_TIMEOUT,
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


@dataclass
class RayRun(ForkedRun):
    """A run on the hosts of `pod`. `bundle`: the data to send, until the run has started."""

    pod: Pod = field(default_factory=lambda: Pod("", ()))
    bundle: Bundle | None = None

    def pack(self) -> None:
        """Pack the bundle. Raises TpuMagicsError that names what cannot be pickled."""
        notebook = session.current.notebook
        gathered = payload.gather(
            self.work,
            session.current.backend,
            hoistable=self.request.hoistable,
            arguments=self.request.arguments,
            source=self.request.source,
            cell_names=self.cell_names,
            cell_ids=dict(notebook.cell_ids()),
        )
        self.snapshot = self.take_snapshot()
        gathered = replace(gathered, structure=self.snapshot.structure())
        self.bundle = pack_payload(gathered, notebook.namespace, payload.cell_sources(self.cell_names))

    def fork(self) -> None:
        """Start the workers on every host; on an error none is left."""
        assert self.bundle is not None
        self.folder.update(hosts=host_records(self.pod))
        with deferred_interrupts() as interrupted:
            stored = host_start.store_bundle(self.bundle)
            actors, descriptions = host_start.start_actors(self.pod, self.folder.name, interrupted)
            try:
                host_start.start_processes(self.pod, actors, self._task(), descriptions, stored, interrupted)
                self.watch = self._watching(actors)
            except BaseException:
                host_start.close_actors(actors)
                raise
        self.folder.update(
            status="running",
            plan={**self.plan.record(), "background": self.options.background, "hosts": len(self.pod.hosts)},
            workers=self.watch.table(),
            host=failures.host_record(self.host),
            versions=dict(self.host.versions),
            sent=stored.bytes,
        )

    def _task(self) -> HostTask:
        planned = self.plan
        return HostTask(
            index=0,
            name="",
            hosts=len(self.pod.hosts),
            workers=self.pod.workers,
            replicas=self.pod.replicas,
            device=planned.device,
            precision=planned.precision,
            environment=planned.environment,
            steps=planned.steps,
            max_recompiles=planned.max_recompiles,
            strict=planned.strict,
            cache=planned.cache,
            rehearsed=planned.rehearsed,
            collective_timeout=planned.collective_timeout,
            shell=streams.running_shell() is not None,
        )

    def _watching(self, actors: list[Any]) -> RemoteSupervisor:
        links = make_links(self.pod, actors)
        workers = [worker for link in links for worker in link.workers]
        relay, ranks = Relay(self.folder, self._screen()), range(self.pod.ranks)
        return RemoteSupervisor(self.folder, workers, relay, self.plan.timeout, self.observer, ranks, links=links)

    def watch_in_thread(self) -> None:
        self.bundle = None  # already sent, and it keeps the models' memory alive
        super().watch_in_thread()

    def explain_failure(self, watch: supervisor.Supervisor) -> TrainingFailed:
        assert isinstance(watch, RemoteSupervisor)
        if watch.unwritten is not None:
            return failures.cannot_read_results(watch.unwritten, self.folder)
        record = failures.record(self, watch)
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
    found = link.refused or {}
    return link.host.name, found.get("what", ""), found.get("why", ""), found.get("todo", "")


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
