"""`fsdp` and `fsdp_config` of TrainingArguments as far as they can be read.

What lives here: the keys of a dict literal, of a name bound to one, or of a JSON text, and what transformers and
torch_xla do with each. What does not: what is said of them. Read in transformers 5.23.0 (training_args.py,
integrations/tpu.py) and torch_xla 2.9.0 (distributed/fsdp/xla_fully_sharded_data_parallel.py).
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
    from tpu_magics.check.program import Program
    from tpu_magics.check.rule_context import Place

# What XlaFullyShardedDataParallel takes beside the module. transformers gives it the two of the wrapping itself.
XLA_SETTINGS = frozenset(
    ("reshard_after_forward", "flatten_parameters", "execute_sharding_on_init", "optimization_barrier_in_forward",
     "optimization_barrier_in_backward", "sync_on_finalization", "disable_reshard_on_root", "compute_dtype",
     "buffer_dtype", "fp32_reduce_scatter", "sharding_groups", "sharding_rank", "sharding_world_size",
     "shard_param_on_dim_0", "pin_layout_in_collective_ops", "reduce_scatter_bucket_size_mb",
     "coalesce_all_gather_ops", "param_init_fn", "_shard_size_multiple", "_use_xla_patched_linear",
     "_debug_dummy_forward_pass", "_debug_msg", "_debug_print", "_debug_dummy_all_gather_op",
     "_debug_dummy_all_reduce_op", "_debug_dummy_reduce_scatter_op", "_debug_dummy_optimization_barrier_op")
)  # fmt: skip
# What transformers reads out of fsdp_config, in 5.23 or in 4.57; without the prefix `fsdp_`, which it takes away.
CONFIG_KEYS = frozenset(
    ("version", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "cpu_ram_efficient_loading",
     "state_dict_type", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "xla",
     "xla_fsdp_settings", "xla_fsdp_grad_ckpt", "xla_fsdp_v2", "backward_prefetch", "forward_prefetch",
     "limit_all_gathers", "use_orig_params", "sync_module_states", "offload_params", "sharding_strategy")
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One key: where it stands, the expression of its value (None out of JSON) and that value."""

    key: str
    node: ast.AST
    value: ast.expr | None
    constant: Any
    made: ast.Dict | None = None  # the literal that it stands in


@dataclass(frozen=True)
class Config:
    """The keys of a dict. `is_open`: there may be others."""

    entries: dict[str, Entry]
    is_open: bool
    at: Place

    def constant(self, key: str, default: Any = NOTHING) -> Any:
        """The value of a key: NOTHING where it is not known, `default` where it is certainly not given."""
        entry = self.entries.get(key)
        if entry is not None:
            return entry.constant
        return NOTHING if self.is_open else default

    def says(self, key: str) -> Entry | None:
        """The entry of a key that is given and not certainly off."""
        entry = self.entries.get(key)
        return entry if entry is not None and entry.constant not in (False, None, 0, "") else None


@dataclass(frozen=True)
class Fsdp:
    """What TrainingArguments say of FSDP. `config` is None where it cannot be read, or is not given."""

    arguments: _trainer.Arguments
    fsdp: _trainer.Argument | None
    given: _trainer.Argument | None  # fsdp_config
    config: Config | None

    @property
    def is_off(self) -> bool:
        if self.fsdp is None:
            return self.arguments.is_left("fsdp")
        return self.fsdp.constant in (False, None, "") or _is_empty(self.fsdp.value)

    @property
    def is_xla(self) -> bool:
        return self.config is not None and self.config.constant("xla") is True


def all_of(program: Program) -> Iterator[Fsdp]:
    for arguments in _trainer.on_tpu(program):
        fsdp, given = arguments.given("fsdp"), arguments.given("fsdp_config")
        if fsdp is not None or given is not None:
            yield Fsdp(arguments, fsdp, given, read(given.value, arguments.at) if given is not None else None)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, (ast.List, ast.Tuple)) and not node.elts


def read(node: ast.expr, at: Place, strip: str = "fsdp_") -> Config | None:
    """The keys behind an expression, without a prefix; None where it is no dict that can be seen."""
    text = at.constant(node)
    if isinstance(text, str):
        return _of_json(text, node, at, strip)
    value = at.value(node)
    made = node if isinstance(node, ast.Dict) else value.made
    at = value.made_at or at  # of a dict that was made in another cell
    if isinstance(node, ast.Name) and _is_changed(node.id, at.program):
        return None
    if isinstance(made, ast.Dict):
        return _of_dict(made, at, strip)
    if isinstance(made, ast.Call) and value.kind == LIST and not made.args:
        entries = {_key(one.arg, strip): _entry(one.arg, one, one.value, at, strip) for one in made.keywords if one.arg}
        return Config(entries, any(one.arg is None for one in made.keywords), at)
    return None


def _of_dict(made: ast.Dict, at: Place, strip: str) -> Config:
    entries, is_open = {}, False
    for key, value in zip(made.keys, made.values, strict=True):
        text = at.constant(key) if key is not None else NOTHING
        if isinstance(text, str) and key is not None:
            entries[_key(text, strip)] = _entry(text, key, value, at, strip, made)
        else:
            is_open = True
    return Config(entries, is_open, at)


def _entry(text: str, node: ast.AST, value: ast.expr, at: Place, strip: str, made: ast.Dict | None = None) -> Entry:
    return Entry(_key(text, strip), node, value, at.constant(value), made)


def _key(text: str, strip: str) -> str:
    return text.removeprefix(strip) if strip else text


def _of_json(text: str, node: ast.expr, at: Place, strip: str) -> Config | None:
    """transformers reads a text that begins with a brace as JSON; any other is the path of a file."""
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return Config(
        {_key(key, strip): Entry(_key(key, strip), node, None, value) for key, value in found.items()}, False, at
    )


def settings(config: Config) -> Config | None:
    """The keys of `xla_fsdp_settings`."""
    entry = config.entries.get("xla_fsdp_settings")
    if entry is None:
        return None
    if entry.value is not None:
        return read(entry.value, config.at, "")
    if not isinstance(entry.constant, dict):
        return None
    return Config({key: Entry(key, entry.node, None, value) for key, value in entry.constant.items()}, False, config.at)


def _is_changed(name: str, program: Program) -> bool:
    """Whether a dict of this name is changed later (`config["xla"] = True`, `config.update(...)`)."""
    if "changed_dicts" not in program.memo:
        program.memo["changed_dicts"] = frozenset(_changed(program))
    return name in program.memo["changed_dicts"]


def _changed(program: Program) -> Iterator[str]:
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
