"""Notebooks with transformers' Trainer and accelerate's Accelerator, cell by cell, against the same cells in plain
Python on a CPU without tpu_magics and without torch_xla: the same figures, before, in and after runs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("transformers.trainer")

from .kernel import Kernel, python

pytestmark = pytest.mark.process

PATIENCE = 300.0  # seconds: the programs are small, but machines may be busy
RUN = re.compile(r"^%%tpu_train.*\n", re.MULTILINE)
TOLD = "\nimport json\nprint('TOLD' + json.dumps(told))"
# Each in a fork, before anything is computed: the imports are most of what such a program takes.
FORKS = """
import json, os
import accelerate, transformers.trainer
for name, text in {programs!r}.items():
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0, name
        continue
    os.mkdir(name)
    os.chdir(name)
    names = {{"__name__": "__main__"}}
    exec(text, names)
    with open("told.json", "w") as file:
        json.dump(names["told"], file)
    break
"""

COMMON = """
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, EarlyStoppingCallback

told = []

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def forward(self, x=None, labels=None):
        found = self.layers(x)[:, 0]
        return {"loss": (found - labels).pow(2).mean(), "logits": found}

def rows(count=40):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return [{"x": one, "labels": one.sum()} for one in x]

def without_times(entry):
    return {name: value for name, value in entry.items() if not name.endswith(("time", "second"))}

def weights(model):
    return [tensor.double().sum().item() for tensor in model.state_dict().values()]

COMMON = {"per_device_train_batch_size": 4, "report_to": "none", "disable_tqdm": True, "learning_rate": 1e-2}
"""


@pytest.fixture(scope="module")
def in_plain_python(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the cells tell in processes of their own, in which nothing knows of torch_xla or of us."""
    folder = tmp_path_factory.mktemp("plain")
    programs = {
        "plain": [COMMON, *PLAIN],
        "trainer": [COMMON, *TRAINER, "told.append(train_it())", "tell(trainer)"],
        "accelerator": ACCELERATOR,
    }
    texts = {name: RUN.sub("", "\n".join(cells)) for name, cells in programs.items()}
    python(FORKS.format(programs=texts), folder, timeout=PATIENCE, USE_TORCH_XLA="0", CUDA_VISIBLE_DEVICES="")
    return {name: json.loads((folder / name / "told.json").read_text()) for name in programs}


def in_kernel(kernel: Kernel, cells: list[str]) -> Any:
    """What they tell as cells of a notebook."""
    kernel.run("%tpu_init").good()
    for cell in cells:
        kernel.run(cell, timeout=PATIENCE).good()
    out = kernel.run(TOLD).good().printed
    assert not kernel.value("__import__('torch_xla')._XLAC._xla_runtime_is_initialized()")
    return json.loads(out.rpartition("TOLD")[2])


def assert_same(left: Any, right: Any, where: str = "told") -> None:
    """Equal, numbers but for 1e-6."""
    if isinstance(right, dict):
        assert left.keys() == right.keys(), where
        pairs: Any = [(left[name], right[name], f"{where}[{name!r}]") for name in right]
    elif isinstance(right, list):
        assert len(left) == len(right), where
        pairs = [(*both, f"{where}[{i}]") for i, both in enumerate(zip(left, right, strict=True))]
    else:
        assert left == (pytest.approx(right, rel=1e-6, abs=2e-6) if isinstance(right, float) else right), where
        return
    for one, other, place in pairs:
        assert_same(one, other, place)


# -- plain cells ------------------------------------------------------------------------------------------------------
PLAIN = [
    """
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import set_seed
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig, BertForSequenceClassification, DataCollatorForSeq2Seq, PreTrainedTokenizerFast, Seq2SeqTrainer,
    Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration, pipeline, set_seed as set_seed_too,
)

state = PartialState()
told.append([str(state.device), state.num_processes, state.is_main_process, str(state.distributed_type)])
set_seed(3)
told.append(torch.rand(2).tolist())
set_seed_too(4)
told.append(torch.rand(2).tolist())
""",
    """
arguments = TrainingArguments("out", max_steps=4, logging_steps=1, save_steps=2, eval_strategy="steps", eval_steps=2,
                              **COMMON)
told.append([str(arguments.device), arguments.n_gpu, arguments.world_size, arguments.process_index,
             arguments.train_batch_size, arguments.parallel_mode.value, arguments.should_save])
trainer = Trainer(Net(), arguments, train_dataset=rows(), eval_dataset=rows(8))
told.append(trainer.evaluate()["eval_loss"])
told.append(trainer.train().training_loss)
told.append([without_times(entry) for entry in trainer.state.log_history])
trainer.save_model("saved")
arguments.max_steps = 6
trainer.train(resume_from_checkpoint=True)
told.append([weights(trainer.model), trainer.predict(rows(4)).predictions.tolist()])
""",
    """
torch.manual_seed(0)
sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
t5 = T5ForConditionalGeneration(T5Config(vocab_size=32, decoder_start_token_id=0, **sizes))
texts = [{"input_ids": torch.tensor([3, 4, n]), "labels": torch.tensor([n, 1])} for n in range(5, 13)]
translator = Seq2SeqTrainer(
    t5, Seq2SeqTrainingArguments("out", max_steps=2, predict_with_generate=True, generation_max_length=4,
                                 save_strategy="no", **COMMON), train_dataset=texts, eval_dataset=texts)
translator.train()
told.append([translator.evaluate()["eval_loss"], translator.predict(texts[:2]).predictions.tolist()])
""",
    """
words = Tokenizer(models.WordLevel({"[UNK]": 0, "[PAD]": 1, "good": 2, "bad": 3}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
torch.manual_seed(0)
bert = BertForSequenceClassification(BertConfig(
    vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
classify = pipeline("text-classification", model=bert, tokenizer=PreTrainedTokenizerFast(
    tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]"))
told.append([classify("good bad")[0]["score"], str(classify.device)])
""",
    """
accelerator = Accelerator(gradient_accumulation_steps=2)
told.append([str(accelerator.device), AcceleratorState().num_processes, accelerator.mixed_precision])
net = Net()
net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01))
for _ in range(4):
    with accelerator.accumulate(net):
        accelerator.backward(net(torch.ones(4, 8), torch.ones(4))["loss"])
        optimizer.step()
        optimizer.zero_grad()
told.append(weights(net))
""",
]


def test_plain_cells_are_as_without_the_extension(kernel: Kernel, in_plain_python: dict[str, Any]) -> None:
    assert_same(in_kernel(kernel, [COMMON, *PLAIN]), in_plain_python["plain"])
    # What a TPU can do and a CPU without torch_xla refuses is not refused here.
    kernel.run("assert TrainingArguments('out', bf16=True).device.type == 'cpu'").good()


# -- a Trainer of an earlier cell -------------------------------------------------------------------------------------
TRAINER = [
    """
class Notes(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.seen.append(sorted(without_times(logs)))

class Against(Trainer):
    \"\"\"As trainers of TRL are: arguments, a loss, an optimizer and a reference model of its own.\"\"\"
    def __init__(self, *args, reference=None, scale=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.reference = self.accelerator.prepare_model(reference, evaluation_mode=True)
        self.scale = scale
        self.losses = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found = model(**inputs)
        with torch.no_grad():
            away = self.reference(**inputs)["logits"] - found["logits"].detach()
        loss = self.scale * found["loss"] + 0.1 * away.pow(2).mean()
        self.losses.append(loss.detach())
        return (loss, found) if return_outputs else loss

    def create_optimizer(self):
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        return self.optimizer

def tell(trainer):
    state = trainer.state
    told.append([state.global_step, state.best_metric, state.best_model_checkpoint, weights(trainer.model)])
    told.append([without_times(entry) for entry in state.log_history])
    told.append([notes.seen, [float(loss) for loss in trainer.losses[-4:]], str(trainer.args.device)])
    told.append([trainer.lr_scheduler.get_last_lr(), trainer.evaluate()["eval_loss"]])

notes = Notes()
arguments = TrainingArguments(
    "out", num_train_epochs=1, logging_steps=2, save_strategy="epoch", eval_strategy="epoch",
    load_best_model_at_end=True, metric_for_best_model="eval_loss", **COMMON)
trainer = Against(Net(), arguments, train_dataset=rows(), eval_dataset=rows(8), scale=0.25, reference=Net(),
                  callbacks=[notes, EarlyStoppingCallback(3)])
told.append(trainer.evaluate()["eval_loss"])
""",
    "%%tpu_train --plain\nresult = trainer.train()\n",
    """
tell(trainer)
told.append([result.global_step, result.training_loss, result.metrics["train_loss"]])
told.append(trainer.optimizer.state_dict()["state"][0]["momentum_buffer"].sum().item())
told.append(trainer.predict(rows(4)).predictions.tolist())
trainer.save_model("saved")
arguments.num_train_epochs = 2
told.append(trainer.train(resume_from_checkpoint=True).global_step)
arguments.num_train_epochs = 3
""",
    "%%tpu_train --plain\nagain = trainer.train(resume_from_checkpoint=True)\n",
    """
tell(trainer)
arguments.num_train_epochs = 1
def train_it():
    return trainer.train().training_loss
""",
]
FORM_ONE = "%%tpu_train --plain\ndef train_it():\n    return trainer.train().training_loss\n"


def test_a_trainer_of_an_earlier_cell_trains_and_comes_home(kernel: Kernel, in_plain_python: dict[str, Any]) -> None:
    cells = [COMMON, *TRAINER, FORM_ONE, "told.append(_tpu.value)", "tell(trainer)"]
    assert_same(in_kernel(kernel, cells), in_plain_python["trainer"])
    assert kernel.value("_tpu.left") == {}


def test_a_trainer_is_cut_over_the_ranks(kernel: Kernel) -> None:
    cells = [
        COMMON,
        """
arguments = TrainingArguments("out", max_steps=2, save_strategy="no", optim="adamw_torch", **COMMON)
trainer = Trainer(Net(), arguments, train_dataset=rows())
def ranks():
    trainer.train()
    own = [trainer.args.world_size, trainer.args.process_index, str(trainer.accelerator.device)]
    return [*own, len(trainer.get_train_dataloader()), trainer.is_world_process_zero()]
""",
        "%tpu_train ranks -n 2 --plain",
        "told.append(_tpu.values)",
        "told.append([trainer.args.world_size, trainer.state.global_step, str(trainer.accelerator.device)])",
    ]
    assert in_kernel(kernel, cells) == [[[2, 0, "xla:0", 5, True], [2, 1, "xla:0", 5, False]], [1, 2, "cpu"]]


# -- an Accelerator of an earlier cell --------------------------------------------------------------------------------
ACCELERATOR = [
    """
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import GradientAccumulationPlugin, ProjectConfiguration
from accelerate.tracking import GeneralTracker, on_main_process
from torch.utils.data import DataLoader, TensorDataset

told = []

class Lines(GeneralTracker):
    name, requires_logging_directory = "lines", False
    def __init__(self):
        super().__init__()
        self.lines = []
    @property
    def tracker(self):
        return self.lines
    @on_main_process
    def log(self, values, step=None, **kwargs):
        self.lines.append([step, *values.items()])

state = PartialState()
lines = Lines()
accelerator = Accelerator(
    log_with=lines, project_config=ProjectConfiguration("project", total_limit=3),
    gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=False))
accelerator.gradient_accumulation_steps = 2
accelerator.init_trackers("mine")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9 ** step)
x = torch.randn(16, 4, generator=torch.Generator().manual_seed(3))
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

def train():
    losses = []
    for features, labels in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(features), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
        accelerator.log({"loss": losses[-1]}, step=accelerator.step)
    return losses
""",
    "%%tpu_train --plain\nlosses = train()\n",
    "told.append([losses, model.weight.tolist(), scheduler.get_last_lr(), lines.lines])",
    "%%tpu_train --plain\nlosses = train()\n",
    """
told.append([losses, model.weight.tolist(), scheduler.get_last_lr(), lines.lines])
told.append([train(), accelerator.num_processes, str(next(iter(loader))[0].device)])
told.append(optimizer.param_groups[0]["params"][0] is model.weight)
""",
]


def test_an_accelerator_of_an_earlier_cell_trains_and_comes_home(
    kernel: Kernel, in_plain_python: dict[str, Any]
) -> None:
    assert_same(in_kernel(kernel, ACCELERATOR), in_plain_python["accelerator"])
    kernel.run(
        """
def ranks():
    train()
    settings = [accelerator.gradient_accumulation_steps, accelerator.project_configuration.total_limit]
    return [state.num_processes, state.process_index, str(accelerator.device), len(loader), *settings]
"""
    ).good()
    kernel.run("%tpu_train ranks -n 2 --plain", timeout=PATIENCE).good()
    assert kernel.value("_tpu.values") == [[2, 0, "xla:0", 2, 2, 3], [2, 1, "xla:0", 2, 2, 3]]
    assert kernel.value("(_tpu.left, list(_tpu.models), str(state.device))") == ({}, ["model"], "cpu")


def test_an_accelerator_of_the_cell_and_what_it_prepared_go_on_in_the_next_cells(kernel: Kernel) -> None:
    kernel.run("%tpu_init").good()
    train = """
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(net(x), y)
    accelerator.backward(loss); optimizer.step(); scheduler.step(); optimizer.zero_grad()
"""
    made = """
import torch
from accelerate import Accelerator
torch.manual_seed(0)
accelerator = Accelerator()
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
"""
    cell = kernel.run(f"%%tpu_train{made}{train}").good()
    assert "Not updated" not in cell.printed
    kernel.run(train).good()
    found = kernel.value("(scheduler.get_last_lr()[0], type(optimizer).__name__, accelerator.device.type, len(loader))")
    assert found == (0.1 * 0.5**4, "AcceleratedOptimizer", "cpu", 2)
    assert kernel.value("accelerator.unwrap_model(net) is net and net.weight.device.type") == "cpu"
    kernel.run(f"%%tpu_train{train}").good()
    assert kernel.value("scheduler.get_last_lr()[0]") == 0.1 * 0.5**6
