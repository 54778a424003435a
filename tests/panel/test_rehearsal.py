"""Runs that rehearse: what the panel, the text and the one line say of ranks on XLA:CPU and of virtual devices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tests.panel.parsed import Parsed
from tests.panel.recorded import ASLEEP, CREATED, Recorded, began, first_compile, myself, rehearsal_plan
from tests.panel.test_sections import fact, text_of
from tpu_magics.panel.page import to_html, to_text
from tpu_magics.panel.runs import plain_summary, summary_table
from tpu_magics.panel.sections import sections
from tpu_magics.panel.sections_header import facts, title_notes
from tpu_magics.panel.sections_parts import rank_cells, rank_columns
from tpu_magics.panel.sections_rehearsal import rehearsal, straggler
from tpu_magics.panel.table import to_text as table_text
from tpu_magics.runs.events import Batch, End, Mesh, Metrics, Times
from tpu_magics.runs.reader import Run


def waited(run: Recorded, rank: int, compiling: float | None, collectives: float | None) -> None:
    run.write(Times(CREATED + 21, rank, compiling, 0.1, 0.0, collectives, 10))


def ranks_of(root: Path, *times: tuple[float | None, float | None]) -> Recorded:
    """Ranks that have trained for 20 seconds, with their seconds of compiling and in collectives."""
    run = Recorded(root, "ranks", **myself())
    run.update(plan=rehearsal_plan(len(times)))
    for rank, (compiling, collectives) in enumerate(times):
        run.write(*began(CREATED + 0.99, rank, len(times)))
        waited(run, rank, compiling, collectives)
    return run


# -- that it is a rehearsal ------------------------------------------------------------------------------------------


def test_the_head_says_that_it_is_a_rehearsal(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    assert title_notes(view).endswith("rehearsal of 8 ranks on XLA:CPU")
    assert "rehearsal of 8 ranks on XLA:CPU" in to_text(view).partition("Compiles\n")[0]
    assert title_notes(recorded.on_tpu(tmp_path).view()).endswith("8 ranks on TPU")
    assert title_notes(recorded.running(tmp_path).view()).endswith("1 rank on XLA:CPU")


def test_what_is_as_on_a_tpu_and_what_is_not_is_one_line_that_unfolds(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    html = sections(view)["rehearsal"]
    assert html.startswith("<details ") and " open" not in html.partition(">")[0]
    summary, _, unfolded = html.partition("</summary>")
    assert "speed and memory do not" in Parsed(f"{summary}</summary></details>").text
    for word in ("gloo", "weights", "random states", "barriers", "the data of each rank"):
        assert word in unfolded
    told = to_text(view)
    assert told.index("\nRehearsal on CPU\n") > told.index("\nRanks\n")
    assert "Same as on a TPU" in told and "Different on a TPU" in told


@pytest.mark.parametrize("name", ["running", "done", "failed", "on-tpu", "starting"])
def test_other_runs_say_nothing_of_it(tmp_path: Path, name: str) -> None:
    view = recorded.RUNS[name](tmp_path).view()
    assert sections(view)["rehearsal"] == ""
    assert "ehears" not in to_text(view).replace("rehearsal-of-2", "")
    assert "in collectives" not in rank_columns(view)


@pytest.mark.parametrize(("info", "word"), [({"rehearsed": True}, "rehearsal"), ({"spmd": 8}, "SPMD"), ({}, "")])
def test_run_json_tells_it_in_a_word(info: dict[str, Any], word: str) -> None:
    assert rehearsal({"plan": info}) == word


@pytest.mark.parametrize("info", [None, [], {}, {"plan": None}, {"plan": {"rehearsed": "yes", "spmd": "8"}}])
def test_of_a_foreign_run_json_nothing_is_concluded(info: object) -> None:
    assert rehearsal(info) == ""


def test_the_plain_summary_says_it(tmp_path: Path) -> None:
    run = recorded.rehearsed(tmp_path)
    for rank in range(8):
        run.write(End(CREATED + 15, rank, steps=25, compiles=2, recompiles=1))
    run.update(status="done")
    assert "\nranks: 8 (rehearsal)\n" in plain_summary(Run(run.files.path))
    assert "8 (rehearsal)" in table_text(summary_table(Run(run.files.path)))
    meshed = recorded.meshed(tmp_path)
    assert "\nranks: 1 (SPMD)\n" in plain_summary(Run(meshed.files.path))


# -- compiles --------------------------------------------------------------------------------------------------------


def test_compiles_are_said_to_be_those_of_whole_graphs(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    assert view.compiles == 2 and view.pieces == 4
    told = "Graphs are counted as a TPU would compile them; here host collectives split them into 4 pieces."
    assert told in text_of(view, "compiles") and told.split(";")[0] in to_text(view)
    assert "split by host collectives into 2 pieces; a TPU compiles it as one graph" in text_of(view)


def test_a_graph_whose_pieces_are_all_known_costs_nothing_and_says_why(tmp_path: Path) -> None:
    run = recorded.rehearsed(tmp_path)
    run.write(recorded.recompile(CREATED + 10, 2, seconds=0.0, **recorded.CUT))
    told = text_of(run.view())
    assert "into 2 pieces, all compiled before; a TPU compiles it as one graph" in told
    assert "#2 In [12], line 14 · 0 s ·" in told


def test_graphs_without_a_collective_are_not_cut(tmp_path: Path) -> None:
    run = ranks_of(tmp_path, (1.0, 0.5), (1.0, 0.5)).write(first_compile(CREATED + 3))
    assert "Graphs are counted as a TPU would compile them." in text_of(run.view(), "compiles")
    assert "piece" not in text_of(run.view(), "compiles")


def test_a_run_of_one_rank_needs_no_such_word(tmp_path: Path) -> None:
    assert "Counted as" not in text_of(recorded.running(tmp_path).view(), "compiles")


# -- time in collectives ---------------------------------------------------------------------------------------------


def test_the_time_in_collectives_is_a_share_of_the_training(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    assert fact(view, "Time").endswith("host collectives 3.62 s (25 calls, 27 % of the training time)")


def test_collectives_that_were_not_measured_are_not_available(tmp_path: Path) -> None:
    view = ranks_of(tmp_path, (1.0, None), (1.0, None)).view()
    assert "host collectives n/a (not reported yet)" in fact(view, "Time")
    assert "n/a (not reported)" in rank_cells(view, view.ranks[1])


def test_a_run_without_host_collectives_does_not_speak_of_them(tmp_path: Path) -> None:
    assert "collectives" not in fact(recorded.running(tmp_path).view(), "Time")


def test_each_rank_has_its_time_in_collectives(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    at = rank_columns(view).index("in collectives")
    assert [rank_cells(view, rank)[at] for rank in view.ranks][:2] == ["3.62 s (27 %)", "2.23 s (17 %)"]
    assert all(len(rank_cells(view, rank)) == len(rank_columns(view)) for rank in view.ranks)


# -- a rank that the others wait for ---------------------------------------------------------------------------------


def test_ranks_that_are_alike_have_no_straggler(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path).view()
    assert straggler(view) is None
    assert "wait for rank" not in to_html(view) + to_text(view)


def test_the_rank_that_the_others_wait_for_is_named_and_marked(tmp_path: Path) -> None:
    view = recorded.rehearsed(tmp_path, ASLEEP, 29.2).view()
    found = straggler(view)
    assert found is not None and found.rank == 3
    told = "The other ranks wait for rank 3: it spent 27 % of its time outside compiles and collectives"
    assert told in text_of(view, "ranks") and "The other ranks wait for rank 3" in to_text(view)
    rows = sections(view)["ranks"].split("<tr ")
    assert ["! 1.75 s (6 %)" in row for row in rows].index(True) == [">3<" in row for row in rows].index(True)


@pytest.mark.parametrize(
    ("times", "slow"),
    [
        (((2.0, 10.0), (2.0, 7.9)), 1),  # 20 s: 10.5 points busier
        (((2.0, 10.0), (2.0, 8.1)), None),  # 9.5 points
        (((2.0, 10.0), (10.0, 2.0)), None),  # it compiled while the other waited
        (((2.0, 5.0), (2.0, 5.0), (2.0, 14.0)), None),  # two that are alike
        (((2.0, 5.0), (None, 5.0)), None),
        (((2.0, None), (2.0, 5.0)), None),
        (((2.0, 5.0),), None),
        ((), None),
    ],
)
def test_a_rank_stands_apart_or_not(
    tmp_path: Path, times: tuple[tuple[float | None, float | None], ...], slow: int | None
) -> None:
    found = straggler(ranks_of(tmp_path, *times).view(CREATED + 22))
    assert (found.rank if found else None) == slow


# -- SPMD ------------------------------------------------------------------------------------------------------------


def test_the_mesh_and_its_parameters(tmp_path: Path) -> None:
    view = recorded.meshed(tmp_path).view()
    assert title_notes(view).endswith("8 virtual devices in one SPMD worker on XLA:CPU")
    told = "8 virtual devices, data=8, model=1; parameters: 12 sharded (1 MiB), 4 replicated (3 KiB)"
    assert fact(view, "Mesh") == told
    assert "XLA puts them into the graph" in text_of(view, "rehearsal")
    assert "gloo" not in text_of(view, "rehearsal")


def test_a_mesh_on_a_tpu_is_no_rehearsal(tmp_path: Path) -> None:
    run = recorded.meshed(tmp_path, virtual=False)
    run.update(plan={**rehearsal_plan(1), "device": "TPU", "spmd": 0})
    view = run.view()
    assert fact(view, "Mesh").startswith("8 devices, data=8, model=1; ")
    assert sections(view)["rehearsal"] == ""


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"sharded": None, "text": "not readable: {x}"}, "parameters: n/a (not readable: {x})"),
        ({"replicated": None}, "parameters: n/a (not reported)"),
        ({"sharded": 0, "replicated": 0}, "parameters: none on the devices"),
        ({"sharded": 0}, "parameters: 0 sharded, 4 replicated (3 KiB)"),
        ({"shape": (), "axes": ()}, "8 virtual devices, no global mesh; "),
        ({"axes": ()}, "axis 0=8, axis 1=1; "),
    ],
)
def test_of_a_mesh_it_says_what_is_known(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    assert told in fact(recorded.meshed(tmp_path, **fields).view(), "Mesh")


def test_a_mesh_that_was_not_told_yet(tmp_path: Path) -> None:
    run = Recorded(tmp_path, "early", **myself())
    run.update(plan={**rehearsal_plan(1), "spmd": 8})
    assert fact(run.view(), "Mesh") == "n/a (no record yet)"
    assert title_notes(run.view()).endswith("one SPMD worker on XLA:CPU")
    assert not [each for each in facts(recorded.running(tmp_path).view()) if each.label == "Mesh"]


def test_names_of_axes_stay_text(tmp_path: Path) -> None:
    html = to_html(recorded.meshed(tmp_path, axes=("<b>data", "model"), text="<i>").view())
    assert "&lt;b&gt;data=8" in html and "<b>data" not in html


def test_the_batch_of_an_spmd_worker_is_that_of_all_its_devices(tmp_path: Path) -> None:
    run = recorded.meshed(tmp_path).write(Batch(CREATED + 5, 0, per_device=32, accumulation=2, ranks=1))
    assert fact(run.view(), "Effective batch") == "64 = 32 for all devices together x 2 accumulated"


# -- reports of the runtime's metrics ---------------------------------------------------------------------------------


def test_a_report_of_the_runtimes_metrics_is_named(tmp_path: Path) -> None:
    view = recorded.meshed(tmp_path).view()
    told = text_of(view, "reads")
    assert "2 reports, the newest in rank-0-metrics-1.txt: compiles 2 (3.92 s), executions 200 (626 ms)" in told
    assert "rank-0-metrics-1.txt" in to_text(view)


def test_what_a_report_lacks_is_not_available(tmp_path: Path) -> None:
    run = recorded.meshed(tmp_path).write(Metrics(CREATED + 9, 0, file="", number=0))
    told = text_of(run.view(), "reads")
    assert "1 report, not saved: compiles n/a (not measured)" in told


def test_in_a_rehearsal_a_report_counts_pieces(tmp_path: Path) -> None:
    run = recorded.rehearsed(tmp_path).write(Metrics(CREATED + 9, 0, file="rank-0-metrics-0.txt", compiles=4))
    assert "counted by the runtime, each piece separately." in text_of(run.view(), "reads")


def test_the_newest_of_both_counts(tmp_path: Path) -> None:
    run = recorded.meshed(tmp_path)
    run.write(dataclasses.replace(Mesh(CREATED + 9, 0, (4, 2), ("data", "model"), 8, True, 16, 0, 9 * 2**20)))
    assert fact(run.view(), "Mesh").endswith("data=4, model=2; parameters: 16 sharded (9 MiB), 0 replicated")
