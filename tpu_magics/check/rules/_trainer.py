"""Shared by the rules of the group `trainer`: calls of TrainingArguments, and the Trainers that get them.

Read in transformers 5.23.0.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.check.rules import _device_guards
from tpu_magics.check.values import CLASS, MODEL, NOTHING, TRAINER

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram, Class
    from tpu_magics.check.rule_context import RuleContext

# Those of trl and sentence-transformers are subclasses with the same fields and defaults.
_NAMES = re.compile(
    r"transformers\.(Seq2Seq)?TrainingArguments|trl\.(SFT|DPO|Reward|ORPO|KTO|CPO)Config"
    r"|sentence_transformers\.SentenceTransformerTrainingArguments"
)
_TRAINERS = re.compile(r"(transformers|trl|sentence_transformers)\.\w*Trainer")
_PLAIN = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
_OWN_OPTIMIZER = ("create_optimizer", "create_optimizer_and_scheduler", "get_optimizer_cls_and_kwargs")
_OPTIMIZERS = 10  # where Trainer(...) takes `optimizers`
_TRAINS = ("train", "hyperparameter_search")
_EVALUATES = ("evaluate", "predict")


@dataclass(frozen=True, eq=False)
class TrainerArgument:
    """One given argument: its context, node, value and keyword (None in a `**` dict, which may be in another cell)."""

    ctx: RuleContext
    node: ast.AST
    value: ast.expr
    constant: Any
    keyword: ast.keyword | None


@dataclass(frozen=True, eq=False)
class TrainingArgumentsCall:
    """One call of TrainingArguments or of a class like it."""

    node: ast.Call
    ctx: RuleContext
    cls: Class | None

    @property
    def name(self) -> str:
        """Its name in the code."""
        return self.ctx.source(self.node.func).rpartition(".")[2]

    def argument(self, name: str) -> TrainerArgument | None:
        value = self.ctx.argument(self.node, name)
        if value is None:
            return None
        keyword = next((one for one in self.node.keywords if one.arg == name), None)
        return TrainerArgument(self._context_of(value), keyword or value, value, self.ctx.constant(value), keyword)

    def _context_of(self, value: ast.expr) -> RuleContext:
        for keyword in self.node.keywords:
            known = self.ctx.value(keyword.value) if keyword.arg is None else None
            made = known.made if known is not None else None
            values = made.values if isinstance(made, ast.Dict) else getattr(made, "keywords", ())
            if known is not None and any(one is value or getattr(one, "value", None) is value for one in values):
                place: RuleContext = known.made_ctx or self.ctx
                return place
        return self.ctx

    def is_default(self, name: str) -> bool:
        """Whether an argument certainly has transformers' default."""
        if self.ctx.argument(self.node, name) is not None or self.ctx.has_unknown_arguments(self.node):
            return False
        if name in _stored(self.ctx.program):
            return False
        return not self.declares(name)

    def declares(self, name: str) -> bool:
        """Whether a subclass of the program has the argument itself."""
        return self.cls is not None and any(
            name in _fields(one) or "__init__" in one.methods for one in self.cls.line()
        )

    @property
    def is_for_other_device(self) -> bool:
        """Whether these arguments, or the code around them, select another device than a TPU."""
        given = [self.argument(name) for name in ("use_cpu", "no_cuda", "use_mps_device", "deepspeed")]
        elsewhere = any(one is not None and one.constant is not False and one.constant is not None for one in given)
        return elsewhere or self.is_in_other_device_code

    @property
    def is_in_other_device_code(self) -> bool:
        """Whether the code around them is for another device."""
        return _device_guards.is_for_other_device(self.node, self.ctx)


def all_of(program: CheckedProgram) -> list[TrainingArgumentsCall]:
    """Every call of TrainingArguments in a program, in order."""
    if "training_arguments" not in program.memo:
        found = {id(call.node): _read(call) for call in program.all_calls if _is_arguments(call)}
        program.memo["training_arguments"] = list(found.values())
    calls: list[TrainingArgumentsCall] = program.memo["training_arguments"]
    return calls


def on_tpu(program: CheckedProgram) -> Iterator[TrainingArgumentsCall]:
    """Those that are not for another device."""
    return (one for one in all_of(program) if not one.is_for_other_device)


def _read(call: CallSite) -> TrainingArgumentsCall:
    value = call.ctx.value(call.node.func)
    return TrainingArgumentsCall(call.node, call.ctx, value.ref if value.kind == CLASS else None)


def _is_arguments(call: CallSite) -> bool:
    if call.name:
        return _NAMES.fullmatch(call.name) is not None
    value = call.ctx.value(call.node.func)
    return value.kind == CLASS and any(_NAMES.fullmatch(base) for base in value.ref.all_bases())


def _fields(cls: Class) -> set[str]:
    """What a subclass sets in its body."""
    names = set()
    for one in cls.node.body:
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _stored(program: CheckedProgram) -> frozenset[str]:
    """Attributes that are set anywhere (`args.optim = ...`), and the ones behind `set_optimizer` and the like."""
    if "stored_attributes" not in program.memo:
        program.memo["stored_attributes"] = frozenset(_all_stored(program))
    found: frozenset[str] = program.memo["stored_attributes"]
    return found


_SETTERS = {"set_optimizer": "optim", "set_dataloader": "dataloader_drop_last"}


def _all_stored(program: CheckedProgram) -> Iterator[str]:
    for cell in program.cells:
        for node in ast.walk(cell.tree) if cell.tree is not None else ():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
    yield from (name for method, name in _SETTERS.items() if program.methods(method))
    for call in program.calls("dataclasses.replace", "builtins.setattr"):
        yield from (one.arg for one in call.node.keywords if one.arg)
        yield from (
            one.value for one in call.node.args[1:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)
        )


# -- the Trainers ----------------------------------------------------------------------------------------------------


def has_own_optimizer(arguments: TrainingArgumentsCall) -> bool:
    """Whether every Trainer with these arguments has its own optimizer."""
    trainers = trainers_of(arguments)
    return bool(trainers) and all(has_optimizer(one) for one in trainers)


def overrides(arguments: TrainingArgumentsCall, method: str) -> bool:
    """Whether the class of every Trainer with these arguments overrides `method`."""
    trainers = trainers_of(arguments)
    return bool(trainers) and all(_method(one, method) for one in trainers)


def only_evaluates(program: CheckedProgram) -> bool:
    """Whether nothing in the program trains, and something evaluates or predicts."""
    if "only_evaluates" not in program.memo:
        evaluates = any(_of_trainer(call) for method in _EVALUATES for call in program.methods(method))
        trains = any(_of_trainer(call) for method in _TRAINS for call in program.methods(method))
        program.memo["only_evaluates"] = evaluates and not trains
    return bool(program.memo["only_evaluates"])


def _of_trainer(call: CallSite) -> bool:
    """Whether `x.train()` may be a Trainer's; a model's switches its mode."""
    return call.receiver.kind != MODEL


def trainers_of(arguments: TrainingArgumentsCall) -> list[CallSite]:
    """The calls that create a Trainer with these arguments; if none certainly does, those that may."""
    trainers = [(one, _given_to(one)) for one in _trainers(arguments.ctx.program)]
    sure = [one for one, given in trainers if given is arguments.node]
    return sure or [one for one, given in trainers if not isinstance(given, ast.Call)]


def _trainers(program: CheckedProgram) -> list[CallSite]:
    if "trainers" not in program.memo:
        program.memo["trainers"] = [call for call in program.all_calls if _is_trainer(call)]
    found: list[CallSite] = program.memo["trainers"]
    return found


def _is_trainer(call: CallSite) -> bool:
    if call.name:
        return _TRAINERS.fullmatch(call.name) is not None
    if call.value.kind == TRAINER:
        return True
    value = call.ctx.value(call.node.func)
    return value.kind == CLASS and any(_TRAINERS.fullmatch(base) for base in value.ref.all_bases())


def without_arguments(program: CheckedProgram) -> Iterator[CallSite]:
    """Trainers of transformers without arguments, which get the defaults."""
    for one in _trainers(program):
        if (
            one.name in _PLAIN
            and one.ctx.argument(one.node, "args", 1) is None
            and not one.ctx.has_unknown_arguments(one.node)
        ):
            yield one


def _given_to(trainer: CallSite) -> ast.AST | None:
    """The call that created the arguments of a Trainer."""
    return trainer.ctx.value(trainer.ctx.argument(trainer.node, "args", 1)).made


def has_optimizer(trainer: CallSite) -> bool:
    ctx, node = trainer.ctx, trainer.node
    given = ctx.argument(node, "optimizers", _OPTIMIZERS) or ctx.argument(node, "optimizer_cls_and_kwargs")
    if isinstance(given, ast.Tuple) and given.elts:
        given = given.elts[0]
    if given is not None and ctx.constant(given) is not None:
        return True
    return ctx.has_unknown_arguments(node) or any(_method(trainer, one) for one in _OWN_OPTIMIZER)


def _method(trainer: CallSite, name: str) -> bool:
    value = trainer.ctx.value(trainer.node.func)
    return value.kind == CLASS and value.ref.method(name) is not None


def constant_of(arguments: TrainingArgumentsCall, name: str, default: Any) -> Any:
    """The constant value of an argument: given, or its default; NOTHING if it is unknown."""
    given = arguments.argument(name)
    if given is not None:
        return given.constant
    return default if arguments.is_default(name) else NOTHING
