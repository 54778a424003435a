"""Results that are kept: found again, never mistaken, never in the way."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.preflight import stablehlo_programs as programs
from tests.preflight.stablehlo_programs import compile_some, graph
from tpu_magics.backends.lowered import SourceLine
from tpu_magics.preflight import compilation, compile_process
from tpu_magics.preflight import compile_cache as store_module
from tpu_magics.preflight.compilation import CompileProgress
from tpu_magics.preflight.compile_cache import Store, default_folder, key
from tpu_magics.preflight.compile_result import (
    Buffer,
    CompileResult,
    HbmUsage,
    Multiplications,
    PaddedDimension,
    TilePadding,
    UnsupportedOp,
)
from tpu_magics.preflight.targets import parse

V5E = parse("v5e-4")
VERSIONS = {"jaxlib": "0.10.2", "libtpu": "0.0.52"}
GRAPH = graph(programs.TRAINING, donors=(0,))
FULL = CompileResult(
    target="v5litepod-4",
    graph="training",
    status="fits",
    seconds=1.5,
    memory=HbmUsage(needed=10, available=20, arguments=5),
    flops=1e9,
    bytes_accessed=2e6,
    hbm_bytes=1e6,
    multiplications=Multiplications({"f32": 1e9}, {"f32": 2}),
    padding=TilePadding(20, 10, (PaddedDimension(100, 128, 7, 1, "f32[30522,100]", "hidden"),)),
    buffers=(
        Buffer(8, 4, "f32[2]", "{0:T(128)}", "argument", "fc.weight", SourceLine("In [3]", 4, "loss.backward()")),
    ),
    refused=(UnsupportedOp("my_own_kernel", "not known", "custom", SourceLine("train.py", 12)),),
    versions=VERSIONS,
    peak=2**30,
    notes=("a note",),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "kept")


# -- with the compiler ------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_the_second_time_takes_no_process(
    packages: tuple[str, ...], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = [GRAPH, graph(programs.CUSTOM_CALL), graph(programs.elementwise(2**23))]
    first = compile_some(graphs, store=store, packages=packages)
    assert [one.status for one in first] == ["fits", "refused", "too-large"]

    def no_process(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(compile_process, "start", no_process)
    told: list[CompileProgress] = []
    second = compile_some(graphs, store=store, on_progress=told.append, packages=packages)
    assert second == [replace(one, kept=True) for one in first]
    assert [one.state for one in told] == ["kept"] * 3


@pytest.mark.process
def test_a_kept_result_has_the_lines_of_the_graph_that_asks(tpu_compiler: tuple[str, ...], store: Store) -> None:
    asked = graph(programs.elementwise(2**23), places={3: SourceLine("In [3]", 7)})
    moved = replace(asked, places={3: SourceLine("In [3]", 8)}, hash="other")
    first = compile_some([asked], store=store, packages=tpu_compiler)[0]
    again = compile_some([moved], store=store, packages=tpu_compiler)[0]
    assert (first.kept, again.kept, again.graph) == (False, True, "other")
    lines = [[one.place.line for one in found.buffers if one.place] for found in (first, again)]
    assert lines[0] and set(lines[0]) == {7}
    assert set(lines[1]) == {8}


@pytest.mark.process
def test_what_failed_is_tried_again(
    tpu_compiler: tuple[str, ...], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "FLOOR", 0)
    assert compile_some([GRAPH], store=store, memory_limit=2**20, packages=tpu_compiler)[0].status == "failed"
    again = compile_some([GRAPH], store=store, packages=tpu_compiler)[0]
    assert (again.status, again.kept) == ("fits", False)


@pytest.mark.process
def test_a_compile_tells_how_long_the_next_may_take(tpu_compiler: tuple[str, ...], store: Store) -> None:
    first = compile_some([GRAPH], store=store, packages=tpu_compiler)[0]
    told: list[CompileProgress] = []
    compile_some([replace(GRAPH, donors=())], store=store, on_progress=told.append, packages=tpu_compiler)
    assert {one.expected for one in told} == {first.seconds}


# -- without it -------------------------------------------------------------------------------------------------------


def test_a_result_comes_back_as_it_was(store: Store) -> None:
    store.put("name", FULL)
    assert store.get("name") == replace(FULL, kept=True)


@pytest.mark.parametrize(
    "other",
    [
        (replace(GRAPH, module=GRAPH.module + b" "), V5E, VERSIONS),
        (replace(GRAPH, form="hlo"), V5E, VERSIONS),
        (replace(GRAPH, donors=(1,)), V5E, VERSIONS),
        (replace(GRAPH, replicas=2), V5E, VERSIONS),
        (replace(GRAPH, partitions=2), V5E, VERSIONS),
        (replace(GRAPH, parameters=("f32[512,512] weight",)), V5E, VERSIONS),
        (GRAPH, parse("v5e-8"), VERSIONS),
        (GRAPH, V5E, {**VERSIONS, "libtpu": "0.0.53"}),
        (GRAPH, V5E, {**VERSIONS, "jaxlib": "1.0"}),
        (GRAPH, V5E, VERSIONS, ("--a=1",)),
    ],
)
def test_another_graph_tpu_version_or_flag_is_another_key(other: tuple[Any, ...]) -> None:
    assert key(*other) != key(GRAPH, V5E, VERSIONS)


def test_other_code_that_reads_the_answers_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an older version of it misread is not found again."""
    before = key(GRAPH, V5E, VERSIONS)
    monkeypatch.setattr(store_module, "_READERS", (tmp_path,))
    found = []
    for source in ("a = 1\n", "a = 2\n"):
        (tmp_path / "reader.py").write_text(source)
        store_module.readers.cache_clear()
        found.append(key(GRAPH, V5E, VERSIONS))
    monkeypatch.undo()
    store_module.readers.cache_clear()
    assert len({before, *found}) == 3
    assert key(GRAPH, V5E, VERSIONS) == before


def test_lines_and_the_frameworks_own_hash_are_not_part_of_the_key() -> None:
    other = replace(
        GRAPH, hash="other", places={12: SourceLine("In [3]", 8)}, nth=4, steady=False, site=SourceLine("In [3]", 1)
    )
    assert key(other, V5E, VERSIONS) == key(GRAPH, V5E, VERSIONS)


def test_a_torn_or_foreign_file_is_a_miss(store: Store) -> None:
    store.put("name", FULL)
    (path,) = store.folder.iterdir()
    whole = path.read_bytes()
    foreign = (b"", b"{", b"[]", b"null", b"{}", b'{"key": "name"}', b'{"key": "name", "compiled": {"a": 1}}')
    for content in (*foreign, *(whole[:length] for length in range(0, len(whole), 7))):
        path.write_bytes(content)
        assert store.get("name") is None, content


def test_a_file_under_another_name_is_a_miss(store: Store) -> None:
    store.put("name", FULL)
    (path,) = store.folder.iterdir()
    path.rename(path.with_name(path.name.replace("name", "other")))
    assert store.get("other") is None


def test_what_failed_is_not_kept(store: Store) -> None:
    store.put("name", replace(FULL, status="failed"))
    assert not store.folder.exists()


def test_the_oldest_go(tmp_path: Path) -> None:
    store = Store(tmp_path, entries=3)
    for number in range(6):
        store.put(f"name{number}", FULL)
        os.utime(tmp_path / f"name{number}.result.json", (number, number))
    os.utime(tmp_path / "name4.result.json", (4e9, 4e9))  # the clock was set back since
    store.put("last", FULL)
    assert {one.name.partition(".")[0] for one in tmp_path.iterdir()} == {"last", "name5", "name4"}
    store.put("more", FULL)
    assert {one.name.partition(".")[0] for one in tmp_path.iterdir()} == {"more", "last", "name4"}


def test_their_size_is_bounded(tmp_path: Path) -> None:
    size = len(json.dumps({"key": "name", "compiled": {}})) + 10_000
    store = Store(tmp_path, size=3 * size)
    for number in range(6):
        store.put(f"name{number}", replace(FULL, error="x" * 10_000))
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 3 * size
    assert store.get("name5") is not None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "kept")
    store.put("name", FULL)
    store.timed(V5E, 100, 1.0)
    assert store.get("name") is None
    assert store.expected(V5E, 100) is None


def test_an_interrupt_while_it_is_written_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module.json, "dump", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.put("name", FULL)
    assert list(store.folder.iterdir()) == []


def test_the_time_that_is_expected_is_that_of_the_nearest_in_size(store: Store) -> None:
    assert store.expected(V5E, 1000) is None
    store.timed(V5E, 1000, 10.0)
    store.timed(V5E, 8000, 40.0)
    assert store.expected(V5E, 2000) == 20.0
    assert store.expected(V5E, 8000) == 40.0
    assert store.expected(V5E, 100_000) is None, "nothing similar"
    assert store.expected(parse("v4-8"), 1000) is None, "another TPU"


def test_the_later_of_two_alike_is_believed(store: Store) -> None:
    store.timed(V5E, 1000, 10.0)
    store.timed(V5E, 1000, 5.0)
    assert store.expected(V5E, 1000) == 5.0


def test_the_default_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "tpu_magics" / "preflight"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "tpu_magics" / "preflight"


def test_an_account_without_a_home_has_one_in_the_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert default_folder() == tmp_path / f"tpu_magics-{os.getuid()}" / "preflight"
