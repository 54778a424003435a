"""The profile of a preflight: the time of a step by kind, module and line, its largest operations, and its memory.

Each time stands beside its bound. Bars and the timeline repeat what the tables say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from tpu_magics.backends.lowered import BACKWARD, EAGER, FORWARD, OPTIMIZER, PHASES, RECOMPUTE
from tpu_magics.errors import plural
from tpu_magics.panel import preflight_words as words
from tpu_magics.panel import table as plain
from tpu_magics.panel.formats import NOT_AVAILABLE, not_available, percent, seconds, short, size
from tpu_magics.panel.html_parts import AMBER, BLUE, GREEN, GREY, RED, SMALL, VIOLET, say, small, title
from tpu_magics.panel.page import Problem
from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.compile_result import (
    COLLECTIVE,
    COPY,
    ELEMENTWISE,
    GATHER,
    KERNEL,
    MATMUL,
    PREFETCH,
    RANDOM,
    REDUCE,
    SCATTER,
    SORT,
)
from tpu_magics.preflight.profile import ModuleTree, Profile, ProfiledOp, ProfileGroup
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.runs.events import Site

TEAL, PINK = "#0f766e", "#bf3989"
COLOURS = {
    MATMUL: BLUE,
    KERNEL: BLUE,
    ELEMENTWISE: VIOLET,
    REDUCE: GREEN,
    COPY: AMBER,
    COLLECTIVE: RED,
    GATHER: TEAL,
    SCATTER: TEAL,
    SORT: TEAL,
    RANDOM: PINK,
    PREFETCH: GREY,
    EAGER: GREY,
    FORWARD: BLUE,
    BACKWARD: VIOLET,
    RECOMPUTE: AMBER,
    OPTIMIZER: GREEN,
}
KINDS = {
    MATMUL: "matmuls and convolutions",
    KERNEL: "kernels",
    ELEMENTWISE: "elementwise",
    REDUCE: "reductions",
    COPY: "copies and changes of layout",
    COLLECTIVE: "transfers between chips",
    GATHER: "gathers",
    SCATTER: "scatters",
    SORT: "sorts",
    RANDOM: "random numbers",
    PREFETCH: "copies beside other operations",
    EAGER: "operations outside of torch.compile",
}
SINGULAR = {
    COLLECTIVE: "transfer between chips",
    GATHER: "gather",
    SCATTER: "scatter",
    SORT: "sort",
    RANDOM: "random draw",
    KERNEL: "kernel",
    EAGER: "group of operations outside of torch.compile",
}
TITLE = "Profile of a step"
HEADS = ("", "operations", "estimate", "of the estimate", "at least")
MODULES, LINES, OPS, HELD = 24, 12, 10, 12
NOTE = (
    "Estimate: the cycles that the TPU compiler reckons with, at the chip's clock. At least: FLOPs at the peak, bytes "
    "at the bandwidth of HBM and of the links. Neither was measured on a TPU, and a step takes longer than both; "
    "docs/profile.md compares them with published step times."
)
_SHORTEST = 1e-8  # seconds: a bound below says nothing
HELD_KINDS = {
    "argument": "arguments",
    "temporary": "temporaries",
    "output": "outputs",
    "constant": "constants",
}
_WORTH = 0.01  # of the estimate: smaller modules are not shown as text


def has_profile(found: Preflight) -> bool:
    """Whether any target has operations to show."""
    return any(one.profile.ops for one in found.results)


def summary(one: TargetResult) -> str:
    """ "compiler's estimate 6.31 ms: matmul 43 %, reduce 26 %, ..."."""
    found = one.profile
    if found.seconds is None:
        return not_available(found.missing)
    parts = (f"{group.name} {percent(found.share(group.seconds))}" for group in found.kinds if group.seconds)
    return f"compiler's estimate {seconds(found.seconds)}: {', '.join(parts)}"


def pair(one: TargetResult) -> str:
    """Both figures in a sentence: "At least 1.99 ms; compiler's estimate 6.31 ms."."""
    found = one.profile
    bound = max(found.least, one.least or 0.0)
    least = f"{'At least' if one.roofline.least else 'About'} {seconds(bound)}"
    if found.seconds is None:
        return f"{least}; compiler's estimate {not_available(found.missing)}."
    return f"{least}; compiler's estimate {seconds(found.seconds)}. {unknown(found)}".strip()


def unknown(found: Profile) -> str:
    """What the estimate leaves out: irregular operations and transfers by their names, the others by their number."""
    groups = {group.name: group.unknown for group in found.kinds if group.unknown}
    told = [
        f"{len(ops):,} {SINGULAR[name] if len(ops) == 1 else KINDS[name]}"
        for name, ops in groups.items()
        if name in SINGULAR
    ]
    rest = sum(len(ops) for name, ops in groups.items() if name not in SINGULAR)
    if rest:
        told.append(f"{plural(rest, 'other operation')}" if told else plural(rest, "operation"))
    least = sum(one.exposed for ops in groups.values() for one in ops)
    return f"Not estimated, and not in it: {', '.join(told)} (at least {seconds(least)})." if told else ""


# -- tables -----------------------------------------------------------------------------------------------------------


def kinds_table(found: Profile) -> Table:
    rows = tuple(Row((KINDS.get(group.name, group.name), *_figures(found, group))) for group in found.kinds)
    return Table("", ("kind", *HEADS[1:]), rows)


def _figures(found: Profile, group: ProfileGroup) -> tuple[str, str, str, str]:
    estimated = [one for one in group.ops if one.seconds is not None]
    some = f"{len(estimated):,} of " if 0 < len(estimated) < len(group.ops) and group.unknown_least else ""
    shown = seconds(group.seconds) if estimated else "beside the others" if not group.unknown else NOT_AVAILABLE
    share = percent(found.share(group.seconds)) if estimated and found.seconds else ""
    return f"{some}{len(group.ops):,}", shown, share, seconds(group.least) if group.least >= _SHORTEST else "-"


def lines_table(found: Profile) -> Table:
    groups = [one for one in found.lines if one.weight]
    rows = tuple(
        Row((words.place_and_code(one.place) or "no line", *_phases(one), _share(found, one))) for one in groups[:LINES]
    )
    return Table("", ("line", *_PHASES, "of the estimate"), rows, _more(len(groups) - LINES, "line"))


def modules_table(found: Profile) -> Table:
    """The modules that take a hundredth or more, below each other."""
    every = list(_flat(found, found.modules, 0))
    rows = tuple(Row((f"{'· ' * depth}{name}", *_phases(one), _share(found, one))) for depth, name, one in every)
    shown = rows[:MODULES]
    return Table("", ("module", *_PHASES, "of the estimate"), shown, _more(len(rows) - MODULES, "module"))


def _flat(found: Profile, trees: Iterable[ModuleTree], depth: int) -> Iterator[tuple[int, str, ProfileGroup]]:
    """A module that holds only one other is one row with it."""
    for one in trees:
        name, inner = _joined(one)
        if found.share(one.group.seconds) >= _WORTH or not found.seconds:
            yield depth, name, one.group
            yield from _flat(found, inner.inside, depth + 1)


def _joined(tree: ModuleTree) -> tuple[str, ModuleTree]:
    name, inner = tree.name, tree
    while len(inner.inside) == 1 and len(inner.inside[0].group.ops) == len(inner.group.ops):
        inner = inner.inside[0]
        name = f"{name}.{inner.name}"
    return name, inner


_PHASES = (FORWARD, BACKWARD, "in all")


def _phases(one: ProfileGroup) -> tuple[str, ...]:
    parts = (one.of(FORWARD) + one.of(RECOMPUTE), one.of(BACKWARD))
    return (*(seconds(part) if part else "-" for part in parts), _time(one))


def _time(one: ProfileGroup) -> str:
    if one.seconds:
        return seconds(one.seconds)
    return f"≥ {seconds(one.unknown_least)}" if one.unknown_least else "-"


def _share(found: Profile, one: ProfileGroup) -> str:
    return percent(found.share(one.seconds)) if one.seconds and found.seconds else ""


def _brief(found: Profile, one: ProfileGroup) -> str:
    return _share(found, one).replace("less than", "<") or "-"


def _more(hidden: int, noun: str) -> tuple[str, ...]:
    return (f"and {plural(hidden, noun)} more",) if hidden > 0 else ()


def ops_table(found: Profile) -> Table:
    rows = tuple(Row(_op(one, found)) for one in found.largest(OPS))
    heads = ("operation", "shape", "estimate", "at least", "FLOPs per byte", "module and line")
    return Table("", heads, rows)


def _op(one: ProfiledOp, found: Profile) -> tuple[str, ...]:
    cost = one.cost
    runs = f", {cost.runs:,.0f} times" if cost.runs > 1 else ""
    over = f"over {found.axes(cost.transfer)}" if cost.transfer is not None else ""
    name = "\n".join(part for part in (f"{cost.kind}{runs}", over, short(cost.op, 40)) if part)
    padded = f"\n{percent(one.waste)} of it is padding" if one.waste > 0.02 else ""
    estimate = NOT_AVAILABLE if one.seconds is None else seconds(one.seconds)
    least = f"{seconds(one.least)}\n{one.bound}" if one.bound else seconds(one.least)
    where = "\n".join(part for part in (_scope(one), words.place_text(cost.place)) if part)
    intensity = f"{one.intensity:.3g}" if one.intensity is not None else "-"
    return name, f"{short(cost.shape, 90)}{padded}", estimate, least, intensity, where


def _scope(one: ProfiledOp) -> str:
    scope = one.cost.scope
    return f"{short(scope.module, 60)} ({scope.phase})" if scope.module else scope.phase


def transfers_table(found: Profile) -> Table:
    """By the axes of the mesh: bytes and time on the links, and what runs beside other operations."""
    rows = tuple(
        Row(
            (
                group.name,
                f"{len(group.ops):,}",
                words.traffic(group.bytes),
                seconds(group.least) if group.least >= _SHORTEST else "-",
                f"{group.beside:,}" if group.beside else "none",
            )
        )
        for group in found.transfers
    )
    return Table("", ("over", "transfers", "sent", "at least", "beside other operations"), rows)


def held_table(found: Profile) -> Table:
    groups = found.memory_by_module
    rows = tuple(
        Row(
            (
                one.name,
                size(one.size),
                ", ".join(f"{HELD_KINDS[kind]} {size(part)}" for kind, part in one.kinds.items()),
            )
        )
        for one in groups[:HELD]
    )
    return Table("", ("module", "HBM at the peak", "of which"), rows, _more(len(groups) - HELD, "module"))


_TABLES = (
    ("By kind", kinds_table),
    ("By module", modules_table),
    ("By line", lines_table),
    ("Largest operations", ops_table),
    ("Transfers between chips", transfers_table),
    ("Memory at its peak, by module", held_table),
)


# -- at the lines of a notebook ---------------------------------------------------------------------------------------


def line_problems(one: TargetResult, cell_ids: Mapping[str, str]) -> list[Problem]:
    """The lines that take a hundredth of the step or more. `cell_ids`: of "In [3]", the front end's."""
    found = one.profile
    groups = [group for group in found.lines if group.place is not None and found.share(group.seconds) >= _WORTH]
    return [_problem(number, group, one, cell_ids) for number, group in enumerate(groups)]


def _problem(number: int, group: ProfileGroup, one: TargetResult, cell_ids: Mapping[str, str]) -> Problem:
    place, share = group.place, percent(one.profile.share(group.seconds))
    assert place is not None
    kinds: defaultdict[str, float] = defaultdict(float)
    for op in group.ops:
        kinds[KINDS.get(op.cost.kind, op.cost.kind)] += op.seconds or 0.0
    most = sorted(kinds.items(), key=lambda item: -item[1])[:3]
    told = ", ".join(f"{name} {seconds(time)}" for name, time in most if time)
    phases = [(phase, group.of(phase)) for phase in PHASES]
    parts = ", ".join(f"{phase} {seconds(time)}" for phase, time in phases if time)
    site = Site(number, place.path, place.line, "", place.code.strip()[:400], cell_ids.get(place.path, ""))
    return Problem(
        key=f"profile {place}",
        kind="message",
        tone="info",
        title=f"{share} of a step on {one.name}, by the compiler's estimate",
        text=f"{seconds(group.seconds)}: {'; '.join(text for text in (parts, told) if text)}.",
        badge=f"{share} of the step",
        site=site,
    )


# -- plain text -------------------------------------------------------------------------------------------------------


def profile_text(found: Preflight, width: int) -> Iterator[str]:
    for one in found.results:
        if one.profile.ops:
            whose = f" for {one.name}" if len(found.results) > 1 else ""
            yield plain.to_text(Table(f"{TITLE}{whose}", None, (Row((pair(one),)),)), width)
            for name, make in _TABLES:
                made = make(one.profile)
                if made.rows:
                    yield plain.to_text(Table(name, made.columns, made.rows, made.notes), width)
    if has_profile(found):
        yield plain.to_text(Table("", None, (), (NOTE,)), width)


# -- HTML -------------------------------------------------------------------------------------------------------------

_TRACK = "rgba(128,128,128,.22)"
_BAR = f"display:flex;height:1.1em;border-radius:.3em;overflow:hidden;margin:.3em 0;background:{_TRACK}"
_SEEN = 0.01  # of a bar
_HATCHED = "repeating-linear-gradient(135deg,{0} 0 4px,transparent 4px 8px)"
_ROW = "display:flex;gap:.8em;align-items:baseline;padding:.08em 0"
_INSIDE = "margin-left:1.1em"


def profile_html(found: Preflight) -> str:
    """All of it, for each target."""
    if not has_profile(found):
        return ""
    several = len(found.results) > 1
    parts = [title(TITLE)]
    for one in found.results:
        if one.profile.ops:
            name = f"<b>{say(one.name)}</b> " if several else ""
            inside = f'<p style="margin:.2em 0">{name}{say(pair(one))}</p>{_sections(one.profile)}'
            parts.append(f"<div>{inside}</div>")
    inside = "".join([*parts, f'<p style="margin:.4em 0">{small(NOTE)}</p>'])
    return f'<div class="tpu-magics-profile">{inside}</div>'


def _sections(found: Profile) -> str:
    parts = [bar(found), timeline(found), _section("By kind", plain.to_html(kinds_table(found)), opened=True)]
    parts.append(_section("By module", tree_html(found), opened=True))
    for name, make in _TABLES[2:]:
        made = make(found)
        if made.rows:
            parts.append(_section(name, plain.to_html(made)))
    return "".join(parts)


def _section(name: str, html: str, opened: bool = False) -> str:
    state = " open" if opened else ""
    summary = f'<summary style="cursor:pointer"><b>{say(name)}</b></summary>'
    return f'<details{state} style="margin:.3em 0">{summary}<div style="{_INSIDE}">{html}</div></details>'


def bar(found: Profile) -> str:
    """The step by kind; what is not estimated is hatched, by its bound."""
    shown = [group for group in found.kinds if group.weight]
    whole = sum(group.weight for group in shown)
    if not whole:
        return ""
    parts = "".join(_part(group, whole) for group in shown)
    legend = " ".join(_key(group, whole) for group in shown if group.weight / whole > _SEEN)
    hatched = any(group.unknown_least / whole > _SEEN for group in shown)
    note = " (hatched: not estimated, by its bound)" if hatched else ""
    text = ", ".join(f"{group.name} {percent(group.weight / whole)}" for group in shown)
    drawing = f'<div role="img" aria-label="{say(text)}" style="{_BAR}">{parts}</div>'
    return f'{drawing}<div style="{SMALL}">{legend}{say(note)}</div>'


def _part(group: ProfileGroup, whole: float) -> str:
    colour, name = _colour(group.name), KINDS.get(group.name, group.name)
    return "".join(
        f'<div title="{say(name)}: {seconds(value)}" style="width:{100 * value / whole:.2f}%;background:{fill}"></div>'
        for value, fill in ((group.seconds, colour), (group.unknown_least, _HATCHED.format(colour)))
        if value
    )


def _key(group: ProfileGroup, whole: float) -> str:
    mark = f'<span aria-hidden="true" style="color:{_colour(group.name)}">■</span>'
    text = f"{KINDS.get(group.name, group.name)} {percent(group.weight / whole)}"
    return f'<span style="white-space:nowrap">{mark} {say(text)}</span>'


def _colour(name: str) -> str:
    return COLOURS.get(name, GREY)


# -- the modules as a tree --------------------------------------------------------------------------------------------

_NUMBER = "flex:0 0 5.5em;text-align:right;white-space:nowrap"
_MARK = f"display:inline-block;height:.55em;border-radius:.2em;background:{BLUE}"
_LINE = f"{_ROW};display:inline-flex;width:calc(100% - {{}}em);vertical-align:top"
_NAME = "flex:1 1 auto;min-width:8em;overflow-wrap:anywhere"
_OPEN = 0.5  # of the estimate: modules that take so much are unfolded


def tree_html(found: Profile) -> str:
    """Modules that fold: a bar and the times of each."""
    head = "".join(f'<span style="{_NUMBER}">{say(name)}</span>' for name in (*_PHASES, "share"))
    style = f"{_ROW};{SMALL};margin:0 .2em 0 1.1em"
    heading = f'<div style="{style}"><span style="flex:1 1 auto">module</span>{head}</div>'
    inside = f'<div style="min-width:31em">{heading}{"".join(_branch(found, one) for one in found.modules)}</div>'
    return f'<div style="max-width:60em;overflow-x:auto">{inside}</div>'


def _branch(found: Profile, tree: ModuleTree) -> str:
    name, inner = _joined(tree)
    one, share = tree.group, found.share(tree.group.seconds)
    cells = "".join(f'<span style="{_NUMBER}">{say(text)}</span>' for text in (*_phases(one), _brief(found, one)))
    mark = f'<span aria-hidden="true" style="{_MARK};width:{8 * share:.2f}em"></span>'
    inside = [one for one in inner.inside if one.group.weight]
    line = _LINE.format(1.3 if inside else 0.2)
    row = f'<span style="{line}"><span style="{_NAME}">{say(name)} {mark}</span>{cells}</span>'
    if not inside:
        return f'<div style="{_INSIDE}">{row}</div>'
    opened = " open" if share >= _OPEN else ""
    below = f'<div style="{_INSIDE}">{"".join(_branch(found, each) for each in inside)}</div>'
    return f'<details{opened}><summary style="cursor:pointer">{row}</summary>{below}</details>'


# -- the timeline -----------------------------------------------------------------------------------------------------

_WIDTH, _LANE, _CURVE = 1000, 16, 46
_DRAWN = (FORWARD, BACKWARD, OPTIMIZER)
TIMELINE = "The operations of a step in their order, and its memory"
_SMALLEST = 0.0015  # of the width: shorter operations are drawn with those beside them


def timeline(found: Profile) -> str:
    """The operations in their order: forward and backward, their kinds, and the memory below."""
    whole = found.whole.seconds
    if not whole:
        return ""
    lanes = (lambda one: one.cost.scope.phase or "other", lambda one: one.cost.kind)
    drawn = "".join(
        _rectangle(start, width, nth * (_LANE + 3), name, seconds(width * whole))
        for nth, name_of in enumerate(lanes)
        for start, width, name in _spans(found, name_of)
    )
    top, most = len(lanes) * (_LANE + 3), max((held for _, held in found.curve), default=0)
    height = top + (_CURVE if most else 0)
    attributes = f'viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" role="img" aria-label="{TIMELINE}"'
    style = f"display:block;width:100%;height:{height / 10:.1f}em"
    drawing = f'<svg {attributes} style="{style}">{drawn}{_curve(found, top)}</svg>'
    memory = f" Below: HBM, at most {size(most)}." if most else ""
    phases = ", ".join(f'<span aria-hidden="true" style="color:{COLOURS[name]}">■</span> {name}' for name in _DRAWN)
    first, second = f"0 to {seconds(whole)} by the estimate. First row:", f"; second row: the kinds of the bar.{memory}"
    return f'<div style="margin:.5em 0">{drawing}<div style="{SMALL}">{say(first)} {phases}{say(second)}</div></div>'


def _rectangle(start: float, width: float, top: int, name: str, time: str) -> str:
    place = f'x="{start * _WIDTH:.1f}" y="{top}" width="{max(width * _WIDTH, 0.4):.1f}" height="{_LANE}"'
    return f'<rect {place} fill="{_colour(name)}"><title>{say(name)}: {say(time)}</title></rect>'


def _spans(found: Profile, name_of: Callable[[ProfiledOp], str]) -> Iterator[tuple[float, float, str]]:
    """(start, width, name) as shares of the whole: operations of the same name beside each other are one."""
    at, start, name = 0.0, 0.0, ""
    for one in found.ops:
        share = found.share(one.seconds or 0.0)
        if not share:
            continue
        now = name_of(one)
        if now != name and at - start >= _SMALLEST:
            yield start, at - start, name
            start = at
        if now != name and (at == start or share >= at - start):
            name = now
        at += share
    if at > start:
        yield start, at - start, name


def _curve(found: Profile, top: int) -> str:
    most = max((held for _, held in found.curve), default=0)
    if not most:
        return ""
    points, before = [f"0,{top + _CURVE}"], 0.0
    for share, held in found.curve:
        level = top + _CURVE * (1 - 0.92 * held / most)
        points += [f"{share * _WIDTH:.1f},{before or level:.1f}", f"{share * _WIDTH:.1f},{level:.1f}"]
        before = level
    points += [f"{_WIDTH},{before:.1f}", f"{_WIDTH},{top + _CURVE}"]
    shape = f'points="{" ".join(points)}" fill="{GREY}" fill-opacity=".45"'
    return f"<polygon {shape}><title>HBM</title></polygon>"
