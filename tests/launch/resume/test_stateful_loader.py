"""A loader that can tell where it is goes on there; its items before are not loaded again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import tpu_magics
from tests import framework
from tests.launch.launching import failed, run
from tpu_magics.launch import session

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


class Numbers(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Says in a file which it has made. `odd`: its state is of a type that no checkpoint has."""

    def __init__(self, made: Path, odd: bool) -> None:
        self.made, self.odd, self.next = made, odd, 0

    def __iter__(self) -> Iterator[Any]:
        while self.next < 24:
            self.next += 1
            with self.made.open("a") as file:
                file.write(f"{self.next} ")
            drawn = torch.rand(8) if torch.utils.data.get_worker_info() is None else 0.5
            yield torch.full((8,), self.next / 24) + 0.1 * drawn
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "object": object() if self.odd else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


def trains(model: Any, made: Path, workers: int, odd: bool, dies: int) -> Any:
    model.to(framework.device())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = StatefulDataLoader(Numbers(made, odd), batch_size=2, num_workers=workers)
    losses = []
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch.to(framework.device())).pow(2).mean()
            loss.backward()
            optimizer.step()
            framework.sync()
            losses.append(loss.item())
            tpu_magics.log(loss=loss.item())
            if dies and len(losses) == dies:
                raise RuntimeError("the end")
    return losses


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)


@pytest.mark.parametrize("workers, odd", [(0, False), (0, True), (1, False)])
def test_it_goes_on_where_it_was(workers: int, odd: bool, tmp_path: Path) -> None:
    session.initialise()
    made = [tmp_path / name for name in ("whole", "broken", "resumed")]
    untouched, model = net(), net()
    whole = run(trains, untouched, made[0], workers, odd, 0)
    session.current.checkpoints = str(tmp_path / "place")
    failed(trains, net(), made[1], workers, odd, 18, save_every=5)
    again = run(trains, model, made[2], workers, odd, 0, save_every=5, resume=True, force=True)
    assert again.values == whole.values
    assert torch.equal(model.weight, untouched.weight)
    [resumed] = again.run.events("resumed", 0)
    done = resumed.step  # type: ignore[attr-defined]
    items = [int(one) for one in made[2].read_text().split()]
    left = [item for step in range(done, 24) for item in (step % 12 * 2 + 1, step % 12 * 2 + 2)]
    passed = range(1, done % 12 * 2 + 1) if odd else ()  # of the epoch that it goes on in
    assert items == [*passed, *left]
