"""How much the live panel sends to the front end while a cell trains for a minute in a real kernel: the bytes of each
message on its iopub channel, frame by frame.

All messages to widgets are the panel's (nothing else in the cell has widgets), and so are the displays with its id: the
live view at the beginning and the static html at the end. Prints and the kernel's own messages are not counted.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks import fresh, report
from tests.magics.kernel import LOAD, PANEL, Cell, Kernel, running_kernel

TITLE = "What the live panel sends in 60 s of training"
SECONDS = 60
TARGET = 200_000  # bytes
DELIMITER = b"<IDS|MSG>"
PARTS = {"comm_open": "opening", "comm_msg": "updates", "comm_close": "closing"}

SETUP = """
import time
import torch
from torch import nn
import tpu_magics
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
"""
# `every`: steps after which the batch is one sample longer, so that the step is compiled anew; 0: never.
CELL = """%%tpu_train model
def training_function(model):
    import torch_xla
    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    end, step = time.time() + {seconds}, 0
    while time.time() < end:
        size = 32 + (step // {every} if {every} else 0)
        batch = torch.randn(size, 64).to(device)
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        tpu_magics.log(loss=loss, accuracy=step / 1000)
        step += 1
        time.sleep(0.02)
"""
RUNS: Mapping[str, int] = {"every step alike": 0, "a recompile every 100 steps": 100, "a recompile every 10 steps": 10}


# -- listening -----------------------------------------------------------------------------------------------------


class Wire:
    """Everything on a kernel's iopub channel, as it is sent."""

    def __init__(self, kernel: Kernel) -> None:
        import zmq

        told = kernel.manager.get_connection_info()
        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(f"{told['transport']}://{told['ip']}:{told['iopub_port']}")
        self._socket.subscribe(b"")
        time.sleep(0.5)  # a subscription takes a moment to reach the kernel

    def messages(self, cell: Cell, kernel: Kernel, seconds: float) -> Iterator[list[bytes]]:
        """The messages until the cell has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._socket.poll(100):
                frames: list[bytes] = self._socket.recv_multipart()
                yield frames
                if ended(frames, cell.id):
                    return
        raise RuntimeError(f"the cell did not end within {seconds:g} s")

    def close(self) -> None:
        self._socket.close(linger=0)


def read(frames: list[bytes]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Header, parent header and content of a message (jupyter_client's wire protocol, 5.x)."""
    header, parent, _metadata, content = frames[frames.index(DELIMITER) + 2 :][:4]
    return json.loads(header), json.loads(parent), json.loads(content)


def ended(frames: list[bytes], cell: str) -> bool:
    header, parent, content = read(frames)
    idle = header["msg_type"] == "status" and content["execution_state"] == "idle"
    return idle and parent.get("msg_id") == cell


def part_of_panel(frames: list[bytes]) -> str:
    """Which part of the panel's traffic a message is; "" for one that is none."""
    header, _parent, content = read(frames)
    kind = str(header["msg_type"])
    displayed = str((content.get("transient") or {}).get("display_id", ""))
    if kind in PARTS:
        return PARTS[kind]
    return ("static" if kind.startswith("update") else "opening") if displayed.startswith(PANEL) else ""


# -- measuring -----------------------------------------------------------------------------------------------------


def traffic(seconds: int, every: int) -> dict[str, Any]:
    """In a fresh process: train so long in a kernel, and count."""
    with running_kernel(Path.cwd()) as kernel:
        kernel.run(LOAD).good()
        kernel.run(SETUP).good()
        kernel.run(CELL.format(seconds=1, every=0)).good()  # the imports are over
        wire = Wire(kernel)
        sizes: Counter[str] = Counter()
        messages = 0
        cell = kernel.send(CELL.format(seconds=seconds, every=every))
        for frames in wire.messages(cell, kernel, seconds + 120.0):
            part = part_of_panel(frames)
            sizes[part] += sum(map(len, frames))
            messages += part == "updates"
        wire.close()
        kernel.finish(cell).good()
        steps, compiles = kernel.value("(_tpu.steps, _tpu.compiles)")
    return {"sizes": dict(sizes), "updates": messages, "steps": steps, "compiles": compiles, "seconds": seconds}


def measure(seconds: int = SECONDS) -> list[dict[str, Any]]:
    """One row for each way to train."""
    found = {name: fresh.call(__name__, "traffic", seconds, every) for name, every in RUNS.items()}
    return [_row(name, each) for name, each in found.items()]


def _row(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    sizes = found["sizes"]
    return {
        "training": name,
        "s": found["seconds"],
        "steps": found["steps"],
        "compiles": found["compiles"],
        "messages to widgets": found["updates"],
        "opening, kB": sizes["opening"] / 1000,
        "updates, kB": sizes["updates"] / 1000,
        "while it trains, kB": (sizes["opening"] + sizes["updates"]) / 1000,
        "after the end, kB": (sizes["static"] + sizes["closing"]) / 1000,
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The target, and whether it is met."""
    most = max(row["while it trains, kB"] for row in rows)
    return [
        f"Target: at most {TARGET / 1000:.0f} kB in {SECONDS} s of training: {report.met(1000 * most <= TARGET)}"
        f" (at most {most:.0f} kB).",
        "Opening: widgets and their first display, those of new compiles too. After the end, once: the static html and"
        " text that stay, and the closing of the widgets.",
    ]
