"""`%tpu_pod` and `tpu_magics.pod`: the dry run for many hosts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.cell import evaluate_all, parse_arguments
from tpu_magics.launch.pods.address import is_off
from tpu_magics.launch.pods.dry_run import DryRun, payload_size
from tpu_magics.launch.pods.slices import Slice
from tpu_magics.magics.display import show
from tpu_magics.panel.pod import outlook_table, pages_html, pages_text
from tpu_magics.panel.table import to_html, to_text
from tpu_magics.runs.files import runs_root

if TYPE_CHECKING:
    from tpu_magics.magics.notebook import ShellNotebook


class PodPlan(DryRun):
    """A plan that a notebook shows as tables, and `print` as text."""

    def __str__(self) -> str:
        return f"{to_text(outlook_table(self, str(runs_root())))}\n\n{pages_text()}"

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return {"text/plain": str(self), "text/html": to_html(outlook_table(self, str(runs_root()))) + pages_html()}


def pod(
    function: Callable[..., Any] | None = None,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    target: str = "",
    labels: tuple[str, ...] = (),
) -> PodPlan:
    """What `%tpu_pod` does: the hosts and ranks of the next runs, the data sent to each host and its size, and links to
    the pages on creating such hosts. Nothing is run.

    Args:
        function: the training function; without it the sizes are n/a.
        args: its arguments.
        kwargs: its keyword arguments.
        target: plan for this TPU slice ("v5litepod-16"), whether it exists or not (default: the session's hosts).
        labels: the arguments as they were written.

    Returns:
        The plan: a notebook displays it, `print` gives it as text; `.pod`, `.hosts`, `.ranks`, `.load`.
    """
    current = session.current
    load = payload_size(function, args, kwargs or {}, current.backend, labels) if function is not None else None
    if target:
        return PodPlan(None, slice_of(target), load)
    return PodPlan(current.pod, None, load)


def run(notebook: ShellNotebook, found: argparse.Namespace) -> None:
    """Evaluate FUNCTION and ARGs, and display the plan."""
    __tracebackhide__ = True
    positional, named = parse_arguments(found.args)
    values, keywords = evaluate_all(positional, named, notebook.namespace)
    if keywords and not values:
        raise TpuMagicsError(
            "%tpu_pod needs FUNCTION before its arguments.", "", "Write %tpu_pod training_function model lr=1e-3"
        )
    function, *args = values or [None]
    plan = pod(function, *args, kwargs=keywords, target=found.target, labels=tuple(positional[1:]))
    show(plan._repr_mimebundle_())


def wanted_slice(target: str, hosts: str) -> Slice | None:
    """The slice that `--target` names beside `--hosts`; None for none."""
    if not target:
        return None
    if is_off(hosts):
        raise TpuMagicsError(
            "--target needs --hosts.",
            "It is the TPU slice to request from a Ray cluster.",
            "Add the cluster: --hosts ray; or see the plan for such a slice: %tpu_pod --target T",
        )
    return slice_of(target)


def rehearsed_slice(name: str, hosts: str) -> Slice | None:
    """The slice that `--as` names; None for none."""
    if not name:
        return None
    try:
        found = slice_of(name)
    except TpuMagicsError as error:
        raise TpuMagicsError(error.what, error.why, error.todo.replace("--target", "--as")) from None
    if not is_off(hosts):
        raise TpuMagicsError(
            "--as is not supported together with --hosts.",
            "It is about rehearsals on this host.",
            "Omit one of them; %tpu_pod --target T shows the plan for such a slice.",
        )
    if found.hosts > 1:
        raise TpuMagicsError(
            f"--as {name} cannot be rehearsed: {found.text}.",
            "A rehearsal is that of one host.",
            "Choose a slice of one host, v5e-8 for example; %tpu_preflight --target takes larger ones.",
        )
    return found


def slice_of(target: str) -> Slice:
    """A slice by its name. Raises TpuMagicsError where no TPU has that name."""
    from tpu_magics.preflight.targets import parse

    found = parse(target)
    return Slice(found.chip.kind, found.bounds, found.host_bounds)
