"""The checklist before asking for a TPU.

What lives here: its items, and the evidence for each: what the rules found in the code (check/), what was measured in
earlier runs (runs/), and what this host is (host/). What does not: how it looks (panel/checklist.py). An item without
evidence is unknown, with the reason; it is never passed for want of a finding elsewhere. The items are those of the
transformers TPU guide.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tpu_magics.check.cells import Cell
from tpu_magics.check.engine import walk
from tpu_magics.check.finding import Finding
from tpu_magics.check.marks import LAUNCHERS
from tpu_magics.check.program import RESOLVERS, STRATEGIES, Program
from tpu_magics.launch import session
from tpu_magics.runs import preflights
from tpu_magics.runs.events import Compile, Transfer
from tpu_magics.runs.reader import Run, own_runs_first

PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"
NAMED = 3  # places named in an item's evidence
RUNS_LOOKED_AT = 50

# Causes of recompiles (as the records name them) that break each of XLA's rules.
_CAUSES = {
    "values": ("data-branch", "early-read"),
    "shapes": ("data-shape",),
    "recompiles": ("input-shape", "last-batch", "python-number", "live-tensors"),
}
_TRAINED = ("done", "stopped")
_REMOTE = ("TPU704", "TPU705", "TPU706")
_SCOPE = ("TPU401", "TPU402", "TPU403", "TPU703")
_JIT = ("TPU701", "TPU702")


@dataclass(frozen=True)
class Item:
    """One line of the checklist. `state`: "passed", "failed" or "unknown"; `evidence`: what that rests on."""

    question: str
    state: str
    evidence: str


@dataclass(frozen=True)
class Known:
    """What there is to go by."""

    program: Program
    findings: Sequence[Finding]
    run: Run | None  # the newest that trained some steps: this notebook's, else any
    causes: Mapping[str, int]  # of its recompiles
    reads: int  # places where it read a value in the middle of a step
    name: str = ""  # of the function that it is about


def checklist(cells: Sequence[Cell], findings: Sequence[Finding], name: str = "") -> list[Item]:
    """Each item with its state and evidence. `findings`: of these cells; `name`: of the function that it is about."""
    program = walk(cells)
    run = _trained_at_home()
    compiles = [event for event in run.events("compile", rank=0) if isinstance(event, Compile)] if run else []
    causes = Counter(event.cause for event in compiles if event.recompile)
    reads = sum(isinstance(event, Transfer) for event in run.events("transfer", rank=0)) if run else 0
    known = Known(program, findings, run, causes, reads, name)
    return [item(known) for item in _ITEMS]


def _trained_at_home() -> Run | None:
    """The newest run that made a step and came to its end: of this notebook's, else of the others'."""
    for runs in own_runs_first():
        for run in runs[:RUNS_LOOKED_AT]:
            if run.status in _TRAINED and (run.summary().steps or 0) > 0:
                return run
    return None


def _called(run: Run) -> str:
    """Its name, and whose it is where this notebook did not make it."""
    foreign = run.foreign
    return f"{run.name} ({foreign})" if foreign else run.name


# -- the three rules -----------------------------------------------------------------------------------------------


def _rule(group: str, question: str) -> Callable[[Known], Item]:
    def item(known: Known) -> Item:
        found = [one for one in known.findings if one.group == group and not one.advice]
        measured = {cause: known.causes[cause] for cause in _CAUSES[group] if known.causes.get(cause)}
        said = [_places(found)] if found else [f"No rule of the group {group} is broken in {_cells(known)}."]
        if measured and known.run is not None:
            causes = ", ".join(f"{cause} ({number})" for cause, number in sorted(measured.items()))
            said.append(f"The run {_called(known.run)} recompiled: {causes}.")
        if group == "values" and known.reads and known.run is not None:
            said.append(
                f"The run {_called(known.run)} read values in the middle of steps at {_many(known.reads, 'place')}."
            )
        read = group == "values" and known.reads > 0
        if not found and not measured and not read and not _has_training(known):
            return Item(question, UNKNOWN, NO_TRAINING)
        return Item(question, FAILED if found or measured or read else PASSED, " ".join(said))

    return item


NO_TRAINING = "No training was found in the cells that have run."


def _has_training(known: Known) -> bool:
    """Whether there is something that the rules could have spoken about: a step, a launch, a `fit` or `train`."""
    program = known.program
    steps = any(function.has_step or function.launched or function.runs_model for function in program.functions)
    calls = any(program.methods(method) for method in ("fit", "train", "backward", "train_on_batch"))
    return steps or calls or _launch_is_there(known)


def _cells(known: Known) -> str:
    return _many(sum(cell.tree is not None and bool(cell.tree.body) for cell in known.program.cells), "cell")


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _places(found: Sequence[Finding]) -> str:
    """The first findings by code and place."""
    named = ", ".join(f"{one.code} at {one.place}" for one in found[:NAMED])
    left = len(found) - NAMED
    return f"{named}{f' and {left} more' if left > 0 else ''}."


# -- what was tried ------------------------------------------------------------------------------------------------


def _tried(known: Known) -> Item:
    question = "Trained some steps with XLA at home"
    run = known.run
    if run is None:
        return Item(question, UNKNOWN, "No run here has trained a step to its end: %%tpu_train --steps 5 tries some.")
    summary = run.summary()
    device = str((run.info.get("plan") or {}).get("device") or "")
    where = "XLA:CPU" if device == "CPU" else device or "a device that its record does not name"
    counts = [_many(summary.steps or 0, "step")]
    counts += [_many(summary.compiles, "compile")] if summary.compiles is not None else []
    counts += [_many(summary.recompiles, "recompile")] if summary.recompiles is not None else []
    return Item(question, PASSED, f"The run {_called(run)} on {where}{_when(run)}: {', '.join(counts)}.")


def _when(run: Run) -> str:
    """There may be several of its name: the time tells which it is."""
    return f" ({_day(run.created)})" if run.created else ""


def _day(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(t))


def _fits(known: Known) -> Item:
    """By the newest preflight: of the function that it is about, else of one that the cells define, else of any."""
    question = "Fits into the TPU's memory"
    found = _preflighted(known)
    if not found:
        steps = (function.name for function in known.program.functions if function.has_step)
        hint = f"%tpu_preflight {known.name or next(steps, 'FUNCTION')} ... --target v5e-8"
        return Item(question, UNKNOWN, f"No compilation for a TPU is on record: {hint} makes one, without a TPU.")
    state = next((state for state, says in _ANSWERS.items() if any(one.status in says for one in found)), PASSED)
    return Item(question, state, " ".join(map(_answer, found)))


def _preflighted(known: Known) -> list[preflights.Record]:
    """What the newest preflight found, for each TPU that it was for."""
    found = preflights.newest()
    here = {known.name} if known.name else {function.name for function in known.program.functions}
    found = [one for one in found if one.function in here] or ([] if known.name else found)
    return [one for one in found if (one.function, one.t) == (found[0].function, found[0].t)]


# What a preflight's records say of the item, the first that holds.
_ANSWERS = {FAILED: ("too-large", "refused"), UNKNOWN: ("failed",)}
_SAYS = {"fits": "fits", "too-large": "does not fit", "refused": "is refused by its compiler", "failed": "no answer"}


def _answer(one: preflights.Record) -> str:
    """ "train on v5litepod-8 (2026-10-01 14:20): fits, needs 3.10 of 15.75 GiB of HBM." """
    says = _SAYS.get(one.status, one.status)
    if one.needed is not None and one.available:
        says += f", needs {one.needed / 2**30:,.2f} of {one.available / 2**30:,.2f} GiB of HBM"
    return f"{one.function} on {one.target} ({_day(one.t)}): {says}."


# -- where data, models and strategy are ---------------------------------------------------------------------------


def _data(known: Known) -> Item:
    question = "Data in memory, or readable from where the TPU is"
    found = [one for one in known.findings if one.code in _REMOTE]
    if found:
        return Item(question, FAILED, _places(found))
    if known.program.tpu_tf:
        if known.program.remote_tpu is False:
            return Item(question, PASSED, 'The resolver says "local": the TPU\'s host reads files and runs Python.')
        return Item(question, UNKNOWN, "The code does not tell whether the TPU is on this host or a remote one.")
    if _launch_is_there(known):
        return Item(question, PASSED, "Workers are forked on the TPU's own host and read what the notebook reads.")
    return Item(question, UNKNOWN, "No launch was found in the cells, so it is not known where the data is read.")


def _launch_is_there(known: Known) -> bool:
    program = known.program
    magics = any(cell.magic == "tpu_train" and cell.tree is not None and cell.tree.body for cell in program.cells)
    lines = any(magic.name == "tpu_train" for cell in program.cells for magic in cell.line_magics)
    return magics or lines or bool(program.calls(*LAUNCHERS))


def _in_place(known: Known) -> Item:
    question = "Initialisation and strategy in place"
    program = known.program
    if program.tpu_tf or (program.uses("tensorflow") and not program.uses("torch")):
        return _tensorflow_in_place(question, program)
    if _launch_is_there(known):
        return Item(question, PASSED, "A cell launches the training; the launcher initialises each worker.")
    return Item(question, FAILED, "No cell launches the training: put %%tpu_train on top of the training cell.")


def _tensorflow_in_place(question: str, program: Program) -> Item:
    wanted = {
        "TPUClusterResolver": program.calls(*RESOLVERS),
        "initialize_tpu_system": program.calls("tensorflow.tpu.experimental.initialize_tpu_system"),
        "TPUStrategy": program.calls(*STRATEGIES),
    }
    missing = [name for name, calls in wanted.items() if not calls]
    if missing:
        return Item(question, FAILED, f"Not found in the cells: {', '.join(missing)}.")
    return Item(question, PASSED, f"Found in the cells: {', '.join(wanted)}.")


def _scope(known: Known) -> Item:
    question = "Model and data created in the right scope or place"
    found = [one for one in known.findings if one.code in _SCOPE and not one.advice]
    if found:
        return Item(question, FAILED, _places(found))
    if not _has_training(known):
        return Item(question, UNKNOWN, NO_TRAINING)
    early = session.current.marks.cells.get("runtime")
    if early:
        return Item(question, FAILED, f"The XLA runtime was started in the notebook, in {early}.")
    return Item(question, PASSED, f"Nothing stands in the wrong place in {_cells(known)}.")


def _jit(known: Known) -> Item:
    question = "jit_compile as it has to be there"
    if not known.program.uses("tensorflow") and not known.program.uses("keras"):
        if not _has_training(known):
            return Item(question, UNKNOWN, NO_TRAINING)
        return Item(question, PASSED, "No TensorFlow in the cells; torch_xla compiles every graph by itself.")
    found = [one for one in known.findings if one.code in _JIT]
    if found:
        return Item(question, FAILED, _places(found))
    if known.program.tpu_tf:
        return Item(question, PASSED, "It is not on, as a TPUStrategy wants it.")
    on = any(call.at.constant(call.at.keyword(call.node, "jit_compile")) is True for call in known.program.all_calls)
    if on:
        return Item(question, PASSED, "It is on, so that XLA is tested at home; take it off on the TPU.")
    return Item(question, UNKNOWN, "Neither a TPUStrategy nor jit_compile=True was found in the cells.")


def _arguments(known: Known) -> Item:
    question = "Launch, precision and Trainer arguments as a TPU takes them"
    groups = ("launch", "precision", "trainer", "tensorflow")
    elsewhere = (*_REMOTE, *_SCOPE, *_JIT)
    found = [one for one in known.findings if one.group in groups and one.code not in elsewhere and not one.advice]
    if found:
        return Item(question, FAILED, _places(found))
    if not _has_training(known):
        return Item(question, UNKNOWN, NO_TRAINING)
    return Item(question, PASSED, f"No rule of the groups {', '.join(groups)} is broken in {_cells(known)}.")


_ITEMS: tuple[Callable[[Known], Item], ...] = (
    _rule("values", "XLA rule 1: no condition on data, no value read in a step"),
    _rule("shapes", "XLA rule 2: no shape that depends on data"),
    _rule("recompiles", "XLA rule 3: few distinct shapes"),
    _tried,
    _data,
    _in_place,
    _scope,
    _jit,
    _arguments,
    _fits,
)
