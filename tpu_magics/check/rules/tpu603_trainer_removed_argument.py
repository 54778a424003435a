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
    Which version of transformers is installed where the program will run: an old one may still accept the argument. A
    subclass in the program that declares the argument itself is not reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.check.rules import _argument_edits, _trainer

if TYPE_CHECKING:
    from tpu_magics.check.finding import Edit, Finding
    from tpu_magics.check.program import CheckedProgram

CODE = "TPU603"
NAME = "trainer-removed-argument"
GROUP = "trainer"
WHY = "transformers 5 raises TypeError for it, as for any unknown argument."


def check_program(program: CheckedProgram) -> Iterator[Finding]:
    for arguments in _trainer.all_of(program):
        if arguments.is_in_other_device_code:
            continue
        for name, removed in ARGUMENTS.items():
            given = arguments.argument(name)
            if given is not None and not arguments.declares(name):
                yield _found(arguments, given, name, removed)


def _found(
    arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, name: str, removed: RemovedArgument
) -> Finding:
    return given.ctx.finding(
        given.node,
        f"{arguments.name} no longer has {name} (transformers {removed.last} was the last version with it).",
        _fix(given, removed),
        edits=_edits(arguments, given, name, removed),
        advice=removed.general,
    )


def _fix(given: _trainer.TrainerArgument, removed: RemovedArgument) -> str:
    if removed.new:
        return f"Write {removed.new}={given.ctx.source(given.value)}."
    if removed.instead:
        return "Remove it." if given.constant is False else f"Write {removed.instead}."
    return removed.fix


def _edits(
    arguments: _trainer.TrainingArgumentsCall, given: _trainer.TrainerArgument, name: str, removed: RemovedArgument
) -> tuple[Edit, ...]:
    ctx, keyword = arguments.ctx, given.keyword
    if keyword is None:
        return ()
    if removed.new and arguments.argument(removed.new) is None and _means_the_same(name, given):
        return (ctx.replace(keyword, f"{removed.new}={ctx.source(given.value)}"),)
    if not removed.instead or not isinstance(given.value, ast.Constant):
        return _argument_edits.remove_argument(arguments.node, keyword, ctx) if name in TAKEN_OUT else ()
    if given.constant is not True:
        return _argument_edits.remove_argument(arguments.node, keyword, ctx)
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

ARGUMENTS: dict[str, RemovedArgument] = {
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
