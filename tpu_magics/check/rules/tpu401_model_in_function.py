"""A model that every worker builds for itself.

What it does
    Reports models that are built inside the function that a notebook launches (`notebook_launcher`, `xmp.spawn`,
    `torch_xla.launch`). If tpu_magics launches it (`%%tpu_train`, `%tpu_train`, `tpu_magics.train`), such a model is
    hoisted: built once in the notebook. Then only models that cannot be hoisted are reported, with the reason.
Why this is bad
    Eight processes build the model eight times, each in host memory. A small host runs out of memory, and a process is
    killed with SIGSEGV or SIGKILL before the first step.
Example
    def training_function():
        model = AutoModel.from_pretrained("bert-base-cased")

    notebook_launcher(training_function)
Use instead
    model = AutoModel.from_pretrained("bert-base-cased")

    def training_function(model):
        ...

    notebook_launcher(training_function, (model,))
Limitations
    The size of a model is unknown. In a script's `_mp_fn` it is normal to build the model, and nothing is reported,
    except `from_pretrained` with `start_method="fork"`. Nothing is reported with one process or with `--hoist off`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _hoist, _launches, _spelling, _workers
from tpu_magics.check.values import MODEL

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CallSite, CheckedProgram, Function

CODE = "TPU401"
NAME = "model-in-function"
GROUP = "launch"
WHY = (
    "Each process builds its own copy: eight of them run out of host memory, and one is killed with SIGSEGV before "
    "the first step."
)


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    reported: set[int] = set()
    for launch in _launches.launches(program):
        if not launch.ours and _launches.is_for_gpus(program):
            continue
        if launch.ranks == 1 or "--hoist off" in " ".join(launch.words.split()) or _keeps(launch):
            continue
        for call, problem in _built(launch, program):
            if id(call.node) not in reported and (problem or not launch.ours) and _matters(call, launch):
                reported.add(id(call.node))
                yield _finding(call, launch, problem)


def _keeps(launch: _launches.LaunchSite) -> bool:
    return launch.call is not None and launch.call.ctx.constant(launch.argument("hoist")) in (False, "off")


def _matters(call: CallSite, launch: _launches.LaunchSite) -> bool:
    """In a script the workers of xmp.spawn are new interpreters and build their own models, as in torch_xla's
    examples."""
    if launch.ours or call.ctx.notebook or launch.kind == _launches.NOTEBOOK:
        return True
    forks = launch.call is not None and launch.call.ctx.constant(launch.argument("start_method")) == "fork"
    return forks and call.name.endswith(".from_pretrained")


# -- models that are built --------------------------------------------------------------------------------------------


def _built(launch: _launches.LaunchSite, program: CheckedProgram) -> Iterator[tuple[CallSite, str]]:
    """The calls of a launch's workers that build models, each with the reason against hoisting."""
    function = launch.function
    own = function.calls if function is not None else _statements(launch, program)
    yield from ((call, _hoist.reason(call, function)) for call in _hoist.model_builds(own))
    helpers = {}
    for call in own:
        helper = _workers.targets(program).get(id(call.node))
        if helper is not None and call.value.kind == MODEL and call.value.made is not call.node and _makes(helper):
            helpers[helper] = call
            yield call, _hoist.helper_reason(call, helper, function)
    for other in sorted(_workers.worker_functions(launch, program) - {function}, key=lambda one: one.node.lineno):
        if not _is_method(other) and other not in helpers:
            for call in _hoist.model_builds(other.calls):
                yield call, _hoist.reason(call, function)


def _is_method(function: Function) -> bool:
    """The layers that a class creates for itself are parts of the model."""
    return function.cls is not None or isinstance(function.ctx.parent(function.node), ast.ClassDef)


def _makes(helper: Function) -> bool:
    """Whether a function builds the model that it returns."""
    return any(True for _ in _hoist.model_builds(helper.calls))


def _statements(launch: _launches.LaunchSite, program: CheckedProgram) -> list[CallSite]:
    """The calls of a cell whose plain statements are trained; its leading definitions are the notebook's."""
    return [call for call in program.all_calls if call.ctx.top_level and launch in _workers.launches_of(call.ctx)]


# -- the message ------------------------------------------------------------------------------------------------------


def _finding(call: CallSite, launch: _launches.LaunchSite, problem: str) -> Finding:
    ctx = call.ctx
    code = _spelling.quoted(ctx.source(call.node))
    name = launch.function.name if launch.function is not None else ""
    if launch.ours:
        where = f"of `{name}`" if name else "of this cell"
        message = f"{code} is built by each worker {where} and cannot be hoisted: {problem}."
        fix = f"Build it in an earlier cell and pass it: `%%tpu_train model`, `def {_plain(name)}(model)`."
        return ctx.finding(call.node, message, fix)
    message = f"{code} builds a model inside `{name}`, in each process of {launch.kind}."
    return ctx.finding(call.node, message, _fix(launch, _plain(name)))


def _plain(name: str) -> str:
    return name if name.isidentifier() else "training_function"


def _fix(launch: _launches.LaunchSite, name: str) -> str:
    form, start = f"def {name}(model)", f"notebook_launcher({name}, (model,))"
    if launch.kind != _launches.NOTEBOOK:
        start = f'{launch.kind}({name}, args=(model,), start_method="fork")'
        form = f"def {name}(index, model)"
    return f"Build it once, before the launch, and pass it: `{form}` and `{start}`."
