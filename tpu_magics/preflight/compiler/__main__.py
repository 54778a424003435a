"""The main of the compile process, `python -m tpu_magics.preflight.compiler JOB.json DESCRIPTOR`: compiles the programs
of a job with the TPU's compiler.

Measured on programs at the limit of what v5e lets them have (16 GiB - 258 MiB): libtpu 0.0.52 compiles those whose
arguments + outputs - aliased + temporaries + code is below it, but for the last 32 KiB, and refuses those above.
0.0.21.1 does so without the outputs: it compiles programs whose outputs have no room beside the rest. These are
"too-large" here, with a note.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tpu_magics.launch.process import die_with_parent
from tpu_magics.preflight import compiler as events
from tpu_magics.preflight.analysis import ProgramFacts, read
from tpu_magics.preflight.compile_result import CompileResult, HbmUsage, UnsupportedOp, to_json
from tpu_magics.preflight.compiler import Job, JobProgram, jaxlib_private, refusals

LOOPS = "XLA's FLOPs count the body of a loop once, no matter how often it runs"
OUTPUTS_NOT_COUNTED = (
    "this libtpu accepts the program because it does not count the outputs, but they do not fit beside the rest"
)
NOT_COUNTED = (
    "XLA reports no FLOPs and bytes for this program: it contains a kernel (from the compiler or from your code) whose "
    "cost XLA does not know"
)


class TooFewDevices(Exception):
    """The topology is smaller than the program wants; the sentence."""


def compiled(job: Job, program: JobProgram, devices: Sequence[Any]) -> CompileResult:
    """Compile the program."""
    dump = Path(job.folder) / "dump"
    result = CompileResult(target=job.target, graph=program.hash, status="failed", versions=job.versions)
    try:
        with jaxlib_private.context() as made:
            module = jaxlib_private.parse(made, Path(program.file).read_bytes(), program.form)
            jaxlib_private.donate(module, program.donors)
            unknown = [one for one in jaxlib_private.signature(module) if _dynamic(one)]
            if unknown:  # libtpu 0.0.52 ends its process at these
                return replace(
                    result, status="refused", refused=_dynamic_refused(unknown), error=_dynamic_text(unknown)
                )
            return _compile(result, job, program, module, _chosen(devices, program), dump)
    except jaxlib_private.NotAProgram as error:
        return replace(result, status="refused", refused=(refusals.refused(str(error)),), error=str(error))
    except TooFewDevices as error:
        return replace(result, error=str(error))
    finally:
        shutil.rmtree(dump, ignore_errors=True)


def peak_memory() -> int | None:
    """Bytes of host memory that this process held at most, as Linux counts them from its exec on (proc(5), VmHWM)."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _compile(
    result: CompileResult, job: Job, program: JobProgram, module: Any, chosen: Sequence[Any], dump: Path
) -> CompileResult:
    began = time.monotonic()
    try:
        executable = jaxlib_private.compile_module(module, chosen, program.replicas, program.partitions, dump)
    except RuntimeError as error:  # XlaRuntimeError and JaxRuntimeError are such
        timed = replace(result, seconds=time.monotonic() - began)
        return _refused(timed, str(error), job.available, _dumped(dump, program.parameters))
    timed = replace(result, seconds=time.monotonic() - began)
    return _accepted(timed, executable, job.available, _dumped(dump, program.parameters))


def _dumped(dump: Path, parameters: Sequence[str]) -> ProgramFacts:
    """A broken dump must not hide the compiler's own answer."""
    try:
        return read(dump, parameters=parameters)
    except Exception as error:
        return ProgramFacts(notes=(f"the compiler's dump could not be read: {type(error).__name__}: {error}",))


def _with(result: CompileResult, facts: ProgramFacts) -> CompileResult:
    return replace(
        result,
        hbm_bytes=facts.hbm_bytes,
        costs=facts.costs,
        held=facts.held,
        curve=facts.curve,
        multiplications=facts.multiplications,
        loops=facts.loops,
        guessed=facts.guessed,
        padding=facts.padding,
        buffers=facts.buffers,
        refused=facts.custom_calls,
        notes=(*result.notes, *facts.notes, *((LOOPS,) if facts.loops else ())),
    )


# -- programs that the compiler takes ----------------------------------------------------------------------------------


def _accepted(result: CompileResult, executable: Any, available: int | None, facts: ProgramFacts) -> CompileResult:
    memory = _memory(executable.get_compiled_memory_stats(), available)
    fits = memory.available is None or memory.needed <= memory.available
    flops, moved = (_known(jaxlib_private.cost(executable).get(name)) for name in ("flops", "bytes accessed"))
    notes = (*(() if fits else (OUTPUTS_NOT_COUNTED,)), *((NOT_COUNTED,) if flops is None or moved is None else ()))
    return _with(
        replace(
            result,
            status="fits" if fits else "too-large",
            memory=memory,
            flops=flops,
            bytes_accessed=moved,
            notes=notes,
        ),
        facts,
    )


def _memory(stats: Any, available: int | None) -> HbmUsage:
    """`available` is never below what the compiler has just let this program have besides its outputs."""
    arguments, outputs = stats.argument_size_in_bytes, stats.output_size_in_bytes
    aliased, temporaries = stats.alias_size_in_bytes, stats.temp_size_in_bytes
    code = stats.generated_code_size_in_bytes
    granted = arguments + temporaries + code
    return HbmUsage(
        needed=granted + outputs - aliased,
        available=None if available is None else max(available, granted),
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        temporaries=temporaries,
        code=code,
    )


def _known(value: float | None) -> float | None:
    """XLA says -1 where an op's cost is not known to it."""
    return None if value is None or value < 0 else value


# -- programs that it does not take ------------------------------------------------------------------------------------


def _refused(result: CompileResult, text: str, available: int | None, facts: ProgramFacts) -> CompileResult:
    known = replace(result, error=refusals.cleaned(text))
    if refusals.too_large(text):
        memory, listed = refusals.memory(text, available), refusals.buffers(text)
        found = _with(replace(known, status="too-large", memory=memory), _without_program(facts))
        return replace(found, buffers=found.buffers or listed)
    return replace(known, status="refused", refused=_with_places(refusals.refused(text), facts.custom_calls))


def _without_program(facts: ProgramFacts) -> ProgramFacts:
    """What is known of a program that the compiler gave up. The dump is what it tried last: its buffers, and the types
    it multiplies in, but not what it would do or take."""
    return replace(facts, hbm_bytes=None, costs=(), curve=(), padding=None, loops=False, guessed=False)


def _with_places(refused: UnsupportedOp, custom_calls: Sequence[UnsupportedOp]) -> tuple[UnsupportedOp, ...]:
    """The compiler names a custom call, its dump has the lines where that stands."""
    places = [
        replace(one, text=refused.text) for one in custom_calls if refused.kind == "custom" and _same(one, refused)
    ]
    return tuple(places) or (refused,)


def _same(one: UnsupportedOp, other: UnsupportedOp) -> bool:
    return one.op.partition("#")[0] == other.op.partition("#")[0]


def _dynamic(kind: str) -> bool:
    """A size that is not known, and no bound for it either ("tensor<?xf32, #stablehlo.bounds<128>>" has one)."""
    return "?" in kind and "bounds" not in kind


def _dynamic_text(kinds: Sequence[str]) -> str:
    return f"The program has inputs or outputs of unknown size: {', '.join(dict.fromkeys(kinds))}."


def _dynamic_refused(kinds: Sequence[str]) -> tuple[UnsupportedOp, ...]:
    return tuple(UnsupportedOp(one, "its size is unknown at compile time", "compiler") for one in dict.fromkeys(kinds))


# -- devices -----------------------------------------------------------------------------------------------------------


def _chosen(devices: Sequence[Any], program: JobProgram) -> Sequence[Any]:
    """One device of each chip where that suffices: replicas are one to a chip where the launcher starts them so."""
    wanted = program.replicas * program.partitions
    chips = [one for one in devices if one.core_on_chip == 0]
    of = chips if wanted <= len(chips) else devices
    if wanted > len(of):
        raise TooFewDevices(f"The program needs {wanted} devices, but this TPU has {len(devices)}.")
    return of[:wanted]


# -- the process ------------------------------------------------------------------------------------------------------


# Events go to the open file DESCRIPTOR as JSON lines (__init__.py).

FIRST_TO_GO = 1000  # for the kernel, when memory runs out: before the notebook's own process (proc(5), oom_score_adj)


def main(path: Path, descriptor: int) -> int:
    job = Job.read(path)
    become_compiler(job.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as pipe:
        return compile_all(job, lambda **event: print(json.dumps(event), file=pipe))


def become_compiler(parent: int) -> None:
    """End with the parent, leave no core file, and be the first to go when memory runs out."""
    die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        Path("/proc/self/oom_score_adj").write_text(str(FIRST_TO_GO))
    except OSError:
        pass  # not allowed in some containers; the bound on memory is watched all the same


def compile_all(job: Job, send: Callable[..., None]) -> int:
    others = _other_versions(job)
    if others:
        send(event=events.UNUSABLE, text=others)
        return 1
    try:
        devices = jaxlib_private.devices(job.topology, job.options)
    except jaxlib_private.TopologyRefused as error:
        send(event=events.NO_TOPOLOGY, text=str(error))
        return 1
    except Exception as error:  # libtpu does not load, or jaxlib is not what it was read as
        send(event=events.UNUSABLE, text=_text(error))
        return 1
    send(event=events.READY)
    for program in job.programs:
        send(event=events.STARTED, graph=program.number)
        try:
            found = compiled(job, program, devices)
        except Exception as error:  # not a refusal: jaxlib is not what it was read as
            send(event=events.UNUSABLE, text=_text(error))
            return 1
        measured = replace(found, peak=peak_memory())
        send(event=events.COMPILED, graph=program.number, compiled=to_json(measured))
    return 0


def _other_versions(job: Job) -> str:
    """A sentence where this process finds others than its parent did: results would be kept for the wrong ones."""
    found = {name: next((one.version for one in metadata.distributions(name=name)), "none") for name in job.versions}
    if found == job.versions:
        return ""
    names = [f"{name} {version}" for name, version in found.items() if version != job.versions[name]]
    return f"The compile process finds different versions: {', '.join(names)}."


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stderr.flush()
    os._exit(code)  # all that matters is written: nothing waits for libtpu's threads
