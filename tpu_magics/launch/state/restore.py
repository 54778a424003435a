"""In the notebook, after a run: applies rank 0's changes in place, all of them or none."""

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

SHOWN = 5  # names in one line


@dataclass
class StagedChanges:
    """Changes that were read but not yet applied. `names`: what a cell assigned; `left`: what is not updated, by name,
    with the reason."""

    snapshot: StateSnapshot
    adapter: Any
    contents: dict[int, Any] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    random: Any = None

    @property
    def changed(self) -> list[str]:
        return list(dict.fromkeys(self.snapshot.root(number) for number in self.contents))

    def keep_notebook_changes(self) -> None:
        """After a run in the background: do not overwrite what the notebook changed meanwhile."""
        for number in list(self.contents):
            node = self.snapshot.nodes[number]
            if node.kind is not None and node.kind.changed(node.value, node.mark):
                del self.contents[number]
                self.left[self.snapshot.path(number)] = "changed in the notebook during the run"
        if self.adapter.random_changes(self.snapshot.random) is not None:
            self.random = None

    def apply(self) -> Callable[[], None]:
        """Change the objects. Returns a function that undoes all changes; after an error they are undone."""
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
    """Read what rank 0 wrote, without changing anything."""
    if not (folder / STATE).exists():
        return StagedChanges(snapshot, adapter)
    written, positions, inside, (numbers, names, left, random) = pickle.loads((folder / STATE).read_bytes())
    try:
        contents, found = _load(written, positions, inside, snapshot, adapter, folder)
    except Exception as error:  # a missing class, or an object's own code
        why = f"it could not be loaded in the notebook: {type(error).__name__}: {error}"
        left = {**left, **dict.fromkeys([*(snapshot.path(number) for number in numbers), *names], why)}
        return StagedChanges(snapshot, adapter, {}, {}, left, random)
    return StagedChanges(snapshot, adapter, contents, found, left, random)


def _load(
    written: bytes, positions: Any, inside: Sequence[int], snapshot: StateSnapshot, adapter: Any, folder: Path
) -> tuple[dict[int, Any], dict[str, Any]]:
    with open(folder / BLOBS, "rb") as file:

        def blob(number: int) -> bytearray:
            start, size = positions[number]
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
    """A line that names what differs between the ranks; "" if nothing does."""
    known = [one for one in sums if one is not None]
    numbers = {number for one in known for number in one}
    differing = [n for n in sorted(numbers) if len({one.get(n) for one in known}) > 1]
    names = list(dict.fromkeys(snapshot.root(number) for number in differing if not snapshot.nodes[number].quiet))
    if len(known) < 2 or not names:
        return ""
    ranks = "Ranks 0 and 1" if len(known) == 2 else f"The {len(known)} ranks"
    shown = ", ".join(f"`{name}`" for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{ranks} differ in {shown}{more}: the notebook has the values of rank 0."


def unchanged_text(left: Mapping[str, str]) -> str:
    """What is not updated, with the reasons, in one line."""
    shown = [f"`{name}` ({why})" for name, why in list(left.items())[:SHOWN]]
    more = f" and {len(left) - SHOWN} more (_tpu.left)" if len(left) > SHOWN else ""
    return ", ".join(shown) + more
