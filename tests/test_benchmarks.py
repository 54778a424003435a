"""The benchmarks with tiny sizes: that each measures what it says, and that its table reaches the screen and the docs.

No test looks at a time: `make bench` does.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import overlay
from tests.benchmarks import __main__ as runner
from tests.benchmarks import (
    bench_hosts,
    bench_labextension,
    bench_launch,
    bench_load,
    bench_memory,
    bench_models,
    bench_observer,
    bench_preflight,
    bench_runs,
    bench_tensorflow,
    bench_traffic,
    bench_worker,
    fresh,
    report,
    steady,
)
from tpu_magics.panel.table import to_text


def gone(pid: int) -> bool:
    """Whether a process has ended, within some seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


# -- processes of their own ----------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_call_runs_in_a_process_of_its_own_and_its_result_comes_back() -> None:
    assert fresh.call("os", "getpid") != os.getpid()
    assert fresh.call("os.path", "join", "a", "b") == "a/b"


@pytest.mark.process
def test_a_call_that_fails_shows_the_end_of_its_output() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)os\.mkdir ended with exit code 1.*FileExistsError"):
        fresh.call("os", "mkdir", "/")


@pytest.mark.process
def test_a_call_that_takes_too_long_is_stopped_and_leaves_nothing() -> None:
    with fresh.Fresh("time", "sleep", 60) as running, pytest.raises(RuntimeError, match=r"did not end within 0\.2 s"):
        running.result(0.2)
    assert gone(running.process.pid)
    assert not running.folder.exists()


@pytest.mark.process
def test_a_call_dies_with_its_caller() -> None:
    code = (
        "from tests.benchmarks import fresh\n"
        "with fresh.Fresh('time', 'sleep', 60) as running:\n"
        "    __import__('time').sleep(1)\n"
        "    print(running.process.pid, running.folder, flush=True)\n"
        "    running.result(60)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=fresh.ROOT, stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    pid, folder = caller.stdout.readline().split()
    os.kill(caller.pid, signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    assert gone(int(pid))
    Path(folder, "output.txt").unlink()
    Path(folder).rmdir()


# -- tables --------------------------------------------------------------------------------------------------------


def test_rows_become_a_table() -> None:
    rows = [{"way": "a|b", "s": 0.123456, "cells": 3}, {"way": "c", "s": None, "more": 1234.5}]
    table = report.to_table("Title", rows, ["A note."])
    assert table.columns == ("way", "s", "cells", "more")
    assert [row.cells for row in table.rows] == [("a|b", "0.12", "3", ""), ("c", "not available", "", "1,234")]
    assert "A note." in to_text(table)
    assert report.to_markdown(table).splitlines() == [
        "| way | s | cells | more |",
        "| --- | --- | --- | --- |",
        "| a\\|b | 0.12 | 3 |  |",
        "| c | not available |  | 1,234 |",
        "",
        "- A note.",
    ]


@pytest.mark.parametrize(("value", "text"), [(True, "yes"), (7, "7"), (12.34, "12.3"), (0.05, "0.05"), ("x", "x")])
def test_cells_are_text(value: Any, text: str) -> None:
    assert report.text(value) == text


def test_a_section_is_replaced_between_its_markers_and_nothing_else_is() -> None:
    document = "# D\n\nprose\n\n<!-- begin a -->\nold \\1\n<!-- end a -->\n\n<!-- begin b -->\nB\n<!-- end b -->\n"
    once = report.replace_section(document, "a", "A", "new \\1 \\g<0>\n")
    assert once == document.replace("old \\1", "new \\1 \\g<0>")
    assert report.replace_section(once, "a", "A", "new \\1 \\g<0>") == once


def test_a_section_is_added_where_there_is_none() -> None:
    once = report.replace_section("# D\n", "a", "Title", "body")
    assert once == "# D\n\n## Title\n\n<!-- begin a -->\nbody\n<!-- end a -->\n"
    assert report.replace_section(once, "a", "Title", "body") == once


# -- the runner ----------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_every_benchmark_has_its_form_and_its_section_in_the_docs() -> None:
    assert {"launch", "load", "memory", "weights"} <= set(runner.names())
    for name in runner.names():
        bench = importlib.import_module(f"tests.benchmarks.bench_{name}")
        assert bench.TITLE and callable(bench.measure) and bench.__doc__
        docs = runner.document_of(name, runner.DOCS).read_text(encoding="utf-8")
        section = re.search(rf"<!-- begin {name} -->\n(.*?)\n<!-- end {name} -->", docs, re.DOTALL)
        assert section, f"the docs have no table of {name}: {runner.COMMAND} --write {name}"
        assert "Machine: " in section[1] and f"`{runner.COMMAND} {name}`" in section[1]


@pytest.mark.process
def test_the_runner_shows_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text("# Benchmarks\n\n<!-- begin load -->\n<!-- end load -->\n\nprose\n")
    assert runner.main(["--write", "bench_load"], document) == 0
    shown, written = capsys.readouterr().out, document.read_text()
    for text in (shown, written):
        assert "%load_ext tpu_magics" in text
        assert re.search(r"Machine: \d+ cores, \d+ GB of memory", text)
    assert "Command: `python -m tests.benchmarks load`" in written
    assert written.endswith("<!-- end load -->\n\nprose\n")


def test_the_runner_writes_nothing_without_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run", lambda name: report.to_table(str(name), [{"fake": 1.0}]))
    assert runner.main(["load"], tmp_path / "none.md") == 0
    assert not (tmp_path / "none.md").exists()


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runner.main(["load", "speed"])
    assert "no benchmark speed; there are calibration, check, hosts, labextension, launch" in capsys.readouterr().err


def test_a_benchmark_that_cannot_run_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = []

    def fake_run(name: str) -> Any:
        ran.append(name)
        raise RuntimeError("no such luck")

    monkeypatch.setattr(runner, "run", fake_run)
    assert runner.main(["load", "launch"]) == 1
    assert ran == ["load", "launch"]
    assert "load could not be measured: no such luck" in capsys.readouterr().out


# -- the benchmarks ------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_load_tells_which_modules_come() -> None:
    [row] = bench_load.measure(rounds=1)
    assert row["ms, slowest"] >= row["ms, median"] > 0
    assert "tpu_magics (" in row["modules it brings"]
    assert len(bench_load.notes([row])) == 2


@pytest.mark.process
@pytest.mark.long
def test_tensorflow_compares_the_same_steps_and_the_same_texts() -> None:
    overlay.require()
    observed, padded = bench_tensorflow.measure(rounds=20, turns=1, lengths=(20, 30, 40), epochs=1, width=16)
    assert observed["with"] > 0 and observed["without"] > 0 and "at most 3 %" in observed["target"]
    assert (padded["compiles without"], padded["compiles with"]) == (3, 2)


@pytest.mark.process
@pytest.mark.long
def test_observer_compares_the_same_steps_and_names_what_comes_besides() -> None:
    rows = bench_observer.measure(rounds=20)
    steps, besides, [records] = rows[:2], rows[2:6], rows[6:]
    for row, most in zip(steps, bench_observer.TARGETS.values(), strict=True):
        assert row["on"] > 0 and row["more, %"] == pytest.approx(100 * (row["on"] / row["off"] - 1))
        assert f"at most {most} %" in row["target"]
    assert [row["what"] for row in besides] == list(bench_observer.BESIDES)
    assert besides[1]["on"] > 0 and besides[2]["on"] > 0
    assert records["target"] == "at most 1 MB: met" and len(bench_observer.notes(rows)) == 4


@pytest.mark.process
@pytest.mark.long
def test_preflight_compiles_the_same_graph_in_both_ways() -> None:
    pytest.importorskip("libtpu", reason="the TPU's compiler needs libtpu (extra preflight)")
    config = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    rows = bench_preflight.measure(rounds=1, wholes=1, rows=2, length=16, config=config)
    compared, read, whole = rows[:-2], rows[-2], rows[-1]
    assert [row["what"] for row in compared] == [
        *(bench_preflight.PROCESS, bench_preflight.CALL, bench_preflight.OURS, bench_preflight.OURS_CALL)
    ]
    assert compared[0]["times the bare process"] == 1 and all(row["s, median"] > 0 for row in rows)
    assert whole["graphs"] == 2 and whole["times its compiles"] > 1
    assert read["what"] == bench_preflight.PROFILE and 0 < read["of its compile"] < 1
    assert len(bench_preflight.notes(rows)) == 4


@pytest.mark.process
@pytest.mark.long
def test_models_are_traced_and_compiled_and_what_fails_has_its_reason() -> None:
    pytest.importorskip("libtpu", reason="the TPU's compiler needs libtpu (extra preflight)")
    good, bad = bench_models.measure(names=("MLP", "DETR"))
    assert (good["model"], good["kind"], good["fits"]) == ("MLP", "torch alone", "yes")
    assert good["estimate, ms"] > good["bound, ms"] > 0 and good["compile, s"] > 0 and good["HBM, MB"] > 4
    assert bad["fits"].startswith("no: train failed during tracing: Rank 0 raised ValueError") and "trace, s" not in bad
    assert bench_models.notes([good, bad])[1] == "1 of 2 models are traced, compiled, and fit."


def test_a_model_whose_package_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "is_installed", lambda package: not package)
    assert bench_models.measure(names=("Llama, LoRA",)) == []
    assert bench_models.notes([])[-1] == (
        "Not installed, and so not tried: Llama, LoRA (peft), UNet2DConditionModel (diffusers)."
    )


@pytest.mark.process
@pytest.mark.long
def test_hosts_sees_the_events_of_all_ranks_and_what_each_host_was_sent() -> None:
    [row] = bench_hosts.measure(hosts=(2,), rounds=1)
    assert row["hosts"] == 2 and row["events"] == 2 * bench_hosts.STEPS
    assert row["s from cell to first step, median"] > 0 and row["kB sent to each host"] > 1
    assert 0 < row["ms of event lag, median"] <= row["ms of event lag, 90th percentile"]
    assert bench_hosts.notes([row]) == [] and len(bench_hosts.notes([row, {**row, "hosts": 4}])) == 2


@pytest.mark.process
@pytest.mark.long
def test_launch_times_every_way_in_one_notebook() -> None:
    rows = bench_launch.measure(notebooks=1, rounds=2, spawns=1)
    ways = list(bench_launch.CELLS)
    assert [(row["cell of its notebook"], row["way"]) for row in rows] == [
        *(("first", way) for way in ways),
        *(("later", way) for way in ways if way != bench_launch.SPAWN),
    ]
    assert all(row["s, slowest"] >= row["s, median"] > 0 and row["cells"] == 1 for row in rows)
    assert all(row["s over the bare fork"] == 0 for row in rows if row["way"] == bench_launch.FORK)
    assert all(row["times faster than spawn"] == 1 for row in rows if row["way"] == bench_launch.SPAWN)
    assert len(bench_launch.notes(rows)) == 2


def test_launch_rows_follow_from_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_times = {
        bench_launch.FORK: [0.05, 0.04, 0.04],
        bench_launch.PASSED: [0.4, 0.1, 0.2],
        bench_launch.BUILT: [0.2, 0.1, 0.1],
        bench_launch.SPAWN: [6.0],
    }
    monkeypatch.setattr(fresh, "call", lambda *args: fake_times)
    rows = bench_launch.measure(notebooks=2, rounds=3, spawns=1)
    first = rows[1]
    assert (first["way"], first["cell of its notebook"], first["cells"]) == (bench_launch.PASSED, "first", 2)
    assert first["s over the bare fork"] == pytest.approx(0.35)
    assert first["times faster than spawn"] == pytest.approx(15)
    assert bench_launch.notes(rows) == [
        "Target: at most 0.3 s over the bare fork: MISSED (at most 0.35 s).",
        "Target: at least 15 times faster than spawn: met (at least 15 times).",
    ]


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("way", bench_memory.NOTEBOOKS)
def test_memory_is_looked_at_while_all_workers_are_inside(way: str) -> None:
    size, workers = 40, 2
    seen = bench_memory.observe(way, size, workers)
    assert seen is not None, "there is room in /dev/shm for 80 MB"
    models = workers if way == bench_memory.BUILT else 1
    assert seen["inside"] > models * size
    assert seen["collected"] > models * size


@pytest.mark.process
def test_memory_says_what_the_notebook_said_when_its_workers_do_not_come(tmp_path: Path) -> None:
    with (
        fresh.Fresh("os", "mkdir", "/") as fails,
        pytest.raises(RuntimeError, match=r"(?s)not all 2 workers were inside.*FileExistsError"),
    ):
        bench_memory._wait_for(tmp_path, "inside", 2, fails)


def test_memory_rows_tell_what_grows() -> None:
    fake_looks = [
        [{"inside": 250.0, "collected": 300.0}, {"inside": 250.0, "collected": 300.0}, None],
        [{"inside": 450.0, "collected": 500.0}, {"inside": 460.0, "collected": 500.0}, None],
    ]
    found = bench_memory.row("a way", (200, 400), fake_looks)
    assert list(found.values()) == ["a way", 250, 455, pytest.approx(1.025), pytest.approx(45), 500]
    assert list(bench_memory.row("a way", (200, 400), [[None], [None]]).values()) == ["a way", *[None] * 5]


def test_memory_targets_are_judged_by_the_worse_way() -> None:
    fake_seen = {
        bench_memory.FORK: (240.0, 440.0, 900.0),
        bench_memory.SPAWN: (300.0, 500.0, 1000.0),
        bench_memory.BUILT: (1700.0, 3300.0, 4000.0),
        bench_memory.PASSED: (250.0, 450.0, 460.0),
        bench_memory.HOISTED: (255.0, 455.0, 465.0),
    }
    rows = [
        bench_memory.row(way, (200, 400), [[{"inside": a, "collected": c}], [{"inside": b, "collected": c}]])
        for way, (a, b, c) in fake_seen.items()
    ]
    assert bench_memory.notes(rows) == [
        f'Target: no more than "{bench_memory.FORK}": MISSED (455 MB, by hand 440 MB).',
        f'Target: no more than "{bench_memory.FORK}", after a garbage collection: met (465 MB, by hand 900 MB).',
        f'Target: no more than "{bench_memory.SPAWN}": met (455 MB, by hand 500 MB).',
        f'Target: no more than "{bench_memory.SPAWN}", after a garbage collection: met (465 MB, by hand 1000 MB).',
        "Target: grows by one model, not by 8: met (at most 1.00 models).",
    ]


@pytest.mark.process
@pytest.mark.long
def test_a_workers_own_memory_is_told_at_each_moment() -> None:
    rows = bench_worker.measure(workers=2, rounds=1)
    assert [row["moment"] for row in rows] == [
        bench_worker.INSIDE,
        bench_worker.FIRST,
        bench_worker.LAST,
        bench_worker.COLLECTED,
    ]
    values = [list(row.values())[1:] for row in rows]
    assert all(most >= middle > 1 and alone > 1 for middle, most, alone in values)
    assert values[0][0] < values[2][0], "compiling and training takes memory"
    assert re.search(r"counts \d+ MB for each worker", bench_worker.notes(rows)[0])


# -- what the panel sends ------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.long
def test_traffic_counts_what_goes_over_the_wire() -> None:
    found = fresh.call("tests.benchmarks.bench_traffic", "traffic", 2, 10)
    assert found["steps"] > 10 and found["compiles"] > 1 and found["updates"] > 1
    sizes = found["sizes"]
    assert set(sizes) >= {"opening", "updates", "static", "closing"} and all(size > 500 for size in sizes.values())
    row = bench_traffic._row("this", found)
    assert row["while it trains, kB"] == pytest.approx((sizes["opening"] + sizes["updates"]) / 1000)
    assert row["after the end, kB"] == pytest.approx((sizes["static"] + sizes["closing"]) / 1000)


def test_traffic_is_judged_by_the_worst_run() -> None:
    rows = [{"while it trains, kB": 100.0}, {"while it trains, kB": 200.1}]
    assert "MISSED (at most 200 kB)" in bench_traffic.notes(rows)[0]
    assert ": met (at most 100 kB)" in bench_traffic.notes(rows[:1])[0]


@pytest.mark.process
def test_many_runs_are_listed_and_found() -> None:
    rows = bench_runs.listing(runs=30, rounds=1)
    assert len(rows) == 4 and all(row["s, slowest"] > 0 for row in rows)
    assert "Target where the index is there" in bench_runs.notes(rows)[1]


# -- the JupyterLab extension --------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.process
@pytest.mark.long
def test_labextension_measures_in_a_real_jupyterlab() -> None:
    if not Path("/usr/bin/chromium").exists():
        pytest.skip("/usr/bin/chromium is not installed")
    rows = bench_labextension.measure(starts=1, openings=1, updates=5, steps=3_000, compiles=20, seen=5)
    assert [row["what"] for row in rows] == list(bench_labextension.TARGETS)
    size, _start, opening, update, *seen = (row["median"] for row in rows)
    assert size > 5 and opening > 5 and update > 0 and all(0 < each < 10_000 for each in seen)


def test_labextension_is_judged_by_the_medians() -> None:
    fake_times = {
        "bundle, gzipped": [40.0],
        "JupyterLab's start, added": [10.0, 60.0, 70.0],
        "a live update": [3.0, 20.0],
    }
    notes = bench_labextension.notes([bench_labextension.row(what, each) for what, each in fake_times.items()])
    assert notes[-3:] == [
        "Target for bundle, gzipped: under 100 kB: met (40 kB).",
        "Target for JupyterLab's start, added: under 50 ms: MISSED (the median, 60 ms; 2 of 3 took longer).",
        "Target for a live update: under 16 ms: met (the median, 11.5 ms; 1 of 2 took longer).",
    ]


def test_labextension_says_how_slow_the_slow_ones_are() -> None:
    row = bench_labextension.row("a live update", [float(value) for value in range(1, 22)])
    assert (row["median"], row["90th percentile"], row["most"]) == (11.0, 19.0, 21.0)
    assert (row["over the target"], row["times measured"]) == (6, 21), "a time of 16 ms is not under 16 ms"
    assert bench_labextension.row("bundle, gzipped", [40.0])["90th percentile"] is None
