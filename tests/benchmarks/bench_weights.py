"""Loading 400 MB of trained weights into the notebook's model, beside a bare safetensors save_file + load_file of the
same tensors: for a model on the CPU, and on an XLA:CPU device of a forked worker, in turns.

The bare load only maps the file. Ours reads all of it (its checksums) and loads it into the model, and can be undone
until the end. Every round changes all weights, since equal weights are not loaded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, report, timing

TITLE = "Loading 400 MB of trained weights into the notebook"
TIMES = 3  # the bare save_file + load_file that it may take
LAYERS, ROWS, COLUMNS = 25, 4000, 1000  # float32: 400 MB

BARE = "safetensors, save_file + load_file"
OURS = "collect + check + load"
DEVICE = ", from an XLA:CPU device of a worker"


def measure(rounds: int = 11) -> list[dict[str, Any]]:
    """One row for each way. The first round is left out: it is the one that imports.

    A ratio compares within each round and is the median of that: what else the machine does hits both.
    """
    taken: dict[str, list[float]] = fresh.call(__name__, "take_turns", rounds + 1)
    seconds = {way: times[1:] for way, times in taken.items()}
    return [
        {
            "what": way,
            "s, best": min(times),
            "s, median": median(times),
            "times bare": _ratio(times, seconds[BARE]),
            "times bare from the same place": _ratio(times, seconds[BARE + DEVICE if way.endswith(DEVICE) else BARE]),
        }
        for way, times in seconds.items()
    ]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The target, and whether it is met; and what it is with the way off the device counted as ours alone."""
    by_way = {row["what"]: row for row in rows}
    same = max(by_way[way]["times bare from the same place"] for way in (OURS, OURS + DEVICE))
    return [
        f"Target: at most {TIMES} times bare safetensors from the same place: {report.met(same <= TIMES)} "
        f"({same:.1f} times).",
        f"From a device, beside bare safetensors from the CPU: {by_way[OURS + DEVICE]['times bare']:.1f} times.",
    ]


def _ratio(ours: list[float], bare: list[float]) -> float:
    return median(left / right for left, right in zip(ours, bare, strict=True))


# -- in a fresh process ------------------------------------------------------------------------------------------------
def take_turns(rounds: int) -> dict[str, list[float]]:
    """Seconds of every round, by way."""
    import torch_xla  # before the fork, as the launcher does it

    trained, home = _model(), _model()
    seconds: dict[str, list[float]] = {BARE: [], OURS: [], BARE + DEVICE: [], OURS + DEVICE: []}
    with fresh.scratch_folder() as folder, _DeviceWorker(trained, folder) as worker:
        ways: dict[str, tuple[Callable[[], float], Callable[[], None]]] = {
            BARE: (lambda: timing.seconds(lambda: _save(trained, folder)), lambda: _load(folder)),
            OURS: (lambda: timing.seconds(lambda: _collect(trained, folder)), lambda: _bring_home(home, folder)),
            BARE + DEVICE: (lambda: worker.ask(_BARE), lambda: _load(folder)),
            OURS + DEVICE: (lambda: worker.ask(_OURS), lambda: _bring_home(home, folder)),
        }
        for _ in range(rounds):
            _train(trained)
            for way, (leave, arrive) in ways.items():
                seconds[way].append(leave() + timing.seconds(arrive))
                for path in folder.iterdir():  # a run has a folder of its own
                    path.unlink()
    assert not torch_xla._XLAC._xla_runtime_is_initialized()
    return seconds


def _save(model: Any, folder: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.cpu() for name, tensor in model.state_dict().items()}, folder / "bare.safetensors")


def _load(folder: Path) -> None:
    from safetensors.torch import load_file

    load_file(folder / "bare.safetensors")


def _collect(model: Any, folder: Path) -> None:
    from tpu_magics.backends.torch.weights import collect_weights

    collect_weights({"model": model}, folder)


def _bring_home(model: Any, folder: Path) -> None:
    from tpu_magics.backends.torch.weights import check_weights, load_weights

    load_weights(check_weights({"model": model}, folder))


def _model() -> Any:
    import torch

    return torch.nn.Sequential(*(torch.nn.Linear(COLUMNS, ROWS, bias=False) for _ in range(LAYERS)))


def _train(model: Any) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


_BARE, _OURS = b"b", b"o"


class _DeviceWorker:
    """A forked process that holds a model on an XLA:CPU device, and trains and saves it when asked."""

    def __init__(self, model: Any, folder: Path) -> None:
        self._model, self._folder = model, folder

    def __enter__(self) -> _DeviceWorker:
        asked, self._ask = os.pipe()
        self._answer, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._ask)  # else reading the questions would never end
            thread = threading.Thread(target=self._serve, args=(asked, answer))
            thread.start()
            thread.join()
            os._exit(0)
        os.close(asked)
        os.close(answer)
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._ask)
        os.close(self._answer)
        os.waitpid(self._pid, 0)

    def ask(self, way: bytes) -> float:
        """Seconds that it took there."""
        os.write(self._ask, way)
        return float(os.read(self._answer, 100))

    def _serve(self, asked: int, answer: int) -> None:
        import torch_xla

        from tpu_magics.backends.torch.tensor_transfer import settle

        self._model.to(torch_xla.device())
        saves = {_BARE: _save, _OURS: _collect}
        while way := os.read(asked, 1):
            _train(self._model)
            settle()  # the last step of the training is no part of bringing it home
            save = saves[way]
            os.write(answer, str(timing.seconds(lambda: save(self._model, self._folder))).encode())
