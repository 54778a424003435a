"""Run folders made of real events, with which the panel is tested and measured.

No framework is needed, because a panel reads nothing but the run folder.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tpu_magics.panel.run_state import RunModel, RunView
from tpu_magics.runs.events import (
    Batch,
    Cache,
    Compile,
    Divergence,
    End,
    Event,
    Fallback,
    Frame,
    Input,
    Memory,
    Mesh,
    Metrics,
    Phase,
    Precision,
    Read,
    Site,
    Start,
    Steps,
    Times,
    Transfer,
    Value,
    Warned,
    to_line,
)
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.owner import process_started

CREATED = 1795239243.0  # 2026-11-21 05:34:03 UTC
MACHINE = 25_276_510_208  # bytes
STEP = Site(0, "In [12]", 14, "training_function", "torch_xla.sync()")
EVAL = Site(1, "In [12]", 22, "evaluate", "xm.mark_step()")
PRINTED = "print(loss.item())"


class Recorded:
    """A run folder that grows. Events go where a run's own writers put them: to the file of their rank, and memory,
    divergences and the warnings of `supervise` to the supervisor's."""

    def __init__(self, root: Path, name: str = "text-classifier", **info: Any) -> None:
        self.folder = RunFolder.create(name, root=root)
        self.files = RunFiles(self.folder.path)
        plan = {"device": "CPU", "workers": 1, "replicas": 1, "precision": "bf16", "steps": None, "timeout": None}
        host = {"place": "plain", "device": "CPU", "tpu": "", "chips": 0, "memory": MACHINE}
        self.update(**{"created": CREATED, "status": "running", "plan": plan, "host": host, **info})

    def update(self, **info: Any) -> None:
        self.folder.update(**info)

    def write(self, *events: Event) -> Recorded:
        of_workers = [event for event in events if not isinstance(event, (Memory, Divergence))]
        for rank in {event.rank for event in of_workers}:
            self.write_many([event for event in of_workers if event.rank == rank], rank)
        return self.supervise(*(event for event in events if isinstance(event, (Memory, Divergence))))

    def supervise(self, *events: Event) -> Recorded:
        return self.append(self.files.supervisor_path, events)

    def write_many(self, events: Iterable[Event], rank: int = 0) -> Recorded:
        return self.append(self.files.events_path(rank), events)

    def append(self, path: Path, events: Iterable[Event]) -> Recorded:
        lines = b"".join(map(to_line, events))
        if lines:
            with path.open("ab") as file:
                file.write(lines)
        return self

    def view(self, now: float = CREATED + 60.0) -> RunView:
        return view_of(self.files, now)


def view_of(files: RunFiles, now: float = CREATED + 60.0) -> RunView:
    """A view of what the folder holds, read afresh."""
    model = RunModel(files, clock=lambda: now)
    model.refresh()
    return model.view()


def myself() -> dict[str, Any]:
    """For run.json: the kernel is this process, which is alive."""
    return {"pid": os.getpid(), "pid_started": process_started(os.getpid())}


# -- events ----------------------------------------------------------------------------------------------------------


def started(root: Path, *events: Event, **info: Any) -> Recorded:
    """A run of this process whose function has begun, with these events and fields of run.json."""
    return Recorded(root, **{**myself(), **info}).write(*began(CREATED + 1), *events)


def began(t: float, rank: int = 0, world: int = 1) -> tuple[Event, ...]:
    return (
        Start(t, rank, pid=4000 + rank, device="xla:0", world_size=world),
        Phase(t + 0.01, rank, name="training"),
    )


def inputs(width: int, batch: int = 32) -> tuple[Input, ...]:
    return (
        Input("input_ids", (batch, width), "int64"),
        Input("attention_mask", (batch, width), "int64"),
        Input("labels", (batch,), "int64"),
    )


def first_compile(t: float, rank: int = 0, seconds: float = 1.93, site: Site = STEP, **fields: Any) -> Compile:
    known = {"graph": f"{rank:02x}02564f", "inputs": inputs(128), "trigger": "sync"}
    return Compile(t, rank, seconds=seconds, site=site, **{**known, **fields})


def recompile(t: float, nth: int, width: int = 129, rank: int = 0, step: int = 1, **fields: Any) -> Compile:
    known = {
        "seconds": 1.21,
        "graph": f"{nth:08x}",
        "site": STEP,
        "inputs": inputs(width),
        "nearest": nth - 1,
        "difference": (
            f"input_ids now int64[32,{width}], before int64[32,128]",
            f"attention_mask now int64[32,{width}], before int64[32,128]",
        ),
        "cause": "input-shape",
        "text": f"The shape of an input changed: input_ids now int64[32,{width}], before int64[32,128].",
        "fix": "Pad to a multiple (pad_to_multiple_of=64 in the tokenizer or collator) or to one max_length, and mask "
        "the padding.",
        "trigger": "sync",
    }
    return Compile(t, rank, nth=nth, recompile=True, step=step, **{**known, **fields})


def optimizer_state(t: float, nth: int) -> Compile:
    return recompile(
        t,
        nth,
        cause="optimizer-state",
        difference=("78 parameters more: f32[768,768] and others",),
        text="Optimizer state is created in the first step. Later steps read and update it, which is another graph.",
        fix="Expected once. No action needed.",
        inputs=inputs(128),
    )


def mode_switch(t: float, nth: int, step: int) -> Compile:
    return recompile(
        t,
        nth,
        step=step,
        cause="mode-switch",
        difference=("bernoulli is gone: dropout is off",),
        text="This line runs the step in two modes: model is now in evaluation mode (before: training mode).",
        fix="Expected once for each mode. Use a separate loop for evaluation, with the batch size of training.",
        inputs=inputs(128),
    )


def losses(t: float, steps: int, every: float = 0.1, rank: int = 0) -> list[Value]:
    """A curve that falls, with the noise of batches."""

    def loss(step: int) -> float:
        return 2.3 * math.exp(-step / steps * 3) + 0.08 * math.sin(step * 1.7)

    return [Value(t + step * every, rank, name="loss", value=loss(step), step=step) for step in range(steps)]


def agreed(t: float, rank: int = 0, **fields: Any) -> Precision:
    known = {
        "asked": "bf16",
        "source": "--precision",
        "ops": 24,
        "share": 1.0,
        "parameters": {"bf16": 39, "s64": 3},
        "graph": "0002564f",
        "text": "",
    }
    return Precision(t, rank, **{**known, **fields})


DIFFERS = {
    "share": 0.0,
    "parameters": {"f32": 39, "s64": 3},
    "agrees": False,
    "text": "bf16 requested by --precision: 0 of 24 matmuls and convolutions in bf16 (24 f32), before XLA optimizes "
    "the graph.",
    "notes": ("XLA_USE_BF16 is deprecated in torch_xla 2.9 and still works.",),
}


# -- runs ------------------------------------------------------------------------------------------------------------


def starting(root: Path) -> Recorded:
    return Recorded(root, status="starting", **myself())


def compiling(root: Path) -> Recorded:
    """The function was entered, no step is done."""
    run = Recorded(root, **myself()).write(*began(CREATED + 0.5))
    return run.write(Memory(CREATED + 1, 0, rss=660_062_208, pss=361_587_712))


def warming_up(root: Path) -> Recorded:
    """Two steps, each of which compiled."""
    run = compiling(root).write(
        first_compile(CREATED + 3), Steps(CREATED + 3.2, 0, total=1, n=1, seconds=2.7, compiled=1, compiled_seconds=2.7)
    )
    return run.write(
        optimizer_state(CREATED + 5, 1),
        Steps(CREATED + 5.1, 0, total=2, n=1, seconds=1.9, compiled=1, compiled_seconds=1.9),
    )


def running(root: Path, name: str = "text-classifier", **info: Any) -> Recorded:
    """In the middle of training, with recompiles, a read in a step, an operation on the host."""
    run = Recorded(root, name, **{**myself(), **info}).write(*began(CREATED + 0.5))
    run.write(first_compile(CREATED + 3), agreed(CREATED + 3))
    run.write(Batch(CREATED + 3, 0, per_device=32, accumulation=2, ranks=1))
    for index, width in enumerate((129, 131, 160, 97, 155)):
        run.write(recompile(CREATED + 5 + 2 * index, index + 1, width, step=4 * index + 4))
    evaluated = "An evaluation loop with another batch size than training compiles its own graph."
    run.write(
        mode_switch(CREATED + 20, 6, 40),
        first_compile(CREATED + 21, site=EVAL, seconds=0.8, graph="00ee", text=evaluated, inputs=inputs(128, 64)),
        read_early(CREATED + 22),
        Read(CREATED + 22, 0, Site(3, "In [12]", 30, "training_function"), 12, 0.31, "history.append(total.cpu())"),
        Fallback(CREATED + 22, 0, op="aten::nonzero", count=12),
        Cache(CREATED + 22, 0, text="Off: XLA:CPU cannot load what it wrote there (torch_xla 2.9)."),
        Times(CREATED + 50, 0, compiling=11.2, executing=30.5, waiting=3.5),
    )
    run.write(*_steps(CREATED + 5, 440, 45.0, compiled=8), *losses(CREATED + 5, 440))
    rates = ((at, 5e-5 * (1 - at / 60)) for at in range(44))
    run.write(*(Value(CREATED + 6 + at, 0, name="lr", value=rate, step=at * 10) for at, rate in rates))
    return run.write(Value(CREATED + 49, 0, name="phase", value="fine-tuning", step=439), *_memory(CREATED + 1, 48))


def read_early(t: float, **fields: Any) -> Transfer:
    known = {
        "site": Site(2, "In [12]", 17, "training_function", PRINTED),
        "count": 40,
        "seconds": 3.2,
        "code": PRINTED,
        "text": "loss.item() cut the graph in the middle of the step.",
        "fix": "Log every N steps, or with tpu_magics.log(loss=loss).",
    }
    return Transfer(t, 0, **{**known, **fields})


def done(root: Path) -> Recorded:
    run = running(root)
    end = End(CREATED + 54, 0, seconds=53.5, steps=440, compiles=8, recompiles=6)
    run.write(Phase(CREATED + 52, 0, name="collecting"), end)
    worker = {"rank": 0, "pid": 4000, "exit": 0, "signal": None, "peak_rss": 1_270_000_000, "peak_pss": 940_000_000}
    run.update(status="done", ended=CREATED + 55, seconds=54.2, workers=[worker], models=["model"])
    return run


ERROR = "Expected input batch_size (32) to match target batch_size (31)."
FAILURE = {
    "what": f"Rank 1 failed: ValueError: {ERROR}",
    "why": "The last batch of rank 1 has 31 rows, and its labels 32.",
    "todo": "Use drop_last=True in the DataLoader, or labels of the same rows.",
    "details": ["In [7], line 9, in training_function", "    outputs = model(**batch)", f"ValueError: {ERROR}"],
}
FRAMES = (
    Frame("In [7]", 9, "training_function", "outputs = model(**batch)"),
    Frame("torch/nn/modules/module.py", 1773, "_call_impl", "return forward_call(*args)", library=True),
)


def failing(root: Path) -> Recorded:
    """Two ranks, of which rank 1 raised a moment ago; precision is not what was asked for, and the ranks compiled
    different graphs."""
    run = Recorded(root, "rehearsal-of-2", **myself())
    run.update(plan={"device": "CPU", "workers": 2, "replicas": 1, "precision": "bf16", "steps": 500, "timeout": None})
    for rank in (0, 1):
        run.write(*began(CREATED + 0.5, rank, 2), first_compile(CREATED + 3, rank))
        run.write(agreed(CREATED + 3, rank, **DIFFERS), *_steps(CREATED + 4, 30, 6.0, rank, compiled=2))
        run.write(*_memory(CREATED + 1, 10, rank), *losses(CREATED + 4, 30, 0.2, rank))
    run.write(recompile(CREATED + 6, 1, 77, step=12), recompile(CREATED + 6, 1, 77, rank=1, step=12))
    run.write(
        Warned(CREATED + 8, 0, code="downcast", text="Accelerator sets nothing on XLA:CPU; --precision does."),
        Divergence(CREATED + 9, 0, (1,), 2, {"0": "a", "1": "b"}, "Ranks 0 and 1 compiled different graphs."),
    )
    end = End(CREATED + 10.5, 1, status="failed", steps=30, compiles=2, recompiles=1, frames=FRAMES)
    return run.write(dataclasses.replace(end, error_type="builtins.ValueError", error_text=ERROR))


def failed(root: Path) -> Recorded:
    """The same when its supervisor has closed it."""
    run = failing(root)
    peaks = {"peak_rss": 9 * 10**8, "peak_pss": 6 * 10**8}
    workers = [
        {"rank": 0, "pid": 4000, "exit": None, "signal": 15, **peaks},
        {"rank": 1, "pid": 4001, "exit": 1, "signal": None, **peaks},
    ]
    run.update(status="failed", ended=CREATED + 12, seconds=11.4, workers=workers, failure=FAILURE)
    return run


def on_tpu(root: Path, ranks: int = 8) -> Recorded:
    """Eight ranks with HBM, all well."""
    run = Recorded(root, "bert-large", **myself())
    run.update(
        plan={"device": "TPU", "workers": ranks, "replicas": 1, "precision": "bf16", "steps": None, "timeout": None},
        host={"place": "tpu-vm", "device": "TPU", "tpu": "v5e", "chips": ranks, "memory": 400 * 2**30},
    )
    memory = {"arguments": 438 * 10**6, "temporaries": 1_900 * 10**6}
    for rank in range(ranks):
        hbm = {"hbm_used": 13 * 2**30 + rank * 2**25, "hbm_total": 16 * 2**30}
        run.write(*began(CREATED + 1, rank, ranks))
        run.write(first_compile(CREATED + 20, rank, seconds=17.4, graph="feed", memory=memory))
        run.write(*_steps(CREATED + 21, 900, 36.0, rank, compiled=1), *losses(CREATED + 21, 900, 0.04, rank)[::3])
        run.write(Memory(CREATED + 40, rank, rss=9 * 10**9 + rank * 10**7, pss=7 * 10**9))
        run.write(Memory(CREATED + 40, rank, **hbm), agreed(CREATED + 20, rank, ops=146))
        run.write(Times(CREATED + 56, rank, compiling=17.4, executing=34.1, waiting=0.4))
        run.write(Batch(CREATED + 20, rank, per_device=16, accumulation=1, ranks=ranks))
    return run.write(Cache(CREATED + 20, 0, hits=3, misses=1, path="/home/me/cache"))


# Seconds of compiling and in collectives, by rank, as they were recorded (8 ranks on 2 cores, accelerate, 25 steps):
# once with all ranks alike, once with rank 3 asleep for 0.2 s in each step.
ALIKE = (
    *((7.478, 3.624), (8.806, 2.232), (8.487, 2.722), (6.485, 4.243)),
    *((7.984, 2.998), (8.667, 2.552), (9.276, 1.894), (8.259, 2.543)),
)
ASLEEP = (
    *((20.464, 6.283), (20.163, 6.48), (17.776, 8.494), (19.512, 1.753)),
    *((19.392, 6.842), (20.075, 6.609), (20.245, 6.003), (19.684, 6.689)),
)


def rehearsed(
    root: Path, times: tuple[tuple[float, float], ...] = ALIKE, seconds: float = 13.3, name: str = "rehearsal"
) -> Recorded:
    """Eight ranks on XLA:CPU, in training, whose collectives the host carries."""
    run = Recorded(root, name, **myself())
    run.update(plan=rehearsal_plan(len(times)))
    for rank, (compiling, waited) in enumerate(times):
        began_at = CREATED + 1.01
        run.write(*began(CREATED + 1, rank, len(times)), agreed(CREATED + 6, rank))
        run.write(first_compile(CREATED + 5, rank, graph="feed", **CUT))
        run.write(dataclasses.replace(optimizer_state(CREATED + 9, 1), rank=rank, graph="beef", **CUT))
        run.write(*_steps(began_at, 20, seconds * 0.7, rank, compiled=2), *losses(CREATED + 4, 25, 0.3, rank))
        run.write(
            Batch(CREATED + 5, rank, per_device=8, accumulation=1, ranks=len(times)), *_memory(CREATED + 1, 8, rank)
        )
        run.write(Times(began_at + seconds, rank, compiling, 0.429, 0.0, collectives=waited, n_collectives=25))
    return run


def rehearsal_plan(ranks: int) -> dict[str, Any]:
    plan = {"device": "CPU", "workers": ranks, "replicas": 1, "precision": "bf16", "steps": None, "timeout": None}
    return {**plan, "rehearsed": ranks > 1, "spmd": None, "collective_timeout": 60.0}


CUT: dict[str, Any] = {"host_collective": True, "pieces": 2}


def meshed(root: Path, **fields: Any) -> Recorded:
    """One SPMD worker that drives eight virtual devices; Trainer made a report of the runtime's metrics."""
    run = Recorded(root, "sharded", **myself())
    run.update(plan={**rehearsal_plan(1), "spmd": 8})
    known = {"shape": (8, 1), "axes": ("data", "model"), "devices": 8, "virtual": True, "sharded": 12, "replicated": 4}
    sizes = {"sharded_bytes": 1_258_291, "replicated_bytes": 2_704}
    report: dict[str, Any] = {"compiles": 2, "compile_seconds": 3.92, "executions": 200, "execute_seconds": 0.626}
    run.write(*began(CREATED + 1), first_compile(CREATED + 3), Mesh(CREATED + 4, 0, **{**known, **sizes, **fields}))
    return run.write(
        *_steps(CREATED + 2, 200, 6.5, compiled=2),
        Metrics(CREATED + 8, 0, file="rank-0-metrics-1.txt", number=1, **report),
    )


def long_run(root: Path, steps: int = 100_000, compiles: int = 1_000, records: int = 3_000) -> Recorded:
    """As a run of a day leaves it: records of steps and values as the meters thin them, and every compile."""
    run = Recorded(root, "long", **myself()).write(*began(CREATED + 1))
    each, every = steps // records, 27.0
    run.write_many(_many_compiles(compiles, steps))
    times = [CREATED + 2 + every * at for at in range(records)]
    counted = (Steps(t, 0, total=each * (at + 1), n=each, seconds=every) for at, t in enumerate(times))
    run.write_many(dataclasses.replace(event, compiled=at % 3 == 0) for at, event in enumerate(counted))
    logged = ((at, name) for at in range(records) for name in ("loss", "lr", "accuracy"))
    run.write_many(
        Value(times[at], 0, name, 3 / (at + 1), each * at, each, low=0.0, high=3 / (at + 1) + 0.2)
        for at, name in logged
    )
    return run


def _many_compiles(compiles: int, steps: int) -> Iterator[Compile]:
    yield first_compile(CREATED + 2)
    for nth in range(1, compiles):
        yield recompile(CREATED + 2 + 80 * nth, nth, 100 + nth % 400, step=nth * steps // compiles)


def _steps(t: float, steps: int, seconds: float, rank: int = 0, compiled: int = 0) -> list[Steps]:
    """Ten records; the first of them has the steps that compiled, which took ten times as long."""
    n, slow = steps // 10, compiled * 10 * seconds / steps
    took = [seconds / 10 * (1 + 0.2 * math.sin(at)) for at in range(10)]
    plain = [Steps(t + sum(took[: at + 1]), rank, total=n * (at + 1), n=n, seconds=took[at]) for at in range(10)]
    return [dataclasses.replace(plain[0], compiled=compiled, compiled_seconds=slow, seconds=took[0] + slow), *plain[1:]]


def _memory(t: float, samples: int, rank: int = 0) -> list[Memory]:
    first = Memory(t, rank, rss=700_000_000, pss=400_000_000)
    grown = ((at, 11_000_000 * at, 10_000_000 * at) for at in range(1, samples))
    return [first, *(Memory(t + at, rank, rss=first.rss + rss, pss=400_000_000 + pss) for at, rss, pss in grown)]


RUNS: dict[str, Callable[[Path], Recorded]] = {
    "starting": starting,
    "compiling": compiling,
    "warming-up": warming_up,
    "running": running,
    "done": done,
    "failing": failing,
    "failed": failed,
    "on-tpu": on_tpu,
    "rehearsed": rehearsed,
    "meshed": meshed,
}


def calls(function: Callable[[], object]) -> int:
    """How many calls of functions it makes: work that can be compared, however busy the machine is."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count
