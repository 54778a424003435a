"""`%tpu_panel`: one run, live or from its records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpu_magics.launch import run_observer, session
from tpu_magics.magics.display import show
from tpu_magics.magics.runs_commands import named_run
from tpu_magics.panel.model import SharedView
from tpu_magics.panel.run_json import to_bundle
from tpu_magics.runs.files import RunFiles


def show_run(run: str = "last") -> None:
    """Show a run: live if it runs in the background of this notebook, else from its records.

    Args:
        run: a run's name or id, the beginning or end of an id, or "last".

    Raises:
        TpuMagicsError: there is no such run.
    """
    found = named_run(run)
    if not _attached(found):
        show(bundle(found))


def _attached(run: RunFiles) -> bool:
    """Show the active run live; False where it is another run, or no live panel is possible."""
    going = session.current.active_run
    if going is None or going.folder.path != run.path or not going.options.background or going.ended:
        return False
    notebook = session.current.notebook
    if notebook.show_again(run):
        return True
    observer = run_observer.open_observer(lambda: notebook.panel(going.folder, going.request_stop, True), notebook.say)
    if isinstance(observer, run_observer.NullObserver):
        return False
    going.set_observer(observer)
    return True


def bundle(run: RunFiles) -> Mapping[str, Any]:
    """The run as text, as html and as a record, from its records as they are now."""
    return to_bundle(SharedView(run).anew())
