"""The checks before a run: the rules, whose findings are written to the run folder, and the checklist before using a
TPU, the items of the transformers TPU guide, each with its evidence.

Without `--strict`, neither a finding nor an error of the checker stops the run. Evidence comes from the rules (check/),
earlier runs (runs/) and this host (host/). Without evidence an item is unknown, with the reason; it never passes only
because nothing was found.
"""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tpu_magics.check.cells import CodeCell
from tpu_magics.check.engine import walk
from tpu_magics.check.finding import Finding
from tpu_magics.check.inference.calls import LAUNCHERS
from tpu_magics.check.program import RESOLVERS, STRATEGIES, CheckedProgram
from tpu_magics.check.rule import ARGUMENTS
from tpu_magics.check.syntax import RULE_FAILED
from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.launch import session
from tpu_magics.runs import preflights
from tpu_magics.runs.events import Compile, RuleFinding, Site, Transfer
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run, own_runs_first
from tpu_magics.runs.writer import EventWriter

SHOWN = 8  # findings named in the error of --strict
KEPT = 200  # findings in a run folder


def check_code(
    function: Any, script: Path | None, strict: bool, ranks: int | None = None, argv: tuple[str, ...] = ()
) -> list[Finding]:
    """The findings in the code of the run: the script, or the cells that the function uses, without definitions that
    were replaced later. Raises TpuMagicsError if `strict` and a rule is broken.

    Args:
        function: the training function; an object without a name for plain statements.
        script: the script that runs instead of a function.
        strict: whether a broken rule stops the run.
        ranks: how many the script is trained on; None: one for each chip.
        argv: the script's arguments.
    """
    try:
        findings = _findings(function, script, ranks, argv)
    except Exception as error:  # a bug in the checker must not stop the run
        _check_failed(f"The rule check failed ({type(error).__name__}: {error}).", strict, error)
        return []
    for one in findings:
        if one.code == RULE_FAILED.code:
            _check_failed(f"{one.message} What it would have found is missing.", strict)
    findings = [one for one in findings if one.code != RULE_FAILED.code]
    broken = [one for one in findings if not one.advice]
    if strict and broken:
        raise _strict_error(broken)
    return findings


def _check_failed(what: str, strict: bool, error: Exception | None = None) -> None:
    """A bug in the checker stops a run only where its findings are required."""
    if strict:
        raise TpuMagicsError(
            f"The run was not started. {what}",
            "--strict requires the rule check.",
            "Fix the problem in the message, or train without --strict.",
        ) from error
    session.current.notebook.say(what)


def _findings(function: Any, script: Path | None, ranks: int | None, argv: tuple[str, ...]) -> list[Finding]:
    from tpu_magics.check import check_with_config
    from tpu_magics.check.cells import read_file, without_redefined
    from tpu_magics.check.reachability import reachable_findings

    if script is not None:  # it runs as a `%%tpu_train` cell does
        line = "" if ranks is None else f"-n {ranks}"
        cells = [replace(one, magic="tpu_train", magic_line=line, argv=argv) for one in read_file(script)]
        return check_with_config(cells)
    name = str(getattr(function, "__name__", ""))
    cells = without_redefined(session.current.notebook.checked_cells(), name, _cell_of(function))
    return reachable_findings(check_with_config(cells), cells, name)


def _cell_of(function: Any) -> str:
    """The cell that defines a function, as "In [n]"; "" if none does."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return session.current.notebook.cell_names().get(code.co_filename, "") if code is not None else ""


def _strict_error(broken: Sequence[Finding]) -> TpuMagicsError:
    rules = "a rule" if len(broken) == 1 else f"{len(broken)} rules"
    lines = [line for one in broken[:SHOWN] for line in _finding_lines(one)]
    if len(broken) > SHOWN:
        lines.append(f"... and {len(broken) - SHOWN} more.")
    return TpuMagicsError(
        f"The run was not started: the code breaks {rules}.",
        "With --strict a broken rule stops the run. Without it the panel lists these findings.",
        "Fix the lines below, or suppress a finding with a comment (`# noqa: CODE`). %tpu_check explains each finding.",
        lines,
    )


def _finding_lines(one: Finding) -> tuple[str, ...]:
    code = f"    {one.source.strip()}" if one.source.strip() else ""
    return tuple(filter(None, (f"{one.code} {one.place}: {one.message}", code, f"    {one.fix}")))


def record_findings(folder: RunFolder, findings: Sequence[Finding]) -> None:
    """Write the findings into the run folder."""
    if not findings:
        return
    ids = session.current.notebook.cell_ids()
    writer = EventWriter(folder.supervisor_path, 0)
    for number, one in enumerate(findings[:KEPT]):
        writer.write(rule_finding(number, one, ids.get(one.path, "")))
    writer.close()


def rule_finding(number: int, one: Finding, cell_id: str) -> RuleFinding:
    """A finding as an event. `number`: of the finding, from 0; `cell_id`: the front end's, or ""."""
    site = Site(number, one.path, one.line, "", one.source.strip()[:400], cell_id)
    from tpu_magics.check import rule_name

    name = rule_name(one.code)
    told = one.message, one.why, one.fix, one.advice, name
    return RuleFinding(round(time.time(), 3), 0, one.code, one.group, site, one.column, *told, *one.statement)


# -- the checklist ----------------------------------------------------------------------------------------------------


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
_SCOPE = ("TPU401", "TPU402", "TPU403", "TPU703")
_JIT = ("TPU701", "TPU702")


@dataclass(frozen=True)
class ChecklistItem:
    """One line of the checklist. `state`: "passed", "failed" or "unknown"; `evidence`: the reason for it."""

    question: str
    state: str
    evidence: str


@dataclass(frozen=True)
class ChecklistEvidence:
    """What the items are decided by."""

    program: CheckedProgram
    findings: Sequence[Finding]
    run: Run | None  # the newest run that trained some steps: this notebook's, else any
    causes: Mapping[str, int]  # of its recompiles
    reads: int  # source lines where it read a value within a step
    name: str = ""  # of the function to check


def checklist(cells: Sequence[CodeCell], findings: Sequence[Finding], name: str = "") -> list[ChecklistItem]:
    """All items with state and evidence. `findings`: of these cells; `name`: of the function to check."""
    program = walk(cells)
    run = _newest_trained_run()
    compiles = [event for event in run.events("compile", rank=0) if isinstance(event, Compile)] if run else []
    causes = Counter(event.cause for event in compiles if event.recompile)
    reads = sum(isinstance(event, Transfer) for event in run.events("transfer", rank=0)) if run else 0
    evidence = ChecklistEvidence(program, findings, run, causes, reads, name)
    return [item(evidence) for item in _ITEMS]


def _newest_trained_run() -> Run | None:
    """The newest run that trained a step and ended normally: of this notebook, else of any."""
    for runs in own_runs_first():
        for run in runs[:RUNS_LOOKED_AT]:
            if run.status in _TRAINED and (run.summary().steps or 0) > 0:
                return run
    return None


def _run_label(run: Run) -> str:
    """The run's name, and its owner if another notebook started it."""
    foreign = run.foreign
    return f"{run.name} ({foreign})" if foreign else run.name


# -- XLA's three rules ---------------------------------------------------------------------------------------------


def _rule(group: str, question: str) -> Callable[[ChecklistEvidence], ChecklistItem]:
    def item(evidence: ChecklistEvidence) -> ChecklistItem:
        findings = [one for one in evidence.findings if one.group == group and not one.advice]
        measured = {cause: evidence.causes[cause] for cause in _CAUSES[group] if evidence.causes.get(cause)}
        sentences = (
            [_positions(findings)] if findings else [f"No finding of the group {group} in {_cell_count(evidence)}."]
        )
        if measured and evidence.run is not None:
            causes = ", ".join(f"{cause} ({number})" for cause, number in sorted(measured.items()))
            sentences.append(f"The run {_run_label(evidence.run)} recompiled: {causes}.")
        if group == "values" and evidence.reads and evidence.run is not None:
            sentences.append(
                f"The run {_run_label(evidence.run)} read values within steps at "
                f"{plural(evidence.reads, 'source line')}."
            )
        read = group == "values" and evidence.reads > 0
        if not findings and not measured and not read and not _has_training(evidence):
            return ChecklistItem(question, UNKNOWN, NO_TRAINING)
        return ChecklistItem(question, FAILED if findings or measured or read else PASSED, " ".join(sentences))

    return item


NO_TRAINING = "No training found in the cells that have run."


def _has_training(evidence: ChecklistEvidence) -> bool:
    """Whether the code has something that the rules check: a step, a launch, a `fit` or `train`."""
    program = evidence.program
    steps = any(function.has_step or function.launched or function.runs_model for function in program.functions)
    calls = any(program.methods(method) for method in ("fit", "train", "backward", "train_on_batch"))
    return steps or calls or _has_launch(evidence)


def _cell_count(evidence: ChecklistEvidence) -> str:
    return plural(sum(cell.tree is not None and bool(cell.tree.body) for cell in evidence.program.cells), "cell")


def _positions(findings: Sequence[Finding]) -> str:
    """The first findings: rule code and position."""
    named = ", ".join(f"{one.code} at {one.place}" for one in findings[:NAMED])
    left = len(findings) - NAMED
    return f"{named}{f' and {left} more' if left > 0 else ''}."


# -- earlier runs --------------------------------------------------------------------------------------------------


def _trained_steps(evidence: ChecklistEvidence) -> ChecklistItem:
    question = "Trained some steps with XLA without a TPU"
    run = evidence.run
    if run is None:
        return ChecklistItem(
            question, UNKNOWN, "No run here has trained a step. Try some steps: %%tpu_train --steps 5."
        )
    summary = run.summary()
    device = str((run.info.get("plan") or {}).get("device") or "")
    where = "XLA:CPU" if device == "CPU" else device or "an unknown device"
    counts = [plural(summary.steps or 0, "step")]
    counts += [plural(summary.compiles, "compile")] if summary.compiles is not None else []
    counts += [plural(summary.recompiles, "recompile")] if summary.recompiles is not None else []
    when = f" ({_day(run.created)})" if run.created else ""  # several runs may have the same name
    return ChecklistItem(question, PASSED, f"The run {_run_label(run)} on {where}{when}: {', '.join(counts)}.")


def _day(t: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(t))


def _fits_in_memory(evidence: ChecklistEvidence) -> ChecklistItem:
    """By the newest preflight: of the function to check, else of one that the cells define, else of any."""
    question = "Fits in the TPU's memory"
    records = _newest_preflight(evidence)
    if not records:
        steps = (function.name for function in evidence.program.functions if function.has_step)
        hint = f"%tpu_preflight {evidence.name or next(steps, 'FUNCTION')} ... --target v5e-8"
        return ChecklistItem(question, UNKNOWN, f"Not compiled for a TPU yet. Compile it without a TPU: {hint}.")
    state = next(
        (state for state, text in _STATE_BY_STATUS.items() if any(one.status in text for one in records)), PASSED
    )
    return ChecklistItem(question, state, " ".join(map(_preflight_text, records)))


def _newest_preflight(evidence: ChecklistEvidence) -> list[preflights.Record]:
    """The records of the newest preflight, one for each target."""
    newest = preflights.newest()
    here = {evidence.name} if evidence.name else {function.name for function in evidence.program.functions}
    newest = [one for one in newest if one.function in here] or ([] if evidence.name else newest)
    return [one for one in newest if (one.function, one.t) == (newest[0].function, newest[0].t)]


# The item's state by the status of a preflight's records; the first match decides.
_STATE_BY_STATUS = {FAILED: ("too-large", "refused"), UNKNOWN: ("failed",)}
_STATUS_TEXT = {
    "fits": "fits",
    "too-large": "does not fit",
    "refused": "rejected by the TPU compiler",
    "failed": "no result",
}


def _preflight_text(one: preflights.Record) -> str:
    """ "train on v5litepod-8 (2026-10-01 14:20): fits, needs 3.10 of 15.75 GiB HBM." """
    text = _STATUS_TEXT.get(one.status, one.status)
    if one.needed is not None and one.available:
        text += f", needs {one.needed / 2**30:,.2f} of {one.available / 2**30:,.2f} GiB HBM"
    return f"{one.function} on {one.target} ({_day(one.t)}): {text}."


# -- data, models and strategy -------------------------------------------------------------------------------------


def _data_location(evidence: ChecklistEvidence) -> ChecklistItem:
    question = "Data in memory, or readable on the TPU's host"
    if evidence.program.tpu_tf:
        if evidence.program.local_tpu:
            return ChecklistItem(question, PASSED, "The TPU is on this host, which reads the files.")
        return ChecklistItem(question, UNKNOWN, "The code does not show whether the TPU is on this host.")
    if _has_launch(evidence):
        return ChecklistItem(question, PASSED, "Workers run on the same host as the notebook and read the same files.")
    return ChecklistItem(question, UNKNOWN, "No launch found in the cells, so it is unknown where the data is read.")


def _has_launch(evidence: ChecklistEvidence) -> bool:
    program = evidence.program
    magics = any(cell.magic == "tpu_train" and cell.tree is not None and cell.tree.body for cell in program.cells)
    lines = any(magic.name == "tpu_train" for cell in program.cells for magic in cell.line_magics)
    return magics or lines or bool(program.calls(*LAUNCHERS))


def _initialization(evidence: ChecklistEvidence) -> ChecklistItem:
    question = "Initialization and strategy present"
    program = evidence.program
    if program.is_tensorflows:
        return _tensorflow_initialization(question, program)
    if _has_launch(evidence):
        return ChecklistItem(question, PASSED, "A cell launches the training; the launcher initializes each worker.")
    return ChecklistItem(
        question, FAILED, "No cell launches the training: write %%tpu_train as first line of the training cell."
    )


def _tensorflow_initialization(question: str, program: CheckedProgram) -> ChecklistItem:
    wanted = {
        "TPUClusterResolver": program.calls(*RESOLVERS),
        "initialize_tpu_system": program.calls("tensorflow.tpu.experimental.initialize_tpu_system"),
        "TPUStrategy": program.calls(*STRATEGIES),
    }
    missing = [name for name, calls in wanted.items() if not calls]
    by_magic = any(magic.name == "tpu_init" for cell in program.cells for magic in cell.line_magics)
    if missing and (session.current.placed is not None or (by_magic and not program.looks_for_tpu)):
        return ChecklistItem(question, PASSED, "%tpu_init connects to the device and makes `strategy`.")
    if missing:
        return ChecklistItem(question, FAILED, f"Not found in the cells: {', '.join(missing)}.")
    return ChecklistItem(question, PASSED, f"Found in the cells: {', '.join(wanted)}.")


def _scope(evidence: ChecklistEvidence) -> ChecklistItem:
    question = "Model and data created in the right scope"
    findings = [one for one in evidence.findings if one.code in _SCOPE and not one.advice]
    if findings:
        return ChecklistItem(question, FAILED, _positions(findings))
    if not _has_training(evidence):
        return ChecklistItem(question, UNKNOWN, NO_TRAINING)
    early = session.current.fork_blockers.cells.get("runtime")
    if early:
        return ChecklistItem(question, FAILED, f"The XLA runtime was started in the notebook, in {early}.")
    return ChecklistItem(question, PASSED, f"No placement problems found in {_cell_count(evidence)}.")


def _jit(evidence: ChecklistEvidence) -> ChecklistItem:
    question = "jit_compile set correctly for a TPU"
    if not evidence.program.has_tensorflow:
        if not _has_training(evidence):
            return ChecklistItem(question, UNKNOWN, NO_TRAINING)
        return ChecklistItem(question, PASSED, "No TensorFlow in the cells; torch_xla compiles every graph anyway.")
    findings = [one for one in evidence.findings if one.code in _JIT]
    if findings:
        return ChecklistItem(question, FAILED, _positions(findings))
    if evidence.program.tpu_tf:
        return ChecklistItem(question, PASSED, "It is off, as TPUStrategy requires.")
    on = any(
        call.ctx.constant(call.ctx.argument(call.node, "jit_compile")) is True for call in evidence.program.all_calls
    )
    if on:
        return ChecklistItem(question, PASSED, "It is on, which tests XLA without a TPU. Remove it on the TPU.")
    return ChecklistItem(question, UNKNOWN, "The cells have neither a TPUStrategy nor jit_compile=True.")


def _arguments(evidence: ChecklistEvidence) -> ChecklistItem:
    question = "Launch, precision and Trainer arguments valid for a TPU"
    elsewhere = (*_SCOPE, *_JIT)
    findings = [
        one for one in evidence.findings if one.group in ARGUMENTS and one.code not in elsewhere and not one.advice
    ]
    if findings:
        return ChecklistItem(question, FAILED, _positions(findings))
    if not _has_training(evidence):
        return ChecklistItem(question, UNKNOWN, NO_TRAINING)
    return ChecklistItem(
        question, PASSED, f"No finding of the groups {', '.join(ARGUMENTS)} in {_cell_count(evidence)}."
    )


_ITEMS: tuple[Callable[[ChecklistEvidence], ChecklistItem], ...] = (
    _rule("values", "XLA rule 1: no condition on data, no value read in a step"),
    _rule("shapes", "XLA rule 2: no shape that depends on data"),
    _rule("recompiles", "XLA rule 3: few distinct shapes"),
    _trained_steps,
    _data_location,
    _initialization,
    _scope,
    _jit,
    _arguments,
    _fits_in_memory,
)
