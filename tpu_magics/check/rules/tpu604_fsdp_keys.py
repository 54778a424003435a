"""FSDP arguments of the Trainer that do not fit together.

What it does
    Reports, in `fsdp` and `fsdp_config` of TrainingArguments: `"xla": True` without `fsdp`, `fsdp` without `"xla":
    True`, the XLA keys (`xla_fsdp_v2`, `xla_fsdp_settings`, `xla_fsdp_grad_ckpt`) without `"xla": True`,
    `xla_fsdp_settings` together with `xla_fsdp_v2`, `min_num_params` together with `transformer_layer_cls_to_wrap`, and
    options that only FSDP for GPUs reads.
Why this is bad
    transformers uses XLA FSDP only with both, `fsdp` and `"xla": True`. Without `fsdp` the whole `fsdp_config` is
    silently ignored; without `"xla": True` the Trainer requests FSDP for GPUs and raises "Using fsdp only works in
    distributed training". A key that the chosen FSDP does not read is silently ignored.
Example
    args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", fsdp="full_shard",
                             fsdp_config={"xla_fsdp_grad_ckpt": True})
Use instead
    args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", fsdp="full_shard",
                             fsdp_config={"xla": True, "xla_fsdp_grad_ckpt": True})
Limitations
    A configuration in a JSON file, and one that is composed at run time, are not checked.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tpu_magics.check.finding import Edit
from tpu_magics.check.rules import _fsdp
from tpu_magics.check.values import NOTHING

if TYPE_CHECKING:
    from tpu_magics.check.finding import Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU604"
NAME = "fsdp-keys"
GROUP = "trainer"
WHY = "An option that the chosen FSDP does not read is silently ignored."

_WHY_OFF = "Without fsdp, transformers ignores fsdp_config: every chip holds and updates the whole model."
_WHY_GPU = (
    'Without "xla": True this is FSDP for GPUs: on XLA the Trainer raises "Using fsdp only works in distributed '
    'training".'
)
_WHY_V2 = "transformers passes xla_fsdp_settings to FSDP v1 only; with xla_fsdp_v2 they are silently ignored."
_WHY_WRAP = "transformers 4 raises ValueError for both together, and transformers 5 ignores the list of classes."
_WHY_STRATEGY = 'With "xla": True transformers does full sharding only, and reads no other option of fsdp.'
_XLA_KEYS = ("xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings")
_HARMLESS = ("full_shard", "auto_wrap")

# Keys that only FSDP for GPUs reads: the values that have no effect on XLA, and the replacement on XLA.
_GPU_KEYS: dict[str, tuple[tuple[Any, ...], str]] = {
    "activation_checkpointing": ((True,), 'Write "xla_fsdp_grad_ckpt": True.'),
    "cpu_offload": ((True,), "Remove it: XLA FSDP keeps everything on the device."),
    "offload_params": ((True,), "Remove it: XLA FSDP keeps everything on the device."),
    "reshard_after_forward": ((False,), 'Put it into "xla_fsdp_settings": {"reshard_after_forward": False}.'),
    "cpu_ram_efficient_loading": ((True,), "Remove it, and build the model once for all processes (hoist it)."),
}
_OPTIONS = {
    "shard_grad_op": 'Write fsdp="full_shard" and "xla_fsdp_settings": {"reshard_after_forward": False}.',
    "offload": "Remove it: XLA FSDP keeps everything on the device.",
}


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for one in _fsdp.all_of(program):
        if one.given is not None and one.config is None and one.given.constant is not None:
            continue  # a path, or an unknown value
        for rule in (_is_off, _is_for_gpus, _options, _keys_of_gpus, _both_wrappings, _settings_of_v1):
            yield from rule(one)


def _is_off(one: _fsdp.FsdpArguments) -> Iterator[Finding]:
    if one.is_xla and one.is_off and one.given is not None:
        yield one.given.ctx.finding(
            one.given.node,
            "fsdp_config enables XLA FSDP, but fsdp is not set.",
            'Write fsdp="full_shard".',
            _WHY_OFF,
        )


def _is_for_gpus(one: _fsdp.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    xla = config.constant("xla", False) if config is not None else _without_config(one)
    if xla is not False and xla is not None:
        return
    entry = next((found for key in _XLA_KEYS if config is not None and (found := config.enabled_entry(key))), None)
    if config is not None and entry is not None:
        message = f'fsdp_config has {entry.key}, but not "xla": True.'
        why = _WHY_OFF if one.is_off else _WHY_GPU
        yield config.ctx.finding(entry.node, message, 'Add "xla": True.', why, _with_xla(config, entry))
    elif one.fsdp is not None and one.fsdp.constant is not NOTHING and not one.is_off:
        source = one.fsdp.ctx.source(one.fsdp.value)
        where = one.given or one.fsdp
        fix = 'Write fsdp_config={"xla": True}.' if config is None else 'Add "xla": True to fsdp_config.'
        yield where.ctx.finding(where.node, f'fsdp={source} is used without "xla": True in fsdp_config.', fix, _WHY_GPU)


def _without_config(one: _fsdp.FsdpArguments) -> Any:
    """`xla` without fsdp_config: False, unless it may be set elsewhere."""
    return False if one.given is not None or one.arguments.is_default("fsdp_config") else NOTHING


def _with_xla(config: _fsdp.FsdpConfig, entry: _fsdp.FsdpEntry) -> tuple[Edit, ...]:
    if entry.made is None or "xla" in config.entries:
        return ()
    start = config.ctx.replace(entry.node, "").start
    indent = config.ctx.cell.lines[start[0] - 1][: start[1]]
    between = f",\n{indent}" if not indent.strip() else ", "
    return (Edit(start, start, f'"xla": True{between}'),)


def _options(one: _fsdp.FsdpArguments) -> Iterator[Finding]:
    if not one.is_xla or one.fsdp is None:
        return
    ctx = one.fsdp.ctx
    for option in _options_of(one):
        if option not in _HARMLESS:
            fix = _OPTIONS.get(option, 'Write fsdp="full_shard".')
            yield ctx.finding(
                one.fsdp.node, f'fsdp has the option {option} together with "xla": True.', fix, _WHY_STRATEGY
            )


def _options_of(one: _fsdp.FsdpArguments) -> list[str]:
    assert one.fsdp is not None
    if isinstance(one.fsdp.constant, str):
        return one.fsdp.constant.split()
    if isinstance(one.fsdp.value, (ast.List, ast.Tuple)):
        found = (one.arguments.ctx.constant(item) for item in one.fsdp.value.elts)
        return [item for item in found if isinstance(item, str)]
    return []


def _keys_of_gpus(one: _fsdp.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    if config is None or not one.is_xla:
        return
    for key, (missed, fix) in _GPU_KEYS.items():
        entry = config.entries.get(key)
        if entry is not None and any(entry.constant is value for value in missed):
            message = f'fsdp_config has {key}, which is not read with "xla": True.'
            yield config.ctx.finding(entry.node, message, fix)


def _both_wrappings(one: _fsdp.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    if config is None or one.is_off:
        return
    size, classes = config.enabled_entry("min_num_params"), config.enabled_entry("transformer_layer_cls_to_wrap")
    if size is None or classes is None or not isinstance(size.constant, (int, float)):
        return
    message = "fsdp_config has min_num_params and transformer_layer_cls_to_wrap, but only one of them has an effect."
    yield config.ctx.finding(classes.node, message, "Remove one of them.", _WHY_WRAP)


def _settings_of_v1(one: _fsdp.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    if config is None or not one.is_xla or config.constant("xla_fsdp_v2") is not True:
        return
    entry, settings = config.entries.get("xla_fsdp_settings"), _fsdp.settings(config)
    if entry is not None and settings is not None and settings.entries.keys() & _fsdp.XLA_SETTINGS:
        fix = "Remove xla_fsdp_settings, or xla_fsdp_v2 if you need the settings."
        yield config.ctx.finding(
            entry.node, "fsdp_config has xla_fsdp_settings together with xla_fsdp_v2.", fix, _WHY_V2
        )
