"""`%tpu_runs`, `%tpu_panel`, `%tpu_logs` and `%tpu_stop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics.display import show, show_table
from tpu_magics.panel.compared import compare, compared_html, compared_text
from tpu_magics.panel.runs import more_runs, plain_summary, runs_table, summary_table
from tpu_magics.panel.table import to_text
from tpu_magics.runs.events import Saved
from tpu_magics.runs.files import RunFiles, refused_record
from tpu_magics.runs.reader import Run, find_run, newest_runs, no_such_rank


def runs(names: Sequence[str], plain: bool = False, newest: int | None = None, csv: str | None = None) -> None:
    """The newest runs (None: all), one, or several side by side. `csv`: write them to this file instead."""
    found = [named_run(name) for name in names]
    shown, there = (found, len(found)) if found else newest_runs(newest)
    if csv is not None:
        from tpu_magics.magics.runs_csv import write_csv

        write_csv(shown, csv, more_runs(len(shown), there))
    elif plain:
        print("\n\n".join((*map(plain_summary, shown), *more_runs(len(shown), there))), flush=True)
    elif len(found) > 1:
        compared = compare(found)
        show({"text/plain": to_text(compared_text(compared)), "text/html": compared_html(compared)})
    else:
        show_table(summary_table(found[0]) if found else runs_table(shown, there))


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
        raise no_such_rank(run.name, rank, run.ranks)
    text = run.log(rank) or refused_record(run.log_path(rank)) or f"(rank {rank} printed nothing)"
    print(_ends_of(text, run.log_path(rank)), flush=True)


def _ends_of(text: str, path: Path) -> str:
    """The beginning and the end of a very long text: a notebook keeps all that it shows."""
    from tpu_magics.launch.streams import SHOWN

    if len(text) <= SHOWN:
        return text
    half = SHOWN // 2
    return (
        f"{text[:half]}\n[... {(len(text) - SHOWN) / 1e6:.1f} MB are not shown; all is in {path} ...]\n{text[-half:]}"
    )


def stop(name: str | None, save: bool = False) -> None:
    """Stop the run in the background. `save`: only if it can be saved first."""
    from tpu_magics.launch import session

    todo = "Remove it. To end the training from inside the function, return from it or raise an exception."
    session.current.refuse_in_worker("%tpu_stop", todo)
    going = session.current.active_run
    if going is None or not going.options.background:
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
    if save and going.plan.checkpoints is None:
        raise TpuMagicsError(
            f"The run {going.folder.name!r} cannot be saved.",
            "It has no place for checkpoints.",
            "Stop it without --save, or choose a place before the next run: %tpu_init --checkpoints FOLDER",
        )
    going.stop()
    try:
        going.finish()
    except KeyboardInterrupt:  # that is how a stopped run ends
        saved = [one.step for one in going.result.run.events("saved", 0) if isinstance(one, Saved)]
        kept = f"; it was saved at step {saved[-1]:,}, and goes on from there with --resume" if saved else ""
        partly = going.result.run.info.get("kept")
        what = (
            f"was stopped; kept in the notebook: {partly}"
            if partly
            else "was stopped; the notebook's models are unchanged"
        )
        print(f"tpu_magics: {going.folder.name!r} {what}{kept}.", flush=True)
    else:
        print(f"tpu_magics: {going.folder.name!r} had ended already; its results are in the notebook.", flush=True)


# -- %tpu_panel -----------------------------------------------------------------------------------------------------


def show_run(run: str = "last", everything: bool = False) -> None:
    """Show a run: live if it runs in the background of this notebook, else from its records.

    Args:
        run: a run's name or id, the beginning or end of an id, or "last".
        everything: print all that is known of it as text.

    Raises:
        TpuMagicsError: there is no such run.
    """
    found = named_run(run)
    if everything:
        print(text(found), end="", flush=True)
    elif not _attached(found):
        show(bundle(found))


def _attached(run: RunFiles) -> bool:
    """Show the active run live; False where it is another run, or no live panel is possible."""
    from tpu_magics.launch import session
    from tpu_magics.launch.notebook import NullObserver, open_observer

    going = session.current.active_run
    if going is None or going.folder.path != run.path or not going.options.background or going.ended:
        return False
    if session.current.in_worker:
        return False
    notebook = session.current.notebook
    if notebook.show_again(run):
        return True
    observer = open_observer(lambda: notebook.panel(going.folder, going.request_stop, True), notebook.say)
    if isinstance(observer, NullObserver):
        return False
    going.set_observer(observer)
    return True


def text(run: RunFiles) -> str:
    """All that is known of the run, from its records as they are now."""
    from tpu_magics.panel.page_of_run import page
    from tpu_magics.panel.run_state import SharedView
    from tpu_magics.panel.text import to_text

    return to_text(page(SharedView(run).anew()), everything=True)


def bundle(run: RunFiles) -> Mapping[str, Any]:
    """The run as text, as html and as a record, from its records as they are now."""
    from tpu_magics.panel.run_json import to_bundle
    from tpu_magics.panel.run_state import SharedView

    return to_bundle(SharedView(run).anew())
