"""The schema: one line there and back, and what a reader refuses."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tpu_magics.runs.events import (
    KINDS,
    Compile,
    Display,
    End,
    Event,
    Frame,
    Memory,
    Phase,
    RuleFinding,
    Site,
    Start,
    Steps,
    Value,
    Warned,
    from_json,
    from_line,
    from_record,
    only,
    to_json,
    to_line,
)

FRAMES = (Frame("In [12]", 14, "training_function", "loss.backward()"), Frame("/x/torch.py", 3, "f", library=True))
SAMPLES: tuple[Event, ...] = (
    Start(1790000000.1, 0, pid=4711, device="CPU", world_size=2),
    Phase(1790000000.2, 1, name="training"),
    Steps(1790000000.3, 0, total=12, n=3, seconds=0.75),
    Value(1790000000.4, 0, name="loss", value=0.1, step=3),
    Value(1790000000.4, 0, name="größe\n\u2028", value="nan", step=9, n=6, low=-1.5, high="nan"),
    Memory(1790000000.5, 1, rss=680_000_000, pss=None),
    Display(1790000000.6, 0, file="display-1.json", offset=10, display_id="a", update=True),
    Warned(1790000000.7, 0, code="too-many-values", text="one sentence"),
    End(
        1790000000.8, 0, status="failed", seconds=2.0, steps=3, error_type="ValueError", error_text="no", frames=FRAMES
    ),
    End(1790000000.9, 1, compiles=5),
    RuleFinding(
        1790000000.7, 0, "TPU101", "values", Site(0, "In [3]", 4, "", "if x > 0:"), 8, "what", "why", "fix", True
    ),
)


def test_there_is_a_sample_of_every_kind() -> None:
    # Other kinds may be added with their own samples; those that this file knows must all be tried.
    assert {type(event) for event in SAMPLES} <= set(KINDS.values())
    assert {"start", "phase", "steps", "value", "memory", "display", "warning", "end"} <= set(KINDS)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.kind)
def test_an_event_is_one_line_and_comes_back_equal(event: Event) -> None:
    line = to_line(event)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert from_line(line) == event


def test_a_line_has_the_names_of_the_contract() -> None:
    record = json.loads(to_line(Steps(1.5, 2, total=12, n=3, seconds=0.75)))
    assert record == {"v": 1, "kind": "steps", "t": 1.5, "rank": 2, "total": 12, "n": 3, "seconds": 0.75}


def test_non_finite_numbers_are_strict_json() -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    event = Steps(1.0, 0, total=1, n=1, seconds=float("nan"))
    assert json.loads(to_line(event), parse_constant=refuse)["seconds"] == "nan"


def test_text_that_utf8_cannot_hold_does_not_stop_the_line() -> None:
    event = from_line(to_line(Warned(1.0, 0, text="a \ud800 b")))
    assert isinstance(event, Warned) and event.text == "a ? b"


def test_fields_of_a_newer_writer_are_ignored() -> None:
    record = json.loads(to_line(SAMPLES[2]))
    assert from_record({**record, "new": 1}) == SAMPLES[2]
    end = json.loads(to_line(SAMPLES[8]))
    end["frames"][0]["column"] = 7
    assert from_record(end) == SAMPLES[8]


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": None},
        {"kind": "teleport"},
        {"kind": ["end"]},
        {"t": "yesterday"},
        {"t": None},
        {"t": float("nan")},
        {"t": 10**400},
        {"rank": "0"},
        {"rank": None},
        {"steps": "many"},
        {"steps": 10**30},
        {"frames": 3},
        {"frames": ["In [1]"]},
        {"frames": [{"path": "In [1]"}]},
        {"frames": [{"path": 1, "line": 1, "function": "f"}]},
    ],
    ids=str,
)
def test_a_record_with_a_wrong_field_is_no_event(change: dict[str, object]) -> None:
    record = json.loads(to_line(SAMPLES[9]))
    assert from_record(record) == SAMPLES[9]
    assert from_record({**record, **change}) is None


@pytest.mark.parametrize("missing", ["t", "rank", "v", "kind"])
def test_a_record_without_a_needed_field_is_no_event(missing: str) -> None:
    record = json.loads(to_line(SAMPLES[2]))
    del record[missing]
    assert from_record(record) is None


@pytest.mark.parametrize("line", [b"", b"{", b"null", b"[]", b"\x00\x00", b"\xff{}", b"[" * 100_000, b"1" * 10_000])
def test_garbage_is_no_event(line: bytes) -> None:
    assert from_line(line) is None


LARGE = "1" * 5_000
SHOWN = "1111111111111111111… (5,000 digits)"


def test_a_number_that_is_too_large_is_a_text_or_not_there() -> None:
    """CPython from 3.11 on refuses to parse an integer of more than 4,300 digits, or to print one."""
    assert from_json(f"[{LARGE}, -{LARGE}, {2**63}, {-(2**63)}, {2**63 + 1}]") == [
        SHOWN,
        "-111111111111111111… (5,000 digits)",
        2**63,
        -(2**63),
        "9223372036854775809",
    ]

    def line(event: Event, field: str) -> Event | None:
        text = json.dumps({**json.loads(to_line(event)), field: "LARGE"})
        return from_line(text.replace('"LARGE"', LARGE).encode())

    value = line(Value(1.0, 0, name="loss", value=1.0), "value")
    assert isinstance(value, Value) and value.value == SHOWN
    compiled = line(Compile(1.0, 0, seconds=2.0), "seconds")
    assert isinstance(compiled, Compile) and compiled.seconds is None
    assert line(Steps(1.0, 0, total=1, n=1), "total") is None, "no steps are known of it"
    assert line(Warned(1.0, 0, text="x"), "t") is None


def test_only_picks_one_kind() -> None:
    assert only(SAMPLES, Steps) == [SAMPLES[2]]


def test_events_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SAMPLES[0].rank = 3  # type: ignore[misc]


COLOURED = "\x1b[31mred\x1b[0m\x1b]0;title\x07 a\r\nb\rc\x9b1md \x1bMe \x00f\ttab caf\u00e9 C:\\reports"
PLAIN = "red a\nb\ncd e f\ttab caf\u00e9 C:\\reports"


def test_texts_have_no_escape_codes_when_they_are_written() -> None:
    line = to_line(Warned(1.0, 0, code="x", text=COLOURED))
    assert json.loads(line)["text"] == PLAIN
    assert json.loads(to_json({COLOURED: [{"why": COLOURED}]})) == {PLAIN: [{"why": PLAIN}]}


def test_texts_have_no_escape_codes_when_they_are_read() -> None:
    line = json.dumps({"v": 1, "kind": Warned.kind, "t": 1.0, "rank": 0, "code": "x", "text": COLOURED})
    assert from_line(line.encode()) == Warned(1.0, 0, code="x", text=PLAIN)
