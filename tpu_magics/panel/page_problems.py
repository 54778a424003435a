"""What to change in a run, worst first: each problem once, with its line and its fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from tpu_magics.check import rule_why
from tpu_magics.errors import plural
from tpu_magics.panel.formats import cut, percent, place, rule_title, seconds, several, short, size
from tpu_magics.panel.page import Problem, Tone
from tpu_magics.panel.run_view import CUT_SHORT, CauseCount, Notice, RankView, RunView
from tpu_magics.runs.events import CAUSES, Compile, RuleFinding, Site, Transfer

MOST = 50
DIFFERENCES = 6
HIGH, FULL = 0.85, 0.95  # shares of a memory from which on it is a warning, and nearly gone
APART = 0.1  # of the training time: a rank that is so much busier than the next one is a straggler
_FIRST_SENTENCE = re.compile(r"(.{10,100}?)\. +(?=[A-Z`])")

# The static rules that find a cause of recompiles before the run.
RULES = {
    "input-shape": ("TPU301", "TPU409"),
    "last-batch": ("TPU302", "TPU306", "TPU606"),
    "data-shape": ("TPU201", "TPU202", "TPU203", "TPU204", "TPU205"),
    "data-branch": ("TPU101", "TPU104"),
    "python-number": ("TPU303",),
    "early-read": ("TPU102", "TPU103"),
    "live-tensors": ("TPU304", "TPU206"),
}


def cause_name(graph: Compile) -> str:
    """Why it was compiled, in a few words."""
    if not graph.recompile:
        return "first compile"
    return CAUSES.get(graph.cause, CAUSES["unknown"])


def problems(view: RunView) -> tuple[Problem, ...]:
    """The problems that need action, the most serious first."""
    found = [one for make in _MAKERS for one in make(view)]
    ordered = sorted(found, key=lambda one: one.tone != "broken")
    return (*ordered[:MOST], *_left(len(ordered) - MOST))


def notes(view: RunView) -> tuple[Problem, ...]:
    """What is good to know and needs no action. The advice of rules is in %tpu_check."""
    found = [_message(one, view) for one in view.notices if not one.state]
    return (*found[:MOST], *_left(len(found) - MOST))


def _left(more: int) -> Iterator[Problem]:
    if more > 0:
        yield Problem("more", "message", "info", f"{more:,} more", "%tpu_check lists the findings of all rules.")


# -- what makes a problem --------------------------------------------------------------------------------------------


def _divergences(view: RunView) -> Iterator[Problem]:
    for notice in view.notices:
        if notice.state == "broken":
            fix = "Look for shapes, branches or random numbers that depend on the rank."
            title, text = "Ranks compiled different graphs", cut(notice.text, 600)
            yield replace(_message(notice, view), kind="rank", title=title, text=text, fix=fix)


def _recompiles(view: RunView) -> Iterator[Problem]:
    for each in view.causes[:MOST]:
        yield _explained(_recompile(each), each.newest.cause, view, each.newest.deciding)


def _recompile(each: CauseCount) -> Problem:
    newest = each.newest
    told = [short(one, 200) for one in newest.difference if str(one) not in str(newest.text)]
    spent = f", {seconds(each.seconds)}" if each.seconds else ""
    return Problem(
        key=f"recompile {short(newest.cause, 40)} {_line(newest.site)}",
        kind="recompile",
        tone="warning",
        title=f"Recompiles: {cause_name(newest)}",
        text=short(newest.text or why(newest), 400),
        fix=short(newest.fix, 400),
        count=f"{plural(each.count, 'time')}{spent}",
        times=each.count,
        badge="recompiled" if each.count == 1 else f"recompiled {each.count:,}x",
        site=newest.site,
        differences=tuple(several_lines(told, DIFFERENCES)),
    )


def why(graph: Compile) -> str:
    """The cause of a recompile in a few words, where no sentence was recorded."""
    return ", ".join(short(each, 120) for each in graph.difference[:2]) or "The cause is unknown."


def several_lines(items: Sequence[str], most: int) -> list[str]:
    """The first of them, and how many more there are."""
    more = [f"and {len(items) - most:,} more"] if len(items) > most else []
    return [*items[:most], *more]


def _transfers(view: RunView) -> Iterator[Problem]:
    unsynced = [each.newest.site for each in view.causes if each.newest.cause == "no-sync"]
    for one in view.transfers[:MOST]:
        if one.site not in unsynced:  # the same cause, told above
            yield _explained(_transfer(one), "early-read", view)


def _transfer(one: Transfer) -> Problem:
    spent = f", {seconds(one.seconds)}" if one.seconds > 0 else ""
    return Problem(
        key=f"read {_line(one.site)}",
        kind="read",
        tone="warning",
        title="A device-to-host read splits the step",
        text=short(one.text or "The read splits the step's graph.", 300),
        fix=short(one.fix, 300),
        count=f"{plural(one.count, 'read')}{spent}",
        times=one.count,
        badge="read splits the step",
        site=one.site if one.site.code or not one.code else replace(one.site, code=short(one.code, 200)),
    )


def _fallbacks(view: RunView) -> Iterator[Problem]:
    if view.fallbacks:
        ops = [f"{short(each.op, 60)} ({each.count:,})" for each in view.fallbacks]
        text = f"XLA does not support {several(ops, 8)}. Each call waits for the device and runs on the CPU."
        fix = "Use an operation that XLA supports, or move it out of the training loop."
        yield Problem("host operations", "host", "warning", "Operations run on the host", text, fix)


def _precision(view: RunView) -> Iterator[Problem]:
    found = view.precision
    if found is not None and not found.agrees:
        text = short(found.text or "The graph's precision differs from the requested one.", 300)
        fix = "Look for code that chooses another type for the model or its inputs; %tpu_check knows the usual ones."
        yield Problem("precision", "precision", "warning", "Precision is not as requested", text, fix)


def _memories(view: RunView) -> Iterator[Problem]:
    hosts = {rank.host for rank in view.ranks if rank.host}
    used = sum(one for rank in view.ranks if (one := used_memory(rank, view.live)) is not None)
    if len(hosts) < 2 and view.memory_total:
        yield from _memory("host memory", used, view.memory_total, "of the machine")
    fullest = fullest_hbm(view)
    if fullest is not None and fullest.hbm_total:
        yield from _memory("HBM", fullest.hbm_used or 0, fullest.hbm_total, f"of rank {fullest.rank}")


def _memory(name: str, used: int, total: int, whose: str) -> Iterator[Problem]:
    share = used / total
    if share >= HIGH:
        tone: Tone = "broken" if share >= FULL else "warning"
        text = f"{size(used)} of {size(total)} {whose} are used ({percent(share)})."
        fix = "Use a smaller batch or model; %tpu_preflight --fit finds the largest batch that fits."
        yield Problem(f"memory {name}", "memory", tone, f"{name[0].upper()}{name[1:]} is almost full", text, fix)


def used_memory(rank: RankView, live: bool) -> int | None:
    """What a rank's worker takes: PSS where it is known, so that shared pages count once."""
    now, most = (rank.pss, rank.rss), (rank.peak_pss, rank.peak_rss)
    return next((value for value in (now if live else most) if value is not None), None)


def fullest_hbm(view: RunView) -> RankView | None:
    """The rank whose HBM is the fullest, None where none reports it."""
    known = [rank for rank in view.ranks if rank.hbm_used is not None]
    return max(known, key=lambda rank: (rank.hbm_used or 0) / (rank.hbm_total or 1 << 60), default=None)


def _stragglers(view: RunView) -> Iterator[Problem]:
    slow = straggler(view)
    if slow is not None:
        others = [rank.busy_share for rank in view.ranks if rank is not slow and rank.busy_share is not None]
        text = (
            f"Rank {slow.rank} spent {percent(slow.busy_share or 0.0)} of its time outside compiles and collectives, "
            f"the others at most {percent(max(others))}."
        )
        fix = f"Look for work that only rank {slow.rank} does, or for data that it reads more slowly."
        yield Problem("straggler", "rank", "warning", f"The other ranks wait for rank {slow.rank}", text, fix)


def straggler(view: RunView) -> RankView | None:
    """The rank that the others wait for, where one is clearly slower and all are well. Its compiles are not counted:
    each rank compiles the same graphs, and on few cores one after the other."""
    known = sorted((rank for rank in view.ranks if rank.busy_share is not None), key=lambda one: one.busy_share or 0.0)
    if len(known) < 2 or view.failure is not None or any(_ended_badly(rank) for rank in view.ranks):
        return None
    *_, second, first = known
    return first if (first.busy_share or 0.0) - (second.busy_share or 0.0) >= APART else None


def _ended_badly(rank: RankView) -> bool:
    return rank.state in ("failed", CUT_SHORT) or rank.exit.startswith("SIG")


def _rules(view: RunView) -> Iterator[Problem]:
    joined = list(_explaining(view))
    yield from (problem_of(one) for one in told_findings(view) if one not in joined)


def told_findings(view: RunView) -> tuple[RuleFinding, ...]:
    """The broken rules that the panel tells of, by themselves or with what they explain: not those that the run
    refuted. Advice is in %tpu_check."""
    return tuple(one for one in view.findings if not one.advice and not _refuted(one, view))


def problem_of(one: RuleFinding) -> Problem:
    """A finding of the rules."""
    name = rule_title(one.code, one.name)
    return Problem(
        key=f"rule {short(one.code, 20)} {_line(one.site)}",
        kind="rule",
        tone="info" if one.advice else "warning",
        title=name,
        text=" ".join(short(text, 400) for text in (one.message, one.why) if text),
        fix=short(one.fix, 400),
        badge=name,
        site=one.site,
    )


def _warnings(view: RunView) -> Iterator[Problem]:
    precision = view.precision.text if view.precision is not None else None
    for notice in view.notices:
        if notice.state == "warning" and notice.text != precision:
            yield _message(notice, view)


def _message(notice: Notice, view: RunView) -> Problem:
    """The text, and its ranks where these are not all. Its first sentence is the title of a long one."""
    ranks = [str(rank) for rank in notice.ranks]
    some = 0 < len(ranks) < len(view.ranks)
    whose = f" (rank{'s' if len(ranks) > 1 else ''} {several(ranks, 16)})" if some else ""
    tone: Tone = "broken" if notice.state == "broken" else "warning" if notice.state else "info"
    title, text = _sentences(cut(notice.text, 600))
    return Problem(f"message {short(notice.text, 80)}", "message", tone, title, text + whose)


def _sentences(text: str) -> tuple[str, str]:
    """The first sentence, and the others; of a single one, or where the first is long, "" and the whole."""
    first = _FIRST_SENTENCE.match(text)
    return (first[1], text[first.end() :]) if first else ("", text)


_MAKERS: tuple[Callable[[RunView], Iterable[Problem]], ...] = (
    _divergences,
    _recompiles,
    _transfers,
    _memories,
    _precision,
    _fallbacks,
    _stragglers,
    _rules,
    _warnings,
)


# -- a cause that a rule explains ------------------------------------------------------------------------------------


def _explained(one: Problem, cause: str, view: RunView, deciding: Sequence[Site] = ()) -> Problem:
    """What was measured keeps its line. A rule that found it in the same statement before the run is the same problem,
    and its fix names what stands there. `deciding`: see events.Compile."""
    rule = _rule_of(cause, one.site, view.findings, deciding)
    if rule is None:
        return one
    told = problem_of(rule)
    return replace(one, title=f"{one.title} ({told.title})", fix=told.fix or one.fix)


def _rule_of(
    cause: str, site: Site | None, findings: Sequence[RuleFinding], deciding: Sequence[Site] = ()
) -> RuleFinding | None:
    """The rule of that cause on the same line, else in the same statement; of a branch, if that is the line that
    decided."""
    codes = RULES.get(cause, ())
    near = [one for one in findings if one.code in codes and site is not None and _holds(one, site)]
    if deciding:
        near = [one for one in near if any(_holds(one, line) for line in deciding)]
    return next((one for one in near if site is not None and one.site.line == site.line), near[0] if near else None)


def _holds(one: RuleFinding, site: Site) -> bool:
    """Whether the line is of the finding's statement."""
    same = one.site.line == site.line or one.first <= site.line <= one.last
    return same and one.site.path == site.path and one.site.cell_id in ("", site.cell_id or one.site.cell_id)


def _explaining(view: RunView) -> Iterator[RuleFinding]:
    """The rules that are joined with what they explain."""
    newest = [each.newest for each in view.causes[:MOST]]
    causes = [(one.cause, one.site, one.deciding) for one in newest]
    for cause, site, deciding in (*causes, *(("early-read", one.site, ()) for one in view.transfers[:MOST])):
        rule = _rule_of(cause, site, view.findings, deciding)
        if rule is not None:
            yield rule


def _may_have_happened(cause: str, view: RunView) -> bool:
    """Whether something recompiled because of it, or nobody knows."""
    if view.recompiles is None or view.at_least:
        return True
    seen = {each.newest.cause for each in view.causes}
    if cause in _BY_INPUTS:
        return bool(seen.intersection((*_BY_INPUTS, "unknown")))
    return bool(seen.intersection((cause, *_UNEXPLAINED)) or view.transfers)


# -- rules that the run refuted --------------------------------------------------------------------------------------

_EACH_STEP = ("input-shape", "last-batch", "data-shape", "python-number", "live-tensors")
_BY_INPUTS = ("input-shape", "last-batch")  # told by the inputs alone, so that nothing else hides them
_UNEXPLAINED = ("unknown", "new-code")
_READS = (*RULES["early-read"], *RULES["data-branch"])
_ENOUGH = 3  # steps after which a rule about each step would have been seen


def _refuted(one: RuleFinding, view: RunView) -> bool:
    """Whether the run has shown that a finding does not hold for it. A run that ended early refutes nothing, and what
    it may not have executed it has not refuted."""
    if view.state != "done" or view.max_steps is not None or (view.steps or 0) < _ENOUGH:
        return False
    if causes := [cause for cause in _EACH_STEP if one.code in RULES[cause]]:
        return not any(map(partial(_may_have_happened, view=view), causes))
    if one.code in _READS:
        return any(_holds(one, read.site) for read in view.reads)  # those that split a step are transfers
    alone = len(view.ranks) == 1
    return (one.code == "TPU405" and (alone or one.why == rule_why(one.code))) or (one.code == "TPU401" and alone)


def _line(site: Site) -> str:
    return f"{short(site.cell_id or site.path, 200)}:{site.line}"


def where_text(one: Problem) -> str:
    """Its line in words, "" where it has none."""
    return place(one.site) if one.site is not None and one.site.path else ""
