"""The output of a worker: everything it prints or displays is written to the run folder, and the notebook shows rank
0's meanwhile.

Existing stream objects are changed, not replaced: logging handlers, tqdm bars and user variables refer to them. What is
written here goes to the descriptor and never through `print` or `sys.stdout`: a library may have redirected these into
a display (rich does while a progress bar is shown), which would come back here.
"""

from __future__ import annotations

import base64
import builtins
import codecs
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tpu_magics.launch import process
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles, open_record, read_record
from tpu_magics.runs.reader import Tail

DISPLAY_LIMIT = 5 * 1024 * 1024  # bytes of one mime bundle
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def redirect_descriptors(log: Path) -> None:
    """Append file descriptors 1 and 2 to `log`, and read 0 from /dev/null. This includes the output of C++ code."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(nothing)
    os.close(target)


def reopen_descriptors(log: Path) -> None:
    """Reopen those of 0, 1 and 2 that the function closed, so that no other file gets their numbers and no output is
    lost."""
    for descriptor in (0, 1, 2):
        if not process.is_open(descriptor):
            path, flags = (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if descriptor else (os.devnull, os.O_RDONLY)
            opened = os.open(path, flags, 0o600)  # the lowest number that is free
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)


def redirect_python() -> None:
    """Make the existing stdout and stderr objects write to the file descriptors, unbuffered and in order."""
    for names, descriptor in ((("stdout", "__stdout__"), 1), (("stderr", "__stderr__"), 2)):
        for name in names:
            stream = getattr(sys, name, None)
            if stream is not None:
                _rewire(stream, descriptor)


def write_text(text: str | bytes, descriptor: int = 1) -> int:
    """Write all of a text to a descriptor; returns its length."""
    view = memoryview(text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text))
    while view:
        view = view[os.write(descriptor, view) :]
    return len(text)


def _rewire(stream: Any, descriptor: int) -> None:
    def write(text: str | bytes) -> int:
        return write_text(text, descriptor)

    def writelines(lines: Any) -> None:
        for line in lines:
            write(line)

    buffer = getattr(stream, "buffer", None)  # its content is written to the descriptor when flushed
    try:
        stream.write = write
        stream.writelines = writelines
        stream.flush = buffer.flush if buffer is not None else lambda: None
        stream.fileno = lambda: descriptor
    except AttributeError:
        setattr(sys, "stdout" if descriptor == 1 else "stderr", os.fdopen(os.dup(descriptor), "w", buffering=1))


class Displays:
    """Rank 0's `display(...)`: each MIME bundle is written to a file beside the log.

    `announce(file, display_id, update, action, wait)` writes the event after the file.
    """

    def __init__(self, files: RunFiles, announce: Callable[..., None], keep: bool) -> None:
        self.files = files
        self.announce = announce
        self.keep = keep
        self._count = 0
        self._lock = threading.Lock()
        self._areas: dict[str, bool] = {}  # shown ipywidgets.Outputs, each a display here: whether it was cleared

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,  # noqa: ARG002  (part of IPython's signature
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        """Replaces `DisplayPublisher.publish` (IPython 7.34 to 9)."""
        if not self.keep:
            write_text(f"{data.get('text/plain', '')}\n")
            return
        display_id = str((transient or {}).get("display_id", ""))
        area = open_area()
        if area and not display_id and self._areas.get(area, True):
            display_id, update = area, area in self._areas
            self._areas[area] = False
        elif shown := _area_in(data):
            data, display_id = {**data, "text/plain": ""}, shown
            self._areas[shown] = True
        bundle = {"data": _sendable(data), "metadata": metadata or {}}
        text = json.dumps(bundle, default=str)
        if len(text) > DISPLAY_LIMIT:
            size = f"{len(text) / 1e6:.1f} MB, the limit is {DISPLAY_LIMIT / 1e6:.1f} MB"
            plain = f"{str(data.get('text/plain', ''))[:2000]}\n[not shown: this display is {size}]"
            text = json.dumps({"data": {"text/plain": plain}, "metadata": {}})
        with self._lock:
            self._count += 1
            path = self.files.display_path(self._count)
        path.write_text(text, encoding="utf-8")
        self.announce(path.name, display_id, update, "display", False)

    def clear_output(self, wait: bool = False) -> None:
        """Replaces `DisplayPublisher.clear_output`."""
        if area := open_area():
            if area in self._areas:
                self._areas[area] = True
        elif self.keep:
            self.announce("", "", False, "clear", wait)


def _area_in(data: dict[str, Any]) -> str:
    """The id of the ipywidgets.Output that is displayed; "" for anything else."""
    number = data.get(WIDGET_MIME, {}).get("model_id", "")
    return str(number) if number and any(one.model_id == number for one in _areas()) else ""


def open_area() -> str:
    """The id of the ipywidgets.Output in whose `with` the program is; "" for none. Its `clear_output()` is meant for
    what is in it (rich's progress bars do so), not for the cell."""
    return next((str(one.model_id) for one in _areas() if one.msg_id), "")


def _areas() -> list[Any]:
    module = sys.modules.get("ipywidgets.widgets.widget_output")
    if module is None:
        return []
    all_of_them = getattr(
        sys.modules["ipywidgets.widgets.widget"], "_instances", None
    )  # ipywidgets 8; in 7 of the class
    known = module.Output.widgets if all_of_them is None else all_of_them
    return [one for one in list(known.values()) if isinstance(one, module.Output)]


def _sendable(data: dict[str, Any]) -> dict[str, Any]:
    """JSON values only; widget views are dropped, because no front end can reach a widget in a worker."""
    sendable = {mime: value for mime, value in data.items() if mime != WIDGET_MIME}
    return {mime: base64.b64encode(v).decode() if isinstance(v, bytes) else v for mime, v in sendable.items()}


def redirect_displays(displays: Displays) -> None:
    """Send IPython's displays to `displays`, and do not use the kernel's sockets in this process."""
    shell = running_shell()
    if shell is None:
        return
    shell.display_pub.publish = displays.publish
    shell.display_pub.clear_output = displays.clear_output
    shell._showtraceback = _print_traceback  # meant to be overridden (IPython 7.34 to 9); a kernel's sends it
    kernel = getattr(shell, "kernel", None)
    session = getattr(kernel, "session", None)
    if session is not None:
        session.send = lambda *_args, **_kwargs: None


def _print_traceback(_kind: Any, _value: Any, lines: Any) -> None:
    """The traceback that magics such as `%%time` show for an exception that they catch."""
    write_text("\n".join(lines) + "\n")


def running_shell() -> Any:
    """The IPython shell of this process, or None. Does not import IPython."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def text_progress_bars() -> None:
    """Turn tqdm's notebook bars into text bars: a worker cannot update widgets. Without the class's own methods those
    of `tqdm.std` are used, also by existing subclasses (`tqdm.auto`). The lock of all bars is shared by forked
    processes (tqdm 4): one that ends within a bar would keep it, and the notebook's bars would wait forever."""
    plain, notebook = sys.modules.get("tqdm.std"), sys.modules.get("tqdm.notebook")
    if plain is None:
        return
    for kind in _with_subclasses(plain.tqdm):
        if "_lock" in vars(kind):
            del kind._lock
    plain.tqdm.set_lock(threading.RLock())
    if notebook is None:
        return
    bar = notebook.tqdm_notebook
    for name in ("status_printer", "display", "colour", "__init__", "__iter__", "update", "close", "clear", "reset"):
        if name in vars(bar):
            delattr(bar, name)
    for made in list(getattr(plain.tqdm, "_instances", ())):
        if issubclass(type(made), bar):  # of an earlier cell
            made.gui, made.fp = False, sys.stderr
            made.sp, made.colour = made.status_printer(made.fp), vars(made).get("colour")


def _with_subclasses(kind: Any) -> Iterator[Any]:
    yield kind
    for one in kind.__subclasses__():
        yield from _with_subclasses(one)


class NoInput(RuntimeError):
    """input() or a debugger was called in a worker."""


def forbid_input() -> None:
    """Let `input()`, `getpass` and debuggers raise a clear error: in a worker they would wait forever."""
    import bdb
    import getpass

    builtins.input = _refuse("input()")
    getpass.getpass = _refuse("getpass()")
    bdb.Bdb.set_trace = _refuse("set_trace()")  # type: ignore[method-assign]
    sys.breakpointhook = _refuse("breakpoint()")


def exit_as_in_a_script() -> None:
    """`exit()` and `quit()` raise SystemExit. IPython's ask the shell to end, and a worker has none that would; the
    built-in ones are hidden while a cell runs."""
    autocalls = sys.modules.get("IPython.core.autocall")
    for name in ("ExitAutocall", "ZMQExitAutocall"):
        if kind := getattr(autocalls, name, None):
            kind.__call__ = lambda _self, code=None, **_: _exit(code)
    builtins.exit = builtins.quit = _exit  # type: ignore[assignment]


def _exit(code: Any = None) -> None:
    raise SystemExit(code)


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise NoInput(f"{name} cannot be used in a worker: the worker is a separate process without keyboard input.")

    return refuse


def flush_figures() -> None:
    """Show open matplotlib figures, as happens at the end of a cell."""
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    pyplot = sys.modules.get("matplotlib.pyplot")
    if inline is not None and pyplot is not None and "inline" in str(pyplot.get_backend()):
        inline.flush_figures()


# -- shown in the notebook --------------------------------------------------------------------------------------------


RELAY_CHUNK = 1 << 20  # bytes read at once
SHOWN = 2_000_000  # characters of a run's output that a notebook shows
DISPLAY_WEIGHT = 20  # a character of a display counts as so many times less: an update replaces an earlier one
LOG_MOST = 256 << 20  # bytes of a rank's log; of a longer one, the first and the last LOG_KEPT bytes are kept
LOG_KEPT = 32 << 20


def bound_log(path: Path) -> int | None:
    """Remove the middle of a very long log, and say so there. Returns its new size; None where it is not so long.

    Its writers append, so they go on at the new end."""
    try:
        size = path.lstat().st_size  # a link is not followed
        if size <= LOG_MOST:
            return None
        with path.open("r+b") as log:
            log.seek(size - LOG_KEPT)
            last = log.read(LOG_KEPT)
            log.truncate(LOG_KEPT)
        with path.open("ab") as log:
            log.write(_removed(size - 2 * LOG_KEPT).encode() + last)
            return log.tell()
    except OSError:
        return None


def _removed(size: int) -> str:
    limit = f"a log of more than {LOG_MOST >> 20} MiB is cut in its middle"
    return f"\n[tpu_magics: {size >> 20} MiB of output were removed here: {limit}]\n"


class Screen(Protocol):
    """Shows output."""

    def text(self, text: str) -> None:
        """Show printed text."""

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:
        """Show a MIME bundle."""

    def clear(self, wait: bool) -> None:
        """clear_output()."""

    def newest_only(self, log: Path) -> Screen:
        """The screen for what follows when much has been shown: a notebook's keeps the newest lines only. `log`: where
        all of it is."""


class PlainScreen:
    """Output in a terminal or a script: displays are shown as plain text."""

    def text(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:  # noqa: ARG002
        self.text(str(data.get("text/plain", "")) + "\n")

    def clear(self, wait: bool) -> None:
        pass

    def newest_only(self, log: Path) -> Screen:  # noqa: ARG002
        return self


class NoScreen:
    """Shows nothing: the output stays in the log."""

    def text(self, text: str) -> None:
        pass

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:
        pass

    def clear(self, wait: bool) -> None:
        pass

    def newest_only(self, log: Path) -> Screen:  # noqa: ARG002
        return self


@dataclass
class Relay:
    """Shows what rank 0 has written since the last call: text and displays, in order, and of very much text the newest
    lines only: a notebook keeps all that it shows, in the kernel, in the browser and in its file."""

    files: RunFiles
    screen: Screen
    _offset: int = 0
    _ended: bool = False
    _end: int | None = None
    _shown: int = 0

    def __post_init__(self) -> None:
        self._tail = Tail(self.files.events_path(0))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def pump(self) -> None:
        """Show new output. The log's size is read first, so that displays before its last byte are on the disk."""
        size = self._log_size()
        if size < self._offset:
            self._offset = 0  # a shell command with `> /dev/stderr` truncated the log
        for event in self._tail.read():
            if isinstance(event, events.Display):
                self._show_text_until(event.offset)
                self._show_display(event)
            elif isinstance(event, events.Warned):
                self.screen.text(f"tpu_magics: {event.text}\n")
            elif isinstance(event, events.End):
                self._show_text_until(event.log_end)
                self._ended, self._end = True, event.log_end
        if not self._ended:
            self._show_text_until(size)
        elif self._end is not None and self._offset < self._end:
            self._show_text_until(self._end)  # from another host it arrives in pieces

    def _log_size(self) -> int:
        try:
            return self.files.log_path(0).stat().st_size
        except OSError:  # it was removed, or something else stands in its place
            return 0

    def _show_text_until(self, end: int | None) -> None:
        try:
            log = open_record(self.files.log_path(0))
        except OSError:  # none yet, or something else in its place
            return
        with log:
            log.seek(self._offset)
            while data := log.read(RELAY_CHUNK if end is None else max(0, min(RELAY_CHUNK, end - self._offset))):
                self._offset += len(data)
                self._show(self._decoder.decode(data))

    def _show(self, text: str) -> None:
        first = text[: max(0, SHOWN - self._shown)]
        self._count(len(first))
        self.screen.text(first)
        if len(first) < len(text):
            self._count(len(text))
            self.screen.text(text[len(first) :])

    def _count(self, size: int) -> None:
        """Note how much is shown next; above the limit, the screen changes."""
        before, self._shown = self._shown, self._shown + size
        if before <= SHOWN < self._shown:
            self.screen = self.screen.newest_only(self.files.log_path(0))

    def bound_log(self) -> None:
        """Call it after `pump`: the middle of a very long log is removed."""
        size = bound_log(self.files.log_path(0))
        self._offset = self._offset if size is None else size

    def _show_display(self, event: events.Display) -> None:
        if event.action == "clear":
            self.screen.clear(event.wait)
            return
        try:
            content = read_record(self.files.path / event.file)
            bundle = json.loads(content)
        except (OSError, ValueError):
            return
        self._count(len(content) // DISPLAY_WEIGHT)
        self.screen.display(bundle.get("data", {}), bundle.get("metadata", {}), event.display_id, event.update)
