"""Bringing 400 MB of weights home, beside one bare safetensors save_file + load_file of the same tensors.

Three ways take turns in every round: the bare one; collect, check and load of a model on the CPU; and the same from an
XLA:CPU device of a forked worker, where collecting has to fetch the weights first. The bare load only maps the file;
ours reads all of it (checksum) and copies it into the model, keeping the old values until the end.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TITLE = "Bringing home 400 MB of weights (limit: 3 times bare safetensors)"
ROUNDS = 5
LAYERS = 25
ROOT = Path(__file__).parents[2]


def measure() -> list[dict[str, Any]]:
    """One row for each way: seconds (best and median of the rounds), and the ratio of the medians to the bare one."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_weights"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PJRT_DEVICE": "CPU"}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    seconds: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    bare = statistics.median(seconds["bare"])
    names = {
        "bare": "safetensors save_file + load_file",
        "cpu": "collect + check + load, model on the CPU",
        "device": "collect + check + load, model on an XLA:CPU device of a forked worker",
    }
    return [
        {
            "what": names[way],
            "best_s": round(min(times), 3),
            "median_s": round(statistics.median(times), 3),
            "ratio": round(statistics.median(times) / bare, 2),
        }
        for way, times in seconds.items()
    ]


def _rounds() -> dict[str, list[float]]:
    import torch
    import torch_xla  # imported before the fork, as the launcher does

    from tpu_magics.backends.torch_xla.weights import check_weights, collect_weights, load_weights

    assert not torch_xla._XLAC._xla_runtime_is_initialized()
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 4096, bias=False) for _ in range(LAYERS)))
    home = torch.nn.Sequential(*(torch.nn.Linear(1024, 4096, bias=False) for _ in range(LAYERS)))
    seconds: dict[str, list[float]] = {"bare": [], "cpu": [], "device": []}
    with tempfile.TemporaryDirectory() as name:
        ways = {
            "cpu": lambda: _timed(lambda: collect_weights({"m": model}, Path(name))),
            "device": _device_worker(model, Path(name)),
        }
        for _ in range(ROUNDS):
            _change(model)
            seconds["bare"].append(_timed(lambda: _bare(model, Path(name) / "bare.safetensors")))
            for way, collect in ways.items():
                spent = collect()
                seconds[way].append(spent + _timed(lambda: load_weights(check_weights({"m": home}, Path(name)))))
                for file in Path(name).iterdir():  # a run has a folder of its own
                    file.unlink()
        ways["device"]()
    return seconds


def _bare(model: Any, path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(model.state_dict(), path)
    load_file(path)
    path.unlink()


def _change(model: Any) -> None:
    """Values that differ in every round: what is equal already is not copied."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _device_worker(model: Any, folder: Path) -> Callable[[], float]:
    """Fork a worker that holds `model` on an XLA:CPU device; returns what makes it change and collect the weights once,
    and gives the seconds that collecting took. The call after the last round ends it."""
    ask_read, ask = os.pipe()
    answer, answer_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ask)  # else reading it would never end
        thread = threading.Thread(target=_serve, args=(model, folder, ask_read, answer_write))
        thread.start()
        thread.join()
        os._exit(0)
    os.close(ask_read)
    os.close(answer_write)
    left = [ROUNDS]

    def collect() -> float:
        if not left[0]:
            os.close(ask)
            os.waitpid(pid, 0)
            return 0.0
        left[0] -= 1
        os.write(ask, b"x")
        return float(os.read(answer, 100))

    return collect


def _serve(model: Any, folder: Path, ask: int, answer: int) -> None:
    import torch_xla

    from tpu_magics.backends.torch_xla.weights import collect_weights
    from tpu_magics.backends.torch_xla.weights_fetch import settle

    model.to(torch_xla.device())
    while os.read(ask, 1):
        _change(model)
        settle()  # the training's last step is not part of bringing it home
        os.write(answer, str(_timed(lambda: collect_weights({"m": model}, folder))).encode())


if __name__ == "__main__":
    print(json.dumps(_rounds()))
