"""In the notebook, after a run: what was changed in rank 0 is changed here, in place, all of it or nothing."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.launch.state.changes import BLOBS, STATE
from tpu_magics.launch.state.pickling import StateUnpickler
from tpu_magics.launch.state.snapshot import StateSnapshot

SHOWN = 5  # names in a line


@dataclass
class StagedChanges:
    """Changes that were read and can be made. `names`: what a cell assigned; `left`: what stays as it is here, by name,
    and why."""

    snapshot: StateSnapshot
    adapter: Any
    contents: dict[int, Any] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    random: Any = None

    @property
    def changed(self) -> list[str]:
        """The names of what is changed."""
        return list(dict.fromkeys(self.snapshot.root(number) for number in self.contents))

    def keep_what_changed_here(self) -> None:
        """After a run in the background: what was changed here meanwhile is not changed again."""
        for number in list(self.contents):
            node = self.snapshot.nodes[number]
            if node.kind is not None and node.kind.changed(node.value, node.mark):
                del self.contents[number]
                self.left[self.snapshot.path(number)] = "changed in the notebook meanwhile"
        if self.adapter.random_changes(self.snapshot.random) is not None:
            self.random = None

    def apply(self) -> Callable[[], None]:
        """Change the objects. Returns what puts all back; after a failure they are as before."""
        undo: list[Callable[[], None]] = []

        def back() -> None:
            while undo:
                undo.pop()()

        try:
            for number, content in self.contents.items():
                node = self.snapshot.nodes[number]
                assert node.kind is not None
                undo.append(node.kind.put(node.value, content))
            if self.random is not None:
                undo.append(self.adapter.set_random_state(self.random))
        except BaseException:
            back()
            raise
        return back


def stage(snapshot: StateSnapshot, adapter: Any, folder: Path) -> StagedChanges:
    """Read what rank 0 wrote. Changes nothing."""
    if not (folder / STATE).exists():
        return StagedChanges(snapshot, adapter)
    written, places, inside, (numbers, names, left, random) = pickle.loads((folder / STATE).read_bytes())
    try:
        contents, found = _load(written, places, inside, snapshot, adapter, folder)
    except Exception as error:  # a class that is not here, or an object's own code
        why = f"it could not be loaded here: {type(error).__name__}: {error}"
        left = {**left, **dict.fromkeys([*(snapshot.path(number) for number in numbers), *names], why)}
        return StagedChanges(snapshot, adapter, {}, {}, left, random)
    return StagedChanges(snapshot, adapter, contents, found, left, random)


def _load(
    written: bytes, places: Any, inside: Sequence[int], snapshot: StateSnapshot, adapter: Any, folder: Path
) -> tuple[dict[int, Any], dict[str, Any]]:
    with open(folder / BLOBS, "rb") as file:

        def blob(number: int) -> bytearray:
            start, size = places[number]
            content = bytearray(size)
            file.seek(start)
            file.readinto(content)
            return content

        buffers = [blob(number) for number in inside]
        loaded: tuple[dict[int, Any], dict[str, Any]] = StateUnpickler(
            io.BytesIO(written), snapshot, adapter, blob, buffers
        ).load()
        return loaded


def rank_differences(snapshot: StateSnapshot, sums: Sequence[Mapping[int, int] | None]) -> str:
    """A line that names what the ranks changed in different ways; "" where they did the same."""
    told = [one for one in sums if one is not None]
    numbers = {number for one in told for number in one}
    apart = [n for n in sorted(numbers) if len({one.get(n) for one in told}) > 1]
    names = list(dict.fromkeys(snapshot.root(number) for number in apart if not snapshot.nodes[number].quiet))
    if len(told) < 2 or not names:
        return ""
    ranks = "Ranks 0 and 1" if len(told) == 2 else f"The {len(told)} ranks"
    shown = ", ".join(f"`{name}`" for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{ranks} differ in {shown}{more}: here it is as on rank 0."


def unchanged_text(left: Mapping[str, str]) -> str:
    """What stays as it is, with the reasons, in one line."""
    told = [f"`{name}` ({why})" for name, why in list(left.items())[:SHOWN]]
    more = f" and {len(left) - SHOWN} more (_tpu.left)" if len(left) > SHOWN else ""
    return ", ".join(told) + more
