"""Ranks agree on the item at which they save: with ranks that wait for each other inside of their items, requests that
reach the hosts at different moments, and clocks that differ."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tpu_magics.backends.base import CheckpointPlan
from tpu_magics.checkpoints.store import FolderBoard
from tpu_magics.launch.resume import saving
from tpu_magics.launch.resume.saving import SaveClock

RANKS, HOSTS = 4, 2


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "FIRST_WAIT", 0.1)


class Rank(threading.Thread):
    """One rank, with an item each few milliseconds. `collective`: where all meet in each item; `saves`: the number
    of a save -> its item."""

    def __init__(self, rank: int, folder: Path, seconds: float, collective: threading.Barrier | None) -> None:
        super().__init__(daemon=True)
        plan = CheckpointPlan(str(folder), seconds, None, 2, None, False, {}, "")
        host = folder / f"host-{rank * HOSTS // RANKS}"
        host.mkdir(exist_ok=True)
        self.clock = SaveClock(plan, rank, RANKS, host, FolderBoard(folder / "board"))
        self.collective = collective
        self.chance = random.Random(rank)
        self.saves: dict[int, int] = {}
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.clock.begin()
            while not (self._item() and self.clock.stops):
                pass
        except Exception as error:
            self.error = error

    def _item(self) -> bool:
        """Whether it saved after it."""
        time.sleep(self.chance.random() * 0.004)
        if self.collective is not None:
            self.collective.wait(20)
        time.sleep(self.chance.random() * 0.004)
        if not self.clock.due(1, stepped=True, busy=False):
            return False
        self.saves[self.clock.number] = self.clock.items
        self.clock.number += 1
        return True


def end(ranks: Sequence[Rank], folder: Path, delay: float) -> None:
    """Ask the hosts to save and end, one after the other, and wait for the ranks."""
    for host in range(HOSTS):
        saving.ask(folder / f"host-{host}", saving.STOP)
        time.sleep(delay)
    for rank in ranks:
        rank.join(30)
    assert not any(rank.is_alive() for rank in ranks)
    assert [rank.error for rank in ranks] == [None] * RANKS
    assert all(rank.saves == ranks[0].saves for rank in ranks), [rank.saves for rank in ranks]


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_wait_for_each_other_end_at_one_item(seed: int, delay: float, tmp_path: Path) -> None:
    barrier = threading.Barrier(RANKS)
    ranks = [Rank(number, tmp_path, 3600.0, barrier) for number in range(RANKS)]
    for rank in ranks:
        rank.start()
    time.sleep(0.05 + random.Random(seed).random() * 0.05)
    end(ranks, tmp_path, delay)
    assert len(ranks[0].saves) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_ranks_whose_clocks_differ_save_at_the_same_items(waits: bool, tmp_path: Path) -> None:
    barrier = threading.Barrier(RANKS) if waits else None
    ranks = [Rank(number, tmp_path, 0.1 + 0.02 * number, barrier) for number in range(RANKS)]
    for rank in ranks:
        rank.start()
    time.sleep(1.5)
    end(ranks, tmp_path, 0.05)
    assert len(ranks[0].saves) > 2


def test_no_rank_waits_long_for_one_that_has_ended(tmp_path: Path) -> None:
    ranks = [Rank(number, tmp_path, 3600.0, None) for number in range(RANKS)]
    ranks[0].clock.end()
    began = time.monotonic()
    for rank in ranks[1:]:
        rank.clock.want()
        assert not rank.clock.due(1, stepped=True, busy=False)
    assert time.monotonic() - began < 1
