"""The output of a worker: everything it prints or displays is written to the run folder, and the notebook shows rank
0's meanwhile.

Existing stream objects are changed, not replaced: logging handlers, tqdm bars and user variables refer to them.
"""

from __future__ import annotations

import base64
import builtins
import codecs
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tpu_magics.launch import process
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles
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


def _rewire(stream: Any, descriptor: int) -> None:
    def write(text: str | bytes) -> int:
        data = text.encode("utf-8", "replace") if isinstance(text, str) else bytes(text)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        return len(text)

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
            print(data.get("text/plain", ""))
            return
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
        self.announce(path.name, str((transient or {}).get("display_id", "")), update, "display", False)

    def clear_output(self, wait: bool = False) -> None:
        """Replaces `DisplayPublisher.clear_output`."""
        if self.keep:
            self.announce("", "", False, "clear", wait)


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
    print("\n".join(lines), flush=True)


def running_shell() -> Any:
    """The IPython shell of this process, or None. Does not import IPython."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def text_progress_bars() -> None:
    """Turn tqdm's notebook bars into text bars: a worker cannot update widgets. Without the class's own methods those
    of `tqdm.std` are used, also by existing subclasses (`tqdm.auto`)."""
    notebook = sys.modules.get("tqdm.notebook")
    if notebook is None:
        return
    bar = notebook.tqdm_notebook
    for name in ("status_printer", "display", "colour", "__init__", "__iter__", "update", "close", "clear", "reset"):
        if name in vars(bar):
            delattr(bar, name)


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


class Screen(Protocol):
    """Shows output."""

    def text(self, text: str) -> None:
        """Show printed text."""

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:
        """Show a MIME bundle."""

    def clear(self, wait: bool) -> None:
        """clear_output()."""


class PlainScreen:
    """Output in a terminal or a script: displays are shown as plain text."""

    def text(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:  # noqa: ARG002
        self.text(str(data.get("text/plain", "")) + "\n")

    def clear(self, wait: bool) -> None:
        pass


class NoScreen:
    """Shows nothing: the output stays in the log."""

    def text(self, text: str) -> None:
        pass

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:
        pass

    def clear(self, wait: bool) -> None:
        pass


@dataclass
class Relay:
    """Shows what rank 0 has written since the last call: text and displays, in order."""

    files: RunFiles
    screen: Screen
    _offset: int = 0
    _ended: bool = False
    _end: int | None = None

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
        except FileNotFoundError:
            return 0

    def _show_text_until(self, end: int | None) -> None:
        try:
            with open(self.files.log_path(0), "rb") as log:
                log.seek(self._offset)
                while data := log.read(RELAY_CHUNK if end is None else max(0, min(RELAY_CHUNK, end - self._offset))):
                    self._offset += len(data)
                    self.screen.text(self._decoder.decode(data))
        except FileNotFoundError:
            pass

    def _show_display(self, event: events.Display) -> None:
        if event.action == "clear":
            self.screen.clear(event.wait)
            return
        try:
            bundle = json.loads((self.files.path / event.file).read_bytes())
        except (OSError, ValueError):
            return
        self.screen.display(bundle.get("data", {}), bundle.get("metadata", {}), event.display_id, event.update)
