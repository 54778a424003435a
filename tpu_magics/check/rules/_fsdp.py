"""`fsdp` and `fsdp_config` of TrainingArguments, where the code shows their keys.

Read in transformers 5.23.0 (training_args.py, integrations/tpu.py) and torch_xla 2.9.0
(distributed/fsdp/xla_fully_sharded_data_parallel.py).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.check.rules import _trainer
from tpu_magics.check.values import LIST, NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext

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
    made: ast.Dict | None = None  # the literal that it stands in


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

    arguments: _trainer.TrainingArgumentsCall
    fsdp: _trainer.TrainerArgument | None
    given: _trainer.TrainerArgument | None  # fsdp_config
    config: FsdpConfig | None

    @property
    def is_off(self) -> bool:
        if self.fsdp is None:
            return self.arguments.is_default("fsdp")
        return self.fsdp.constant in (False, None, "") or _is_empty(self.fsdp.value)

    @property
    def is_xla(self) -> bool:
        return self.config is not None and self.config.constant("xla") is True


def all_of(program: CheckedProgram) -> Iterator[FsdpArguments]:
    for arguments in _trainer.on_tpu(program):
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
    made = node if isinstance(node, ast.Dict) else value.made
    ctx = value.made_ctx or ctx  # of a dict that was made in another cell
    if isinstance(node, ast.Name) and _is_changed(node.id, ctx.program):
        return None
    if isinstance(made, ast.Dict):
        return _of_dict(made, ctx, strip)
    if isinstance(made, ast.Call) and value.kind == LIST and not made.args:
        entries = {
            _key(one.arg, strip): _entry(one.arg, one, one.value, ctx, strip) for one in made.keywords if one.arg
        }
        return FsdpConfig(entries, any(one.arg is None for one in made.keywords), ctx)
    return None


def _of_dict(made: ast.Dict, ctx: RuleContext, strip: str) -> FsdpConfig:
    entries, is_open = {}, False
    for key, value in zip(made.keys, made.values, strict=True):
        text = ctx.constant(key) if key is not None else NOTHING
        if isinstance(text, str) and key is not None:
            entries[_key(text, strip)] = _entry(text, key, value, ctx, strip, made)
        else:
            is_open = True
    return FsdpConfig(entries, is_open, ctx)


def _entry(
    text: str, node: ast.AST, value: ast.expr, ctx: RuleContext, strip: str, made: ast.Dict | None = None
) -> FsdpEntry:
    return FsdpEntry(_key(text, strip), node, value, ctx.constant(value), made)


def _key(text: str, strip: str) -> str:
    return text.removeprefix(strip) if strip else text


def _of_json(text: str, node: ast.expr, ctx: RuleContext, strip: str) -> FsdpConfig | None:
    """transformers reads a string that starts with a brace as JSON, any other as the path of a file."""
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return FsdpConfig(
        {_key(key, strip): FsdpEntry(_key(key, strip), node, None, value) for key, value in found.items()}, False, ctx
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
    if "changed_dicts" not in program.memo:
        program.memo["changed_dicts"] = frozenset(_changed(program))
    return name in program.memo["changed_dicts"]


def _changed(program: CheckedProgram) -> Iterator[str]:
    for cell in program.cells:
        for node in ast.walk(cell.tree) if cell.tree is not None else ():
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
