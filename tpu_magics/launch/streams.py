"""The output of a worker: everything it prints or displays ends in the run folder.

What lives here: the child's half (file descriptors, Python streams, display, tqdm, input, debuggers). What does not:
the notebook's half, which shows it (relay.py).

Existing stream objects are changed, not replaced: logging handlers, tqdm bars and the user's own variables hold them.
"""

from __future__ import annotations

import base64
import builtins
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpu_magics.launch import limits
from tpu_magics.runs.files import RunFiles

DISPLAY_LIMIT = 5 * 1024 * 1024  # bytes of one mime bundle
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"


def redirect_descriptors(log: Path) -> None:
    """Send file descriptors 1 and 2 to `log` (appending) and read nothing from 0: catches what C++ prints, too."""
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(nothing)
    os.close(target)


def reopen_descriptors(log: Path) -> None:
    """Open again those of 0, 1 and 2 that the function has closed: what the worker opens next must not get their
    numbers, and what is written to them not be lost."""
    for descriptor in (0, 1, 2):
        if not limits.is_open(descriptor):
            path, flags = (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if descriptor else (os.devnull, os.O_RDONLY)
            found = os.open(path, flags, 0o600)  # the lowest number that is free
            if found != descriptor:
                os.dup2(found, descriptor)
                os.close(found)
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

    buffer = getattr(stream, "buffer", None)  # what is written to it goes to the descriptor, when it is flushed
    try:
        stream.write = write
        stream.writelines = writelines
        stream.flush = buffer.flush if buffer is not None else lambda: None
        stream.fileno = lambda: descriptor
    except AttributeError:
        setattr(sys, "stdout" if descriptor == 1 else "stderr", os.fdopen(os.dup(descriptor), "w", buffering=1))


class Displays:
    """Rank 0's `display(...)`: each mime bundle becomes a file beside the log, announced by `announce`.

    `announce(file, display_id, update, action, wait)` writes the event; the bundle is on disk by then.
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
        """Stands for `DisplayPublisher.publish` (IPython 7.34 to 9)."""
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
        """Stands for `DisplayPublisher.clear_output`."""
        if self.keep:
            self.announce("", "", False, "clear", wait)


def _sendable(data: dict[str, Any]) -> dict[str, Any]:
    """JSON values only; a widget's view is dropped, since its model lives in a process that no front end can reach."""
    kept = {mime: value for mime, value in data.items() if mime != WIDGET_MIME}
    return {mime: base64.b64encode(v).decode() if isinstance(v, bytes) else v for mime, v in kept.items()}


def redirect_displays(displays: Displays) -> None:
    """Send IPython's displays to `displays`, and keep this process off the kernel's sockets."""
    shell = running_shell()
    if shell is None:
        return
    shell.display_pub.publish = displays.publish
    shell.display_pub.clear_output = displays.clear_output
    shell._showtraceback = _print_traceback  # meant to be overridden (IPython 7.34 to 9); a kernel's would send it
    kernel = getattr(shell, "kernel", None)
    session = getattr(kernel, "session", None)
    if session is not None:
        session.send = lambda *_args, **_kwargs: None


def _print_traceback(_kind: Any, _value: Any, lines: Any) -> None:
    """What magics such as `%%time` show of an exception that they do not pass on."""
    print("\n".join(lines), flush=True)


def running_shell() -> Any:
    """The IPython shell of this process, or None; IPython is not imported to look."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None


def text_progress_bars() -> None:
    """Make tqdm's notebook bars text bars: a worker cannot talk to widgets. Removing the class's own methods leaves
    those of `tqdm.std`, for subclasses that people hold already (`tqdm.auto`) as well."""
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
    """End `input()`, `getpass` and debuggers in a clear error: nobody could answer, and the run would hang."""
    import bdb
    import getpass

    builtins.input = _refuse("input()")
    getpass.getpass = _refuse("getpass()")
    bdb.Bdb.set_trace = _refuse("set_trace()")  # type: ignore[method-assign]
    sys.breakpointhook = _refuse("breakpoint()")


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise NoInput(f"{name} cannot be used in a worker: it runs in a process of its own that no keyboard reaches.")

    return refuse


def flush_figures() -> None:
    """Show matplotlib figures that were left open, as the end of a cell does."""
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    pyplot = sys.modules.get("matplotlib.pyplot")
    if inline is not None and pyplot is not None and "inline" in str(pyplot.get_backend()):
        inline.flush_figures()
