"""The parts of the panel: what they say, and that what they are given stays text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.parsed import Parsed
from tests.panel.recorded import CREATED, agreed, began, first_compile, recompile, started
from tpu_magics.panel.charts import sparkline, svg
from tpu_magics.panel.model_view import ENDED_STATES, LIVE_STATES, Point, RunView
from tpu_magics.panel.sections import compile_rows, sections
from tpu_magics.panel.sections_header import facts, failure_facts, figures
from tpu_magics.panel.sections_words import clock, percent, seconds, short, size
from tpu_magics.runs.events import (
    Batch,
    Cache,
    Divergence,
    End,
    Event,
    Fallback,
    Frame,
    Input,
    Memory,
    Precision,
    Read,
    Site,
    Steps,
    Times,
    Value,
    Warned,
)

NAMES = ["header", "facts", "rehearsal", "rules", "warnings", "compiles", "reads", "charts", "values", "ranks"]


def text_of(view: RunView, *names: str) -> str:
    """What a person reads of these parts (default: of all, and of the compiles)."""
    parts = sections(view)
    rows = [] if names else [html for _key, html in compile_rows(view)]
    return Parsed("".join([*(parts[name] for name in names or NAMES), *rows])).text


def fact(view: RunView, label: str) -> str:
    """The lines of a fact as one, with its mark."""
    [found] = [each for each in facts(view) if each.label == label]
    return " ".join([each for each in (found.marked, *found.lines, found.code) if each])


def figure(view: RunView, label: str) -> tuple[str, str]:
    [found] = [each for each in figures(view) if each.label == label]
    return found.value, found.beside


# -- all parts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recorded.RUNS)
def test_every_state_has_the_same_parts(tmp_path: Path, name: str) -> None:
    view = recorded.RUNS[name](tmp_path).view()
    parts = sections(view)
    assert list(parts) == NAMES
    for html in parts.values():
        Parsed(html)
    assert f"{view.name} " in text_of(view, "header") and view.state in text_of(view, "header")
    assert [each.label for each in figures(view)] == [
        *("Elapsed", "Steps", "Steps/s", "Step", "Compiles", "Recompiles", "Compiling")
    ]
    assert [each.label for each in facts(view)][:5] == ["Recompiles", "Precision", "Host memory", "HBM", "Time"]


@pytest.mark.parametrize("state", [*LIVE_STATES, *ENDED_STATES, "another"])
def test_every_state_is_told_by_a_word_a_mark_and_a_colour(tmp_path: Path, state: str) -> None:
    view = dataclasses.replace(recorded.starting(tmp_path).view(), state=state)
    header = sections(view)["header"]
    assert re.search(rf'background:#[0-9a-f]{{6}}">[◌◐●✓✗■!?] {state}</b>', header)


def test_the_same_view_gives_the_same_strings(tmp_path: Path) -> None:
    run = recorded.failed(tmp_path)
    first, second = run.view(), run.view()
    assert first is not second and first == second
    assert sections(first) == sections(second)
    assert compile_rows(first) == compile_rows(second)


def test_the_header_alone_changes_with_the_time(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    before, after = sections(run.view(CREATED + 60)), sections(run.view(CREATED + 61))
    assert [name for name in NAMES if before[name] != after[name]] == ["header"]


def test_there_is_no_script_no_asset_and_no_id(tmp_path: Path) -> None:
    for make in recorded.RUNS.values():
        view = make(tmp_path).view()
        html = "".join([*sections(view).values(), *(row for _key, row in compile_rows(view))])
        parsed = Parsed(html)
        assert not {"script", "style", "link", "img", "iframe", "object", "form"} & set(parsed.tags)
        names = {name for name, _value in parsed.attributes}
        assert not {"id", "src", "href", "onclick", "class"} & names
        assert "url(" not in html and "http" not in html


def test_colours_are_middle_tones_and_text_on_them_is_white(tmp_path: Path) -> None:
    """White has a contrast of at least 4.5 on each (WCAG), and each at least 3 on black and on white."""
    view = recorded.failed(tmp_path).view()
    html = "".join([*sections(view).values(), *(row for _key, row in compile_rows(view))])
    backgrounds = set(re.findall(r"background:(#\w+)", html))
    assert len(backgrounds) >= 3
    for colour in re.findall(r"#[0-9a-f]{6}", html):
        dark = luminance(colour)
        assert 1.05 / (dark + 0.05) >= 4.5
        assert (dark + 0.05) / (luminance("#111111") + 0.05) >= 3
    assert set(re.findall(r"(?<![-\w])color:([^;\"]+)", html)) <= {"inherit", "#fff"}


def luminance(colour: str) -> float:
    def linear(part: float) -> float:
        return part / 12.92 if part <= 0.03928 else float(((part + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_tables_scroll_and_nothing_has_a_width_of_its_own(tmp_path: Path) -> None:
    html = "".join(sections(recorded.on_tpu(tmp_path).view()).values())
    assert html.count("<table") == html.count('<div style="overflow-x:auto;max-width:100%"><table')
    assert set(re.findall(r'(?<![-\w])width[:=]"?([^;"]+)', html)) == {"100%"}


# -- the head --------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    view = recorded.running(tmp_path).view()
    assert figure(view, "Elapsed") == ("1 min 00 s", "")
    assert figure(view, "Steps") == ("440", "")
    value, curve = figure(view, "Steps/s")
    assert re.fullmatch(r"\d\.\d+", value) and re.fullmatch("[▁▂▃▄▅▆▇█]+", curve)
    assert figure(view, "Step")[1] == "excluding compiles"
    assert (figure(view, "Compiles"), figure(view, "Recompiles")) == (("8", ""), ("6", ""))
    assert figure(view, "Compiling")[1] == "of the time"


def test_recompiles_are_amber_from_the_first(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 2))
    none = sections(run.view())
    assert figure(run.view(), "Recompiles") == ("0", "") and "#9a6700" not in none["header"] + none["facts"]
    run.write(recompile(CREATED + 3, 1))
    one = sections(run.view())
    assert "! 1" in Parsed(one["header"]).text and "#9a6700" in one["header"] and "#9a6700" in one["facts"]


def test_why_it_compiled_again_at_which_line_and_what_to_change(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 2))
    assert fact(run.view(), "Recompiles") == "None so far."
    run.write(recompile(CREATED + 3, 1))
    assert fact(run.view(), "Recompiles") == (
        "! input-shape #1 at In [12], line 14: "
        "The shape of an input changed: input_ids now int64[32,129], before int64[32,128]. "
        "Fix: Pad to a multiple (pad_to_multiple_of=64 in the tokenizer or collator) or to one max_length, and mask "
        "the padding. "
        "torch_xla.sync()"
    )
    run.write(recompile(CREATED + 4, 2, cause="unknown", text="", fix="", difference=("dot 3 is new",)))
    assert fact(run.view(), "Recompiles").startswith("! unknown #2 at In [12], line 14: dot 3 is new ")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "✓ as requested Requested: bf16 (--precision). 24 of 24 matmuls in bf16. Parameters: 39 bf16, 3 s64"),
        (
            recorded.DIFFERS,
            "! differs Requested: bf16 (--precision). 0 of 24 matmuls in bf16. Parameters: 39 f32, 3 s64 "
            "bf16 requested by --precision: 0 of 24 matmuls and convolutions in bf16 (24 f32), before XLA optimizes "
            "the graph.",
        ),
        (
            {"asked": "", "source": "", "ops": 0, "share": None, "parameters": {}},
            "Requested: default. Actual: n/a (the graph has no matmul or convolution)",
        ),
        (
            {"share": None, "parameters": {}},
            "✓ as requested Requested: bf16 (--precision). Actual: n/a (not reported by the runtime)",
        ),
        (
            {"ops": 1, "share": 0.996, "parameters": {}},
            "✓ as requested Requested: bf16 (--precision). 1 of 1 matmul in bf16",
        ),
    ],
)
def test_precision_requested_and_actual(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    run = started(tmp_path)
    assert fact(run.view(), "Precision") == "Requested: bf16. Actual: n/a (no compiled step yet)"
    assert fact(run.write(agreed(CREATED + 3, **fields)).view(), "Precision") == said


GIB = 2**30
TEN_GIB: dict[str, Any] = {"host": {"memory": 10 * GIB, "device": "CPU"}}
TPU: dict[str, Any] = {"plan": {"device": "TPU"}}
DONE: dict[str, Any] = {"status": "done"}


def ram(rss: int, pss: int | None = None, rank: int = 0, t: float = 1) -> Memory:
    """In GiB."""
    return Memory(t, rank, rss=rss * GIB, pss=None if pss is None else pss * GIB)


def hbm(used: int, total: int | None = 16, rank: int = 0) -> Memory:
    return Memory(1, rank, hbm_used=used * GIB, hbm_total=None if total is None else total * GIB)


@pytest.mark.parametrize(
    ("label", "events", "info", "said"),
    [
        ("Host memory", (), {}, "n/a (no sample yet)"),
        ("Host memory", (), DONE, "n/a (no sample)"),
        ("Host memory", (ram(4, 2),), {}, "4.0 GiB (RSS), 2.0 GiB (PSS); 20 % of the machine's 10.0 GiB"),
        ("Host memory", (ram(4),), {}, "4.0 GiB (RSS); 40 % of the machine's 10.0 GiB"),
        (
            *("Host memory", (ram(5, 4), ram(6, 5, rank=1)), {}),
            "! little left 2 workers: 9.0 GiB (PSS) in total, most in rank 1 (5.0 GiB); 90 % of the machine's 10.0 GiB",
        ),
        (
            *("Host memory", (Memory(1, 0, rss=10 * GIB - 1),), {}),
            "✗ almost full 10.0 GiB (RSS); more than 99 % of the machine's 10.0 GiB",
        ),
        (
            *("Host memory", (ram(4, 3), ram(2, 1, t=2)), DONE),
            "4.0 GiB (RSS), 3.0 GiB (PSS), peak of each worker; 30 % of the machine's 10.0 GiB",
        ),
        ("Host memory", (ram(4),), {"host": {}}, "4.0 GiB (RSS); total of the machine: n/a (not in run.json)"),
        ("HBM", (), {"plan": {"device": "CPU"}}, "n/a on XLA:CPU"),
        ("HBM", (), TPU, "n/a (no sample yet)"),
        ("HBM", (hbm(4),), TPU, "4.0 GiB of 16.0 GiB (25 %)"),
        ("HBM", (hbm(4, None),), TPU, "4.0 GiB; total n/a (not reported by the runtime)"),
        ("HBM", (hbm(1), hbm(14, rank=3)), TPU, "! little left rank 3, the fullest of 2: 14.0 GiB of 16.0 GiB (88 %)"),
        ("Effective batch", (Batch(1, 0, 8, 4, 2),), {}, "64 = 8 per device x 4 accumulated x 2 ranks"),
        ("Effective batch", (Batch(1, 0, None, 4, 2),), {}, "n/a (the batch of a device is not known)"),
        ("Effective batch", (Batch(1, 0, 8, None, 2),), {}, "n/a (the number of accumulated batches is not known)"),
        ("Time", (), {}, "n/a (no record yet)"),
        (
            *("Time", (Times(5, 0, 1.5, None, 0.25),), {}),
            "compiling 1.5 s, waiting for the device 250 ms; executing n/a (not reported yet)",
        ),
        (
            *("Time", (Times(5, 0, 75.0, 4000.0, 0.0),), {}),
            "compiling 75 s, executing 1 h 06 min, waiting for the device 0 s",
        ),
        ("Precision", (), {**DONE, "plan": {}}, "Requested: default. Actual: n/a (no compiled step was examined)"),
    ],
)
def test_facts(tmp_path: Path, label: str, events: tuple[Event, ...], info: dict[str, Any], said: str) -> None:
    assert fact(started(tmp_path, *events, **{**TEN_GIB, **info}).view(), label) == said


def test_figures_that_are_not_available_say_so(tmp_path: Path) -> None:
    run = started(tmp_path, Steps(CREATED + 2, 0, 5, 5, 1.0))
    assert figure(run.view(), "Compiles") == ("-", "n/a")
    assert "n/a (rank 0 has recorded none yet; the count comes at its end)" in text_of(run.view(), "compiles")
    run.update(status="done")
    assert "n/a (rank 0 did not finish)" in text_of(run.view(), "compiles")
    run.write(End(CREATED + 4, 0, steps=5, compiles=4))
    assert figure(run.view(), "Compiles") == ("4", "") and figure(run.view(), "Recompiles") == ("-", "n/a")
    assert "4 compiles, recompiles n/a (no compile was recorded)." in text_of(run.view(), "compiles")


def test_steps_against_their_limit(tmp_path: Path) -> None:
    assert figure(started(tmp_path, plan={"steps": 500}).view(), "Steps") == ("0", "of at most 500")


def test_warming_up_is_said_with_the_count_of_compiles(tmp_path: Path) -> None:
    header = text_of(recorded.warming_up(tmp_path).view(), "header")
    assert "◐ compiling warming up, 2 compiles so far · the latest steps compiled · 1 rank on XLA:CPU" in header
    assert header.endswith("each step compiled 1 expected of the time")  # of which nothing is made a problem
    assert "! 1" not in header


def test_a_failure_stands_above_the_figures(tmp_path: Path) -> None:
    header = text_of(recorded.failed(tmp_path).view(), "header")
    order = ["✗ failed", "What happened", "Rank 1 failed: ValueError", "Why", "What to do", "In [7], line 9", "Elapsed"]
    places = [header.index(words) for words in order]
    assert places == sorted(places)
    assert "    outputs = model(**batch)" in sections(recorded.failed(tmp_path).view())["header"]


# -- compiles and reads ----------------------------------------------------------------------------------------------


def test_a_compile_is_one_line_that_unfolds_to_all_that_is_known(tmp_path: Path) -> None:
    run = started(tmp_path, first_compile(CREATED + 2, memory={"arguments": 3 * 2**20, "code": 100}))
    run.write(recompile(CREATED + 3, 1, step=7))
    [(newest_key, newest), (first_key, first)] = compile_rows(run.view())
    assert (newest_key, first_key) == ("0-1", "0-0")
    summary, body = newest.split("</summary>")
    assert newest.startswith("<details ") and newest.endswith("</details>")
    assert Parsed(f"{summary}</summary></details>").text == (
        "#1 In [12], line 14 · 1.21 s · input-shape · input_ids now int64[32,129], before int64[32,128] (and 1 more)"
    )
    assert Parsed(f"<details>{body}").text == (
        "Line: In [12], line 14, in training_function torch_xla.sync() "
        "Cause: The shape of an input changed: input_ids now int64[32,129], before int64[32,128]. "
        "Fix: Pad to a multiple (pad_to_multiple_of=64 in the tokenizer or collator) or to one max_length, and mask "
        "the padding. "
        "Difference from #0: input_ids now int64[32,129], before int64[32,128] "
        "attention_mask now int64[32,129], before int64[32,128] "
        "Inputs: input_ids int64[32,129] attention_mask int64[32,129] labels int64[32] "
        "Program memory: n/a (not reported by the runtime) "
        "rank 0 · site 0 · after 7 steps · triggered by the end of a step · graph 00000001"
    )
    assert "first compile" in Parsed(first).text and "arguments 3 MiB, code 100 bytes" in Parsed(first).text


def test_a_file_is_named_in_a_row_and_its_path_stands_in_what_unfolds(tmp_path: Path) -> None:
    site = Site(0, "/home/me/project/train.py", 31, "train", "torch_xla.sync()")
    [(_key, html)] = compile_rows(started(tmp_path, first_compile(CREATED + 2, site=site)).view())
    summary, body = html.split("</summary>")
    assert "</b> train.py, line 31 · " in summary and "/home/me/project/train.py, line 31, in train" in body


def test_a_first_compile_says_what_there_is_to_say(tmp_path: Path) -> None:
    rows = compile_rows(recorded.running(tmp_path).view())
    assert "first compile · An evaluation loop with another batch size than training" in Parsed(rows[0][1]).text


def test_a_compile_of_which_little_is_known(tmp_path: Path) -> None:
    run = started(
        tmp_path, recompile(CREATED + 2, 1, seconds=None, cause="", text="", fix="", difference=(), inputs=())
    )
    [(_key, html)] = compile_rows(run.view())
    text = Parsed(html).text
    assert "time n/a · unknown cause" in text
    assert "Cause: unknown cause" in text and "Inputs: none from the host" in text and "Fix:" not in text


def test_rows_are_limited_and_their_keys_stay(tmp_path: Path) -> None:
    run = recorded.running(tmp_path)
    before = dict(compile_rows(run.view()))
    run.write(recompile(CREATED + 40, 7, 64, step=430))
    after = dict(compile_rows(run.view()))
    assert list(after)[1:] == list(before) and all(after[key] == html for key, html in before.items())
    assert list(dict(compile_rows(run.view(), limit=3))) == list(after)[:3]


def test_causes_are_counted_with_what_to_change(tmp_path: Path) -> None:
    text = text_of(recorded.running(tmp_path).view(), "compiles")
    assert "8 compiles, 6 recompiles: input-shape 5, mode-switch 1." in text
    assert (
        "5 (6.05 s) input-shape In [12], line 14 Pad to a multiple (pad_to_multiple_of=64 in the tokenizer or collator)"
        in text
    )


def test_reads_are_told_with_line_count_and_what_to_change(tmp_path: Path) -> None:
    text = text_of(recorded.running(tmp_path).view(), "reads")
    assert (
        "! 40 (3.2 s) In [12], line 17 print(loss.item()) loss.item() cut the graph in the middle of the step. "
        "Fix: Log every N steps, or with tpu_magics.log(loss=loss)." in text
    )
    assert "12 (310 ms) In [12], line 30 history.append(total.cpu()) device-to-host sync after the step" in text
    assert "Run on the host ! slow aten::nonzero (12): XLA does not support these operations." in text
    assert "Compile cache Off: XLA:CPU cannot load what it wrote there" in text


def test_the_cache_is_told_with_its_counts(tmp_path: Path) -> None:
    text = text_of(started(tmp_path, Cache(CREATED + 2, 0, hits=3, misses=1, path="/cache")).view(), "reads")
    assert text == "Runtime Compile cache 3 hits, 1 miss: /cache"


# -- below -----------------------------------------------------------------------------------------------------------


def test_the_table_of_ranks(tmp_path: Path) -> None:
    text = text_of(recorded.failed(tmp_path).view(), "ranks")
    assert text.startswith("Ranks rank state steps steps/s loss compiles recompiles RSS PSS 0 ! stopped")
    assert "! stopped (SIGTERM) 30" in text and "✗ failed (exit code 1) 30" in text
    assert text.endswith("HBM: n/a on XLA:CPU.")
    eight = text_of(recorded.on_tpu(tmp_path).view(), "ranks")
    assert "PSS HBM 0 training 900" in eight and "13.2 GiB of 16.0 GiB" in eight


def test_many_ranks_are_not_all_shown(tmp_path: Path) -> None:
    run = started(tmp_path)
    for rank in range(100):
        run.write(*began(CREATED + 1, rank, 100))
    assert "36 more ranks are not shown." in text_of(run.view(), "ranks")


def test_no_rank_is_said_in_words(tmp_path: Path) -> None:
    assert text_of(recorded.starting(tmp_path).view(), "ranks") == "Ranks No rank has written a record."


def test_the_loss_is_the_first_curve(tmp_path: Path) -> None:
    events = [Value(CREATED + 2, 0, name, float(at), at) for at in range(9) for name in ("acc", "lr", "x", "y", "loss")]
    view = started(tmp_path, *events).view()
    text = text_of(view, "charts")
    assert re.findall(r"(\w+) [▁-█]+ 0 → 8 at step 8, between 0 and 8", text) == ["loss", "acc", "lr", "x"]
    assert sections(view)["charts"].count("<svg ") == 4
    assert text_of(view, "values").startswith("Values value last at step lowest highest y 8 8 0 8 ▁")


def test_a_value_that_broke_is_said(tmp_path: Path) -> None:
    logged: list[float | str] = [1.0, "nan", "nan"]
    events = [Value(CREATED + 2, 0, "loss", value, at) for at, value in enumerate(logged)]
    assert "1 → nan at step 2, between 1 and 1; ! not a finite number at step 1" in text_of(
        started(tmp_path, *events).view(), "charts"
    )


def test_without_a_value_it_is_said_how_to_log_one(tmp_path: Path) -> None:
    view = started(tmp_path).view()
    assert text_of(view, "values") == "Values No values logged. Log one with tpu_magics.log(loss=loss)."
    assert sections(view)["charts"] == ""


def test_warnings_are_worst_first_with_the_ranks_that_are_not_all(tmp_path: Path) -> None:
    text = text_of(recorded.failed(tmp_path).view(), "warnings")
    assert text == (
        "Warnings ✗ error Ranks 0 and 1 compiled different graphs. "
        f"! warning {recorded.DIFFERS['text']} "
        "! warning Accelerator sets nothing on XLA:CPU; --precision does. (rank 0) "
        "note XLA_USE_BF16 is deprecated in torch_xla 2.9 and still works."
    )
    assert sections(recorded.starting(tmp_path).view())["warnings"] == ""


# -- what people write stays text ------------------------------------------------------------------------------------

EVIL = [
    "<script>alert(1)</script>",
    "</style><script>x</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</td></tr></table></details><iframe>",
    "&lt;b&gt; &amp; <!-- ",
    "\x1b[31m\u202e\ud800<b>",
]


def _harmless(evil: str) -> str:
    """As long, with blanks and slashes where the other has them: long words and paths are laid out otherwise."""
    return re.sub(r"[^/\s]", "x", evil)


def _evil_site(word: str) -> Site:
    return Site(5, word, 3, word, word)


PLACES: dict[str, Callable[[str], Event]] = {
    "value name": lambda word: Value(CREATED + 2, 0, word, 1.0, 1),
    "value text": lambda word: Value(CREATED + 2, 0, "stage", word, 1),
    "warning": lambda word: Warned(CREATED + 2, 0, "x", word),
    "divergence": lambda word: Divergence(CREATED + 2, 0, (1,), 1, {}, word),
    "compile": lambda word: recompile(
        CREATED + 2,
        1,
        site=_evil_site(word),
        graph=word,
        cause=word,
        text=word,
        fix=word,
        difference=(word,),
        inputs=(Input(word, (1,), word),),
        memory={word: 5},
        trigger=word,
    ),
    "read": lambda word: Read(CREATED + 2, 0, _evil_site(word), 1, 0.1, word),
    "transfer": lambda word: recorded.read_early(CREATED + 2, site=_evil_site(word), code=word, text=word, fix=word),
    "fallback": lambda word: Fallback(CREATED + 2, 0, word, 1),
    "cache": lambda word: Cache(CREATED + 2, 0, path=word, text=word),
    "precision": lambda word: Precision(
        CREATED + 2, 0, word, word, 1, 1.0, {word: 1}, word, agrees=False, text=word, notes=(word,)
    ),
    "exception": lambda word: End(
        CREATED + 2, 0, "failed", error_type=word, error_text=word, frames=(Frame(word, 1, word, word),)
    ),
}


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
@pytest.mark.parametrize("place", PLACES)
def test_what_a_record_holds_stays_text(tmp_path: Path, place: str, evil: str) -> None:
    harmless = started(tmp_path / "a", PLACES[place](_harmless(evil))).view()
    evil_view = started(tmp_path / "b", PLACES[place](evil)).view()
    _same_structure(evil_view, harmless)


@pytest.mark.parametrize("evil", EVIL, ids=range(len(EVIL)))
def test_what_run_json_holds_stays_text(tmp_path: Path, evil: str) -> None:
    def told(word: str, name: str) -> RunView:
        failure = {"what": word, "why": word, "todo": word, "details": [word]}
        run = started(tmp_path / name, name=name, warnings=[word], failure=failure, models=[word], status="done")
        run.update(name=word, plan={"precision": word, "device": word})
        return run.view()

    _same_structure(told(evil, "a"), told(_harmless(evil), "b"))


def _same_structure(evil: RunView, harmless: RunView) -> None:
    for name in NAMES:
        found, expected = Parsed(sections(evil)[name]), Parsed(sections(harmless)[name])
        assert (found.tags, found.attributes) == (expected.tags, expected.attributes), name
    for (_key, found_row), (_other, expected_row) in zip(compile_rows(evil), compile_rows(harmless), strict=True):
        assert Parsed(found_row).tags == Parsed(expected_row).tags
    html = "".join([*sections(evil).values(), *(row for _key, row in compile_rows(evil))])
    assert "<script" not in html and "</style" not in html and "\x1b" not in html
    assert html.encode("utf-8")


# -- small forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "width", "line"),
    [
        ([], 8, ""),
        ([5.0], 8, "▅"),
        ([1.0, 1.0], 8, "▅▅"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0.0, float("nan"), 1.0], 8, "▁!█"),
        ([0.0, float("inf"), 1.0], 8, "▁!█"),
        ([-1e308, 1e308], 8, "▁█"),
        (list(range(100)), 4, "▁▃▆█"),
    ],
)
def test_a_curve_as_text(numbers: list[float], width: int, line: str) -> None:
    assert sparkline(numbers, width) == line


def test_a_curve_as_a_drawing() -> None:
    points = [Point(step, float(step), step - 0.5, step + 0.5) for step in range(1000)]
    drawn = svg(points, "#123456")
    parsed = Parsed(drawn)
    assert (
        parsed.tags == ["svg", "polygon", "polyline"] and parsed.text == ""
    )  # nothing is left where tags are stripped
    assert len(drawn) < 4_000
    coordinates = [tuple(map(float, each.split(","))) for each in dict(parsed.attributes)["points"].split()]  # type: ignore[union-attr]
    assert all(0 <= x <= 600 and 0 <= y <= 100 for x, y in coordinates)
    nan = float("nan")
    assert svg(points[:1], "#123456") == "" == svg([Point(1, nan, nan, nan)] * 5, "#123456")
    assert "polygon" not in svg([Point(at, 1.0, 1.0, 1.0) for at in range(3)], "#123456")


def test_numbers_in_words() -> None:
    assert [seconds(value) for value in (0.0, 2e-7, 0.00085, 0.0412, 1.934, 99.0, 245.0)] == [
        *("0 s", "0.2 µs", "850 µs", "41.2 ms", "1.93 s", "99 s", "4 min 05 s")
    ]
    assert seconds(float("inf")) == "n/a"
    assert [clock(value) for value in (8.9, 61, 7_440, 10**7)] == ["8 s", "1 min 01 s", "2 h 04 min", "2,777 h 46 min"]
    assert [size(value) for value in (12, 3 * 2**20, 1.5 * 2**30)] == ["12 bytes", "3 MiB", "1.5 GiB"]
    assert [percent(value) for value in (0, 0.001, 0.5, 0.999, 1)] == [
        *("0 %", "less than 1 %", "50 %", "more than 99 %", "100 %")
    ]
    assert short("a\n  b" + "c" * 50, 10) == "a bcccccc…"


@pytest.mark.parametrize(("status", "said"), [("failed", "✗ failed It ended."), ("interrupted", "It ended.")])
def test_a_run_that_was_stopped_has_not_failed(tmp_path: Path, status: str, said: str) -> None:
    failure = {"what": "It ended.", "why": "", "todo": "Run it again.", "details": []}
    view = recorded.Recorded(tmp_path, status=status, failure=failure).view()
    assert view.failure is not None
    [told] = [each for each in failure_facts(view.failure, view.state) if each.label == "What happened"]
    assert " ".join(part for part in (told.marked, *told.lines) if part) == said
