"""The checkpoints of a run as the notebook's process knows them: where they are, and the one to go on from."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import CheckpointPlan
from tpu_magics.checkpoints.lock import PlaceLock, acquire
from tpu_magics.checkpoints.store import CheckpointStore, OtherFormat, SavedCheckpoint, open_place
from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.runs.events import Resumed, Saved
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run

KEEP = 2
SECONDS = 300.0  # between saves
FOLDER = "resume"  # in the run folder: the files to go on from
_CLOCKS = 60.0  # seconds by which clocks may differ
_EVERY = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)|(\d+)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_every(text: str | int | None) -> tuple[float | None, int | None]:
    """Seconds or steps between saves: "5m", "90s", "1h", "200". Raises TpuMagicsError."""
    if text is None:
        return SECONDS, None
    found = _EVERY.fullmatch(str(text).strip())
    if found is None or not any(float(part) for part in (found[1], found[3]) if part):
        raise TpuMagicsError(
            f"--save-every {text} is not valid.",
            "It is a time with a unit (90s, 5m, 1h), or a number of steps.",
            "Use for example --save-every 5m, or --save-every 200.",
        )
    return (float(found[1]) * _UNITS[found[2]], None) if found[1] else (None, int(found[3]))


def checkpoint_plan(
    place: str,
    name: str,
    every: str | int | None,
    keep: int | None,
    resume: bool,
    force: bool,
    folder: Path,
    about: dict[str, Any],
    say: Callable[[str], None],
    exchange: str = "",
) -> tuple[CheckpointPlan, PlaceLock] | None:
    """How a run saves, and with `resume` the files to go on from, copied into its folder; and its lock on the place, to
    be released at its end. None if the session has no place for checkpoints. `name`: of what is trained; `about`: of
    this run, for the manifest; `exchange`: as in CheckpointPlan, whose hosts fetch the files themselves.

    Raises TpuMagicsError: the place cannot be used, or the checkpoint does not belong to this run.
    """
    seconds, steps = parse_every(every)
    if not place:
        if resume or every is not None or keep is not None:
            option = "--resume" if resume else "--save-every" if every is not None else "--keep"
            raise TpuMagicsError(
                f"{option} needs a place for checkpoints.",
                "This session has none.",
                "Choose one: %tpu_init --checkpoints FOLDER (Google Drive, /kaggle/working, gs://bucket/run1).",
            )
        return None
    keep = KEEP if keep is None else keep
    if keep < 1:
        raise TpuMagicsError(
            f"--keep {keep} is not valid.", "One checkpoint is kept at least.", "Use --keep 1 or more."
        )
    where = f"{place.rstrip('/')}/{name}"
    plan = CheckpointPlan(where, seconds, steps, keep, None, force, about, exchange)
    found = None
    try:
        store = CheckpointStore(open_place(where))
        lock = acquire(store.place, folder.name, say)
        try:
            store.place.remove_unfinished()  # of a save that was broken
            store.place.remove_boards()
            if resume:
                return _resumed_plan(store, replace(plan, token=lock.token), folder / FOLDER, say), lock
            found = store.look()
        except BaseException:
            lock.release()
            raise
    except OtherFormat as error:
        raise _other_format(where, error) from error
    except OSError as error:
        raise TpuMagicsError(
            f"The checkpoints in {where} cannot be read.",
            f"{type(error).__name__}: {error}",
            "Check the address and your access to it.",
        ) from error
    _tell_of(found, where, say)
    return replace(plan, token=lock.token), lock


def _resumed_plan(
    store: CheckpointStore, plan: CheckpointPlan, files: Path, say: Callable[[str], None]
) -> CheckpointPlan:
    """With the files of the newest checkpoint, if there is one."""
    files.mkdir(mode=0o700)
    found = store.newest(files, say)
    if plan.exchange:
        shutil.rmtree(files)
    if found is None:
        shutil.rmtree(files, ignore_errors=True)
        say(f"No checkpoint in {plan.place} yet: training starts from the beginning.")
        return plan
    about = plan.about
    _check(found[0], about)
    say(_sentence(found[0]))
    before = found[0].manifest.about.get("ranks")
    if before != about.get("ranks"):
        ranks = f"It was saved by {before} ranks, and now there are {about.get('ranks')}"
        say(f"{ranks}: the data are divided anew, so the result is not to the bit that of the unbroken run.")
    return replace(plan, resume=files, about={**about, "resumed": _resumed(found[0])})


def _other_format(where: str, error: OtherFormat) -> TpuMagicsError:
    return TpuMagicsError(
        f"The newest checkpoint in {where} cannot be read by this version of tpu-magics.",
        f"{error}.",
        "Install the version that saved it, and restart the kernel; or train from the beginning, without --resume.",
    )


def forget_files(folder: RunFolder) -> None:
    """The workers have ended: remove the copies of what they went on from."""
    shutil.rmtree(folder.path / FOLDER, ignore_errors=True)


def with_checkpoint(error: BaseException, folder: RunFolder) -> None:
    """Let the error of a run that saved tell how to go on."""
    run = Run(folder.path)
    saved = [one for one in run.events("saved", 0) if isinstance(one, Saved)]
    if not isinstance(error, TpuMagicsError):
        return
    if saved:
        error.todo = f"{error.todo} The newest checkpoint is of step {saved[-1].step:,}: --resume goes on from there."
    elif resumed := [one for one in run.events("resumed", 0) if isinstance(one, Resumed)]:
        error.todo = f"{error.todo} The newest checkpoint is of step {resumed[-1].step:,}: --resume goes on from there."
    elif run.events("start", 0):  # its steps are written now and then, so a worker that was killed may have left none
        error.todo = f"{error.todo} This run has saved no checkpoint."


def _resumed(found: SavedCheckpoint) -> dict[str, Any]:
    """The fields of the event `Resumed`."""
    manifest = found.manifest
    synced = int(manifest.about.get("synced", 0))
    ranks = int(manifest.about.get("ranks", 1))
    return {"step": manifest.step, "synced": synced, "saved": manifest.saved, "name": found.name, "ranks": ranks}


def _tell_of(found: SavedCheckpoint | None, where: str, say: Callable[[str], None]) -> None:
    """What a run without --resume leaves alone."""
    if found is not None:
        there = f"{where} has a checkpoint of step {found.manifest.step:,}, {_ago(found)}"
        say(
            f"{there}. This run starts from the beginning; with --resume it would go on from there. That one is kept "
            "until this run has saved twice."
        )


def _check(found: SavedCheckpoint, about: Mapping[str, Any]) -> None:
    """Raise TpuMagicsError for a checkpoint that no version of this run can go on from."""
    before = found.manifest.about
    for key, what in (("framework", "the framework"), ("device", "the kind of device")):
        if before.get(key) != about.get(key):
            raise TpuMagicsError(
                f"The checkpoint {found.name} was saved with another {what.removeprefix('the ')}.",
                f"It was {before.get(key)}, and here it is {about.get(key)}.",
                "Resume on a machine of the same kind, or train from the beginning, without --resume.",
            )


def _sentence(found: SavedCheckpoint) -> str:
    lost = _lost(found)
    return f"Resuming from step {found.manifest.step:,}, saved {_ago(found)}{f'; {lost}' if lost else ''}."


def _lost(found: SavedCheckpoint) -> str:
    """What the run did after the checkpoint, if its records are on this machine."""
    path = Path(str(found.manifest.about.get("path", "")))
    if not path.name or not (path / "run.json").exists():
        return ""
    run = Run(path)
    steps, synced = run.summary().steps, found.manifest.about.get("synced")
    if type(steps) is not int or type(synced) is not int or steps < synced:
        return ""
    lost, whole = steps - synced, bool(run.events("end", 0))  # one that was killed has steps that are in no record
    if not lost:
        return "its run did nothing after it" if whole else ""
    return f"{'' if whole else 'at least '}{plural(lost, 'step')} {'are' if lost > 1 else 'is'} lost after it"


def _ago(found: SavedCheckpoint) -> str:
    seconds = time.time() - found.manifest.saved
    if seconds < -_CLOCKS:
        return f"at {time.strftime('%Y-%m-%d %H:%M', time.localtime(found.manifest.saved))} by another clock"
    seconds = max(0.0, seconds)
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            return f"{plural(int(seconds / unit), name)} ago"
    return f"{seconds:.0f} s ago"
