"""What front ends ask for.

What lives here: one function for each kind of request, and what is answered where it cannot be done. What does not: the
comm (lab.py), and reading a request (panel/messages.py). Each may be called in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics import lab_run
from tpu_magics.panel.messages import (
    ComparedMessage,
    ComparedRow,
    ComparedTable,
    FindingsMessage,
    ProblemMessage,
    RunMessage,
    RunsMessage,
    StoppingMessage,
)
from tpu_magics.panel.wishes import (
    CheckWish,
    CompareWish,
    HelloWish,
    OpenWish,
    RateWish,
    RunsWish,
    StopWish,
    read_wish,
    request_of,
)

if TYPE_CHECKING:
    from tpu_magics.magics.lab_wire import Wire

MOST_RUNS = 200
MOST_FINDINGS = 500


def answers(wire: Wire, data: Mapping[str, Any]) -> Sequence[Any]:
    """The messages that answer a request on a comm."""
    request = request_of(data)
    try:
        wish = read_wish(data)
        return _ANSWERS[type(wish)](wire, wish, request)
    except TpuMagicsError as error:
        return [ProblemMessage(error.what, error.why, error.todo, request)]
    except Exception as fault:
        what = f"The kernel could not do what was asked for: {type(fault).__name__}: {fault}"[:1_000]
        why = "That is a fault of tpu_magics, not of your code; nothing was changed."
        return [ProblemMessage(what, why, "Please report it.", request)]


def _hello(wire: Wire, _wish: HelloWish, _request: str | None) -> Sequence[Any]:
    return [wire.lab.hello()]


def _rate(wire: Wire, wish: RateWish, _request: str | None) -> Sequence[Any]:
    wire.ask_rate(wish.seconds)
    return []


# -- runs ------------------------------------------------------------------------------------------------------------


def _open(_wire: Wire, wish: OpenWish, request: str | None) -> Sequence[Any]:
    newest = lab_run.following()
    if newest is not None and wish.run in ("current", newest.files.id):
        return [newest.whole(request) or _recorded(newest.files, request)]
    if wish.run == "current":
        raise TpuMagicsError("This kernel has not trained anything yet.", "", "Train something with %%tpu_train.")
    from tpu_magics.runs.reader import find_run

    return [_recorded(find_run(wish.run), request)]


def _recorded(run: Any, request: str | None) -> RunMessage:
    """A run as its folder tells it."""
    from tpu_magics.panel.portable import record
    from tpu_magics.panel.reading import Reading

    return RunMessage(0, record(Reading(run).anew()), request)


def _runs(_wire: Wire, _wish: RunsWish, request: str | None) -> Sequence[Any]:
    from tpu_magics.panel.run_lines import run_line
    from tpu_magics.runs.reader import newest_runs

    return [RunsMessage(tuple(map(run_line, newest_runs(MOST_RUNS)[0])), request)]


def _compare(_wire: Wire, wish: CompareWish, request: str | None) -> Sequence[Any]:
    from tpu_magics.panel.runs import compare_table
    from tpu_magics.runs.reader import find_run

    runs = [find_run(name) for name in wish.runs]
    table = compare_table(runs)
    rows = tuple(ComparedRow(row.cells, row.state) for row in table.rows)
    told = ComparedTable(table.title, table.columns, rows, table.notes)
    return [ComparedMessage(tuple(run.id for run in runs), told, request)]


def _stop(_wire: Wire, wish: StopWish, request: str | None) -> Sequence[Any]:
    run = lab_run.following()
    if run is None or run.files.id != wish.run:
        why = "This kernel follows no run of that name." if run is None else f"This kernel follows {run.files.id}."
        raise TpuMagicsError(f"The run {wish.run!r} is not one that this kernel can stop.", why, "Reload the page.")
    if not run.goes_on:
        raise TpuMagicsError(f"The run {wish.run!r} has ended already.", "", "")
    run.stop()
    return [StoppingMessage(wish.run, request)]


# -- rules -----------------------------------------------------------------------------------------------------------


def _check(_wire: Wire, wish: CheckWish, request: str | None) -> Sequence[Any]:
    from tpu_magics.magics.lab_check import check_notebook

    findings, checked = check_notebook(wish.cells)
    return [FindingsMessage(tuple(findings[:MOST_FINDINGS]), checked, request)]


_ANSWERS: dict[type, Callable[[Wire, Any, str | None], Sequence[Any]]] = {
    HelloWish: _hello,
    OpenWish: _open,
    RunsWish: _runs,
    CompareWish: _compare,
    StopWish: _stop,
    CheckWish: _check,
    RateWish: _rate,
}
