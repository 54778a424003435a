"""`%tpu_runs`, `%tpu_logs` and `%tpu_stop`: looking at runs, and stopping one.

What lives here: finding the run that is meant. What does not: reading its records (runs/), showing them (panel/).
"""

from __future__ import annotations

from collections.abc import Sequence

from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics.show import show_table
from tpu_magics.panel.runs import compare_table, plain_summary, runs_table, summary_table
from tpu_magics.panel.table import Table
from tpu_magics.runs.reader import Run, find_run, list_runs


def runs(names: Sequence[str], plain: bool = False) -> None:
    """All runs, one, or several side by side."""
    found = [find_run(name) for name in names]
    if plain:
        print("\n\n".join(plain_summary(run) for run in found or list_runs()), flush=True)
        return
    show_table(_table(found))


def _table(found: Sequence[Run]) -> Table:
    if not found:
        return runs_table(list_runs())
    return summary_table(found[0]) if len(found) == 1 else compare_table(found)


def logs(name: str, rank: int) -> None:
    """Print what a rank printed."""
    run = find_run(name)
    if rank not in run.ranks:
        raise TpuMagicsError(
            f"The run {run.name!r} has no rank {rank}.",
            f"Its ranks are {', '.join(map(str, run.ranks)) or 'none'}.",
            "Choose one of them with -r.",
        )
    print(run.log(rank) or f"(rank {rank} printed nothing)", flush=True)


def stop(name: str | None) -> None:
    """Stop the run that goes on in the background."""
    from tpu_magics.launch import session

    going = session.current.going
    if going is None:
        raise TpuMagicsError(
            "No run is going on in the background.",
            "A run in a cell is stopped with the stop button (or Ctrl-C).",
            "Look at the runs with %tpu_runs.",
        )
    if name is not None and find_run(name).id != going.folder.id:
        raise TpuMagicsError(
            f"The run {name!r} is not the one that is going on.",
            f"That is {going.folder.name!r}.",
            f"Stop it with %tpu_stop {going.folder.name}",
        )
    going.stop()
    try:
        going.come_home()
    except KeyboardInterrupt:  # that is how a stopped run ends
        print(f"tpu_magics: {going.folder.name!r} is stopped; the notebook's models are unchanged.", flush=True)
    else:
        print(f"tpu_magics: {going.folder.name!r} had ended already; its results are home.", flush=True)
