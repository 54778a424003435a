"""XLA's CPU plugin in the place of libtpu, so that a framework takes its TPU branch on a machine without a TPU.

torch_xla and TorchTPU load the PJRT plugin that TPU_LIBRARY_PATH names. XLA's plugin for the CPU differs from libtpu in
a few of its functions. Their entries in the plugin's table (a static struct in memory) are replaced in this process,
`ENTRIES` says which ones for which framework:

- PJRT_Client_Create: the frameworks pass options that only libtpu knows ("Unexpected option name passed to
  PJRT_Client_Create: premapped_buffer_size"). Instead, the number of devices is passed: one, as for a worker on a TPU.
- PJRT_Executable_OutputMemoryKinds, which the plugin does not implement: each output lies on the device.
- PJRT_Client_PlatformName: "tpu", so that torch_xla.core.xla_model.xla_device_hw says TPU.
- PJRT_LoadedExecutable_Execute: the options of torch_xla 2.9 have fewer fields (80 bytes) than the plugin reads, so
  they are copied into zeros.

Call `replace_libtpu` before the framework's first tensor is on the device; forked processes inherit what it (or
`load`, before them) has loaded. `import torch_tpu` loads the plugin that TPU_LIBRARY_PATH names at that moment, or else
libtpu. If that has happened (torch imports torch_tpu by itself), libtpu's own table gets the plugin's entries.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tpu_magics.backends.torch.worker import LOG_LEVEL, only_errors, set_variables
from tpu_magics.errors import TpuMagicsError

LIBRARY_PATH = "TPU_LIBRARY_PATH"
OWN_PLUGIN = "TPU_MAGICS_PJRT_CPU"  # the path of a plugin that the user has built
TORCH_XLA, TORCH_TPU = "torch_xla", "torch_tpu"
_EXTRAS = {TORCH_XLA: "torch,rehearsal", TORCH_TPU: "torch-tpu,rehearsal"}

# pjrt_c_api.h: PJRT_Api begins with its size, a pointer and PJRT_Api_Version (size, pointer, major, minor), 40 bytes in
# all; the functions follow. Entries are only ever added at its end.
_MAJOR, _MINOR = 32, 36
CREATE, PLATFORM_NAME, NUM_OUTPUTS, MEMORY_KINDS, EXECUTE = 120, 136, 392, 416, 480
MINORS = range(106, 118)  # of version 0: plugins of 106 and 115 were run, and libtpu 0.0.52 has 117
ENTRIES = {
    TORCH_XLA: (CREATE, PLATFORM_NAME, MEMORY_KINDS, EXECUTE),
    TORCH_TPU: (CREATE, MEMORY_KINDS),
}

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


def install(framework: str) -> str:
    """The command that installs the tested plugin beside the framework."""
    return f"%pip install 'tpu-magics[{_EXTRAS[framework]}]'"


def is_installed() -> bool:
    """Whether there is a plugin, of whatever build."""
    try:
        return bool(os.environ.get(OWN_PLUGIN)) or metadata.distribution(PACKAGE.name) is not None
    except metadata.PackageNotFoundError:
        return False


def find(framework: str) -> Path:
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
                f"Correct it, or unset it and install the tested plugin: {install(framework)}",
            )
        return Path(own)
    try:
        package = metadata.distribution(PACKAGE.name)
    except metadata.PackageNotFoundError:
        raise TpuMagicsError(
            f"{_NAMES[framework]} cannot be rehearsed here: there is no TPU, and XLA's plugin for the CPU is not "
            "installed.",
            f"Without a TPU, the plugin of the package {PACKAGE.name} takes its place.",
            f"Install it: {install(framework)}; or name your own build of XLA's plugin: "
            f"%env {OWN_PLUGIN}=/path/to/the/plugin.so",
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


_NAMES = {TORCH_XLA: "torch_xla's TPU branch", TORCH_TPU: "TorchTPU"}


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def replacement() -> Path | None:
    """The plugin that has taken libtpu's place in this process; None if none has."""
    return _replacement[0] if _replacement else None


def load(framework: str) -> Path:
    """Load XLA's CPU plugin into this process and adapt it (idempotent). Returns its path.

    Raises:
        TpuMagicsError: there is no plugin, or it is none that can take libtpu's place.
    """
    if not _replacement:
        path = find(framework)
        table = _adapted(path, framework)
        loaded = os.environ.get(LIBRARY_PATH)
        if "torch_tpu" in sys.modules and loaded:
            _overwrite(Path(loaded), table)
        _replacement.append(path)
    return _replacement[0]


def replace_libtpu(framework: str, devices: int = 1) -> Path:
    """Put XLA's CPU plugin in libtpu's place in this process (idempotent), before its runtime starts. Returns its path.
    `devices`: of the client.

    Raises:
        TpuMagicsError: as `load`.
    """
    path = load(framework)
    _DEVICES.value = devices
    os.environ.update({LIBRARY_PATH: str(path), "TPU_SKIP_MDS_QUERY": "1"})
    return path


def _overwrite(loaded: Path, table: int) -> None:
    """Give the plugin that torch_tpu has loaded the entries of `table`. Each begins with its size."""
    library = ctypes.CDLL(str(loaded))
    library.GetPjrtApi.restype = _POINTER
    theirs = library.GetPjrtApi()
    if theirs != table:
        ctypes.memmove(theirs, table, min(_size(theirs), _size(table)))
    _kept.append(library)


def _size(table: int) -> int:
    return int(_SIZE.from_address(table).value)


def _adapted(path: Path, framework: str) -> int:
    """The address of the plugin's table, in which the framework's entries are replaced."""
    level = os.environ.get(LOG_LEVEL)
    only_errors()  # XLA reads it as it is loaded
    try:
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        get_table = library.GetPjrtApi
    except (OSError, AttributeError) as error:
        raise _unfit(path, framework, f"it cannot be loaded: {error}") from error
    finally:
        set_variables({LOG_LEVEL: level})
    get_table.restype = _POINTER
    table = int(get_table())
    major, minor = (ctypes.c_int.from_address(table + place).value for place in (_MAJOR, _MINOR))
    if major != 0 or minor not in MINORS:
        raise _unfit(path, framework, f"it has version {major}.{minor} of the PJRT interface")
    if _size(table) <= max(ENTRIES[framework]):
        raise _unfit(path, framework, f"its table of functions has {_size(table)} bytes")
    makers: dict[int, Callable[[], int]] = {
        CREATE: lambda: _kept_function(_create(_FUNCTION(_address(table, CREATE)))),
        PLATFORM_NAME: lambda: _machine_code(path, framework, _platform_name()),
        MEMORY_KINDS: lambda: _machine_code(path, framework, _memory_kinds(_address(table, NUM_OUTPUTS))),
        EXECUTE: lambda: _machine_code(path, framework, _execute(_address(table, EXECUTE))),
    }
    made = {place: makers[place]() for place in ENTRIES[framework]}
    for place, address in made.items():  # once all are made: a plugin that does not fit stays as it is
        _POINTER.from_address(table + place).value = address
    _kept.append(library)
    return table


def _address(table: int, place: int) -> int:
    return int(_POINTER.from_address(table + place).value or 0)


def _kept_function(function: Callable[[int], int]) -> int:
    kept = _FUNCTION(function)
    _kept.append(kept)
    return int(ctypes.cast(kept, _POINTER).value or 0)


# -- the entries -------------------------------------------------------------------------------------------------------
_OPTION = b"cpu_device_count"
_TPU = b"tpu"
_KIND = b"device"
_OUTPUTS = 1 << 17  # of one program, at most
_DEVICES = _NamedValue(ctypes.sizeof(_NamedValue), None, _OPTION, len(_OPTION), _INT64, 1, 1)


def _create(original: Callable[[int], Any]) -> Callable[[int], int]:
    def create(address: int) -> int:
        asked = _Create.from_address(address)
        asked.options, asked.num_options = ctypes.addressof(_DEVICES), 1
        return int(original(address) or 0)

    return create


_platform = ctypes.create_string_buffer(_TPU)

# Functions for x86-64 (System V). They are not in Python, because several threads call them, and some hold locks of
# XLA's then: a Python function would wait for the interpreter's lock, 5 ms at times, and forever for a thread that has
# it and waits for XLA. An integer stands for an address.
_Code = Sequence[str | int]


def _platform_name() -> _Code:
    """Writes the name and its length, at 24 and 32 in the arguments."""
    return (
        *("48b8", ctypes.addressof(_platform)),  # mov rax, the name
        "48894718",  # mov [rdi+24], rax
        f"48c74720{_int(len(_TPU))}",  # mov qword [rdi+32], its length
        "31c0c3",  # xor eax, eax; ret
    )


def _memory_kinds(num_outputs: int) -> _Code:
    """Asks for the number of outputs, and writes it, the names and their lengths, from 24 in the arguments; the
    executable stands at 16."""
    names = (ctypes.c_char_p * _OUTPUTS)(*[_KIND] * _OUTPUTS)
    lengths = (_SIZE * _OUTPUTS)(*[len(_KIND)] * _OUTPUTS)
    _kept.extend((names, lengths))
    return (
        "534883ec304889fb",  # push rbx; sub rsp, 48; mov rbx, rdi
        f"48c70424{_int(ctypes.sizeof(_NumOutputs))}",  # mov qword [rsp], the size of the arguments
        "48c744240800000000488b431048894424104889e7",  # no extension; the executable; mov rdi, rsp
        *("48b8", num_outputs, "ffd0"),  # mov rax, the function; call rax
        "4885c07527",  # test rax, rax; jne to the end: an error
        "488b4c241848894b18",  # mov rcx, [rsp+24]; mov [rbx+24], rcx
        *("48b8", ctypes.addressof(names), "48894320"),  # mov rax, the names; mov [rbx+32], rax
        *("48b8", ctypes.addressof(lengths), "48894328"),  # mov rax, the lengths; mov [rbx+40], rax
        "31c0",  # xor eax, eax
        "4883c4305bc3",  # the end: add rsp, 48; pop rbx; ret
    )


def _int(value: int) -> str:
    return value.to_bytes(4, "little").hex()


def _execute(original: int) -> _Code:
    """Calls the plugin's function with a copy of the options in 256 bytes, the rest of which are zeros, the default of
    each later field. The address of the options stands at 24 in the arguments, their size at their beginning."""
    return (
        "53",  # push rbx
        "4881ec10010000",  # sub rsp, 272
        "4889fb",  # mov rbx, rdi: the arguments
        "488b5718",  # mov rdx, [rdi+24]: the options
        "4889e7",  # mov rdi, rsp
        "31c0",  # xor eax, eax
        "b920000000",  # mov ecx, 32
        "f348ab",  # rep stosq: 256 bytes of zeros
        "4889e7",  # mov rdi, rsp
        "4889d6",  # mov rsi, rdx
        "488b0a",  # mov rcx, [rdx]: their size
        "48c1e903",  # shr rcx, 3
        "4883f920",  # cmp rcx, 32
        "7605",  # jbe +5
        "b920000000",  # mov ecx, 32
        "f348a5",  # rep movsq
        "48c7042400010000",  # mov qword [rsp], 256
        "4889942400010000",  # mov [rsp+256], rdx
        "48896318",  # mov [rbx+24], rsp
        "4889df",  # mov rdi, rbx
        *("48b8", original, "ffd0"),  # mov rax, the plugin's function; call rax
        "488b942400010000",  # mov rdx, [rsp+256]
        "48895318",  # mov [rbx+24], rdx
        "4881c410010000",  # add rsp, 272
        "5b",  # pop rbx
        "c3",  # ret
    )


def _machine_code(path: Path, framework: str, parts: _Code) -> int:
    """The address of that function."""
    if platform.machine() != "x86_64":
        raise _unfit(path, framework, f"this machine is {platform.machine()}, not x86-64")
    code = b"".join(part.to_bytes(8, "little") if isinstance(part, int) else bytes.fromhex(part) for part in parts)
    try:
        memory = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except (OSError, PermissionError) as error:  # forbidden, by SELinux for example
        raise _unfit(path, framework, f"this system allows no new code in a process: {error}") from error
    memory.write(code)
    _kept.append(memory)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _unfit(path: Path, framework: str, why: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"{path.name} cannot take the place of a TPU.",
        f"{why[0].upper()}{why[1:]}. Versions 0.{MINORS.start} to 0.{MINORS.stop - 1} are known to fit; the tested "
        f"plugin is that of {PACKAGE.name} {PACKAGE.version} (Linux on x86-64).",
        f"Install it: {install(framework)}" + (f"; and unset {OWN_PLUGIN}" if OWN_PLUGIN in os.environ else ""),
    )
