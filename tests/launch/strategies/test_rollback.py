"""The traceback that a person reads of their own error. What ends a run otherwise: test_in_process.py."""

from __future__ import annotations

import traceback
from types import TracebackType

from tpu_magics.launch.strategies.rollback import user_frames
from tpu_magics.runs.origin import OWN


def raised_through(*files: str) -> TracebackType | None:
    """The traceback of an error that the last file raises, each called by the one before."""
    called = None
    for at, path in enumerate(reversed(files)):
        space = {"called": called}
        code = "def f():\n    called()\n" if at else "def f():\n    raise ValueError\n"
        exec(compile(code, path, "exec"), space)
        called = space["f"]
    try:
        called()  # type: ignore[misc]
    except ValueError as error:
        return error.__traceback__.tb_next if error.__traceback__ else None
    return None


def test_our_own_lines_are_left_out_wherever_they_stand() -> None:
    ours = f"{OWN}/launch/strategies/in_process.py", f"{OWN}/backends/tensorflow/observe/hooks.py"
    found = user_frames(raised_through(ours[0], "cell", ours[1], "library", ours[1]))
    assert [frame.filename for frame in traceback.extract_tb(found)] == ["cell", "library"]


def test_where_there_are_no_others_all_are_kept() -> None:
    found = user_frames(raised_through(f"{OWN}/launch/strategies/in_process.py"))
    assert len(traceback.extract_tb(found)) == 1 and user_frames(None) is None
