"""The arguments of the transformers Trainer and the settings of FSDP, as far as the code shows them.

Read in transformers 5.23.0 (training_args.py, integrations/tpu.py) and torch_xla 2.9.0
(distributed/fsdp/xla_fully_sharded_data_parallel.py).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.check.inference.values import CLASS, LIST, MODEL, NOTHING, TRAINER
from tpu_magics.check.program import remembered
from tpu_magics.check.rules import _device
from tpu_magics.check.syntax import nodes_of

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
            creator = known.creator if known is not None else None
            values = creator.values if isinstance(creator, ast.Dict) else getattr(creator, "keywords", ())
            if known is not None and any(one is value or getattr(one, "value", None) is value for one in values):
                place: RuleContext = known.creator_ctx or self.ctx
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
        return _device.is_for_other_device(self.node, self.ctx)


@remembered
def all_of(program: CheckedProgram) -> list[TrainingArgumentsCall]:
    """Every call of TrainingArguments in a program, in order."""
    result = {id(call.node): _read(call) for call in program.all_calls if _is_arguments(call)}
    return list(result.values())


def on_tpu(program: CheckedProgram) -> Iterator[TrainingArgumentsCall]:
    """The calls of TrainingArguments that are not for another device."""
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


@remembered
def _stored(program: CheckedProgram) -> frozenset[str]:
    """Attributes that are set anywhere (`args.optim = ...`), and the ones behind `set_optimizer` and the like."""
    return frozenset(_all_stored(program))


_SETTERS = {"set_optimizer": "optim", "set_dataloader": "dataloader_drop_last"}


def _all_stored(program: CheckedProgram) -> Iterator[str]:
    for cell in program.cells:
        for node in nodes_of(cell.tree) if cell.tree is not None else ():
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


@remembered
def only_evaluates(program: CheckedProgram) -> bool:
    """Whether nothing in the program trains, and something evaluates or predicts."""
    evaluates = any(_of_trainer(call) for method in _EVALUATES for call in program.methods(method))
    trains = any(_of_trainer(call) for method in _TRAINS for call in program.methods(method))
    return evaluates and not trains


def _of_trainer(call: CallSite) -> bool:
    """Whether `x.train()` may be a Trainer's; a model's switches its mode."""
    return call.receiver.kind != MODEL


def trainers_of(arguments: TrainingArgumentsCall) -> list[CallSite]:
    """The calls that create a Trainer with these arguments; if none certainly does, those that may."""
    trainers = [(one, _given_to(one)) for one in _trainers(arguments.ctx.program)]
    sure = [one for one, given in trainers if given is arguments.node]
    return sure or [one for one, given in trainers if not isinstance(given, ast.Call)]


@remembered
def _trainers(program: CheckedProgram) -> list[CallSite]:
    return [call for call in program.all_calls if _is_trainer(call)]


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
    return trainer.ctx.value(trainer.ctx.argument(trainer.node, "args", 1)).creator


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


# The arguments of XlaFullyShardedDataParallel, without the module and the two for wrapping, which transformers passes.
XLA_SETTINGS = frozenset(
    ("reshard_after_forward", "flatten_parameters", "execute_sharding_on_init", "optimization_barrier_in_forward",
     "optimization_barrier_in_backward", "sync_on_finalization", "disable_reshard_on_root", "compute_dtype",
     "buffer_dtype", "fp32_reduce_scatter", "sharding_groups", "sharding_rank", "sharding_world_size",
     "shard_param_on_dim_0", "pin_layout_in_collective_ops", "reduce_scatter_bucket_size_mb",
     "coalesce_all_gather_ops", "param_init_fn", "_shard_size_multiple", "_use_xla_patched_linear",
     "_debug_dummy_forward_pass", "_debug_msg", "_debug_print", "_debug_dummy_all_gather_op",
     "_debug_dummy_all_reduce_op", "_debug_dummy_reduce_scatter_op", "_debug_dummy_optimization_barrier_op")
)  # fmt: skip
# The keys of fsdp_config that transformers reads, in 5.23 or in 4.57; without the prefix `fsdp_`, which it removes.
CONFIG_KEYS = frozenset(
    ("version", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "cpu_ram_efficient_loading",
     "state_dict_type", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "xla",
     "xla_fsdp_settings", "xla_fsdp_grad_ckpt", "xla_fsdp_v2", "backward_prefetch", "forward_prefetch",
     "limit_all_gathers", "use_orig_params", "sync_module_states", "offload_params", "sharding_strategy")
)  # fmt: skip


@dataclass(frozen=True)
class FsdpEntry:
    """One key: its node, the expression of its value (None from JSON) and that value."""

    key: str
    node: ast.AST
    value: ast.expr | None
    constant: Any
    literal: ast.Dict | None = None  # the literal that it stands in


@dataclass(frozen=True)
class FsdpConfig:
    """The keys of a dict. `is_open`: there may be others."""

    entries: dict[str, FsdpEntry]
    is_open: bool
    ctx: RuleContext

    def constant(self, key: str, default: Any = NOTHING) -> Any:
        """The value of a key: NOTHING if it is unknown, `default` if it is certainly missing."""
        entry = self.entries.get(key)
        if entry is not None:
            return entry.constant
        return NOTHING if self.is_open else default

    def enabled_entry(self, key: str) -> FsdpEntry | None:
        """The entry of a key that is given and not certainly off."""
        entry = self.entries.get(key)
        return entry if entry is not None and entry.constant not in (False, None, 0, "") else None


@dataclass(frozen=True)
class FsdpArguments:
    """The FSDP settings of TrainingArguments. `config` is None if it cannot be read, or is missing."""

    arguments: TrainingArgumentsCall
    fsdp: TrainerArgument | None
    given: TrainerArgument | None  # fsdp_config
    config: FsdpConfig | None

    @property
    def is_off(self) -> bool:
        if self.fsdp is None:
            return self.arguments.is_default("fsdp")
        return self.fsdp.constant in (False, None, "") or _is_empty(self.fsdp.value)

    @property
    def is_xla(self) -> bool:
        return self.config is not None and self.config.constant("xla") is True


def all_settings(program: CheckedProgram) -> Iterator[FsdpArguments]:
    for arguments in on_tpu(program):
        fsdp, given = arguments.argument("fsdp"), arguments.argument("fsdp_config")
        if fsdp is not None or given is not None:
            yield FsdpArguments(arguments, fsdp, given, read(given.value, arguments.ctx) if given is not None else None)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, (ast.List, ast.Tuple)) and not node.elts


def read(node: ast.expr, ctx: RuleContext, strip: str = "fsdp_") -> FsdpConfig | None:
    """The keys of a dict expression, without a prefix; None if the dict is not visible."""
    text = ctx.constant(node)
    if isinstance(text, str):
        return _of_json(text, node, ctx, strip)
    value = ctx.value(node)
    creator = node if isinstance(node, ast.Dict) else value.creator
    ctx = value.creator_ctx or ctx  # of a dict that was made in another cell
    if isinstance(node, ast.Name) and _is_changed(node.id, ctx.program):
        return None
    if isinstance(creator, ast.Dict):
        return _of_dict(creator, ctx, strip)
    if isinstance(creator, ast.Call) and value.kind == LIST and not creator.args:
        entries = {
            _key(one.arg, strip): _entry(one.arg, one, one.value, ctx, strip) for one in creator.keywords if one.arg
        }
        return FsdpConfig(entries, any(one.arg is None for one in creator.keywords), ctx)
    return None


def _of_dict(literal: ast.Dict, ctx: RuleContext, strip: str) -> FsdpConfig:
    entries, is_open = {}, False
    for key, value in zip(literal.keys, literal.values, strict=True):
        text = ctx.constant(key) if key is not None else NOTHING
        if isinstance(text, str) and key is not None:
            entries[_key(text, strip)] = _entry(text, key, value, ctx, strip, literal)
        else:
            is_open = True
    return FsdpConfig(entries, is_open, ctx)


def _entry(
    text: str, node: ast.AST, value: ast.expr, ctx: RuleContext, strip: str, literal: ast.Dict | None = None
) -> FsdpEntry:
    return FsdpEntry(_key(text, strip), node, value, ctx.constant(value), literal)


def _key(text: str, strip: str) -> str:
    return text.removeprefix(strip) if strip else text


def _of_json(text: str, node: ast.expr, ctx: RuleContext, strip: str) -> FsdpConfig | None:
    """transformers reads a string that starts with a brace as JSON, any other as the path of a file."""
    try:
        result = json.loads(text) if text.lstrip().startswith("{") else None
    except ValueError:
        return None
    if not isinstance(result, dict):
        return None
    return FsdpConfig(
        {_key(key, strip): FsdpEntry(_key(key, strip), node, None, value) for key, value in result.items()}, False, ctx
    )


def settings(config: FsdpConfig) -> FsdpConfig | None:
    """The keys of `xla_fsdp_settings`."""
    entry = config.entries.get("xla_fsdp_settings")
    if entry is None:
        return None
    if entry.value is not None:
        return read(entry.value, config.ctx, "")
    if not isinstance(entry.constant, dict):
        return None
    return FsdpConfig(
        {key: FsdpEntry(key, entry.node, None, value) for key, value in entry.constant.items()}, False, config.ctx
    )


def _is_changed(name: str, program: CheckedProgram) -> bool:
    """Whether a dict of this name is changed later (`config["xla"] = True`, `config.update(...)`)."""
    return name in _changed(program)


@remembered
def _changed(program: CheckedProgram) -> frozenset[str]:
    return frozenset(_changed_names(program))


def _changed_names(program: CheckedProgram) -> Iterator[str]:
    for cell in program.cells:
        for node in nodes_of(cell.tree) if cell.tree is not None else ():
            if (
                isinstance(node, ast.Subscript)
                and not isinstance(node.ctx, ast.Load)
                and isinstance(node.value, ast.Name)
            ):
                yield node.value.id
    for method in ("update", "setdefault", "pop"):
        for call in program.methods(method):
            if isinstance(call.node.func, ast.Attribute) and isinstance(call.node.func.value, ast.Name):
                yield call.node.func.value.id
