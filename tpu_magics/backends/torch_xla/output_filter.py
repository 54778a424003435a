"""Removes single lines from what C and C++ libraries print, by holding back the C library's stdout buffer.

torch_xla 2.9.0 warns about its deprecated variables with std::cout (csrc/dtype.cpp) when the first floating-point
tensor is created; Python's warning and logging filters do not see that. std::cout writes through the C library's
stdout.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from typing import Any

_FULLY, _NOT = 0, 2  # _IOFBF and _IONBF of setvbuf
_SIZE = 1 << 16
_UNBUFFERED = 0x2  # in FILE._flags of glibc
# Offsets in glibc's FILE of the start and end of the unwritten output (the layout is part of its ABI).
_WRITE_BASE, _WRITE_END = 32, 40


class OutputFilter:
    """Holds back output between `hold` and `release`. Does nothing if the C library is not glibc."""

    def __init__(self) -> None:
        self._libc: Any = _glibc()
        self._held = False
        self._was_unbuffered = False

    def hold(self) -> None:
        """From now on, keep output in the buffer, up to its size."""
        if self._libc is None or self._held:
            return
        stdout = self._stdout()
        self._was_unbuffered = bool(ctypes.c_int.from_address(stdout).value & _UNBUFFERED)
        if self._was_unbuffered:  # PYTHONUNBUFFERED affects C's stdout too
            # Memory of C, never freed: it is used until the process ends, after Python has ended.
            self._libc.setvbuf(stdout, self._libc.malloc(_SIZE), _FULLY, _SIZE)
        self._held = True

    def release(self, leave_out: re.Pattern[bytes]) -> None:
        """Write the buffered output without what matches `leave_out`, and restore the buffering."""
        if not self._held:
            return
        self._held = False
        stdout = self._stdout()
        self._libc.flockfile(stdout)
        try:
            held = self._pending(stdout)
            if leave_out.search(held):
                getattr(self._libc, "__fpurge")(stdout)
                _write(1, leave_out.sub(b"", held))
            if self._was_unbuffered:
                self._libc.fflush(stdout)
                self._libc.setvbuf(stdout, None, _NOT, 0)
        finally:
            self._libc.funlockfile(stdout)

    def _stdout(self) -> int:
        return ctypes.c_void_p.in_dll(self._libc, "stdout").value or 0

    def _pending(self, stdout: int) -> bytes:
        start = ctypes.c_void_p.from_address(stdout + _WRITE_BASE).value or 0
        size = (ctypes.c_void_p.from_address(stdout + _WRITE_END).value or 0) - start
        return ctypes.string_at(start, size) if size > 0 and size == getattr(self._libc, "__fpending")(stdout) else b""


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _glibc() -> Any:
    if platform.libc_ver()[0] != "glibc":
        return None
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    getattr(libc, "__fpending").restype = ctypes.c_size_t
    for name in ("__fpending", "__fpurge", "flockfile", "funlockfile", "fflush"):
        getattr(libc, name).argtypes = [ctypes.c_void_p]
    libc.setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    return libc
