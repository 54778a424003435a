"""What observing costs: the time of a step with and without the hooks of the observer and of the graph guard, and the
size of the records.

Steps with and without hooks alternate in one process, in an order that changes; medians are compared. A step
moves a batch to the device, goes forward and backward, steps Adam, waits, and reads the loss, as people do.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

from tests.benchmarks import fresh, timing
from tests.benchmarks.report import met

TITLE = "The observer: time of a step, size of the records"
# Width and depth of the network, samples of a batch: chosen for steps of about 5 and 50 ms on two cores.
SIZES = {"about 5 ms": (128, 4, 64), "about 50 ms": (768, 6, 128)}
TARGETS = {"about 5 ms": 1.5, "about 50 ms": 0.5}
BESIDES = {
    "installing the hooks: once, ms in all": "installing",
    "the runtime's statistics: once a second at most, ms": "sampling",
    "graph guard: comparing graphs, ms in all": "comparing",
    "graph guard: its kernels, ms for a copy to the device and back": "kernels",
}
PROCESSES = 5  # where a process has its memory changes what a hook costs, by half
STEPS = 100_000
MOST = 1_000_000


def training(width: int, depth: int, samples: int) -> Callable[[], None]:
    """One step of a training on the device."""
    import torch
    import torch_xla

    device = torch_xla.device()
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(samples * 16, width))
    loader = itertools.chain.from_iterable(
        itertools.repeat(torch.utils.data.DataLoader(data, batch_size=samples, drop_last=True))
    )

    def step() -> None:
        (x,) = next(loader)
        optimizer.zero_grad()
        loss = model(x.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        loss.item()

    return step


class Switch:
    """Takes the hooks of the observer and of the graph guard off and puts them back, without making them anew: Python
    keeps what it has learnt of them, as in a run. The guard's kernels stay."""

    def __init__(self, observer: Any) -> None:
        from unittest.mock import patch

        from torch.optim import optimizer

        from tpu_magics.backends.torch import hooks as shared
        from tpu_magics.backends.torch_xla import graph_cache
        from tpu_magics.backends.torch_xla.observe import hooks

        self.hooks: list[tuple[Any, str, Any, Callable[[], None]]] = []  # owner, name, hook, how to take it off
        replace = shared.replace

        def noted(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
            undo = replace(owner, name, make)
            self.hooks.append((owner, name, getattr(owner, name), undo))
            return undo

        with patch.object(graph_cache, "replace", noted):
            self.guard = graph_cache.guard()
        self.installed = hooks.installed(observer)
        with patch.object(hooks, "replace", noted), patch.object(shared, "replace", noted):
            self.installed.__enter__()
        both: list[dict[int, Any]] = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
        self.of_optimizers = [(now, dict(now)) for now in both]
        self.on = True

    def to(self, on: bool) -> None:
        """With hooks, or without."""
        changed = () if on == self.on else self.hooks if on else reversed(self.hooks)
        for owner, name, hook, take_off in changed:
            setattr(owner, name, hook) if on else take_off()
        for now, kept in self.of_optimizers:
            now.clear()
            now.update(kept if on else {})
        self.on = on


def loop(width: int, depth: int, samples: int, rounds: int) -> dict[str, list[float]]:
    """In a fresh process: seconds of each step, on and off; of installing the hooks; of each sample of the runtime's
    statistics; of comparing graphs, in all; and by how much the guard's kernels make a copy longer."""
    import os

    os.environ["PJRT_DEVICE"] = "CPU"
    import torch

    from tpu_magics.backends.base import ObserverConfig
    from tpu_magics.backends.torch_xla import observe
    from tpu_magics.backends.torch_xla.observe import counters, hooks
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver
    from tpu_magics.backends.torch_xla.observe.xla_dumps import XlaDumps
    from tpu_magics.backends.torch_xla.precision import TorchPrecisionWatch
    from tpu_magics.runs.writer import EventWriter

    folder = Path(tempfile.mkdtemp())
    observe.arrange(folder / "told")
    torch.manual_seed(0)
    step = training(width, depth, samples)
    writer = EventWriter(folder / "rank-0.jsonl", 0)
    observer = TorchObserver(writer, ObserverConfig(), XlaDumps(None), TorchPrecisionWatch("", lambda *_a, **_k: None))
    installing = []
    for _ in range(20):
        hooked = hooks.installed(observer)
        installing.append(timing.seconds(hooked.__enter__))
        hooked.__exit__(None, None, None)
    plain = copies()
    switch = Switch(observer)
    kernels = [now - before for now, before in zip(copies(), plain, strict=True)]

    def one(on: bool) -> list[float]:
        """A step. Before it, hooks are taken off and put back, so that Python looks up the tensors' methods anew in
        both."""
        switch.to(not on)
        switch.to(on)
        observer.cached, observer.compiled = counters.counter("CachedCompile"), counters.compiles()
        return [timing.seconds(step)]

    seconds = timing.on_and_off(one, rounds, 1)
    if observer.stopped or observer.total_steps < rounds:
        raise RuntimeError(f"the observer did not observe: {observer.stopped or observer.total_steps}")
    if switch.guard.stopped or not switch.guard.graphs:
        raise RuntimeError(f"the graph guard compared nothing: {switch.guard.stopped}")
    sampling = [timing.seconds(observer.sampler.sample) for _ in range(20)]
    switch.to(True)  # as they were installed
    besides = {"comparing": [switch.guard.spent], "kernels": kernels}
    return {**seconds, "installing": installing, "sampling": sampling, **besides}


def copies(count: int = 200) -> list[float]:
    """Seconds of each copy of a number to the device and back, from the fastest on."""
    import torch
    import torch_xla

    device, number = torch_xla.device(), torch.ones(1)
    return sorted(timing.seconds(lambda: number.to(device).to("cpu")) for _ in range(count))


def records(steps: int = STEPS, compiles: int = 100) -> int:
    """Bytes that one rank writes: `steps` steps of 10 ms with three logged values each, and `compiles` compiles."""
    from tpu_magics.runs import events
    from tpu_magics.runs.meter import StepMeter, ValueMeter
    from tpu_magics.runs.writer import EventWriter

    now = [1_790_000_000.0]
    with fresh.scratch_folder() as folder:
        writer = EventWriter(folder / "rank-0.jsonl", 0)
        counted, values = StepMeter(writer, lambda: now[0]), ValueMeter(writer, lambda: now[0])
        site = events.Site(0, "In [12]", 14, "training_function", "torch_xla.sync()")
        for number in range(compiles):
            inputs = tuple(events.Input(name, (32, 64 + number), "int64") for name in ("input_ids", "attention_mask"))
            line = f"input_ids now int64[32,{64 + number}], before int64[32,{63 + number}]"
            memory = {"arguments": 438_000_000, "outputs": 1_300_000_000, "temporaries": 1_900_000_000, "code": 9_000}
            told = (
                now[0],
                0,
                1.93,
                "1202564f" * 4,
                site,
                number,
                number > 0,
                inputs,
                number - 1,
                (line,),
                "input-shape",
            )
            writer.write(events.Compile(*told, f"An input has another shape: {line}.", "Pad. " * 20, memory))
        for number in range(steps):
            now[0] += 0.01
            total = counted.step()
            for name in ("loss", "learning_rate", "accuracy"):
                values.log(name, random.random() / (1 + number), total)
        counted.flush()
        values.flush()
        writer.close()
        return writer.path.stat().st_size


def measure(rounds: int = 3000) -> list[dict[str, Any]]:
    """Rows for each size of step: the step, and what does not come with each step. One for the records."""
    rows: list[dict[str, Any]] = []
    for name, size in SIZES.items():
        each = (rounds if "50" not in name else rounds // 3) // PROCESSES
        seconds = [fresh.call(__name__, "loop", *size, each) for _ in range(PROCESSES)]
        on, off = (mean(median(one[which]) for one in seconds) * 1e3 for which in ("on", "off"))
        more = 100 * (on / off - 1)
        target = f"at most {TARGETS[name]} % more: {met(more <= TARGETS[name])}"
        rows.append({"what": f"a step of {name}, median ms", "off": off, "on": on, "more, %": more, "target": target})
        if len(rows) == 1:  # the shorter step, in which they stand out
            besides = [{"what": what, "on": median(seconds[0][key]) * 1e3} for what, key in BESIDES.items()]
    rows += besides
    written = records()
    kept = f"at most 1 MB: {met(written <= MOST)}"
    rows.append({"what": f"records of {STEPS:,} steps, 100 compiles, kB", "on": written / 1e3, "target": kept})
    return rows


def notes(_rows: list[dict[str, Any]]) -> list[str]:
    """What stands below the table."""
    return [
        f"Steps with and without hooks alternate in a process, in random order; the mean of the medians of {PROCESSES} "
        "processes, over 3,000 steps of each kind in all (1,000 of the slow ones). Steps with a sample of the "
        "runtime's statistics are among them; no median shows it.",
        "Before each step hooks are installed, and taken off again where it is one without: so Python looks up the "
        "methods of a tensor anew in both.",
        "The graph guard compares the first graphs of each line, and all until that took a second of the CPU; then for "
        "0.5 % of the time. Its kernels are in the steps of both kinds.",
        "Records: steps of 10 ms on a clock that is set forward, three values logged in each step.",
    ]
