"""Errors of writing to standard output: the reader has gone, or the disk is full."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress

NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


def lost(error: BaseException) -> bool:
    """Whether it came of writing to what is open already. One of opening or of a certain file names that file."""
    if isinstance(error, BrokenPipeError):
        return True
    return isinstance(error, OSError) and error.errno in NO_ROOM and error.filename is None


def give_up(error: OSError) -> int:
    """Say it where somebody may still read, and write no more; gives the exit code, 0 where no more was wanted."""
    if sys.stdout is not None:  # what it still holds would fail once more at the end, with Python's own words
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return 0
    with suppress(OSError):
        print(f"The output could not be written: {error.strerror}.", file=sys.stderr)
        print("What to do: free space there, or write to another file.", file=sys.stderr)
    return 2
