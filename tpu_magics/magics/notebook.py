"""IPython for the launcher: the notebook's names, the cells, and the outputs."""

from __future__ import annotations

import ast
import linecache
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tpu_magics.check.cells import CodeCell, cell_of
from tpu_magics.launch.notebook import FREE, TRAINS, WAITS, RunObserver
from tpu_magics.launch.request import LONGEST_READ
from tpu_magics.launch.streams import SHOWN, NoScreen, Screen
from tpu_magics.launch.train import CellSource
from tpu_magics.runs.files import RunFiles

if TYPE_CHECKING:
    from tpu_magics.magics.shell import UnrecordedCells
    from tpu_magics.panel.live import LivePanel


LINES_KEPT = 200  # lines of a background run's output that its one display shows
CHARACTERS_KEPT = 40_000  # of these
MOST_LINE_ENDS = 100  # at the end of a cell
CELL_IDS: dict[str, str] = {}  # of the cells that have run: "In [n]" -> the front end's id
UPDATE_EVERY = 0.5  # seconds between updates of that display


class ShellNotebook:
    """A running IPython shell, 7.34 or newer."""

    def __init__(self, shell: Any, unrecorded: type[UnrecordedCells] | None = None) -> None:
        self.shell = shell
        self._unrecorded = unrecorded
        self._own: dict[str, str] = {}
        self.live: LivePanel | None = None

    @property
    def namespace(self) -> dict[str, Any]:
        space: dict[str, Any] = self.shell.user_ns
        return space

    def screen(self) -> Screen:
        return ShellScreen(self.shell, self._show_live)

    def background_screen(self, title: str) -> Screen:
        if getattr(self.shell, "kernel", None) is None:
            self.say("Its output goes to its log: %tpu_logs")
            return NoScreen()
        return BackgroundScreen(title)

    def panel(self, files: RunFiles, stop: Callable[[], None], background: bool) -> RunObserver | None:
        """During a background run, the kernel's main thread is free and handles clicks itself."""
        if not self._shows_panels():
            return None
        return self._seen(files, stop, FREE if background else WAITS)

    def local_panel(self, files: RunFiles, stop: Callable[[], None]) -> RunObserver | None:
        """The main thread trains, and only that thread may look for clicks."""
        if not self._shows_panels():
            return None
        return self._seen(files, stop, TRAINS)

    def follow(self, files: RunFiles, stop: Callable[[], None], main: str) -> RunObserver | None:
        """Follow a run without a panel: the JupyterLab extension shows it by itself."""
        from tpu_magics.magics import front_ends, lab

        if lab.current is None:
            return None
        return front_ends.without_panel(self.shell.kernel, files, stop, main, self.say)

    def _seen(self, files: RunFiles, stop: Callable[[], None], main: str) -> RunObserver:
        from tpu_magics.magics import front_ends

        made = front_ends.with_panel(self.shell.kernel, files, stop, main, self.say, self._publisher(files))
        self.live = made.panel
        return made

    def _shows_panels(self) -> bool:
        from IPython.core.displaypub import CapturingDisplayPublisher

        kernel = getattr(self.shell, "kernel", None)
        return kernel is not None and not isinstance(self.shell.display_pub, CapturingDisplayPublisher)

    def _publisher(self, files: RunFiles) -> Callable[[Mapping[str, Any], bool], None]:
        transient = {"display_id": f"tpu_magics-{files.id}-{uuid.uuid4().hex[:8]}"}

        def publish(bundle: Mapping[str, Any], update: bool) -> None:
            self.shell.display_pub.publish(data=dict(bundle), metadata={}, transient=transient, update=update)

        return publish

    def show_again(self, files: RunFiles) -> bool:
        if not self.has_panel(files):
            return False
        self._show_live()
        return True

    def has_panel(self, files: RunFiles) -> bool:
        """Whether the newest panel is that of this run."""
        return self.live is not None and self.live.files.path == files.path

    def _show_live(self) -> None:
        if self.live is not None and not self.live.settled:
            self.live.show()

    def say(self, line: str) -> None:
        print(f"tpu_magics: {line}", flush=True)

    def cell_number(self) -> int:
        """The number of the cell that is running: the newest of the history.

        `execution_count` counts up before a cell runs in IPython 9.18, and after it in 7.34.
        """
        return len(self._history()) - 1 or int(self.shell.execution_count)

    def _history(self) -> Sequence[str]:
        """The cells as they were typed; the first of them is none."""
        history: Sequence[str] = getattr(self.shell.history_manager, "input_hist_raw", [""])
        return history

    def cell_names(self) -> Mapping[str, str]:
        """File names of the cells that ran -> "In [n]".

        IPython 7.34 keeps no such table, so a file's text is looked for in the history, which keeps cells without the
        line ends behind them.
        """
        history: Sequence[str] = getattr(self.shell.history_manager, "input_hist_parsed", [])
        numbers = {text.rstrip("\n"): number for number, text in enumerate(history) if number}
        longest = max(map(len, numbers), default=0) + MOST_LINE_ENDS
        cached = [(name, entry) for name, entry in list(linecache.cache.items()) if len(entry) == 4]
        texts = ((name, "".join(entry[2])) for name, entry in cached if entry[0] <= longest)
        found = ((name, numbers.get(text.rstrip("\n"))) for name, text in texts)
        return {**{name: f"In [{number}]" for name, number in found if number}, **self._own}

    def cell_ids(self) -> Mapping[str, str]:
        """JupyterLab and VS Code send a cell's id with the request to run it."""
        get_parent = getattr(self.shell, "get_parent", None)
        metadata = (get_parent() or {}).get("metadata", {}) if get_parent is not None else {}
        current = metadata.get("cellId")
        return {**CELL_IDS, **({f"In [{self.cell_number()}]": str(current)} if current else {})}

    def checked_cells(self) -> list[CodeCell]:
        """The cells so far as the rules read them; of a cell that was run again, the newest only."""
        texts = list(map(str, self._history()))
        if self._unrecorded is not None and self._unrecorded.now:
            texts += self._unrecorded.texts
        numbered = {number: text for number, text in enumerate(texts) if number and text.strip()}
        long = [number for number, text in numbered.items() if len(text) > LONGEST_READ]
        if long and self.cell_number() == long[-1]:
            size = len(numbered[long[-1]]) / 1e6
            self.say(f"The rules were not checked in In [{long[-1]}]: it is {size:.1f} MB long.")
        return newest({number: text for number, text in numbered.items() if number not in long}, self.cell_ids())

    def source(self, magic_line: str, body: str) -> CellSource:
        """The body of a cell magic as Python, known to linecache under the cell's own file name."""
        raw = self._raw_cell(magic_line, body)
        transformed = self.shell.transform_cell(body)
        blank = 0
        for line in body.splitlines():
            if line.strip():
                break
            blank += 1
        text = _lines_before(raw) + "\n" * blank + transformed
        number = self.cell_number()
        filename = self.shell.compile.cache(text, number, raw_code=raw)
        self._own[filename] = f"In [{number}]"
        return CellSource(text, filename)

    def _raw_cell(self, magic_line: str, body: str) -> str:
        last = self._history()[-1]
        return str(last) if body.strip() and body.strip() in last else f"%%tpu_train {magic_line}\n{body}"

    def expanded(self, words: Sequence[str]) -> list[str]:
        """`{name}` and `$name` in the words of a script replaced, as `%run` does."""
        return [self._expanded(word) for word in words]

    def _expanded(self, word: str) -> str:
        from IPython.utils.text import DollarFormatter

        try:
            return str(DollarFormatter().vformat(word, args=[], kwargs=self.namespace))
        except Exception:  # as IPython's own var_expand: what cannot be expanded was not meant to be
            return word


def _lines_before(raw: str) -> str:
    """The cell up to and with the magic's own line, as comments: the lines are counted, and shown in tracebacks."""
    lines: list[str] = []
    for line in raw.splitlines():
        lines.append(f"# {line}".rstrip() if line.strip() else "")
        if line.lstrip().startswith("%%tpu_train"):
            break
    else:
        lines = lines[:1]
    return "".join(f"{line}\n" for line in lines)


class ShellScreen:
    """The output of the cell that is running."""

    def __init__(self, shell: Any, show_again: Callable[[], None]) -> None:
        self.shell = shell
        self._show_again = show_again
        self._cleared = False

    def text(self, text: str) -> None:
        self._bring_back()
        sys.stdout.write(text)
        sys.stdout.flush()

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:
        self._bring_back()
        transient = {"display_id": display_id} if display_id else {}
        self.shell.display_pub.publish(data=data, metadata=metadata, transient=transient, update=update)

    def clear(self, wait: bool) -> None:
        self.shell.display_pub.clear_output(wait)
        self._cleared = True
        if not wait:
            self._bring_back()

    def newest_only(self, log: Path) -> Screen:
        if getattr(self.shell, "kernel", None) is None:
            return self  # a terminal forgets
        title = f"tpu_magics: {SHOWN / 1e6:.0f} MB of output are above; from here on the newest lines only. All: {log}"
        return BackgroundScreen(title)

    def _bring_back(self) -> None:
        """A cell's clear_output() has taken the panel away with all the rest."""
        if self._cleared:
            self._cleared = False
            self._show_again()


class BackgroundScreen:
    """One display that is updated: prints of a background run would land in whichever cell runs."""

    def __init__(self, title: str) -> None:
        from IPython.display import display

        self.lines: list[str] = []
        self.rest = ""
        self.title = title
        self.next = 0.0
        self.due: threading.Timer | None = None
        self.lock = threading.Lock()
        self.handle = display(self._bundle(), raw=True, display_id=True)

    def _bundle(self) -> dict[str, str]:
        shown = "\n".join(line for line in (*self.lines[-LINES_KEPT:], self.rest) if line)
        return {"text/plain": f"[{self.title}]\n{shown[-CHARACTERS_KEPT:]}".rstrip("\n")}

    def text(self, text: str) -> None:
        with self.lock:
            *whole, rest = (self.rest + text).split("\n")
            self.lines = [*self.lines, *(_settled(line) for line in whole[-LINES_KEPT:])][-LINES_KEPT:]
            self.rest = _settled(rest)
            self._update_soon()

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:  # noqa: ARG002
        self.text(str(data.get("text/plain", "")) + "\n")

    def clear(self, wait: bool) -> None:  # noqa: ARG002
        with self.lock:
            self.lines, self.rest = [], ""
            self._update_soon()

    def newest_only(self, log: Path) -> Screen:  # noqa: ARG002
        return self

    def _update_soon(self) -> None:
        """By a timer, so that the last words of a run are shown as well when they come soon after others."""
        if self.due is None and self.handle is not None:
            self.due = threading.Timer(max(0.0, self.next - time.monotonic()), self._update)
            self.due.daemon = True
            self.due.start()

    def _update(self) -> None:
        with self.lock:
            self.due = None
            self.next = time.monotonic() + UPDATE_EVERY
            self.handle.update(self._bundle(), raw=True)


def _settled(line: str) -> str:
    """What a terminal shows of a line in which the cursor went back (progress bars); the end of a very long one."""
    return line.rstrip("\r").rsplit("\r", 1)[-1][-CHARACTERS_KEPT:]


# -- the cells ------------------------------------------------------------------------------------------------------


ALIKE = 0.5  # of the lines of both: a cell that was changed and run again
_COMMON = ("import ", "from ", "#", "%", "!")  # lines that many cells begin with


class Shape(NamedTuple):
    """The features by which two texts are compared: their lines, the first distinctive line, the names they define,
    and whether they can have run (they parse, and are not below `%%tpu_check`)."""

    lines: frozenset[str]
    first: str
    names: frozenset[str]
    ran: bool


def newest(texts: Mapping[int, str], ids: Mapping[str, str]) -> list[CodeCell]:
    """The cells of the notebook as it is now: `In [n]`, without those that a later run has replaced.

    A front end that sends ids tells which these are; elsewhere it is a cell with the same text, or one that defines
    the same name or begins with the same line and shares more than half of its lines. What never ran is left out, but
    for the newest, which runs now: cells that do not parse, and those below `%%tpu_check`.
    """
    kept: list[int] = []
    shapes = {number: _shape(text) for number, text in texts.items()}
    alike: dict[object, list[int]] = {}  # what a cell could be recognised by -> the kept ones that have it
    for number in sorted(texts, reverse=True):
        shape = shapes[number]
        if kept and not shape.ran:
            continue
        keys = _keys(number, shape, ids)
        later = {one for key in keys for one in alike.get(key, ())}
        if any(_replaced(number, one, shapes, ids) for one in later):
            continue
        kept.append(number)
        for key in keys:
            alike.setdefault(key, []).append(number)
    return [cell_of(texts[number], f"In [{number}]") for number in reversed(kept)]


def _keys(number: int, shape: Shape, ids: Mapping[str, str]) -> list[object]:
    own = ids.get(f"In [{number}]")
    named = [("name", name) for name in shape.names]
    return [("lines", shape.lines), *named, *([("first", shape.first)] if shape.first else []), *([own] if own else [])]


def _replaced(number: int, later: int, shapes: Mapping[int, Shape], ids: Mapping[str, str]) -> bool:
    own, other = ids.get(f"In [{number}]"), ids.get(f"In [{later}]")
    if own and other:
        return own == other
    one, two = shapes[number], shapes[later]
    if one.lines == two.lines:
        return True
    shared = len(one.lines & two.lines) / max(len(one.lines), len(two.lines))
    if one.names & two.names:
        return shared >= ALIKE
    return bool(one.first) and one.first == two.first and shared > ALIKE


@lru_cache(maxsize=10_000)
def _shape(text: str) -> Shape:
    cell = cell_of(text, "In [0]")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith(_COMMON)), "")
    names = frozenset(_defined(cell.tree)) if cell.tree is not None else frozenset()
    return Shape(frozenset(lines), first, names, cell.tree is not None and cell.magic != "tpu_check")


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
