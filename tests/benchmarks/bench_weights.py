"""Bringing 400 MB of weights home, beside one bare safetensors save_file + load_file of the same tensors.

What lives here: three ways that take turns in every round: the bare one; collect, check and load of a model on the CPU;
and the same from an XLA:CPU device of a forked worker, where collecting has to fetch the weights first. What does not:
the run around it.

The bare load only maps the file. Ours reads all of it (its checksum) and copies it into the model, with the old values
kept until the end. Every round changes all weights, since what is equal already is not copied.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh

TITLE = "Bringing home 400 MB of weights"
TIMES = 3  # the bare save_file + load_file that it may take
LAYERS, ROWS, COLUMNS = 25, 4000, 1000  # float32: 400 MB

BARE = "safetensors, save_file + load_file"
CPU = "collect + check + load, trained on the CPU"
DEVICE = "collect + check + load, trained on an XLA:CPU device of a forked worker"


def measure(rounds: int = 7) -> list[dict[str, Any]]:
    """One row for each way. The first round is left out: it is the one that imports."""
    seconds: dict[str, list[float]] = fresh.call(__name__, "take_turns", rounds + 1)
    bare = median(seconds[BARE][1:])
    return [
        {
            "what": way,
            "s, best": min(times[1:]),
            "s, median": median(times[1:]),
            "times bare (medians)": median(times[1:]) / bare,
        }
        for way, times in seconds.items()
    ]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The target, and whether it is met."""
    worst = max(row["times bare (medians)"] for row in rows)
    verdict = "met" if worst <= TIMES else "MISSED"
    return [f"Target: at most {TIMES} times bare safetensors: {verdict} ({worst:.1f} times)."]


# -- in a fresh process ------------------------------------------------------------------------------------------------
def take_turns(rounds: int) -> dict[str, list[float]]:
    """Seconds of every round, by way."""
    import torch_xla  # before the fork, as the launcher does it

    from tpu_magics.backends.torch_xla.weights import check_weights, collect_weights, load_weights

    trained, home = _model(), _model()
    seconds: dict[str, list[float]] = {BARE: [], CPU: [], DEVICE: []}
    with fresh.scratch_folder() as folder, _DeviceWorker(trained, folder) as worker:
        collects = {CPU: lambda: _timed(lambda: collect_weights({"model": trained}, folder)), DEVICE: worker.collect}
        for _ in range(rounds):
            _train(trained)
            seconds[BARE].append(_timed(lambda: _bare(trained, folder)))
            _empty(folder)
            for way, collect in collects.items():
                spent = collect()
                seconds[way].append(spent + _timed(lambda: load_weights(check_weights({"model": home}, folder))))
                _empty(folder)
    assert not torch_xla._XLAC._xla_runtime_is_initialized()
    return seconds


def _model() -> Any:
    import torch

    return torch.nn.Sequential(*(torch.nn.Linear(COLUMNS, ROWS, bias=False) for _ in range(LAYERS)))


def _bare(model: Any, folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(model.state_dict(), folder / "bare.safetensors")
    load_file(folder / "bare.safetensors")


def _train(model: Any) -> None:
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


def _empty(folder: Path) -> None:
    """A run has a folder of its own, so no way may find the files of another."""
    for path in folder.iterdir():
        path.unlink()


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class _DeviceWorker:
    """A forked process that holds a model on an XLA:CPU device, and trains and collects it when asked."""

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

    def collect(self) -> float:
        """Seconds that `collect_weights` took there."""
        os.write(self._ask, b"?")
        return float(os.read(self._answer, 100))

    def _serve(self, asked: int, answer: int) -> None:
        import torch_xla

        from tpu_magics.backends.torch_xla.weights import collect_weights
        from tpu_magics.backends.torch_xla.weights_fetch import settle

        self._model.to(torch_xla.device())
        while os.read(asked, 1):
            _train(self._model)
            settle()  # the last step of the training is no part of bringing it home
            os.write(answer, str(_timed(lambda: collect_weights({"model": self._model}, self._folder))).encode())
