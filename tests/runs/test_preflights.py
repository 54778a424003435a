"""What is kept of preflights for the checklist."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tpu_magics.runs import preflights
from tpu_magics.runs.preflights import Record, newest, note


def record(function: str = "train", target: str = "v5litepod-8", status: str = "fits", t: float = 1.0) -> Record:
    return Record(function, target, status, 2**30, 2**34, t)


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert newest(tmp_path) == [] and newest(tmp_path / "nowhere") == []


def test_the_newest_of_each_function_and_target_the_newest_first(tmp_path: Path) -> None:
    for one in (record(t=1), record(target="v6e-8", t=2), record(function="other", t=3), record(status="refused", t=4)):
        note(one, tmp_path)
    found = [(one.function, one.target, one.status, one.t) for one in newest(tmp_path)]
    assert found == [
        ("train", "v5litepod-8", "refused", 4),
        ("other", "v5litepod-8", "fits", 3),
        ("train", "v6e-8", "fits", 2),
    ]


def test_it_lies_beside_the_runs(runs: Path) -> None:
    note(record())
    assert [path.name for path in runs.iterdir()] == ["preflights.json"]
    assert runs.stat().st_mode & 0o777 == 0o700 and newest() == [record()]


def test_it_does_not_grow_without_bound(tmp_path: Path) -> None:
    for number in range(preflights._KEPT + 20):
        note(record(function=f"f{number}", t=number), tmp_path)
    found = newest(tmp_path)
    assert len(found) == preflights._KEPT and found[0].function == f"f{preflights._KEPT + 19}"


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"function": "f"}]', "[1]", "null", "\xff"])
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "preflights.json").write_text(text, encoding="latin-1")
    assert newest(tmp_path) == []
    note(record(), tmp_path)
    assert newest(tmp_path) == [record()]


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note(record(), tmp_path / "file")
    assert newest(tmp_path / "file") == []


@pytest.mark.parametrize(
    "field",
    ['"needed": "x"', '"t": 1e999', '"t": NaN', f'"t": {"1" * 5_000}', f'"needed": {"1" * 5_000}', '"function": 5'],
)
def test_a_record_that_is_none_is_left_out(tmp_path: Path, field: str) -> None:
    note(record(), tmp_path)
    file = tmp_path / "preflights.json"
    name = field.partition(":")[0]
    file.write_text(re.sub(rf"{name}: [^,}}]+", lambda _: field, file.read_text()))
    assert newest(tmp_path) == []
    file.unlink()
    os.mkfifo(file)
    assert newest(tmp_path) == []
