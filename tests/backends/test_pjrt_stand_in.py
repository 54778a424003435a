"""XLA's CPU plugin in libtpu's place: which file is taken, what is refused, and what the replaced entries of its table
do. The table here is a fake one with the layout of pjrt_c_api.h, version 0.106."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import sys
import types
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.backends import pjrt_stand_in as plugin
from tpu_magics.errors import TpuMagicsError

TABLE = 1128  # bytes of the table of version 0.106
OUTPUTS = 3


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (plugin.OWN_PLUGIN, plugin.LIBRARY_PATH, "TPU_SKIP_MDS_QUERY"):
        monkeypatch.setenv(name, "")  # restored afterwards, whatever a test sets
        monkeypatch.delenv(name)
    monkeypatch.setattr(plugin, "_replacement", [])


@pytest.fixture(params=plugin.ENTRIES)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- which file -------------------------------------------------------------------------------------------------------
def package(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str = plugin.PACKAGE.version) -> Path:
    """An installed package whose plugin has these bytes."""
    library = folder / plugin.PACKAGE.library
    library.parent.mkdir()
    library.write_bytes(b"a plugin")
    found = types.SimpleNamespace(version=version, locate_file=lambda name: folder / name)
    monkeypatch.setattr(metadata, "distribution", {plugin.PACKAGE.name: found}.__getitem__)
    return library


def test_without_a_plugin_it_is_said_what_to_install(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(TpuMagicsError, match="XLA's plugin for the CPU is not installed") as caught:
        plugin.replace_libtpu(framework)
    assert plugin.install(framework) in caught.value.todo
    assert plugin.OWN_PLUGIN in caught.value.todo
    assert plugin.replacement() is None


def test_the_tested_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = package(monkeypatch, tmp_path)
    tested = plugin.Package(
        plugin.PACKAGE.name, plugin.PACKAGE.version, plugin.PACKAGE.library, hashlib.sha256(b"a plugin").hexdigest()
    )
    monkeypatch.setattr(plugin, "PACKAGE", tested)
    assert plugin.find(plugin.TORCH_XLA) == library


@pytest.mark.parametrize("version", [plugin.PACKAGE.version, "2027.1.1"])
def test_a_file_with_another_content_is_not_loaded(
    framework: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    library = package(monkeypatch, tmp_path, version)
    with pytest.raises(TpuMagicsError, match=f"{version} is not the one that was tested, and is not loaded") as caught:
        plugin.replace_libtpu(framework)
    assert f"{plugin.PACKAGE.name}=={plugin.PACKAGE.version}" in caught.value.todo
    assert f"%env {plugin.OWN_PLUGIN}={library}" in caught.value.todo
    assert plugin.replacement() is None


def test_an_own_build_that_is_not_there(framework: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(plugin.OWN_PLUGIN, str(tmp_path / "gone.so"))
    with pytest.raises(TpuMagicsError, match=r"gone\.so names no file"):
        plugin.replace_libtpu(framework)


def test_an_own_build_that_is_no_library(framework: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own.so"
    own.write_text("not a library")
    monkeypatch.setenv(plugin.OWN_PLUGIN, str(own))
    with pytest.raises(TpuMagicsError, match=r"own\.so cannot take the place of a TPU") as caught:
        plugin.replace_libtpu(framework)
    assert "cannot be loaded" in caught.value.why
    assert f"unset {plugin.OWN_PLUGIN}" in caught.value.todo


# -- its table --------------------------------------------------------------------------------------------------------
class FakePlugin:
    """A plugin's table in memory, with the functions that are asked. `options`: those of the client, as name and
    value."""

    def __init__(self, minor: int = 106, major: int = 0) -> None:
        self.memory = ctypes.create_string_buffer(TABLE)
        self.options: list[tuple[bytes, int]] = []
        self.functions: list[Any] = []
        self.address = ctypes.addressof(self.memory)
        ctypes.c_size_t.from_address(self.address).value = TABLE
        ctypes.c_int.from_address(self.address + 32).value = major
        ctypes.c_int.from_address(self.address + 36).value = minor
        self.put(120, self.create)
        self.put(392, self.num_outputs)
        self.put(480, self.execute)
        self.executed: list[tuple[bytes, int]] = []

    def put(self, place: int, function: Callable[[int], int]) -> None:
        kept = plugin._FUNCTION(function)
        self.functions.append(kept)
        ctypes.c_void_p.from_address(self.address + place).value = ctypes.cast(kept, ctypes.c_void_p).value

    def create(self, address: int) -> int:
        asked = plugin._Create.from_address(address)
        values = (plugin._NamedValue * asked.num_options).from_address(asked.options)
        self.options = [(value.name[: value.name_size], value.value) for value in values]
        return 0

    def num_outputs(self, address: int) -> int:
        asked = plugin._NumOutputs.from_address(address)
        if asked.executable == 0xBAD:
            return 0xE
        asked.num_outputs = OUTPUTS
        return 0

    def execute(self, address: int) -> int:
        """Keeps the 112 bytes of options that this version reads."""
        options = int(ctypes.c_void_p.from_address(address + 24).value or 0)
        self.executed.append((ctypes.string_at(options, 112), options))
        return 0xE if ctypes.c_int64.from_address(options + 40).value == -1 else 0

    def call(self, place: int, asked: Any) -> int:
        """The function that the table has now."""
        function = plugin._FUNCTION(ctypes.c_void_p.from_address(self.address + place).value or 0)
        return int(function(ctypes.addressof(asked)) or 0)


class FakeFunction:
    """A C function that returns an address; ctypes sets its `restype`."""

    restype: Any = None

    def __init__(self, address: int) -> None:
        self.address = address

    def __call__(self) -> int:
        return self.address


class MemoryKinds(ctypes.Structure):
    """The arguments of PJRT_Executable_OutputMemoryKinds."""

    _fields_ = [*plugin._NumOutputs._fields_, ("kinds", ctypes.c_void_p), ("sizes", ctypes.c_void_p)]


class PlatformName(ctypes.Structure):
    """The arguments of PJRT_Client_PlatformName."""

    _fields_ = [
        *(("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p), ("client", ctypes.c_void_p)),
        *(("name", ctypes.c_void_p), ("name_size", ctypes.c_size_t)),
    ]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[FakePlugin], Path]:
    """Name a plugin with this table as the user's own build."""

    def name(fake: FakePlugin) -> Path:
        path = tmp_path / "plugin.so"
        path.write_bytes(b"")

        def load(name: str, **_options: object) -> Any:
            return types.SimpleNamespace(GetPjrtApi=FakeFunction(fake.address))

        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setenv(plugin.OWN_PLUGIN, str(path))
        return path

    return name


def test_the_client_has_one_device_and_no_option_of_libtpu(framework: str, own: Callable[[FakePlugin], Path]) -> None:
    fake = FakePlugin()
    path = own(fake)
    assert (
        plugin.replace_libtpu(framework) == plugin.replace_libtpu(framework) == plugin.replacement() == path
    )  # twice is once
    theirs = (plugin._NamedValue * 2)()  # what torch_tpu passes
    asked = plugin._Create(ctypes.sizeof(plugin._Create), None, ctypes.addressof(theirs), 2)
    assert fake.call(120, asked) == 0
    assert fake.options == [(b"cpu_device_count", 1)]


def test_each_output_is_on_the_device(framework: str, own: Callable[[FakePlugin], Path]) -> None:
    fake = FakePlugin()
    own(fake)
    plugin.replace_libtpu(framework)
    asked = MemoryKinds(ctypes.sizeof(MemoryKinds), None, 0x600D, 0, None, None)
    assert fake.call(416, asked) == 0
    kinds = (ctypes.c_char_p * OUTPUTS).from_address(asked.kinds)
    sizes = (ctypes.c_size_t * OUTPUTS).from_address(asked.sizes)
    assert (asked.num_outputs, list(kinds), list(sizes)) == (OUTPUTS, [b"device"] * OUTPUTS, [6] * OUTPUTS)


def test_an_error_of_the_plugin_is_passed_on(framework: str, own: Callable[[FakePlugin], Path]) -> None:
    fake = FakePlugin()
    own(fake)
    plugin.replace_libtpu(framework)
    asked = MemoryKinds(ctypes.sizeof(MemoryKinds), None, 0xBAD, 0, None, None)
    assert fake.call(416, asked) == 0xE


@pytest.mark.parametrize(("major", "minor"), [(1, 106), (0, 12), (0, 900)])
def test_another_version_of_the_interface_is_refused(
    framework: str, own: Callable[[FakePlugin], Path], major: int, minor: int
) -> None:
    fake = FakePlugin(minor, major)
    own(fake)
    before = fake.memory.raw
    with pytest.raises(TpuMagicsError, match="cannot take the place of a TPU") as caught:
        plugin.replace_libtpu(framework)
    assert f"version {major}.{minor} of the PJRT interface" in caught.value.why
    assert fake.memory.raw == before
    assert plugin.replacement() is None


def test_where_torch_tpu_has_loaded_libtpu_its_table_is_overwritten(
    framework: str, own: Callable[[FakePlugin], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake, theirs = FakePlugin(), FakePlugin(117)
    path = own(fake)
    libtpu = tmp_path / "libtpu.so"
    found = ctypes.CDLL

    def load(name: str, **options: Any) -> Any:
        if name != str(libtpu):
            return found(name, **options)
        return types.SimpleNamespace(GetPjrtApi=FakeFunction(theirs.address))

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setitem(sys.modules, "torch_tpu", types.ModuleType("torch_tpu"))
    monkeypatch.setenv(plugin.LIBRARY_PATH, str(libtpu))
    assert plugin.replace_libtpu(framework) == path
    assert theirs.memory.raw == fake.memory.raw


def test_torch_xla_has_as_many_devices_as_its_worker_asks_for(own: Callable[[FakePlugin], Path]) -> None:
    fake = FakePlugin()
    own(fake)
    plugin.load(plugin.TORCH_XLA)
    assert plugin.LIBRARY_PATH not in os.environ  # the notebook's own environment stays
    plugin.replace_libtpu(plugin.TORCH_XLA, 4)
    assert fake.call(120, plugin._Create(ctypes.sizeof(plugin._Create), None, None, 0)) == 0
    assert fake.options == [(b"cpu_device_count", 4)]
    assert os.environ[plugin.LIBRARY_PATH].endswith("plugin.so")


def test_torch_xla_is_told_that_the_platform_is_a_tpu(own: Callable[[FakePlugin], Path]) -> None:
    fake = FakePlugin()
    own(fake)
    plugin.replace_libtpu(plugin.TORCH_XLA)
    asked = PlatformName(ctypes.sizeof(PlatformName), None, None, None, 0)
    assert fake.call(136, asked) == 0
    assert ctypes.string_at(asked.name, asked.name_size) == b"tpu"


def test_torch_tpu_asks_for_neither(own: Callable[[FakePlugin], Path]) -> None:
    fake = FakePlugin()
    own(fake)
    before = fake.memory.raw
    plugin.replace_libtpu(plugin.TORCH_TPU)
    changed = [
        place for place in range(40, TABLE, 8) if fake.memory.raw[place : place + 8] != before[place : place + 8]
    ]
    assert changed == [120, 416]


@pytest.mark.parametrize("size", [80, 112, 256, 320], ids="{} bytes".format)
def test_options_of_any_size_are_followed_by_zeros(own: Callable[[FakePlugin], Path], size: int) -> None:
    """torch_xla 2.9 passes 80 bytes, this version of the plugin reads 112: what lies behind them in memory is none of
    the options. They are as they were afterwards, and the function's error is passed on."""
    fake = FakePlugin()
    own(fake)
    plugin.replace_libtpu(plugin.TORCH_XLA)
    theirs = ctypes.create_string_buffer(b"\x55" * 400, 400)
    ctypes.c_size_t.from_buffer(theirs).value = size
    asked = (ctypes.c_void_p * 10)(80, None, 0xABC, ctypes.addressof(theirs))
    before = theirs.raw, bytes(asked)
    for _ in range(3):
        assert fake.call(480, asked) == 0
    assert (theirs.raw, bytes(asked)) == before
    read, place = fake.executed[0]
    assert fake.executed == [(read, place)] * 3 and place != ctypes.addressof(theirs)
    assert int.from_bytes(read[:8], "little") == 256
    assert read[8:] == (b"\x55" * (min(size, 112) - 8)).ljust(104, b"\0")
    ctypes.c_int64.from_buffer(theirs, 40).value = -1
    assert fake.call(480, asked) == 0xE


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_where_no_code_can_be_made_it_is_refused_and_nothing_is_changed(
    own: Callable[[FakePlugin], Path], monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    fake = FakePlugin()
    own(fake)
    before = fake.memory.raw
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(mmap, "mmap", forbidden)
    with pytest.raises(TpuMagicsError, match="cannot take the place of a TPU") as caught:
        plugin.load(plugin.TORCH_XLA)
    assert {"aarch64": "not x86-64", "x86_64": "Permission denied"}[machine] in caught.value.why
    assert fake.memory.raw == before


def test_a_table_without_the_entries_is_refused(own: Callable[[FakePlugin], Path]) -> None:
    fake = FakePlugin()
    own(fake)
    ctypes.c_size_t.from_address(fake.address).value = 480
    with pytest.raises(TpuMagicsError, match="cannot take the place of a TPU") as caught:
        plugin.load(plugin.TORCH_XLA)
    assert "has 480 bytes" in caught.value.why
