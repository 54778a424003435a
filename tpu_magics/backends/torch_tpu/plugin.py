"""XLA's CPU plugin in the place of libtpu, so that `device="tpu"` works on a machine without a TPU.

TorchTPU loads the PJRT plugin that TPU_LIBRARY_PATH names. XLA's plugin for the CPU differs from libtpu in two of its
functions, whose entries in the plugin's table (a static struct in memory) are replaced in this process through ctypes:

- PJRT_Client_Create: TorchTPU passes options that only libtpu knows ("Unexpected option name passed to
  PJRT_Client_Create: premapped_buffer_size"). Instead, the number of devices is passed: one, as for a worker on a TPU.
- PJRT_Executable_OutputMemoryKinds, which the plugin does not implement: each output lies on the device.

Call `replace_libtpu` before the first tensor is on "tpu"; forked processes inherit it. `import torch_tpu` loads the
plugin that TPU_LIBRARY_PATH names at that moment, or else libtpu. If that has happened (torch imports torch_tpu by
itself), libtpu's own table gets the plugin's entries.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError

LIBRARY_PATH = "TPU_LIBRARY_PATH"
OWN_PLUGIN = "TPU_MAGICS_PJRT_CPU"  # the path of a plugin that the user has built
INSTALL = "%pip install 'tpu-magics[torch-tpu-rehearsal]'"

# pjrt_c_api.h: PJRT_Api begins with its size, a pointer and PJRT_Api_Version (size, pointer, major, minor), 40 bytes in
# all; the functions follow. Entries are only ever added at its end.
_MAJOR, _MINOR = 32, 36
_CLIENT_CREATE, _NUM_OUTPUTS, _OUTPUT_MEMORY_KINDS = 120, 392, 416
MINORS = range(106, 118)  # of version 0: plugins of 106 and 115 were run, and libtpu 0.0.52 has 117

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_FUNCTION = ctypes.CFUNCTYPE(_POINTER, _POINTER)


@dataclass(frozen=True)
class Package:
    """A package on PyPI with the plugin. `library`: where it lies; `sha256`: of that file."""

    name: str
    version: str
    library: str
    sha256: str


# The build pjrt-cpu_linux-amd64 of zml/pjrt-artifacts (XLA, Apache-2.0), unmodified.
PACKAGE = Package(
    "fastatomstruct-xla-cpu",
    "2026.6.23",
    "fastatomstruct_xla_cpu/libpjrt_cpu.so",
    "0a0fe56ca17be9efc7b942e89e534e5e0ad4a0f1e369b66d27b62184509015b9",
)


class _NumOutputs(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("extension", _POINTER), ("executable", _POINTER), ("num_outputs", _SIZE)]


class _MemoryKinds(ctypes.Structure):
    _fields_ = [*_NumOutputs._fields_, ("kinds", _POINTER), ("sizes", _POINTER)]


class _Create(ctypes.Structure):
    _fields_ = [("struct_size", _SIZE), ("extension", _POINTER), ("options", _POINTER), ("num_options", _SIZE)]


class _NamedValue(ctypes.Structure):
    _fields_ = [
        *(("struct_size", _SIZE), ("extension", _POINTER), ("name", ctypes.c_char_p), ("name_size", _SIZE)),
        *(("type", ctypes.c_int), ("value", ctypes.c_int64), ("value_size", _SIZE)),
    ]


_INT64 = 1  # PJRT_NamedValue_Type

_kept: list[Any] = []  # what the table points to must live as long as the process
_replacement: list[Path] = []


def find() -> Path:
    """The plugin: of the user's own build, else of the package.

    Raises:
        TpuMagicsError: there is none, or it is not the file that was tested.
    """
    own = os.environ.get(OWN_PLUGIN)
    if own:
        if not Path(own).is_file():
            raise TpuMagicsError(
                f"{OWN_PLUGIN}={own} names no file.",
                "It is to name XLA's PJRT plugin for the CPU, which takes the place of a TPU in rehearsals.",
                f"Correct it, or unset it and install the tested plugin: {INSTALL}",
            )
        return Path(own)
    try:
        package = metadata.distribution(PACKAGE.name)
    except metadata.PackageNotFoundError:
        raise TpuMagicsError(
            "TorchTPU cannot be rehearsed here: there is no TPU, and XLA's plugin for the CPU is not installed.",
            f"Without a TPU, the plugin of the package {PACKAGE.name} takes its place.",
            f"Install it: {INSTALL}; or name your own build of XLA's plugin: %env {OWN_PLUGIN}=/path/to/the/plugin.so",
        ) from None
    library = Path(str(package.locate_file(PACKAGE.library)))
    if package.version != PACKAGE.version or not library.is_file() or _digest(library) != PACKAGE.sha256:
        raise TpuMagicsError(
            f"The plugin of {PACKAGE.name} {package.version} is not the one that was tested, and is not loaded.",
            f"Tested is {PACKAGE.name} {PACKAGE.version}, with the SHA-256 {PACKAGE.sha256[:12]}...",
            f"Install that version: %pip install --force-reinstall {PACKAGE.name}=={PACKAGE.version}; or, for a "
            f"plugin that you trust: %env {OWN_PLUGIN}={library}",
        )
    return library


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def replacement() -> Path | None:
    """The plugin that has taken libtpu's place in this process; None if none has."""
    return _replacement[0] if _replacement else None


def replace_libtpu() -> Path:
    """Put XLA's CPU plugin in libtpu's place in this process (idempotent). Returns its path.

    Raises:
        TpuMagicsError: there is no plugin, or it is none that can take the place.
    """
    if not _replacement:
        path = find()
        table = _adapted(path)
        loaded = os.environ.get(LIBRARY_PATH)
        if "torch_tpu" in sys.modules and loaded:
            _overwrite(Path(loaded), table)
        _replacement.append(path)
    os.environ.update({LIBRARY_PATH: str(_replacement[0]), "TPU_SKIP_MDS_QUERY": "1"})
    return _replacement[0]


def _overwrite(loaded: Path, table: int) -> None:
    """Give the plugin that torch_tpu has loaded the entries of `table`. Each begins with its size."""
    library = ctypes.CDLL(str(loaded))
    library.GetPjrtApi.restype = _POINTER
    theirs = library.GetPjrtApi()
    if theirs != table:
        ctypes.memmove(theirs, table, min(_SIZE.from_address(theirs).value, _SIZE.from_address(table).value))
    _kept.append(library)


def _adapted(path: Path) -> int:
    """The address of the plugin's table, in which both entries are replaced."""
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        get_table = library.GetPjrtApi
    except (OSError, AttributeError) as error:
        raise _unfit(path, f"it cannot be loaded: {error}") from error
    get_table.restype = _POINTER
    table = int(get_table())
    major, minor = (ctypes.c_int.from_address(table + place).value for place in (_MAJOR, _MINOR))
    if major != 0 or minor not in MINORS:
        raise _unfit(path, f"it has version {major}.{minor} of the PJRT interface")
    num_outputs = _FUNCTION(_POINTER.from_address(table + _NUM_OUTPUTS).value or 0)
    client_create = _FUNCTION(_POINTER.from_address(table + _CLIENT_CREATE).value or 0)

    def memory_kinds(address: int) -> int:
        asked = _MemoryKinds.from_address(address)
        count = _NumOutputs(ctypes.sizeof(_NumOutputs), None, asked.executable, 0)
        error = num_outputs(ctypes.addressof(count))
        if error:
            return int(error)
        kinds, sizes = _kinds(count.num_outputs)
        asked.num_outputs, asked.kinds, asked.sizes = count.num_outputs, kinds, sizes
        return 0

    def create(address: int) -> int:
        asked = _Create.from_address(address)
        asked.options, asked.num_options = ctypes.addressof(_ONE_DEVICE), 1
        return int(client_create(address) or 0)

    for place, function in ((_CLIENT_CREATE, create), (_OUTPUT_MEMORY_KINDS, memory_kinds)):
        _replace(table + place, function)
    _kept.append(library)
    return table


def _replace(place: int, function: Callable[[int], int]) -> None:
    kept = _FUNCTION(function)
    _kept.append(kept)
    _POINTER.from_address(place).value = ctypes.cast(kept, _POINTER).value


_OPTION = b"cpu_device_count"
_ONE_DEVICE = _NamedValue(ctypes.sizeof(_NamedValue), None, _OPTION, len(_OPTION), _INT64, 1, 1)
_KIND = b"device"
_arrays: dict[int, tuple[Any, Any]] = {}  # number of outputs -> the arrays that plugin's callers read


def _kinds(count: int) -> tuple[int, int]:
    """The addresses of `count` names of a memory kind, and of their lengths."""
    if count not in _arrays:
        size = max(1, count)
        _arrays[count] = (ctypes.c_char_p * size)(*[_KIND] * size), (_SIZE * size)(*[len(_KIND)] * size)
    kinds, sizes = _arrays[count]
    return ctypes.addressof(kinds), ctypes.addressof(sizes)


def _unfit(path: Path, why: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"{path.name} cannot take the place of a TPU.",
        f"{why[0].upper()}{why[1:]}. Versions 0.{MINORS.start} to 0.{MINORS.stop - 1} are known to fit; the tested "
        f"plugin is that of {PACKAGE.name} {PACKAGE.version} (Linux on x86-64).",
        f"Install it: {INSTALL}" + (f"; and unset {OWN_PLUGIN}" if OWN_PLUGIN in os.environ else ""),
    )
