"""The answers to the requests of front ends. Each function may be called in any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.panel.formats import short
from tpu_magics.panel.messages import (
    ComparedMessage,
    FindingsMessage,
    ProblemMessage,
    RunMessage,
    RunsMessage,
    StoppingMessage,
)
from tpu_magics.panel.requests import (
    LONGEST,
    CheckedCell,
    CheckRequest,
    CompareRequest,
    HelloRequest,
    OpenRequest,
    RateRequest,
    RunsRequest,
    StopRequest,
    read_request,
    request_id,
)

if TYPE_CHECKING:
    from tpu_magics.magics.lab import FrontEndComm
    from tpu_magics.runs.events import RuleFinding

MOST_RUNS = 200
MOST_FINDINGS = 500
MOST_CODE = 200_000  # characters that are checked: about a second


def answers(wire: FrontEndComm, data: Mapping[str, Any]) -> Sequence[Any]:
    """The messages that answer a request on a comm."""
    request = request_id(data)
    try:
        query = read_request(data)
        return _ANSWERS[type(query)](wire, query, request)
    except TpuMagicsError as error:
        return [ProblemMessage(error.what, error.why, error.todo, request)]
    except Exception as fault:
        what = f"The request failed in the kernel: {type(fault).__name__}: {short(fault, LONGEST)}"
        why = "This is a bug in tpu_magics, not in your code. Nothing was changed."
        return [ProblemMessage(what, why, "Please report it.", request)]


def _hello(wire: FrontEndComm, _query: HelloRequest, _request: str | None) -> Sequence[Any]:
    return [wire.lab.hello()]


def _rate(wire: FrontEndComm, query: RateRequest, _request: str | None) -> Sequence[Any]:
    wire.ask_rate(query.seconds)
    return []


# -- runs ------------------------------------------------------------------------------------------------------------


def _open(wire: FrontEndComm, query: OpenRequest, request: str | None) -> Sequence[Any]:
    newest = wire.lab.following()
    if newest is not None and query.run in ("current", newest.files.id):
        return [newest.whole(request) or _recorded(newest.files, request)]
    if query.run == "current":
        raise TpuMagicsError("This kernel has no run yet.", "", "Start one with %%tpu_train.")
    from tpu_magics.runs.reader import find_run

    return [_recorded(find_run(query.run), request)]


def _recorded(run: Any, request: str | None) -> RunMessage:
    """A run from its folder."""
    from tpu_magics.panel.run_json import record
    from tpu_magics.panel.run_state import SharedView

    return RunMessage(0, record(SharedView(run).anew()), request)


def _runs(_wire: FrontEndComm, _query: RunsRequest, request: str | None) -> Sequence[Any]:
    from tpu_magics.panel.run_lines import run_line
    from tpu_magics.runs.reader import newest_runs

    return [RunsMessage(tuple(map(run_line, newest_runs(MOST_RUNS)[0])), request)]


def _compare(_wire: FrontEndComm, query: CompareRequest, request: str | None) -> Sequence[Any]:
    from tpu_magics.panel.compared import compare
    from tpu_magics.runs.reader import find_run

    runs = [find_run(name) for name in query.runs]
    return [ComparedMessage(tuple(run.id for run in runs), compare(runs), request)]


def _stop(wire: FrontEndComm, query: StopRequest, request: str | None) -> Sequence[Any]:
    run = wire.lab.following()
    if run is None or run.files.id != query.run:
        why = "This kernel has no run of that name." if run is None else f"The run of this kernel is {run.files.id}."
        raise TpuMagicsError(f"This kernel cannot stop the run {query.run!r}.", why, "Reload the page.")
    if not run.goes_on:
        raise TpuMagicsError(f"The run {query.run!r} has ended already.", "", "")
    run.stop()
    return [StoppingMessage(query.run, request)]


# -- rules -----------------------------------------------------------------------------------------------------------


def _check(_wire: FrontEndComm, query: CheckRequest, request: str | None) -> Sequence[Any]:
    from tpu_magics.panel.page_problems import problem_of

    findings, checked = check_notebook(query.cells)
    return [FindingsMessage(tuple(map(problem_of, findings[:MOST_FINDINGS])), checked, request)]


def check_notebook(given: Sequence[CheckedCell]) -> tuple[list[RuleFinding], str]:
    """The findings of a notebook's code cells, and what was checked, in words: of a very long notebook the first
    cells."""
    from tpu_magics.check import check_with_config
    from tpu_magics.check.cells import cell_of
    from tpu_magics.launch.rule_check import rule_finding

    ends = accumulate(len(cell.source) for cell in given)
    cells = [cell for cell, end in zip(given, ends, strict=True) if end <= MOST_CODE]
    paths = [_path(cell, at) for at, cell in enumerate(cells, start=1)]
    read = [cell_of(cell.source, path, at) for at, (cell, path) in enumerate(zip(cells, paths, strict=True), start=1)]
    found = check_with_config(read)
    ids = [cells[one.cell - 1].id if one.cell else "" for one in found]
    told = [rule_finding(at, one, cell_id) for at, (one, cell_id) in enumerate(zip(found, ids, strict=True))]
    with_code, in_all = (sum(bool(cell.source.strip()) for cell in some) for some in (cells, given))
    if len(cells) < len(given):
        return told, f"the first {with_code:,} of {in_all:,} cells; %tpu_check checks all"
    return told, f"{plural(with_code, 'cell')} of the notebook"


def _path(cell: CheckedCell, at: int) -> str:
    """The name by which a person finds the cell: its number, where it has run."""
    return f"In [{cell.number}]" if cell.number is not None else f"cell {at}"


_ANSWERS: dict[type, Callable[[FrontEndComm, Any, str | None], Sequence[Any]]] = {
    HelloRequest: _hello,
    OpenRequest: _open,
    RunsRequest: _runs,
    CompareRequest: _compare,
    StopRequest: _stop,
    CheckRequest: _check,
    RateRequest: _rate,
}
