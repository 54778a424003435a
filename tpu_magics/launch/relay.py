"""Shows rank 0's log and displays in the notebook while they are written. streams.py writes them."""

from __future__ import annotations

import codecs
import json
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.reader import Tail

CHUNK = 1 << 20  # bytes read at once


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
                while data := log.read(CHUNK if end is None else max(0, min(CHUNK, end - self._offset))):
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
