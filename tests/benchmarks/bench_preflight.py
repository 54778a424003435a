"""What a preflight adds to its compile: the same StableHLO through `compile_graphs` and through the bare compiler, in
turns; and a whole preflight of BERT-base, from the call to the verdict.

The bare compile is a fresh process that loads jaxlib and libtpu, makes the topology and compiles: no dump, no analysis,
no watch on its memory. Its time ends with the compile, that of `compile_graphs` when the process has ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, report, timing

TITLE = "A preflight, and the compile that it is made of"
TARGET = "v5e-1"
ROWS, LENGTH = 32, 128
OVERHEAD, WHOLE, SHARE = 0.10, 1.3, 0.05  # of the bare compile's process; times the compiles; of the compile
TIMEOUT = 1200.0  # seconds for one process

CALL, PROCESS = "the bare compile: the call alone", "the bare compile: its process"
OURS, OURS_CALL = "compile_graphs", "compile_graphs: the compile in it"
PROFILE = "the profile: reading what the compiler noted, and adding it up"
PREFLIGHT = "a preflight of BERT-base, {} x {}, from the call to the verdict"


def training_function(model: Any, rows: int, length: int) -> None:
    """Steps of AdamW on random tokens; their number is the preflight's to bound."""
    import torch
    import torch_xla

    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(10):
        tokens = torch.randint(0, model.config.vocab_size, (rows, length)).to(device)
        labels = torch.zeros(rows, dtype=torch.long).to(device)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        torch_xla.sync()


# -- what runs in processes of their own ---------------------------------------------------------------------------


def whole(rows: int, length: int, config: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Seconds of a preflight with nothing kept, and of the compiles in it; its steady graph is left in `folder`."""
    os.environ["XDG_CACHE_HOME"] = str(Path("cache").absolute())
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**config))
    from tpu_magics.preflight.run import preflight

    started = time.monotonic()
    found = preflight(training_function, model, rows, length, target=TARGET)
    [result] = found.results
    verdict = result.verdict.word
    seconds = time.monotonic() - started
    if any(one.kept or one.status != "fits" for one in result.compiled):
        raise RuntimeError(f"not what is to be measured: {[(one.status, one.kept) for one in result.compiled]}")
    _leave(result.graph, Path(folder))
    compiles = [one.seconds for one in result.compiled]
    return {"seconds": seconds, "trace": result.traced.seconds, "compiles": compiles, "verdict": verdict}


def _leave(graph: Any, folder: Path) -> None:
    (folder / "module").write_bytes(graph.module)
    known = {"form": graph.form, "hash": graph.hash, "donors": graph.donors, "replicas": graph.replicas}
    (folder / "graph.json").write_text(json.dumps(known))


def _left(folder: Path) -> Any:
    from tpu_magics.preflight.compile_result import LoweredGraph

    known = json.loads((folder / "graph.json").read_text())
    return LoweredGraph(**{**known, "module": (folder / "module").read_bytes(), "donors": tuple(known["donors"])})


def profiled(folder: str) -> tuple[float, float]:
    """Seconds of the compile with a dump, and those that reading the profile from the dump takes: reading all of it,
    and all but that."""
    from tpu_magics.preflight import analysis
    from tpu_magics.preflight.compile_process import ENVIRONMENT
    from tpu_magics.preflight.compiler import jaxlib_private
    from tpu_magics.preflight.targets import parse

    target = parse(TARGET)
    os.environ.update(ENVIRONMENT)
    devices, graph, dump = jaxlib_private.devices(target.topology, target.options), _left(Path(folder)), Path("dump")
    with jaxlib_private.context() as made:
        module = jaxlib_private.parse(made, graph.module, graph.form)
        jaxlib_private.donate(module, graph.donors)
        started = time.monotonic()
        jaxlib_private.compile_module(module, devices[:1], 1, 1, dump)
        compiled = time.monotonic() - started
    started = time.monotonic()
    if not analysis.read(dump).costs:
        raise RuntimeError("the compiler's dump has no operations")
    whole_ = time.monotonic() - started
    for name, nothing in (("read_estimates", {}), ("op_costs", ()), ("held_memory", ()), ("memory_curve", ())):
        setattr(analysis, name, lambda *_, nothing=nothing: nothing)
    started = time.monotonic()
    analysis.read(dump)
    return compiled, whole_ - (time.monotonic() - started)


def bare(folder: str, begin: float) -> tuple[float, float]:
    """Seconds from `begin`, when this process was asked for, to the end of the compile; and those of its call."""
    from tpu_magics.preflight.compile_process import ENVIRONMENT, FLAGS
    from tpu_magics.preflight.compiler import jaxlib_private
    from tpu_magics.preflight.targets import parse

    target = parse(TARGET)
    for name in FLAGS:
        os.environ.pop(name, None)
    os.environ.update(ENVIRONMENT)
    options = jaxlib_private._options

    def without_dump(*asked: Any) -> Any:
        made = options(*asked)
        made.executable_build_options.debug_options.xla_dump_to = ""
        made.executable_build_options.debug_options.xla_dump_hlo_as_text = False
        return made

    jaxlib_private._options = without_dump
    devices, graph = jaxlib_private.devices(target.topology, target.options), _left(Path(folder))
    with jaxlib_private.context() as made:
        module = jaxlib_private.parse(made, graph.module, graph.form)
        jaxlib_private.donate(module, graph.donors)
        started = time.monotonic()
        jaxlib_private.compile_module(module, devices[:1], 1, 1, Path("unused"))
        call = time.monotonic() - started
    return time.time() - begin, call


# -- in turn -------------------------------------------------------------------------------------------------------


def ours(folder: Path) -> tuple[float, float]:
    """Seconds of compile_graphs for the same module, and of the compile in it."""
    from tpu_magics.preflight.compilation import compile_graphs
    from tpu_magics.preflight.targets import parse

    graph = _left(folder)
    started = time.monotonic()
    [found] = compile_graphs([graph], parse(TARGET), store=None, on_progress=lambda progress: None)
    seconds = time.monotonic() - started
    if found.status != "fits" or found.memory is None or found.seconds is None:
        raise RuntimeError(f"not what is to be measured: {found.status} {found.error}")
    return seconds, found.seconds


def _bare(folder: Path) -> tuple[float, float]:
    process, call = fresh.call(__name__, "bare", str(folder), time.time(), timeout=TIMEOUT)
    return process, call


def compare(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round for round; the order changes from round to round."""
    ways: list[tuple[str, str, Callable[[Path], tuple[float, float]]]] = [
        (PROCESS, CALL, _bare),
        (OURS, OURS_CALL, ours),
    ]
    seconds: dict[str, list[float]] = {PROCESS: [], CALL: [], OURS: [], OURS_CALL: []}
    for number in range(rounds):
        for whole_, inner, way in ways[:: -1 if number % 2 else 1]:
            for name, value in zip((whole_, inner), way(folder), strict=True):
                seconds[name].append(value)
    return seconds


# -- the table -----------------------------------------------------------------------------------------------------


def measure(
    rounds: int = 3, wholes: int = 2, rows: int = ROWS, length: int = LENGTH, config: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """A row for the bare compile and for compile_graphs, each with its parts, and one for a whole preflight.
    `config`: of BERT, where it is to be another than BERT-base."""
    with fresh.scratch_folder() as folder:
        found = [
            fresh.call(__name__, "whole", rows, length, dict(config or {}), str(folder), timeout=TIMEOUT)
            for _ in range(wholes)
        ]
        seconds = compare(folder, rounds)
        reads = [fresh.call(__name__, "profiled", str(folder), timeout=TIMEOUT) for _ in range(wholes)]
    process = median(seconds[PROCESS])
    compared = [
        {**_row(name, taken), "times the bare process": median(taken) / process} for name, taken in seconds.items()
    ]
    read = _row(PROFILE, [taken for _, taken in reads])
    read["of its compile"] = median(taken / compiled for compiled, taken in reads)
    return [*compared, read, _whole_row(PREFLIGHT.format(rows, length), found)]


def _row(what: str, seconds: list[float]) -> dict[str, Any]:
    return {**timing.row(what, seconds), "rounds": len(seconds)}


def _whole_row(what: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **_row(what, [one["seconds"] for one in found]),
        "of it traced, s": median(one["trace"] for one in found),
        "of it compiled, s": median(sum(one["compiles"]) for one in found),
        "graphs": len(found[0]["compiles"]),
        "times its compiles": median(one["seconds"] / sum(one["compiles"]) for one in found),
    }


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets, and whether they are met."""
    times = {row["what"]: row["times the bare process"] for row in rows[:-2]}
    seconds = {row["what"]: row["s, median"] for row in rows}
    over, ratio = times[OURS] - 1, rows[-1]["times its compiles"]
    return [
        f"For {TARGET}; nothing was kept from before. The steady graph of the preflight is what the others compile.",
        f"Target: at most {OVERHEAD:.0%} over the bare compile of the same StableHLO: {report.met(over <= OVERHEAD)} "
        f"({over:+.1%}; over the call alone {seconds[OURS] / seconds[CALL] - 1:+.1%}).",
        f"Target: the profile costs at most {SHARE:.0%} of the compile that it comes from: "
        f"{report.met(rows[-2]['of its compile'] <= SHARE)} ({rows[-2]['of its compile']:.2%}).",
        f"Target: a preflight takes at most {WHOLE} times its compiles: {report.met(ratio <= WHOLE)} "
        f"({ratio:.2f} times).",
    ]
