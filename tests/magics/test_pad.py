"""`%tpu_pad` in a real kernel, and buckets in a real run of two ranks."""

from __future__ import annotations

import re

import pytest

from .kernel import Kernel

pytestmark = pytest.mark.process

LENGTHS = """
import random
chooser = random.Random(5)
lengths = [chooser.randrange(4, 64) for _ in range(640)]
rows = [{"input_ids": [1] * length, "labels": length % 2} for length in lengths]
"""

TRAINING = """%%tpu_train -n 2 --run-name buckets
from accelerate import Accelerator
import torch, tpu_magics
from torch.utils.data import DataLoader

class Collator:
    pad_to_multiple_of = None
    def __call__(self, rows):
        multiple = self.pad_to_multiple_of
        longest = -(-max(len(row["input_ids"]) for row in rows) // multiple) * multiple
        ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor([row["labels"] for row in rows])}

def training_function():
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(2, 8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(rows, **tpu_magics.padding.buckets(rows, [16, 32, 63], 8, collate=Collator(), ranks=2))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    shapes = []
    for epoch in range(2):
        for batch in loader:
            shapes.append(tuple(batch["input_ids"].shape))
            loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).mean(1), batch["labels"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return shapes
"""


def test_table_drawing_and_text(kernel: Kernel) -> None:
    kernel.run(LENGTHS).good()
    [shown] = kernel.run("%tpu_pad rows --batch 8").good().displays
    assert set(shown) == {"text/plain", "text/html"}
    assert shown["text/plain"].startswith("Padding of the list: 640 samples, 4 to 63 tokens, 60 different lengths\n")
    assert shown["text/html"].count("<svg") == 2
    line = re.search(r"DataLoader\(dataset, \*\*tpu_magics.*", shown["text/plain"])
    assert line, shown["text/plain"]
    kernel.run("import tpu_magics\nfrom torch.utils.data import DataLoader\ndataset = rows").good()
    kernel.run("class Collator:\n    pad_to_multiple_of = None\ncollator = Collator()").good()
    assert kernel.value(f"len(({line[0]}).batch_sampler)") == 80


def test_plain_is_text_and_the_same_each_time(kernel: Kernel) -> None:
    kernel.run(LENGTHS).good()
    once = kernel.run("%tpu_pad lengths --plain --multiples 8,16").good()
    assert not once.displays and "predicted" not in once.printed
    assert "multiple of 8 " in once.printed and "multiple of 16" in once.printed
    assert kernel.run("%tpu_pad lengths --plain --multiples 8,16").good().printed == once.printed


def test_expressions_of_all_kinds(kernel: Kernel) -> None:
    kernel.run(LENGTHS).good()
    for given in (
        "[len(row['input_ids']) for row in rows]",
        '{"input_ids": [row["input_ids"] for row in rows]}',
        "lengths[:]",
    ):
        assert "640 samples, 4 to 63 tokens" in kernel.run(f"%tpu_pad {given} --plain").good().printed


def test_what_is_wrong_is_said(kernel: Kernel) -> None:
    kernel.run(LENGTHS).good()
    said = {
        "%tpu_pad": "%tpu_pad needs LENGTHS.",
        "%tpu_pad nothing": "The ARG 'nothing' cannot be evaluated: NameError",
        "%tpu_pad (n for n in lengths)": "Reading a generator would use it up.",
        "%tpu_pad lengths --multiples 8,x": "'x' is not a whole number",
        "%tpu_pad lengths --run none": "There is no run yet.",
    }
    for line, what in said.items():
        cell = kernel.run(line)
        assert cell.error_type == "TpuMagicsError" and what in cell.said, (line, cell.said)


def test_the_python_function_gives_what_the_magic_shows(kernel: Kernel) -> None:
    kernel.run(LENGTHS + "import tpu_magics\nadvice = tpu_magics.pad(lengths, batch=8, plain=True)").good()
    [shown] = kernel.run("advice").good().displays
    assert shown["text/plain"].startswith("Padding of the list") and "<svg" in shown["text/html"]
    assert kernel.run("print(advice)").good().printed == kernel.run("%tpu_pad lengths --batch 8 --plain").good().printed
    assert kernel.value("advice.choice.code").startswith("DataLoader(dataset, **tpu_magics.padding.buckets(lengths, [")
    assert kernel.value("repr(advice)").startswith("<Advice: best ")


def test_ranks_of_a_run_take_one_shape_in_each_step_and_the_run_tells_seconds(kernel: Kernel) -> None:
    kernel.run(LENGTHS).good()
    kernel.run(TRAINING, timeout=240).good()
    first, second = kernel.value("[value for value in _tpu.values]")
    assert first == second and len(first) == 2 * 640 // 16
    assert set(first) == {(8, 16), (8, 32), (8, 63)}
    assert kernel.value("len(_tpu.run.events('divergence'))") == 0
    [shown] = kernel.run("%tpu_pad rows --batch 8 -n 2").good().displays
    text = " ".join(shown["text/plain"].split())
    assert re.search(
        r"One compile: [\d.]+ m?s, (the median|that) of \d+ .*compiles? .*in run 'buckets' on XLA:CPU\.", text
    )
    assert "The steps of run 'buckets' had 3 shapes" in text
    assert "predicted compile seconds" in shown["text/html"]
    assert "each rank draws its own batches" in text
