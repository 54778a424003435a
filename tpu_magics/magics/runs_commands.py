"""`%tpu_runs`, `%tpu_logs` and `%tpu_stop`."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics.display import show_table
from tpu_magics.panel.runs import compare_table, more_runs, plain_summary, runs_table, summary_table
from tpu_magics.panel.table import Table
from tpu_magics.runs.files import refused_record
from tpu_magics.runs.reader import Run, find_run, newest_runs


def runs(names: Sequence[str], plain: bool = False, newest: int | None = None) -> None:
    """The newest runs (None: all), one, or several side by side."""
    found = [named_run(name) for name in names]
    if plain:
        shown, there = (found, len(found)) if found else newest_runs(newest)
        texts = (*map(plain_summary, shown), *more_runs(len(shown), there))
        print("\n\n".join(texts), flush=True)
        return
    show_table(_table(found, newest))


def _table(found: Sequence[Run], newest: int | None) -> Table:
    if not found:
        return runs_table(*newest_runs(newest))
    return summary_table(found[0]) if len(found) == 1 else compare_table(found)


def named_run(name: str) -> Run:
    """The run of this name. Prints a line where another notebook made it."""
    run = find_run(name)
    if name in ("last", run.name) and (foreign := run.foreign):
        which = "no run" if name == "last" else f"no run named {name!r}"
        print(f"tpu_magics: This notebook has made {which} here. Showing {run.id}, {foreign}.", flush=True)
    return run


def logs(name: str, rank: int) -> None:
    """Print what a rank printed."""
    run = named_run(name)
    if rank not in run.ranks:
        raise TpuMagicsError(
            f"The run {run.name!r} has no rank {rank}.",
            f"Its ranks are {', '.join(map(str, run.ranks)) or 'none'}.",
            "Choose one of them with -r.",
        )
    print(run.log(rank) or refused_record(run.log_path(rank)) or f"(rank {rank} printed nothing)", flush=True)


def stop(name: str | None) -> None:
    """Stop the run in the background."""
    from tpu_magics.launch import session

    going = session.current.active_run
    if going is None:
        raise TpuMagicsError(
            "No run is active in the background.",
            "A run in a cell is stopped with the stop button (or Ctrl-C).",
            "List the runs with %tpu_runs.",
        )
    if name is not None and find_run(name).id != going.folder.id:
        raise TpuMagicsError(
            f"The run {name!r} is not the active run.",
            f"The active run is {going.folder.name!r}.",
            f"Stop it with %tpu_stop {going.folder.name}",
        )
    going.stop()
    try:
        going.finish()
    except KeyboardInterrupt:  # that is how a stopped run ends
        print(f"tpu_magics: {going.folder.name!r} was stopped; the notebook's models are unchanged.", flush=True)
    else:
        print(f"tpu_magics: {going.folder.name!r} had ended already; its results are in the notebook.", flush=True)
