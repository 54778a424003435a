"""A setting that XLA FSDP does not know.

What it does
    Reports keys of `xla_fsdp_settings` that are not arguments of XlaFullyShardedDataParallel, keys of `fsdp_config`
    that nothing reads with `"xla": True`, `min_split_size_mb` in either, and dtypes that are not given by name.
Why this is bad
    TrainingArguments accepts any key. A key of `fsdp_config` that nothing reads, and any key of `xla_fsdp_settings`
    together with `xla_fsdp_v2`, is silently ignored; without v2 a key that the wrapper does not know raises TypeError
    when training starts, after the model was loaded.
Example
    fsdp_config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16", "min_split_size_mb": 64}}
Use instead
    fsdp_config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16"}}
Limitations
    A configuration in a JSON file, and one that is composed at run time, are not checked. The arguments are those of
    torch_xla 2.9.
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
WHY = "TrainingArguments accepts any key: nothing reads this one, and it is silently ignored."

_WHY_V1 = (
    "TrainingArguments accepts any key; XlaFullyShardedDataParallel raises TypeError for it when training starts, "
    "after the model was loaded."
)
_WHY_DTYPE = "transformers looks up the dtype by its name, getattr(torch, ...), and raises an error for anything else."
_NEVER = "min_split_size_mb"  # a setting of the GPU allocator, not of FSDP
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
            yield config.ctx.finding(entry.node, f"{key} is in fsdp_config, outside xla_fsdp_settings.", fix)
        else:
            message = f"{key} is not a key of fsdp_config and not an argument of XLA FSDP."
            yield config.ctx.finding(entry.node, message, _fix(key, _fsdp.CONFIG_KEYS), edits=_without(config, entry))


def _in_settings(settings: _fsdp.FsdpConfig, ignored: bool) -> Iterator[Finding]:
    for key, entry in settings.entries.items():
        if key in _fsdp.XLA_SETTINGS:
            continue
        message = f"{key} in xla_fsdp_settings is not an argument of XlaFullyShardedDataParallel."
        why = None if ignored else _WHY_V1
        outside = key.removeprefix("fsdp_")
        if outside in _fsdp.CONFIG_KEYS:
            yield settings.ctx.finding(entry.node, message, f"Put {outside} directly into fsdp_config.", why)
        else:
            yield settings.ctx.finding(
                entry.node, message, _fix(key, _fsdp.XLA_SETTINGS), why, _without(settings, entry)
            )


def _fix(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, known, 1, 0.8)
    return f"Write {close[0]} if you mean that; otherwise remove it." if close else "Remove it."


def _without(config: _fsdp.FsdpConfig, entry: _fsdp.FsdpEntry) -> tuple[Edit, ...]:
    if entry.made is None or not isinstance(entry.node, ast.expr) or entry.value is None:
        return ()
    return _argument_edits.remove_entry(entry.made, entry.node, config.ctx)


def _dtypes(settings: _fsdp.FsdpConfig) -> Iterator[Finding]:
    for key in _DTYPES:
        entry = settings.entries.get(key)
        if entry is None or entry.value is None:
            continue
        written = entry.constant if isinstance(entry.constant, str) else settings.ctx.name(entry.value)
        if not written.startswith("torch."):
            continue
        name = written.removeprefix("torch.")
        message = f"{key} is given as {settings.ctx.source(entry.value)}, not by the name of the dtype."
        edit = settings.ctx.replace(entry.value, f'"{name}"')
        yield settings.ctx.finding(entry.value, message, f'Write "{name}".', _WHY_DTYPE, (edit,))
