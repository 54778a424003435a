"""Arguments from older versions of transformers."""

from dataclasses import dataclass, field

from transformers import Seq2SeqTrainingArguments, TrainingArguments

COMMON = dict(optim="adamw_torch_xla", dataloader_drop_last=True)


def of_the_tpu():
    return TrainingArguments(
        "out",
        tpu_num_cores=8,  # TPU603: no longer has tpu_num_cores
        tpu_metrics_debug=True,  # TPU603: no longer has tpu_metrics_debug
        **COMMON,
    )


def in_one_line():
    return TrainingArguments("out", tpu_num_cores=8, optim="adamw_torch", dataloader_drop_last=True)  # TPU603: transformers 4.57


def renamed():
    return Seq2SeqTrainingArguments(
        output_dir="out",
        evaluation_strategy="epoch",  # TPU603: no longer has evaluation_strategy
        per_gpu_train_batch_size=8,  # TPU603: per_gpu_train_batch_size
        per_gpu_eval_batch_size=8,  # TPU603: per_gpu_eval_batch_size
        no_cuda=False,  # TPU603: no_cuda
        **COMMON,
    )


def of_mixed_precision():
    return TrainingArguments(
        output_dir="out",
        bf16=True,
        half_precision_backend="auto",  # TPU603: half_precision_backend
        fp16_opt_level="O1",  # TPU603: fp16_opt_level
        fp16_backend="amp",  # TPU603: fp16_backend
        **COMMON,
    )


def of_fsdp():
    return TrainingArguments(
        output_dir="out",
        fsdp="full_shard",
        fsdp_min_num_params=2000,  # TPU603: fsdp_min_num_params
        fsdp_transformer_layer_cls_to_wrap="BertLayer",  # TPU603: fsdp_transformer_layer_cls_to_wrap
        fsdp_config={"xla": True},
        **COMMON,
    )


def in_a_dict():
    config = {"output_dir": "out", "tpu_metrics_debug": True, **COMMON}
    given = {
        "output_dir": "out",
        "optim": "adamw_torch_xla",
        "dataloader_drop_last": True,
        "tpu_num_cores": 8,  # TPU603: tpu_num_cores
        "adafactor": False,  # TPU603: adafactor
    }
    return TrainingArguments(**config), TrainingArguments(**given)


def of_any_device():
    return TrainingArguments(
        output_dir="out",
        warmup_ratio=0.1,  # TPU603: no longer has warmup_ratio
        logging_dir="logs",  # TPU603: no longer has logging_dir
        overwrite_output_dir=True,  # TPU603: no longer has overwrite_output_dir
        group_by_length=True,  # TPU603: no longer has group_by_length
        **COMMON,
    )


@dataclass
class ScriptArguments(TrainingArguments):
    tpu_num_cores: int = field(default=8, metadata={"help": "Processes that the launcher starts."})


def fine(**more):
    return [
        TrainingArguments("out", debug="tpu_metrics_debug", **COMMON),  # ok: TPU603
        TrainingArguments("out", eval_strategy="epoch", **COMMON),  # ok: TPU603
        TrainingArguments("out", per_device_train_batch_size=8, per_device_eval_batch_size=8, **COMMON),  # ok: TPU603
        TrainingArguments("out", use_cpu=True, **COMMON),  # ok: TPU603
        TrainingArguments("out", warmup_steps=0.1, **COMMON),  # ok: TPU603
        TrainingArguments("out", train_sampling_strategy="group_by_length", **COMMON),  # ok: TPU603
        TrainingArguments("out", accelerator_config={"split_batches": True}, **COMMON),  # ok: TPU603
        TrainingArguments("out", fsdp="full_shard", fsdp_config={"xla": True, "min_num_params": 9}, **COMMON),  # ok: TPU603
        TrainingArguments("out", **COMMON, **more),  # ok: TPU603
        ScriptArguments("out", tpu_num_cores=8, **COMMON),  # ok: TPU603
        launch(tpu_num_cores=8, evaluation_strategy="epoch"),  # ok: TPU603
    ]


def launch(tpu_num_cores, evaluation_strategy):
    return tpu_num_cores, evaluation_strategy
