"""A setting that no FSDP of XLA knows.

What it does
    Finds keys of `xla_fsdp_settings` that XlaFullyShardedDataParallel has no argument for, keys of `fsdp_config` beside
    `"xla": True` that nothing reads, `min_split_size_mb` in either, and dtypes that are not given by name.
Why it is bad
    TrainingArguments takes any key. One in `fsdp_config` that nothing reads, and any in `xla_fsdp_settings` beside
    `xla_fsdp_v2`, is ignored without a word; without v2 a key that the wrapper does not know raises TypeError when
    training starts, after the model was loaded.
Example
    fsdp_config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16", "min_split_size_mb": 64}}
Use instead
    fsdp_config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16"}}
What it cannot see
    A configuration in a JSON file, and one that is put together at run time. The arguments are those of torch_xla 2.9.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _argument_edits, _fsdp

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU605"
NAME = "fsdp-unknown-setting"
GROUP = "trainer"
WHY = "TrainingArguments takes any key: nothing reads this one, and it is ignored without a word."

_WHY_V1 = (
    "TrainingArguments takes any key; XlaFullyShardedDataParallel raises TypeError for it when training starts, after "
    "the model was loaded."
)
_WHY_DTYPE = "transformers looks the dtype up by its name, getattr(torch, ...), and raises for anything else."
_NEVER = "min_split_size_mb"  # an allocator's setting on GPUs; neither FSDP has it
_DTYPES = ("compute_dtype", "buffer_dtype")


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for one in _fsdp.all_of(program):
        if one.config is not None:
            yield from _in_config(one.config, one.is_xla)
            settings = _fsdp.settings(one.config)
            if settings is not None:
                v2 = one.config.constant("xla_fsdp_v2") is True
                ignored = v2 or not one.is_xla or one.is_off
                yield from _in_settings(settings, ignored)
                yield from _dtypes(settings)


def _in_config(config: _fsdp.FsdpConfig, is_xla: bool) -> Iterator[Finding]:
    for key, entry in config.entries.items():
        if key in _fsdp.CONFIG_KEYS or not (is_xla or key == _NEVER):
            continue
        if key in _fsdp.XLA_SETTINGS:
            fix = f'Put it into "xla_fsdp_settings": {{"{key}": ...}}.'
            yield config.ctx.finding(entry.node, f"{key} stands in fsdp_config, outside of xla_fsdp_settings.", fix)
        else:
            message = f"{key} is no key of fsdp_config and no argument of XLA's FSDP."
            yield config.ctx.finding(entry.node, message, _fix(key, _fsdp.CONFIG_KEYS), edits=_without(config, entry))


def _in_settings(settings: _fsdp.FsdpConfig, ignored: bool) -> Iterator[Finding]:
    for key, entry in settings.entries.items():
        if key in _fsdp.XLA_SETTINGS:
            continue
        message = f"{key} in xla_fsdp_settings is no argument of XlaFullyShardedDataParallel."
        why = None if ignored else _WHY_V1
        outside = key.removeprefix("fsdp_")
        if outside in _fsdp.CONFIG_KEYS:
            yield settings.ctx.finding(entry.node, message, f"Put {outside} into fsdp_config itself.", why)
        else:
            yield settings.ctx.finding(
                entry.node, message, _fix(key, _fsdp.XLA_SETTINGS), why, _without(settings, entry)
            )


def _fix(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, known, 1, 0.8)
    return f"Write {close[0]}, if that is meant; else take it out." if close else "Take it out."


def _without(config: _fsdp.FsdpConfig, entry: _fsdp.FsdpEntry) -> tuple[Edit, ...]:
    if entry.made is None or not isinstance(entry.node, ast.expr) or entry.value is None:
        return ()
    return _argument_edits.removed_entry(entry.made, entry.node, config.ctx)


def _dtypes(settings: _fsdp.FsdpConfig) -> Iterator[Finding]:
    for key in _DTYPES:
        entry = settings.entries.get(key)
        if entry is None or entry.value is None:
            continue
        written = entry.constant if isinstance(entry.constant, str) else settings.ctx.name(entry.value)
        if not written.startswith("torch."):
            continue
        name = written.removeprefix("torch.")
        message = f"{key} is given as {settings.ctx.source(entry.value)}, and not by the name of the dtype."
        edit = settings.ctx.replace(entry.value, f'"{name}"')
        yield settings.ctx.finding(entry.value, message, f'Write "{name}".', _WHY_DTYPE, (edit,))
