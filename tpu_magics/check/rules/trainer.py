"""Rules about the arguments of the transformers Trainer (TPU6xx)."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_magics.check.finding import Edit
from tpu_magics.check.inference.values import ARGUMENTS, NOTHING
from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import _device, _launches, _source, _trainer
from tpu_magics.check.rules._recompiles import rows

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram
    from tpu_magics.check.rule_context import RuleContext


_WHY_BITSANDBYTES = (
    "bitsandbytes has kernels for GPUs and CPUs only: its optimizers raise an error for parameters on an XLA device."
)
_WHY_GONE = "transformers 5 no longer has an optimizer with this name: TrainingArguments raises ValueError."
_XLA = 'optim="adamw_torch_xla"'
_FIX = f"Write {_XLA}."
_DEFAULT = "adamw_torch_fused"  # read in transformers 5.23.0, with torch 2.8 or newer
# Read in transformers 5.23.0 (training_args.py OptimizerNames, trainer_optimizer.py) and, for those gone, in 4.46.
_FUSED = ("adamw_torch_fused", "adamw_torch_npu_fused")
_BITSANDBYTES = frozenset(
    ("adamw_bnb_8bit", "adamw_8bit", "ademamix", "ademamix_8bit", "lion_8bit", "lion_32bit", "paged_adamw_32bit",
     "paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "paged_lion_32bit", "paged_lion_8bit",
     "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit", "galore_adamw_8bit", "galore_adamw_8bit_layerwise")
)  # fmt: skip
_GONE = ("adamw_hf", "adamw_apex_fused")
_ENUM = "transformers.OptimizerNames."
_ENUM_NAMES = {"ADAMW_BNB": "adamw_bnb_8bit", "LION": "lion_32bit", "PAGED_ADAMW": "paged_adamw_32bit",
    "PAGED_LION": "paged_lion_32bit", "PAGED_ADEMAMIX": "paged_ademamix_32bit", "RMSPROP_8BIT": "rmsprop_bnb_8bit",
    "RMSPROP_32BIT": "rmsprop_bnb_32bit"}  # fmt: skip


class TrainerOptimizer(Rule):
    """A Trainer optimizer that does not run on XLA.

    What it does
        Reports TrainingArguments (also Seq2SeqTrainingArguments, subclasses, and the configurations of trl and
        sentence-transformers) whose `optim` is the default, a fused one, or one of bitsandbytes.
    Why this is bad
        With torch 2.8 or newer the default is `adamw_torch_fused`. torch's fused AdamW has no kernel for XLA: training
        stops before its first step with "`fused=True` requires all the params to be floating point Tensors of supported
        devices". (If tpu_magics launches the training, it uses the plain optimizer instead, and nothing is reported.)
        The optimizers of bitsandbytes (8-bit, paged, lion) have kernels for GPUs and CPUs, not for XLA.
    Example
        args = TrainingArguments(output_dir="out", per_device_train_batch_size=8)
    Use instead
        args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", per_device_train_batch_size=8)
    Limitations
        Arguments from HfArgumentParser or a configuration file, and an `optim` that is computed at run time, are
        unknown. Arguments for a Trainer that gets `optimizers=(optimizer, scheduler)` or creates its own are fine, and
        so are programs that only evaluate.
    """

    code = "TPU601"
    name = "trainer-optimizer"
    group = "trainer"
    why = (
        "torch's fused AdamW has no kernel for XLA: training stops before its first step with an error that "
        "`fused=True` is not supported on this device."
    )
    nodes = (ast.Assign,)

    def check(self, node: ast.Assign, ctx: RuleContext) -> Iterator[Finding]:
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr == "optim" and ctx.value(target.value).kind == ARGUMENTS:
            yield from _optimizer_findings(node, node.value, ctx, f"{ctx.source(target)} is set to")

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if _trainer.only_evaluates(program):
            return
        ours = _launches.is_ours(program)
        for arguments in _trainer.on_tpu(program):
            if _trainer.has_own_optimizer(arguments):
                continue
            given = arguments.argument("optim")
            if given is not None:
                yield from _optimizer_findings(given.node, given.value, given.ctx, "The Trainer's optimizer is")
            elif arguments.is_default("optim") and not ours:
                yield arguments.ctx.finding(
                    arguments.node,
                    f"{arguments.name} leaves optim at its default, {_DEFAULT}.",
                    _FIX,
                    edits=_source.add_argument(arguments.node, _XLA, arguments.ctx),
                )

        for trainer in _trainer.without_arguments(program) if not ours else ():
            if not (_trainer.has_optimizer(trainer) or _device.is_for_other_device(trainer.node, trainer.ctx)):
                subject = trainer.ctx.source(trainer.node.func)
                message = f"{subject} gets no TrainingArguments: its optimizer is the default, {_DEFAULT}."
                yield trainer.ctx.finding(trainer.node, message, f"Write args=TrainingArguments({_XLA}).")


def _optimizer_findings(node: ast.AST, value: ast.expr, ctx: RuleContext, subject: str) -> Iterator[Finding]:
    name = _optimizer_name(value, ctx)
    if name in _FUSED and not _launches.is_ours(ctx.program):
        yield ctx.finding(node, f"{subject} {name}.", _FIX, edits=_optimizer_edits(value, ctx))
    elif name in _BITSANDBYTES:
        fix = f'{_FIX[:-1]}, or optim="adafactor" if memory is short.'
        yield ctx.finding(node, f"{subject} {name}, an optimizer of bitsandbytes.", fix, why=_WHY_BITSANDBYTES)
    elif name in _GONE:
        yield ctx.finding(node, f"{subject} {name}.", _FIX, why=_WHY_GONE)


def _optimizer_name(value: ast.expr, ctx: RuleContext) -> str:
    constant = ctx.constant(value)
    if isinstance(constant, str):
        return constant
    name = ctx.name(value)
    if not name.startswith(_ENUM):
        return ""
    last = name[len(_ENUM) :]
    return _ENUM_NAMES.get(last, last.lower())


def _optimizer_edits(value: ast.expr, ctx: RuleContext) -> tuple[Edit, ...]:
    return (ctx.replace(value, '"adamw_torch_xla"'),) if isinstance(value, ast.Constant) else ()


_NO_FP16 = "A TPU multiplies in bf16 and has no fp16: accelerate raises ValueError for fp16 mixed precision there."

_WHY_EVALUATION = "A TPU has no fp16 units: the evaluation gets no faster, and loses the range that bf16 has."
_FP16 = {"fp16": ("bf16", _NO_FP16), "fp16_full_eval": ("bf16_full_eval", _WHY_EVALUATION)}


class TrainerFp16(Rule):
    """fp16 in TrainingArguments.

    What it does
        Reports `fp16=True` and `fp16_full_eval=True` in TrainingArguments, also if they are set later.
    Why this is bad
        A TPU multiplies in bf16 and has no fp16: accelerate raises ValueError for fp16 mixed precision on a TPU before
        training starts. bf16 has the exponent of fp32 and needs no loss scaling.
    Example
        args = TrainingArguments(output_dir="out", fp16=True, optim="adamw_torch_xla")
    Use instead
        args = TrainingArguments(output_dir="out", bf16=True, optim="adamw_torch_xla")
    Limitations
        A value that is computed is not reported (`fp16=torch.cuda.is_available()` is false on a TPU, and fine).
    """

    code = "TPU602"
    name = "trainer-fp16"
    group = "trainer"
    why = _NO_FP16
    nodes = (ast.Assign,)

    def check(self, node: ast.Assign, ctx: RuleContext) -> Iterator[Finding]:
        target = node.targets[0]
        if not isinstance(target, ast.Attribute) or target.attr not in _FP16 or ctx.constant(node.value) is not True:
            return
        if ctx.value(target.value).kind == ARGUMENTS and not _device.is_in_other_device_branch(node, ctx):
            new, why = _FP16[target.attr]
            yield ctx.finding(node, f"{ctx.source(target)} is enabled.", f"Set {new} = True instead.", why)

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for arguments in _trainer.on_tpu(program):
            for old, (new, why) in _FP16.items():
                given = arguments.argument(old)
                if given is None or given.constant is not True:
                    continue
                yield given.ctx.finding(
                    given.node,
                    f"{arguments.name} enables fp16 ({old}=True).",
                    f"Write {new}=True.",
                    why,
                    _renamed_argument(arguments, given, new),
                )


def _renamed_argument(
    arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, new: str
) -> tuple[Edit, ...]:
    """The keyword with its new name; none if the new one is given as well."""
    literal = isinstance(given.value, ast.Constant)
    if given.keyword is None or not literal or not arguments.is_default(new):
        return ()
    return (arguments.ctx.replace(given.keyword, f"{new}=True"),)


class TrainerRemovedArgument(Rule):
    """An argument that TrainingArguments no longer accepts.

    What it does
        Reports arguments that older versions of transformers had and 5.23 does not have: `tpu_num_cores`,
        `tpu_metrics_debug`, `evaluation_strategy`, `no_cuda`, `per_gpu_train_batch_size`, `half_precision_backend` and
        others. Arguments that are unrelated to devices (`warmup_ratio`, `logging_dir`) are reported as advice.
    Why this is bad
        TrainingArguments raises TypeError: got an unexpected keyword argument.
    Example
        args = TrainingArguments(output_dir="out", tpu_num_cores=8, tpu_metrics_debug=True)
    Use instead
        args = TrainingArguments(output_dir="out", debug="tpu_metrics_debug")
    Limitations
        Which version of transformers is installed where the program will run: an old one may still accept the argument.
        A subclass in the program that declares the argument itself is not reported.
    """

    code = "TPU603"
    name = "trainer-removed-argument"
    group = "trainer"
    why = "transformers 5 raises TypeError for it, as for any unknown argument."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for arguments in _trainer.all_of(program):
            if arguments.is_in_other_device_code:
                continue
            for name, removed in REMOVED_ARGUMENTS.items():
                given = arguments.argument(name)
                if given is not None and not arguments.declares(name):
                    yield _removed_finding(arguments, given, name, removed)


def _removed_finding(
    arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, name: str, removed: RemovedArgument
) -> Finding:
    return given.ctx.finding(
        given.node,
        f"{arguments.name} no longer has {name} (transformers {removed.last} was the last version with it).",
        _removed_fix(given, removed),
        edits=_removed_edits(arguments, given, name, removed),
        advice=removed.general,
    )


def _removed_fix(given: _trainer.TrainerArgument, removed: RemovedArgument) -> str:
    if removed.new:
        return f"Write {removed.new}={given.ctx.source(given.value)}."
    if removed.instead:
        return "Remove it." if given.constant is False else f"Write {removed.instead}."
    return removed.fix


def _removed_edits(
    arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, name: str, removed: RemovedArgument
) -> tuple[Edit, ...]:
    ctx, keyword = arguments.ctx, given.keyword
    if keyword is None:
        return ()
    if removed.new and arguments.argument(removed.new) is None and _means_the_same(name, given):
        return (ctx.replace(keyword, f"{removed.new}={ctx.source(given.value)}"),)
    if not removed.instead or not isinstance(given.value, ast.Constant):
        return _source.remove_argument(arguments.node, keyword, ctx) if name in TAKEN_OUT else ()
    if given.constant is not True:
        return _source.remove_argument(arguments.node, keyword, ctx)
    other = removed.instead.partition("=")[0]
    return (ctx.replace(keyword, removed.instead),) if arguments.argument(other) is None else ()


def _means_the_same(name: str, given: _trainer.TrainerArgument) -> bool:
    """`warmup_steps` takes a number below 1 as a ratio, and 1.0 as one step."""
    return name != "warmup_ratio" or (isinstance(given.constant, (int, float)) and 0 <= given.constant < 1)


# -- the table --------------------------------------------------------------------------------------------------------
#
# From a comparison of the fields of TrainingArguments in transformers 3.5.1, 4.0.1, 4.12.5, 4.26.1, 4.36.2, 4.41.2,
# 4.46.3, 4.52.4, 4.57.1, 5.0.0, 5.5.0, 5.10.0 and 5.15.0 with those of 5.23.0; `last` is the newest of these with the
# field.


@dataclass(frozen=True)
class RemovedArgument:
    """`new`: the argument that takes the same value; `instead`: code to write if the value is True; "" for both:
    remove it. `fix`: the fix message if there is neither. `general`: unrelated to devices, reported as advice."""

    last: str
    new: str = ""
    instead: str = ""
    fix: str = ""
    general: bool = False


_HALF = "Remove it: only bf16=True has an effect."
_LOADER = 'Write accelerator_config={{"{0}": ...}}.'

REMOVED_ARGUMENTS: dict[str, RemovedArgument] = {
    "tpu_num_cores": RemovedArgument(
        "4.57",
        fix="Remove it, and pass the number to the launcher: `%%tpu_train -n 8`, `xla_spawn.py --num_cores 8`.",
    ),
    "tpu_metrics_debug": RemovedArgument("4.57", instead='debug="tpu_metrics_debug"'),
    "evaluation_strategy": RemovedArgument("4.46", new="eval_strategy"),
    "evaluate_during_training": RemovedArgument("3.5", instead='eval_strategy="steps"'),
    "no_cuda": RemovedArgument("4.57", new="use_cpu"),
    "use_mps_device": RemovedArgument("4.57", fix="Remove it: the device is detected automatically."),
    "per_gpu_train_batch_size": RemovedArgument("4.57", new="per_device_train_batch_size"),
    "per_gpu_eval_batch_size": RemovedArgument("4.57", new="per_device_eval_batch_size"),
    "half_precision_backend": RemovedArgument("4.57", fix=_HALF),
    "fp16_backend": RemovedArgument("4.57", fix=_HALF),
    "fp16_opt_level": RemovedArgument("4.57", fix=_HALF),
    "fsdp_min_num_params": RemovedArgument("4.57", fix='Write fsdp_config={"min_num_params": ...}.'),
    "fsdp_transformer_layer_cls_to_wrap": RemovedArgument(
        "4.57", fix='Write fsdp_config={"transformer_layer_cls_to_wrap": [...]}.'
    ),
    "sharded_ddp": RemovedArgument("4.26", fix='Shard with fsdp="full_shard" and fsdp_config={"xla": True}.'),
    "adafactor": RemovedArgument("4.57", instead='optim="adafactor"'),
    "xpu_backend": RemovedArgument("4.26", new="ddp_backend"),
    "dispatch_batches": RemovedArgument("4.46", fix=_LOADER.format("dispatch_batches")),
    "split_batches": RemovedArgument("4.46", fix=_LOADER.format("split_batches")),
    "torchdynamo": RemovedArgument("4.57", fix="Remove it: XLA compiles the step."),
    "jit_mode_eval": RemovedArgument("4.57", fix="Remove it: XLA compiles the step."),
    "use_ipex": RemovedArgument("4.52", fix="Remove it: it is for Intel CPUs."),
    "mp_parameters": RemovedArgument("4.57", fix="Remove it: it is for SageMaker."),
    "group_by_length": RemovedArgument("5.0", instead='train_sampling_strategy="group_by_length"', general=True),
    "warmup_ratio": RemovedArgument("5.10", new="warmup_steps", general=True),
    "logging_dir": RemovedArgument("5.10", fix="Set the environment variable TENSORBOARD_LOGGING_DIR.", general=True),
    "overwrite_output_dir": RemovedArgument("4.57", fix="Remove it.", general=True),
    "save_safetensors": RemovedArgument("4.57", fix="Remove it: safetensors is the only format.", general=True),
    "include_inputs_for_metrics": RemovedArgument("4.57", instead='include_for_metrics=["inputs"]', general=True),
    "include_tokens_per_second": RemovedArgument("4.57", fix="Write include_num_input_tokens_seen=True.", general=True),
    "past_index": RemovedArgument("4.57", fix="Remove it.", general=True),
    "use_legacy_prediction_loop": RemovedArgument("4.57", fix="Remove it.", general=True),
    "push_to_hub_model_id": RemovedArgument("4.57", new="hub_model_id", general=True),
    "push_to_hub_token": RemovedArgument("4.57", new="hub_token", general=True),
    "push_to_hub_organization": RemovedArgument("4.57", fix='Write hub_model_id="organization/name".', general=True),
    "ray_scope": RemovedArgument("4.57", fix="Pass it to hyperparameter_search.", general=True),
}

# Safe to remove: nothing else depends on these.
TAKEN_OUT = frozenset(
    ("tpu_num_cores", "half_precision_backend", "fp16_backend", "fp16_opt_level", "overwrite_output_dir",
     "save_safetensors", "past_index", "use_legacy_prediction_loop", "use_ipex", "jit_mode_eval", "mp_parameters",
     "torchdynamo", "use_mps_device")
)  # fmt: skip


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


class FsdpKeys(Rule):
    """FSDP arguments of the Trainer that do not fit together.

    What it does
        Reports, in `fsdp` and `fsdp_config` of TrainingArguments: `"xla": True` without `fsdp`, `fsdp` without `"xla":
        True`, the XLA keys (`xla_fsdp_v2`, `xla_fsdp_settings`, `xla_fsdp_grad_ckpt`) without `"xla": True`,
        `xla_fsdp_settings` together with `xla_fsdp_v2`, `min_num_params` together with `transformer_layer_cls_to_wrap`,
        and options that only FSDP for GPUs reads.
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

    code = "TPU604"
    name = "fsdp-keys"
    group = "trainer"
    why = "An option that the chosen FSDP does not read is silently ignored."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for one in _trainer.all_settings(program):
            if one.given is not None and one.config is None and one.given.constant is not None:
                continue  # a path, or an unknown value
            for rule in (_is_off, _is_for_gpus, _unread_options, _gpu_keys, _both_wrappings, _settings_of_v1):
                yield from rule(one)


def _is_off(one: _trainer.FsdpArguments) -> Iterator[Finding]:
    if one.is_xla and one.is_off and one.given is not None:
        yield one.given.ctx.finding(
            one.given.node,
            "fsdp_config enables XLA FSDP, but fsdp is not set.",
            'Write fsdp="full_shard".',
            _WHY_OFF,
        )


def _is_for_gpus(one: _trainer.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    xla = config.constant("xla", False) if config is not None else _without_config(one)
    if xla is not False and xla is not None:
        return
    entry = next((result for key in _XLA_KEYS if config is not None and (result := config.enabled_entry(key))), None)
    if config is not None and entry is not None:
        message = f'fsdp_config has {entry.key}, but not "xla": True.'
        why = _WHY_OFF if one.is_off else _WHY_GPU
        yield config.ctx.finding(entry.node, message, 'Add "xla": True.', why, _with_xla(config, entry))
    elif one.fsdp is not None and one.fsdp.constant is not NOTHING and not one.is_off:
        source = one.fsdp.ctx.source(one.fsdp.value)
        where = one.given or one.fsdp
        fix = 'Write fsdp_config={"xla": True}.' if config is None else 'Add "xla": True to fsdp_config.'
        yield where.ctx.finding(where.node, f'fsdp={source} is used without "xla": True in fsdp_config.', fix, _WHY_GPU)


def _without_config(one: _trainer.FsdpArguments) -> Any:
    """`xla` without fsdp_config: False, unless it may be set elsewhere."""
    return False if one.given is not None or one.arguments.is_default("fsdp_config") else NOTHING


def _with_xla(config: _trainer.FsdpConfig, entry: _trainer.FsdpEntry) -> tuple[Edit, ...]:
    if entry.literal is None or "xla" in config.entries:
        return ()
    start = config.ctx.replace(entry.node, "").start
    indent = config.ctx.cell.lines[start[0] - 1][: start[1]]
    between = f",\n{indent}" if not indent.strip() else ", "
    return (Edit(start, start, f'"xla": True{between}'),)


def _unread_options(one: _trainer.FsdpArguments) -> Iterator[Finding]:
    if not one.is_xla or one.fsdp is None:
        return
    ctx = one.fsdp.ctx
    for option in _options_of(one):
        if option not in _HARMLESS:
            fix = _OPTIONS.get(option, 'Write fsdp="full_shard".')
            yield ctx.finding(
                one.fsdp.node, f'fsdp has the option {option} together with "xla": True.', fix, _WHY_STRATEGY
            )


def _options_of(one: _trainer.FsdpArguments) -> list[str]:
    assert one.fsdp is not None
    if isinstance(one.fsdp.constant, str):
        return one.fsdp.constant.split()
    if isinstance(one.fsdp.value, (ast.List, ast.Tuple)):
        result = (one.arguments.ctx.constant(item) for item in one.fsdp.value.elts)
        return [item for item in result if isinstance(item, str)]
    return []


def _gpu_keys(one: _trainer.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    if config is None or not one.is_xla:
        return
    for key, (missed, fix) in _GPU_KEYS.items():
        entry = config.entries.get(key)
        if entry is not None and any(entry.constant is value for value in missed):
            message = f'fsdp_config has {key}, which is not read with "xla": True.'
            yield config.ctx.finding(entry.node, message, fix)


def _both_wrappings(one: _trainer.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    if config is None or one.is_off:
        return
    size, classes = config.enabled_entry("min_num_params"), config.enabled_entry("transformer_layer_cls_to_wrap")
    if size is None or classes is None or not isinstance(size.constant, (int, float)):
        return
    message = "fsdp_config has min_num_params and transformer_layer_cls_to_wrap, but only one of them has an effect."
    yield config.ctx.finding(classes.node, message, "Remove one of them.", _WHY_WRAP)


def _settings_of_v1(one: _trainer.FsdpArguments) -> Iterator[Finding]:
    config = one.config
    if config is None or not one.is_xla or config.constant("xla_fsdp_v2") is not True:
        return
    entry, settings = config.entries.get("xla_fsdp_settings"), _trainer.settings(config)
    if entry is not None and settings is not None and settings.entries.keys() & _trainer.XLA_SETTINGS:
        fix = "Remove xla_fsdp_settings, or xla_fsdp_v2 if you need the settings."
        yield config.ctx.finding(
            entry.node, "fsdp_config has xla_fsdp_settings together with xla_fsdp_v2.", fix, _WHY_V2
        )


_WHY_V1 = (
    "TrainingArguments accepts any key; XlaFullyShardedDataParallel raises TypeError for it when training starts, "
    "after the model was loaded."
)
_WHY_DTYPE = "transformers looks up the dtype by its name, getattr(torch, ...), and raises an error for anything else."
_NEVER = "min_split_size_mb"  # a setting of the GPU allocator, not of FSDP
_DTYPES = ("compute_dtype", "buffer_dtype")


class FsdpUnknownSetting(Rule):
    """A setting that XLA FSDP does not know.

    What it does
        Reports keys of `xla_fsdp_settings` that are not arguments of XlaFullyShardedDataParallel, keys of `fsdp_config`
        that nothing reads with `"xla": True`, `min_split_size_mb` in either, and dtypes that are not given by name.
    Why this is bad
        TrainingArguments accepts any key. A key of `fsdp_config` that nothing reads, and any key of `xla_fsdp_settings`
        together with `xla_fsdp_v2`, is silently ignored; without v2 a key that the wrapper does not know raises
        TypeError when training starts, after the model was loaded.
    Example
        fsdp_config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16", "min_split_size_mb": 64}}
    Use instead
        fsdp_config = {"xla": True, "xla_fsdp_settings": {"compute_dtype": "bfloat16"}}
    Limitations
        A configuration in a JSON file, and one that is composed at run time, are not checked. The arguments are those
        of torch_xla 2.9.
    """

    code = "TPU605"
    name = "fsdp-unknown-setting"
    group = "trainer"
    why = "TrainingArguments accepts any key: nothing reads this one, and it is silently ignored."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for one in _trainer.all_settings(program):
            if one.config is not None:
                yield from _config_findings(one.config, one.is_xla)
                settings = _trainer.settings(one.config)
                if settings is not None:
                    v2 = one.config.constant("xla_fsdp_v2") is True
                    ignored = v2 or not one.is_xla or one.is_off
                    yield from _settings_findings(settings, ignored)
                    yield from _dtype_findings(settings)


def _config_findings(config: _trainer.FsdpConfig, is_xla: bool) -> Iterator[Finding]:
    for key, entry in config.entries.items():
        if key in _trainer.CONFIG_KEYS or not (is_xla or key == _NEVER):
            continue
        if key in _trainer.XLA_SETTINGS:
            fix = f'Put it into "xla_fsdp_settings": {{"{key}": ...}}.'
            yield config.ctx.finding(entry.node, f"{key} is in fsdp_config, outside xla_fsdp_settings.", fix)
        else:
            message = f"{key} is not a key of fsdp_config and not an argument of XLA FSDP."
            yield config.ctx.finding(
                entry.node, message, _setting_fix(key, _trainer.CONFIG_KEYS), edits=_without_entry(config, entry)
            )


def _settings_findings(settings: _trainer.FsdpConfig, ignored: bool) -> Iterator[Finding]:
    for key, entry in settings.entries.items():
        if key in _trainer.XLA_SETTINGS:
            continue
        message = f"{key} in xla_fsdp_settings is not an argument of XlaFullyShardedDataParallel."
        why = None if ignored else _WHY_V1
        outside = key.removeprefix("fsdp_")
        if outside in _trainer.CONFIG_KEYS:
            yield settings.ctx.finding(entry.node, message, f"Put {outside} directly into fsdp_config.", why)
        else:
            yield settings.ctx.finding(
                entry.node, message, _setting_fix(key, _trainer.XLA_SETTINGS), why, _without_entry(settings, entry)
            )


def _setting_fix(key: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(key, known, 1, 0.8)
    return f"Write {close[0]} if you mean that; otherwise remove it." if close else "Remove it."


def _without_entry(config: _trainer.FsdpConfig, entry: _trainer.FsdpEntry) -> tuple[Edit, ...]:
    if entry.literal is None or not isinstance(entry.node, ast.expr) or entry.value is None:
        return ()
    return _source.remove_entry(entry.literal, entry.node, config.ctx)


def _dtype_findings(settings: _trainer.FsdpConfig) -> Iterator[Finding]:
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


_DROP_LAST = "dataloader_drop_last"
_TRAIN_DATASET = 3  # where Trainer(...) takes it


class TrainerDropLast(Rule):
    """A smaller last batch in the Trainer's epochs.

    What it does
        Reports TrainingArguments for training that do not set `dataloader_drop_last` or set it to False.
    Why this is bad
        A batch of another size has other shapes, and XLA compiles the training step again for it. In one process (one
        chip, SPMD) the last batch of an epoch is smaller unless the dataset's length is a multiple of the batch size;
        with several processes accelerate fills it up with samples from the start of the epoch, which are then used
        twice.
    Example
        args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", per_device_train_batch_size=8)
    Use instead
        args = TrainingArguments(output_dir="out", optim="adamw_torch_xla", per_device_train_batch_size=8,
                                 dataloader_drop_last=True)
    Limitations
        The length of a dataset is known only where the code shows it (`.select(range(N))`, `split="train[:N]"`);
        whether an IterableDataset gives whole batches is unknown. Programs that only evaluate or predict, and Trainers
        that create their own loader, are not reported.
    """

    code = "TPU606"
    name = "trainer-drop-last"
    group = "trainer"
    why = (
        "A smaller last batch has other shapes, and XLA compiles the training step again for them (with several "
        "processes it is filled up with samples from the start of the epoch)."
    )

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        for arguments in _trainer.on_tpu(program):
            given = arguments.argument(_DROP_LAST)
            if given is not None and given.constant is not False:
                continue
            if given is None and not arguments.is_default(_DROP_LAST):
                continue
            if not (_trainer.only_evaluates(program) or _makes_own_loader(arguments) or _has_whole_batches(arguments)):
                setting = f"does not set {_DROP_LAST}" if given is None else f"sets {_DROP_LAST}=False"
                message = f"{arguments.name} {setting}: the last batch of an epoch may be smaller."
                ctx, node = (arguments.ctx, arguments.node) if given is None else (given.ctx, given.node)
                yield ctx.finding(node, message, f"Write {_DROP_LAST}=True.")


def _makes_own_loader(arguments: _trainer.TrainingArgumentsCall) -> bool:
    return _trainer.overrides(arguments, "get_train_dataloader")


def _has_whole_batches(arguments: _trainer.TrainingArgumentsCall) -> bool:
    """Whether the training data certainly consists of whole batches."""
    batch = _trainer.constant_of(arguments, "per_device_train_batch_size", 8)
    trainers = _trainer.trainers_of(arguments)
    if not isinstance(batch, int) or batch < 1 or not trainers:
        return False
    if _trainer.constant_of(arguments, "auto_find_batch_size", False) is not False:
        return False
    lengths = [
        _dataset_length(one.ctx, one.ctx.argument(one.node, "train_dataset", _TRAIN_DATASET)) for one in trainers
    ]
    return all(length is not None and length % batch == 0 for length in lengths)


def _dataset_length(ctx: RuleContext, node: ast.expr | None) -> float | None:
    """The number of samples of a dataset, if the code shows it."""
    value = ctx.value(node)
    call = node if isinstance(node, ast.Call) else value.creator
    return rows(value.creator_ctx or ctx, call) if isinstance(call, ast.Call) else None


_ACCELERATOR = "accelerate.Accelerator"
_IGNORED = ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "parallelism_config")
_OF_TRAINER = ("deepspeed", "parallelism_config")


class NoXlaParallelism(Rule):
    """A way to share out a model that accelerate does not use on a TPU.

    What it does
        Reports `deepspeed` and `parallelism_config` of TrainingArguments, and the plugins for DeepSpeed, FSDP and
        Megatron and the `parallelism_config` of an `Accelerator`, in a program for a TPU.
    Why this is bad
        Where XLA is the backend, accelerate takes none of them up: its state stays `DistributedType.XLA`, so each
        device has the whole model and its optimizer (read in accelerate 1.15, `AcceleratorState.__init__`). What needed
        them to fit does not fit.
    Example
        args = TrainingArguments("out", deepspeed="zero2.json")
    Use instead
        args = TrainingArguments("out", fsdp="full_shard", fsdp_config={"xla": True, "xla_fsdp_v2": True})
    Limitations
        A configuration from `accelerate config` or the command line is not known.
    """

    code = "TPU607"
    name = "no-xla-parallelism"
    group = "trainer"
    why = "On a TPU accelerate does not take it up: each device has the whole model and its optimizer."

    def check_program(self, program: CheckedProgram) -> Iterator[Finding]:
        if not program.for_tpu:  # a program with DeepSpeed is for GPUs, unless it says so
            return
        for arguments in _trainer.all_of(program):
            for name in _OF_TRAINER:
                given = arguments.argument(name)
                if given is not None and given.constant not in (None, "") and not arguments.is_in_other_device_code:
                    yield given.ctx.finding(given.node, f"{arguments.name} gets {name}.", _SHARDED_FIX)
        for call in program.calls(_ACCELERATOR):
            for name in _IGNORED:
                given_here = call.ctx.argument(call.node, name)
                if given_here is None or call.ctx.constant(given_here) is None:
                    continue
                if not _device.is_in_other_device_branch(call.node, call.ctx):
                    yield call.ctx.finding(given_here, f"Accelerator gets {name}.", _SHARDED_FIX)


_SHARDED_FIX = (
    'Share it out by XLA: `fsdp="full_shard"` with `fsdp_config={"xla": True, "xla_fsdp_v2": True}` in the Trainer, or '
    "`torch_xla.distributed.spmd`."
)

RULES = (
    TrainerOptimizer(),
    TrainerFp16(),
    TrainerRemovedArgument(),
    FsdpKeys(),
    FsdpUnknownSetting(),
    TrainerDropLast(),
    NoXlaParallelism(),
)
