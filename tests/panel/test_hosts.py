"""Runs on several hosts: the table of ranks says whose host each is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.panel.recorded import CREATED, Recorded, began, myself, rehearsal_plan
from tpu_magics.panel.page import to_html
from tpu_magics.panel.sections_header import memory_fact
from tpu_magics.panel.sections_parts import rank_cells, rank_columns
from tpu_magics.panel.sections_rehearsal import where
from tpu_magics.runs.events import Memory

HOSTS = [
    {"index": 0, "name": "slice-0-w0", "address": "10.0.0.2", "ranks": [0, 1]},
    {"index": 1, "name": "<b>w1</b>", "address": "10.0.0.3", "ranks": [2, 3]},
]


def run_on(root: Path, ranks: int = 4, **info: Any) -> Recorded:
    run = Recorded(root, "hosts", **myself())
    run.update(plan=rehearsal_plan(ranks), **info)
    for rank in range(ranks):
        run.write(*began(CREATED + 0.99, rank, ranks))
    return run


def test_each_rank_has_its_host(tmp_path: Path) -> None:
    view = run_on(tmp_path, hosts=HOSTS).view()
    at = rank_columns(view).index("host")
    assert [rank_cells(view, rank)[at] for rank in view.ranks] == ["slice-0-w0"] * 2 + ["<b>w1</b>"] * 2
    assert all(len(rank_cells(view, rank)) == len(rank_columns(view)) for rank in view.ranks)
    assert "&lt;b&gt;w1&lt;/b&gt;" in to_html(view) and "<b>w1</b>" not in to_html(view)


def test_the_header_counts_the_hosts_and_weighs_no_memory_of_one_machine(tmp_path: Path) -> None:
    run, alone = run_on(tmp_path / "pod", hosts=HOSTS), run_on(tmp_path / "one")
    for each in (run, alone):
        for rank in range(4):
            each.write(Memory(CREATED + 2, rank, rss=3 << 20, pss=2 << 20))
    assert where(run.view()) == "rehearsal of 4 ranks on 2 hosts, XLA:CPU"
    assert where(alone.view()) == "rehearsal of 4 ranks on XLA:CPU"
    [text] = memory_fact(run.view()).lines
    assert text.endswith("on 2 hosts") and "machine's" not in text and "machine's" in memory_fact(alone.view()).lines[0]


def test_what_a_host_told_of_its_worker_counts_before_the_plan(tmp_path: Path) -> None:
    workers = [{"rank": 0, "host": 1}, {"rank": 3, "host": 0}]
    view = run_on(tmp_path, hosts=HOSTS, workers=workers).view()
    assert [rank.host for rank in view.ranks] == ["<b>w1</b>", "slice-0-w0", "<b>w1</b>", "slice-0-w0"]


def test_a_run_on_one_host_has_no_such_column(tmp_path: Path) -> None:
    assert "host" not in rank_columns(run_on(tmp_path).view())


@pytest.mark.parametrize("hosts", [None, 3, "x", [7], [{"ranks": 5}], [{"name": None, "ranks": [0]}], [{"index": []}]])
def test_of_a_foreign_run_json_nothing_is_concluded(tmp_path: Path, hosts: object) -> None:
    assert "host" not in rank_columns(run_on(tmp_path, hosts=hosts).view())
