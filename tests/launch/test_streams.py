"""What a worker prints and displays is seen in the notebook, in order, whatever wrote it; the notebook's half, too."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launching import failed, fake_notebook, in_forked_notebook, of, run, said
from tpu_magics.launch import streams
from tpu_magics.launch.streams import PlainScreen, Relay
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.writer import EventWriter

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


# -- everything that writes -------------------------------------------------------------------------------------------


def writes_in_every_way() -> None:
    print("1 print")
    os.write(1, b"2 descriptor 1\n")
    os.system("echo 3 program")
    sys.stderr.write("4 stderr\n")
    ctypes.CDLL(None).puts(b"5 C stdio")
    ctypes.CDLL(None).fflush(None)
    os.write(2, b"6 descriptor 2\n")
    print("7 to the original", file=sys.__stdout__)
    sys.stdout.writelines(["8 ", "lines\n"])
    print("9 a", "b", sep="-", end="!\n", flush=True)
    subprocess.run([sys.executable, "-S", "-c", "print('10 another Python')"], check=True)
    builtins.print("11 the last line without an end", end="")


def test_all_ways_of_writing_are_shown_in_order() -> None:
    notebook = fake_notebook()
    result = run(writes_in_every_way)
    assert notebook.printed.splitlines() == [
        "1 print",
        "2 descriptor 1",
        "3 program",
        "4 stderr",
        "5 C stdio",
        "6 descriptor 2",
        "7 to the original",
        "8 lines",
        "9 a-b!",
        "10 another Python",
        "11 the last line without an end",
    ]
    assert result.run.log(0) == notebook.printed


def prints_slowly() -> float:
    print("first")
    time.sleep(1.5)
    print("second")
    return time.time()


def test_output_is_shown_while_the_worker_runs() -> None:
    notebook = fake_notebook()
    result = run(prints_slowly)
    shown = {text.strip(): at for at, _, text in notebook.shown}
    assert shown["first"] < result.value - 0.5 and list(shown) == ["first", "second"]


def test_output_before_a_crash_is_kept() -> None:
    def crashes() -> None:
        print("the last words")
        ctypes.CDLL(None).printf(b"lost in the buffer of C")
        os.write(2, b"terminate called after throwing an instance of 'std::runtime_error'\n")
        ctypes.CDLL(None).abort()

    notebook = fake_notebook()
    error = failed(crashes)
    assert "the last words" in notebook.printed and "SIGABRT" in error.what
    assert "terminate called" in said(error)


def prints_much() -> None:
    for number in range(16_384):
        print(f"{number:08d} " + "x" * 54)  # 64 bytes with the newline


def test_a_megabyte_arrives_whole() -> None:
    notebook = fake_notebook()
    run(prints_much)
    lines = notebook.printed.splitlines()
    assert len(notebook.printed) == 1 << 20
    assert [int(line.split()[0]) for line in lines] == list(range(16_384))


def test_a_long_line_from_several_threads_stays_whole() -> None:
    import threading

    def many() -> None:
        lines = [str(number) * 20_000 + "\n" for number in range(8)]
        threads = [threading.Thread(target=lambda line=line: sys.stdout.write(line)) for line in lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    notebook = fake_notebook()
    run(many)
    assert sorted(notebook.printed.splitlines()) == sorted(str(number) * 20_000 for number in range(8))


def prints_bytes() -> None:
    os.write(1, b"caf\xe9 \xff\xfe\n")
    os.write(1, "naïve 🎉".encode()[:8])  # the first half of the emoji ...
    time.sleep(0.2)
    os.write(1, "naïve 🎉".encode()[8:] + b"\n")  # ... and the second
    print("lonely \ud800 surrogate")
    os.write(1, b"cut at the end \xf0\x9f")


def test_bytes_that_are_no_text_do_no_harm() -> None:
    notebook = fake_notebook()
    result = run(prints_bytes)
    lines = notebook.printed.splitlines()
    assert lines[0] == "caf\ufffd \ufffd\ufffd" and lines[1] == "naïve 🎉" and lines[2] == "lonely ? surrogate"
    assert lines[3].startswith("cut at the end")
    assert result.run.log_path(0).read_bytes().startswith(b"caf\xe9")


# -- streams that exist before the fork -------------------------------------------------------------------------------


def test_handlers_made_before_write_into_the_log() -> None:
    """logging keeps the stream object of the time it was set up, and so does whoever kept `out = sys.stdout`."""
    from tqdm import tqdm

    handler = logging.StreamHandler()
    logger = logging.getLogger("made.before")
    logger.addHandler(handler)
    kept = sys.stdout

    def trains() -> None:
        logger.warning("from the old handler")
        kept.write("from the kept stream\n")
        for _ in tqdm(range(3), desc="bar"):
            pass
        tqdm.write("said by the bar")

    notebook = fake_notebook()
    try:
        result = run(trains)
    finally:
        logger.removeHandler(handler)
    log = result.run.log(0)
    assert "from the old handler" in log and "from the kept stream" in log and "said by the bar" in log
    assert "\rbar: 100%" in log
    assert notebook.printed == log


def raises_after_a_while() -> None:
    print("mine")
    time.sleep(0.2)
    raise ValueError("seen once, in the error")


def test_the_traceback_is_in_the_log_and_not_among_the_output() -> None:
    for _ in range(5):
        notebook = fake_notebook()
        error = failed(raises_after_a_while)
        assert notebook.printed == "mine\n"
        assert of(error).log(0).count("ValueError: seen once") == 1


def test_a_stream_without_a_place_for_attributes_is_replaced() -> None:
    class Slotted:
        __slots__ = ()

        def write(self, text: str) -> int:
            raise AssertionError("the notebook's")

        def flush(self) -> None:
            pass

    def trains() -> None:
        print("still printed")

    notebook = fake_notebook()
    old, sys.stdout = sys.stdout, Slotted()  # type: ignore[assignment]
    try:
        result = run(trains)
    finally:
        sys.stdout = old
    assert "still printed" in result.run.log(0) and "still printed" in notebook.printed


def writes_to_the_buffer() -> None:
    sys.stdout.buffer.write(b"through the buffer\n")


def test_bytes_written_to_the_buffer_arrive(tmp_path: Path) -> None:
    def cells() -> None:
        result = run(writes_to_the_buffer)
        assert "through the buffer" in result.run.log(0), result.run.log(0)

    assert in_forked_notebook(cells, tmp_path / "out").count("through the buffer") == 1


def test_streams_that_are_closed_or_missing_do_no_harm() -> None:
    def trains() -> int:
        return 1

    old = sys.stdout
    for broken in (None, io.StringIO()):
        if broken is not None:
            broken.close()
        fake_notebook()
        sys.stdout = broken  # type: ignore[assignment]
        try:
            assert run(trains).value == 1
        finally:
            sys.stdout = old


def test_other_ranks_write_into_their_own_logs() -> None:
    notebook = fake_notebook()
    pids: list[int] = []

    def trains() -> int:
        os.system("echo program")
        print("rank of", os.getpid())
        return os.getpid()

    result = run(trains, workers=3)
    pids = result.values
    assert [result.run.log(rank) for rank in range(3)] == [f"program\nrank of {pid}\n" for pid in pids]
    assert notebook.printed == f"program\nrank of {pids[0]}\n"


# -- nobody can answer ------------------------------------------------------------------------------------------------


def asks() -> None:
    input("How many? ")


def asks_for_a_password() -> None:
    import getpass

    getpass.getpass()


def debugs() -> None:
    breakpoint()


def debugs_with_pdb() -> None:
    import pdb

    pdb.Pdb().set_trace()


@pytest.mark.parametrize("function", [asks, asks_for_a_password, debugs, debugs_with_pdb])
def test_questions_end_in_a_clear_error(function: Any) -> None:
    error = failed(function)
    text = said(error)
    assert re.search(r"Rank 0 called \S+\(\) at `", error.what), text
    assert "Ask for the input in a cell before" in text


def reads_stdin() -> str:
    return sys.__stdin__.read() if sys.__stdin__ is not None else ""


def reads_descriptor() -> bytes:
    return os.read(0, 10)


def test_reading_the_standard_input_never_hangs() -> None:
    assert run(reads_descriptor).value == b""


# -- displays ---------------------------------------------------------------------------------------------------------


def displays() -> None:
    from IPython.display import HTML, clear_output, display

    print("before")
    handle = display(HTML("<b>first</b>"), display_id="shown")
    print("between")
    handle.update(HTML("<b>second</b>"))
    os.write(1, b"after\n")
    clear_output(wait=True)
    display({"image/png": b"\x89PNG", "text/plain": "a picture"}, raw=True)
    display({"text/plain": "x" * (streams.DISPLAY_LIMIT + 1)}, raw=True)
    display({"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "Widget()"}, raw=True)
    print("end")
    with contextlib.redirect_stdout(DisplayingStream()):
        print("through a display")


@pytest.mark.usefixtures("runs")
def test_what_is_cleared_in_an_output_widget_stays_in_it(tmp_path: Path) -> None:
    """rich clears its own ipywidgets.Output ten times a second; the cell's output stays."""
    import ipywidgets

    told: list[tuple[Any, ...]] = []

    def announce(file: str, display_id: str, update: bool, action: str, wait: bool) -> None:
        shown = json.loads((tmp_path / file).read_text())["data"].get("text/plain") if file else None
        told.append((action, display_id, update, shown))

    output, files = ipywidgets.Output(), RunFiles(tmp_path)
    one = streams.Displays(files, announce, keep=True)
    one.publish({streams.WIDGET_MIME: {"model_id": output.model_id}, "text/plain": "Output()"})
    for value in ("first", "second", "third"):
        output.msg_id = "1"  # what `with output:` sets in a kernel
        if value != "third":
            one.clear_output(wait=True)
        one.publish({"text/plain": value})
        output.msg_id = ""
    one.clear_output()
    area = output.model_id
    output.close()
    assert told == [
        ("display", area, False, ""),
        ("display", area, True, "first"),
        ("display", area, True, "second"),
        ("display", "", False, "third"),
        ("clear", "", False, None),
    ]


class DisplayingStream(io.StringIO):
    """Shows what is printed as a display, as rich does while it shows a progress bar."""

    def write(self, text: str) -> int:
        from IPython.display import display

        if text.strip():
            display({"text/plain": text}, raw=True)
        return len(text)


def cells_with_displays() -> None:
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.instance()
    notebook = fake_notebook()
    result = run(displays, workers=2)
    print(json.dumps([[kind, shown] for _, kind, shown in notebook.shown]))
    print(json.dumps(result.run.log(1)))


def test_displays_stand_where_they_were_made(tmp_path: Path) -> None:
    shown, other = map(json.loads, in_forked_notebook(cells_with_displays, tmp_path / "out").splitlines()[-2:])
    merged: list[list[Any]] = []
    for kind, what in shown:
        if merged and kind == "text" == merged[-1][0]:
            merged[-1][1] += what
        else:
            merged.append([kind, what])
    kinds = [kind for kind, _ in merged]
    assert kinds == [
        "text",
        "display",
        "text",
        "update",
        "text",
        "clear",
        "display",
        "display",
        "display",
        "text",
        "display",
    ]
    assert [what for kind, what in merged if kind == "text"] == ["before\n", "between\n", "after\n", "end\n"]
    first, second, picture, large, widget, bar = (what for kind, what in merged if kind in ("display", "update"))
    assert (first["text/html"], second["text/html"]) == ("<b>first</b>", "<b>second</b>")
    assert picture == {"image/png": "iVBORw==", "text/plain": "a picture"}
    assert large["text/plain"].startswith("xxx") and "not shown: this display is 5.2 MB" in large["text/plain"]
    assert widget == {"text/plain": "Widget()"}
    assert bar == {"text/plain": "through a display"}
    assert "before\n" in other and "a picture" in other  # other ranks: as text, in their logs
    assert other.endswith("end\nthrough a display\n")


def figures() -> None:
    import matplotlib.pyplot as plt

    plt.plot([1, 2, 3])


def cells_with_figures() -> None:
    for name in [one for one in sys.modules if one.startswith("matplotlib")]:
        del sys.modules[name]  # another test may have set it up its own way
    import matplotlib
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.instance()
    matplotlib.use("module://matplotlib_inline.backend_inline")
    import matplotlib.pyplot

    notebook = fake_notebook()
    run(figures)
    print(json.dumps([sorted(what) for _, kind, what in notebook.shown if kind == "display"]))


def test_figures_left_open_are_shown(tmp_path: Path) -> None:
    out = in_forked_notebook(cells_with_figures, tmp_path / "out")
    assert "image/png" in json.loads(out.splitlines()[-1])[0]


def bars() -> None:
    from tqdm.auto import tqdm as auto
    from tqdm.notebook import tqdm as notebook

    for _ in auto(range(3), desc="auto"):
        pass
    with notebook(total=2, desc="notebook") as bar:
        bar.update(2)
        bar.set_postfix(loss=1.0)
    broken = notebook(range(2), desc="broken")
    for _ in broken:
        break
    broken.close()


def cells_with_bars() -> None:
    import warnings

    from IPython.core.interactiveshell import InteractiveShell

    warnings.simplefilter("ignore")
    InteractiveShell.instance()
    import tqdm.auto
    import tqdm.notebook

    notebook = fake_notebook()
    run(bars)
    earlier = tqdm.notebook.tqdm(total=4, desc="earlier", display=False)
    result = run(lambda: (earlier.update(4), earlier.refresh())[0])
    assert (earlier.n, result.left) == (4, {})

    def dies() -> None:
        with earlier.get_lock():
            os._exit(1)

    failed(dies)
    earlier.update(0)
    earlier.refresh()  # it waited forever for the lock
    assert [kind for _, kind, _ in notebook.shown if kind != "text"] == []
    print(json.dumps(notebook.printed))


def test_notebook_bars_are_text_in_a_worker(tmp_path: Path) -> None:
    out = json.loads(in_forked_notebook(cells_with_bars, tmp_path / "out").splitlines()[-1])
    assert "auto: 100%" in out and "notebook: 100%" in out and "loss=1" in out and "broken:" in out
    assert "earlier: 100%" in out


# -- the notebook's half, by itself -----------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


@pytest.fixture
def writer(files: RunFiles) -> Iterator[EventWriter]:
    made = EventWriter(files.events_path(0), 0)
    yield made
    made.close()


def test_the_relay_shows_each_byte_once(files: RunFiles) -> None:
    files.log_path(0).write_bytes(b"one\n")
    notebook = fake_notebook()
    shower = Relay(files, notebook)
    shower.pump()
    shower.pump()
    with open(files.log_path(0), "ab") as log:
        log.write(b"two\n")
    shower.pump()
    assert notebook.printed == "one\ntwo\n"


def test_the_relay_does_not_wait_for_a_pipe(files: RunFiles, writer: EventWriter) -> None:
    os.mkfifo(files.log_path(0))
    os.mkfifo(files.display_path(0))
    writer.write(events.Display(1.0, 0, file=files.display_path(0).name, offset=3))
    notebook = fake_notebook()
    Relay(files, notebook).pump()
    assert notebook.shown == []


def test_of_very_much_output_the_newest_is_shown(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SHOWN", 10)
    files.log_path(0).write_bytes(b"0123456")
    notebook = fake_notebook()
    shower = Relay(files, notebook)
    shower.pump()
    with files.log_path(0).open("ab") as log:
        log.write(b"789 and more\n")
    shower.pump()
    assert [(kind, what) for _, kind, what in notebook.shown] == [
        ("text", "0123456"),
        ("text", "789"),
        ("newest only", str(files.log_path(0))),
        ("text", " and more\n"),
    ]


def test_a_very_long_log_is_cut_in_its_middle(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOG_MOST", 4 << 20)
    monkeypatch.setattr(streams, "LOG_KEPT", 1 << 20)
    path, notebook = files.log_path(0), fake_notebook()
    shower = Relay(files, notebook)
    with path.open("ab", buffering=0) as log:  # its writer goes on
        log.write(b"first\n" + b"x" * (3 << 20))
        shower.pump()
        shower.bound_log()
        assert path.stat().st_size == 6 + (3 << 20)
        log.write(b"x" * (2 << 20) + b"last\n")
        shower.pump()
        shower.bound_log()
        log.write(b"new\n")
        shower.pump()
    text = path.read_text()
    assert text.startswith("first\nx") and text.endswith("xlast\nnew\n") and len(text) < (2 << 20) + 200
    assert "\n[tpu_magics: 3 MiB of output were removed here: a log of more than 4 MiB is cut in its middle]\n" in text
    assert notebook.printed.endswith("xlast\nnew\n") and notebook.printed.count("last") == 1


def test_the_relay_stops_where_the_persons_output_ends(files: RunFiles, writer: EventWriter) -> None:
    """A traceback follows in the log; the error shows it better."""
    files.log_path(0).write_bytes(b"mine\nTraceback ...\n")
    notebook = fake_notebook()
    writer.write(events.End(t=time.time(), rank=0, status="failed", log_end=5))
    shower = Relay(files, notebook)
    shower.pump()
    shower.pump()
    assert notebook.printed == "mine\n"


def test_the_relay_waits_for_text_before_a_display(tmp_path: Path, files: RunFiles, writer: EventWriter) -> None:
    files.log_path(0).write_bytes(b"before|after")
    (tmp_path / "display-1.json").write_text(json.dumps({"data": {"text/plain": "D"}, "metadata": {}}))
    notebook = fake_notebook()
    writer.write(events.Display(t=1.0, rank=0, file="display-1.json", offset=7))
    writer.write(events.Display(t=1.0, rank=0, file="missing.json", offset=9))
    Relay(files, notebook).pump()
    assert [what for _, _, what in notebook.shown] == ["before|", {"text/plain": "D"}, "af", "ter"]


def test_the_relay_without_a_log_shows_nothing(files: RunFiles) -> None:
    notebook = fake_notebook()
    Relay(files, notebook).pump()
    assert notebook.shown == []


def test_a_plain_screen_prints(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    screen.text("text ")
    screen.display({"text/plain": "shown", "text/html": "<b>"}, {}, "", False)
    screen.clear(True)
    assert capsys.readouterr().out == "text shown\n"


def test_large_logs_are_read_in_pieces(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "RELAY_CHUNK", 7)
    files.log_path(0).write_bytes("zwölf Boxkämpfer jagen Viktor".encode())
    notebook = fake_notebook()
    Relay(files, notebook).pump()
    assert notebook.printed == "zwölf Boxkämpfer jagen Viktor" and len(notebook.shown) > 3
