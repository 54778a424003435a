"""accelerate on the ranks of a rehearsal: who it says it is, its loaders, and each way in which ranks exchange values.
Real forks; one launch for each number of ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")
pytest.importorskip("accelerate")

from tests.backends.torch_xla.rehearsed import data, home, launched, of_all, on_device, total

pytestmark = pytest.mark.process
SIZES = (2, 3)
ODD = 13  # samples that neither 2 nor 3 ranks share evenly

Launch = Callable[[int], list[dict[str, Any]]]


def uses_accelerate(folder: Path) -> dict[str, Any]:
    """On a rank: what it saw, by the name of the test that looks at it."""
    import accelerate
    from accelerate.utils import broadcast, broadcast_object_list, gather_object
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = accelerate.Accelerator()
    rank, size = accelerator.process_index, accelerator.num_processes
    seen: dict[str, Any] = home(
        {
            "who": [
                *(str(accelerator.distributed_type), rank, size, accelerator.local_process_index),
                *(accelerator.is_main_process, accelerator.is_local_main_process, accelerator.device.type),
            ],
            "gather": [
                accelerator.gather(on_device(rank)),
                accelerator.gather({"a": on_device(rank), "b": (on_device(rank, dtype=torch.int64),)}),
                accelerator.gather(on_device(rank).sum()),
            ],
            "reduce": [
                accelerator.reduce(on_device(rank), "sum"),
                accelerator.reduce(on_device(rank), "mean"),
                accelerator.reduce({"loss": on_device(rank)}, "mean", scale=0.5),
            ],
            "broadcast": [broadcast(on_device(rank), 1), broadcast_object_list([rank, "x" * rank], 1)],
            "padded": accelerator.gather(accelerator.pad_across_processes(on_device(rank, (rank + 1,)), 0, -100)),
        }
    )
    # The process alone, as on a TPU.
    with accelerator.split_between_processes(list(range(ODD))) as part:
        seen["split"] = part
    loader, odd = accelerator.prepare(
        DataLoader(TensorDataset(torch.arange(6 * size)), batch_size=2),
        DataLoader(TensorDataset(torch.arange(ODD)), batch_size=2),
    )
    seen["loader"] = [batch.cpu().tolist() for (batch,) in loader]
    seen["metrics"] = [n for (batch,) in odd for n in accelerator.gather_for_metrics(batch).cpu().tolist()]
    try:
        gather_object([rank])
    except NotImplementedError as error:
        seen["gather_object"] = str(error)
    with accelerator.main_process_first():
        seen["found"] = (folder / "main was here").exists()
        (folder / "main was here").touch()
    accelerator.save({"x": on_device(0)}, folder / f"saved by {rank}")
    accelerator.wait_for_everyone()
    seen["saved"] = sorted(path.name for path in folder.glob("saved by *"))
    return seen


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """What each rank saw, by the number of ranks."""

    @functools.cache
    def once(size: int) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("accelerate")
        return launched(uses_accelerate, size, folder, folder).values

    return once


@pytest.mark.parametrize("size", SIZES)
def test_it_knows_who_it_is(launch: Launch, size: int) -> None:
    for rank, seen in enumerate(launch(size)):
        assert seen["who"] == ["DistributedType.XLA", rank, size, rank, rank == 0, rank == 0, "xla"]


@pytest.mark.parametrize("size", SIZES)
def test_values_are_gathered_and_reduced(launch: Launch, size: int) -> None:
    tensors = of_all(size)
    for seen in launch(size):
        plain, nested, scalars = seen["gather"]
        assert plain.equal(torch.cat(tensors)) and nested["a"].equal(plain)
        assert nested["b"][0].equal(torch.cat(of_all(size, dtype=torch.int64)))
        assert scalars.tolist() == [float(one.sum()) for one in tensors]
        summed, mean, scaled = seen["reduce"]
        assert summed.equal(total(size)) and torch.allclose(mean, total(size) / size)
        assert torch.allclose(scaled["loss"], total(size) / size * 0.5)


@pytest.mark.parametrize("size", SIZES)
def test_values_are_broadcast_and_padded(launch: Launch, size: int) -> None:
    padded = [torch.cat([data(rank, (rank + 1,)), torch.full((size - rank - 1,), -100.0)]) for rank in range(size)]
    for seen in launch(size):
        tensor, objects = seen["broadcast"]
        assert tensor.equal(data(1)) and objects == [1, "x"]
        assert seen["padded"].equal(torch.cat(padded))


@pytest.mark.parametrize("size", SIZES)
def test_loaders_are_sharded(launch: Launch, size: int) -> None:
    for rank, seen in enumerate(launch(size)):
        # Whole batches are dealt out in turn.
        assert seen["loader"] == [[first, first + 1] for first in range(2 * rank, 6 * size, 2 * size)]
        # XLA's loader has fetched ahead when accelerate (1.15) wants to take the repeated samples off: they stay.
        assert seen["metrics"][:ODD] == list(range(ODD))
    assert [number for seen in launch(size) for number in seen["split"]] == list(range(ODD))


@pytest.mark.parametrize("size", SIZES)
def test_the_main_process_goes_first_and_saves_alone(launch: Launch, size: int) -> None:
    for rank, seen in enumerate(launch(size)):
        assert seen["found"] == (rank > 0) and seen["saved"] == ["saved by 0"]
        assert seen["gather_object"] == "gather objects in TPU is not supported"
