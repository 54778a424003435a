"""The main of the compile process: `python -m tpu_magics.preflight.compiler JOB.json DESCRIPTOR`.

Events go to the open file DESCRIPTOR as JSON lines (job.py).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from tpu_magics.launch.process import die_with_parent
from tpu_magics.preflight.compile_result import to_json
from tpu_magics.preflight.compiler import jaxlib_private, programs
from tpu_magics.preflight.compiler import job as events
from tpu_magics.preflight.compiler.job import Job

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
            found = programs.compiled(job, program, devices)
        except Exception as error:  # not a refusal: jaxlib is not what it was read as
            send(event=events.UNUSABLE, text=_text(error))
            return 1
        measured = replace(found, peak=programs.peak_memory())
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
