"""The end of a successful run in one line, or as plain text; failures are errors and show themselves."""

from __future__ import annotations

from collections.abc import Callable

from tpu_magics.launch.results import TrainResult
from tpu_magics.panel.findings import codes, headline, recorded_finding
from tpu_magics.panel.runs import plain_summary
from tpu_magics.panel.sections_rehearsal import rehearsal
from tpu_magics.panel.sections_words import count
from tpu_magics.runs.events import RuleFinding


def show(result: TrainResult, say: Callable[[str], None], plain: bool, panel: bool = False) -> None:
    """Say how the run ended; below a panel, only what it means for the notebook."""
    if plain:
        print(plain_summary(result.run), flush=True)
        return
    say(below_panel(result) if panel else one_line(result))
    if not panel and (rules := rules_line(result)):
        say(rules)


def rules_line(result: TrainResult) -> str:
    """The findings of the rules before the run, where no panel shows them; "" where there are none."""
    found = [recorded_finding(one) for one in result.run.events("finding") if isinstance(one, RuleFinding)]
    if not found:
        return ""
    return f"{headline(found)} in the code: {codes(found)}. %tpu_check shows where and why."


def below_panel(result: TrainResult) -> str:
    """E.g. "training_function: done; updated in the notebook: model"."""
    return f"{result.run.name}: {result.status}; {_updated(result)}"


def one_line(result: TrainResult) -> str:
    """E.g. "training_function: done, rehearsal of 8 ranks on XLA:CPU, 57 steps in 8.2 s, 4 compiles; ...".."""
    summary = result.run.summary()
    device = str(result.run.info.get("plan", {}).get("device", ""))
    kind = {"rehearsal": "rehearsal of ", "SPMD": "SPMD, "}.get(rehearsal(result.run.info), "")
    parts = [f"{kind}{count(len(summary.ranks), 'rank')} on {'XLA:CPU' if device == 'CPU' else device}"]
    if summary.steps is not None:
        parts.append(f"{count(summary.steps, 'step')} in {summary.seconds or 0:.1f} s")
    if summary.compiles is not None:
        parts.append(count(summary.compiles, "compile"))
    return f"{summary.name}: {summary.status}, {', '.join(parts)}; {_updated(result)}"


def _updated(result: TrainResult) -> str:
    if result.status == "stopped":
        return "--steps was reached, the notebook's models are unchanged"
    names = result.run.summary().models
    return f"updated in the notebook: {', '.join(names)}" if names else "no model to update"
