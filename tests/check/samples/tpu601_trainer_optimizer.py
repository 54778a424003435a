"""Fine-tuning scripts of the Trainer, each with its optimizer."""

import dataclasses

import torch
import transformers
import transformers as hf
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)
from transformers.training_args import OptimizerNames
from transformers.training_args import TrainingArguments as Arguments
from trl import SFTConfig

MODEL = "google-bert/bert-base-uncased"
FUSED = "adamw_torch_fused"
FOR_XLA = "adamw_torch_xla"

tokenizer = AutoTokenizer.from_pretrained(MODEL)
data = load_dataset("nyu-mll/glue", "mrpc")


def plain():
    return TrainingArguments(output_dir="out", dataloader_drop_last=True)  # TPU601: default, adamw_torch_fused


def several_lines():
    args = TrainingArguments(  # TPU601: leaves optim at its default
        output_dir="out",
        per_device_train_batch_size=8,
        dataloader_drop_last=True,
        bf16=True,
    )
    return args


def seq2seq():
    return Seq2SeqTrainingArguments("out", predict_with_generate=True, dataloader_drop_last=True)  # TPU601: Seq2SeqTrainingArguments leaves optim


def aliases():
    first = hf.TrainingArguments("out", optim="adamw_torch_fused", dataloader_drop_last=True)  # TPU601: adamw_torch_fused
    second = Arguments("out", dataloader_drop_last=True)  # TPU601: Arguments leaves optim
    third = transformers.Seq2SeqTrainingArguments(output_dir="out", optim=FUSED, dataloader_drop_last=True)  # TPU601: adamw_torch_fused
    return first, second, third


def by_enumeration():
    fused = TrainingArguments("out", optim=OptimizerNames.ADAMW_TORCH_FUSED, dataloader_drop_last=True)  # TPU601: adamw_torch_fused
    xla = TrainingArguments("out", optim=OptimizerNames.ADAMW_TORCH_XLA, dataloader_drop_last=True)  # ok: TPU601
    eight = TrainingArguments("out", optim=transformers.training_args.OptimizerNames.ADAMW_BNB, dataloader_drop_last=True)  # TPU601: bitsandbytes
    return fused, xla, eight


def bitsandbytes():
    return [
        TrainingArguments("out", optim="adamw_bnb_8bit", dataloader_drop_last=True),  # TPU601: adamw_bnb_8bit, an optimizer of bitsandbytes
        TrainingArguments("out", optim="paged_adamw_32bit", dataloader_drop_last=True),  # TPU601: paged_adamw_32bit
        TrainingArguments("out", optim="adamw_8bit", dataloader_drop_last=True),  # TPU601: adamw_8bit
        TrainingArguments("out", optim="lion_8bit", dataloader_drop_last=True),  # TPU601: lion_8bit
    ]


def of_older_versions():
    return [
        TrainingArguments("out", optim="adamw_hf", dataloader_drop_last=True),  # TPU601: adamw_hf
        TrainingArguments("out", optim="adamw_apex_fused", dataloader_drop_last=True),  # TPU601: adamw_apex_fused
    ]


def from_a_dict():
    config = {
        "output_dir": "out",
        "optim": "adamw_torch_fused",  # TPU601: adamw_torch_fused
        "dataloader_drop_last": True,
    }
    return TrainingArguments(**config)


def from_a_dict_without_it():
    config = dict(output_dir="out", learning_rate=5e-5, dataloader_drop_last=True)
    return TrainingArguments(**config)  # TPU601: leaves optim at its default


def with_optimizer(name):
    return TrainingArguments(
        output_dir="out",
        optim=name,  # TPU601: adamw_torch_fused
        dataloader_drop_last=True,
    )


with_optimizer("adamw_torch_fused")


class MyArguments(TrainingArguments):
    """Without an optimizer of its own."""


@dataclasses.dataclass
class TpuArguments(TrainingArguments):
    optim: str = "adamw_torch_xla"
    cache_dir: str | None = None


def subclasses():
    mine = MyArguments("out", dataloader_drop_last=True)  # TPU601: MyArguments leaves optim
    theirs = TpuArguments("out", dataloader_drop_last=True)  # ok: TPU601
    tuned = SFTConfig(output_dir="out", dataloader_drop_last=True)  # TPU601: SFTConfig leaves optim
    return mine, theirs, tuned


def fine():
    return [
        TrainingArguments("out", optim="adamw_torch_xla", dataloader_drop_last=True),  # ok: TPU601
        TrainingArguments("out", optim="adamw_torch", dataloader_drop_last=True),  # ok: TPU601
        TrainingArguments("out", optim="adafactor", dataloader_drop_last=True),  # ok: TPU601
        TrainingArguments("out", optim="sgd", dataloader_drop_last=True),  # ok: TPU601
        TrainingArguments("out", optim=FOR_XLA, dataloader_drop_last=True),  # ok: TPU601
        TrainingArguments("out", use_cpu=True, dataloader_drop_last=True),  # ok: TPU601
        TrainingArguments("out", deepspeed="ds_config.json", dataloader_drop_last=True),  # ok: TPU601
    ]


def decided_at_run_time(options, on_tpu, **more):
    first = TrainingArguments("out", optim=options.optim, dataloader_drop_last=True)  # ok: TPU601
    second = TrainingArguments("out", dataloader_drop_last=True, **more)  # ok: TPU601
    third = TrainingArguments(  # ok: TPU601
        "out",
        optim="adamw_torch_xla" if on_tpu else "adamw_torch_fused",
        dataloader_drop_last=True,
    )
    (fourth,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()  # ok: TPU601
    return first, second, third, fourth


def for_each_device(on_tpu):
    if on_tpu:
        args = TrainingArguments("out", optim="adamw_torch_xla", dataloader_drop_last=True)  # ok: TPU601
    else:
        args = TrainingArguments("out", optim="adamw_torch_fused", dataloader_drop_last=True)  # ok: TPU601
    if torch.cuda.is_available():
        args = TrainingArguments("out", fp16=True)  # ok: TPU601, TPU602, TPU606
    return args


def own_optimizer():
    model = AutoModelForSequenceClassification.from_pretrained(MODEL)
    args = TrainingArguments(output_dir="out", max_steps=500, dataloader_drop_last=True)  # ok: TPU601
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    schedule = get_linear_schedule_with_warmup(optimizer, 50, 500)
    Trainer(model=model, args=args, train_dataset=data["train"], optimizers=(optimizer, schedule)).train()


def own_schedule_only(schedule):
    model = AutoModelForSequenceClassification.from_pretrained(MODEL)
    args = TrainingArguments(output_dir="out", dataloader_drop_last=True)  # TPU601: leaves optim
    Trainer(model=model, args=args, train_dataset=data["train"], optimizers=(None, schedule)).train()


class Decoupled(Seq2SeqTrainer):
    def create_optimizer(self):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
        return self.optimizer


def trainer_with_optimizer(model):
    args = Seq2SeqTrainingArguments("out", dataloader_drop_last=True)  # ok: TPU601
    Decoupled(model=model, args=args, train_dataset=data["train"]).train()


def without_arguments(model, optimizer):
    Trainer(model=model, train_dataset=data["train"]).train()  # TPU601: gets no TrainingArguments
    Trainer(model=model, train_dataset=data["train"], optimizers=(optimizer, None)).train()  # ok: TPU601
