"""What was asked and what is true of the graphs: real programs on XLA:CPU, each in a process of its own."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forks
from tpu_magics.backends import hlo
from tpu_magics.backends.torch import precision_request
from tpu_magics.backends.torch.precision_request import PrecisionRequest, variables
from tpu_magics.backends.torch_xla import precision
from tpu_magics.runs import events
from tpu_magics.runs.events import Precision, Warned

pytestmark = pytest.mark.process

# A case: the option, lines before training, how the Accelerator (or the Trainer's arguments) are made, the environment.
CASES: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "plain": ("", "", "", {}),
    "fp32": ("fp32", "", "", {}),
    "bf16": ("bf16", "", "", {}),
    "downcast": ("bf16-downcast", "", "", {}),
    "buffered": ("bf16", "say(b'from C')", "", {"PYTHONUNBUFFERED": ""}),
    "unbuffered": ("bf16", "say(b'from C')", "", {"PYTHONUNBUFFERED": "1"}),
    "environment": ("", "", "", {"XLA_USE_BF16": "1"}),
    "fp32 over environment": ("fp32", "", "", {"XLA_USE_BF16": "1"}),
    "set in the cell": ("fp32", "os.environ['XLA_USE_BF16'] = '1'", "", {}),
    "half": ("bf16", "", "", {"CASE_TYPE": "float16"}),
    "bfloat16": ("", "", "", {"CASE_TYPE": "bfloat16"}),
    "accelerator": ("", "", "Accelerator()", {}),
    "accelerator bf16": ("", "", "Accelerator(mixed_precision='bf16')", {}),
    "accelerator downcast": ("", "", "Accelerator(mixed_precision='bf16', downcast_bf16=True)", {}),
    "accelerator yes": ("", "", "Accelerator(mixed_precision='bf16', downcast_bf16='yes')", {}),
    "accelerator no downcast": ("", "", "Accelerator(mixed_precision='bf16', downcast_bf16='no')", {}),
    "only downcast": ("", "", "Accelerator(downcast_bf16=True)", {}),
    "positional": ("", "", "Accelerator(True, False, 'bf16')", {}),
    "option and accelerator": ("bf16", "", "Accelerator()", {}),
    "accelerator no": ("bf16", "", "Accelerator(mixed_precision='no')", {}),
    "accelerator wins": ("bf16-downcast", "", "Accelerator(mixed_precision='bf16')", {}),
    "accelerator over fp32": ("fp32", "", "Accelerator(mixed_precision='bf16')", {}),
    "its variable": ("", "", "Accelerator()", {"ACCELERATE_MIXED_PRECISION": "bf16"}),
    "its variables": ("", "", "Accelerator()", {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_DOWNCAST_BF16": "1"}),
    "option over its variable": ("fp32", "", "Accelerator()", {"ACCELERATE_MIXED_PRECISION": "bf16"}),
    "too late": ("", "early = torch.ones(2).to('xla')", "Accelerator(mixed_precision='bf16')", {}),
    "not too late": ("", "early = torch.ones(2, dtype=int).to('xla')", "Accelerator(mixed_precision='bf16')", {}),
    "twice": ("", "Accelerator(mixed_precision='bf16')", "Accelerator()", {}),
    "fp16": ("", "", "Accelerator(mixed_precision='fp16')", {}),
    "fp16 by variable": ("", "", "Accelerator()", {"ACCELERATE_MIXED_PRECISION": "fp16"}),
    "unknown argument": ("", "", "Accelerator(mixed='bf16')", {}),
    "trainer": ("bf16", "", "TrainingArguments()", {}),
    "trainer bf16": ("fp32", "", "TrainingArguments(bf16=True)", {}),
    "trainer fp16": ("", "", "TrainingArguments(fp16=True)", {}),
}

PROGRAM = """
import ctypes, functools, json, os, sys, traceback
from pathlib import Path

from tpu_magics.backends import hlo
from tpu_magics.backends.torch_xla import precision

import torch
import torch_xla
import transformers
from transformers import Trainer

say = ctypes.CDLL(None).puts
stdout = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout")
fully, unbuffered = 0, 2


def main(folder, option, head, made):
    type_ = getattr(torch, os.environ.get("CASE_TYPE", "float32"))
    os.environ.update(precision.variables(option, os.environ))
    watch = precision.TorchPrecisionWatch(option, lambda kind, **fields: records.append([kind.kind, fields]))
    watch.install()
    from accelerate import Accelerator

    TrainingArguments = functools.partial(
        transformers.TrainingArguments, output_dir=str(folder / "out"), max_steps=3, optim="adamw_torch",
        per_device_train_batch_size=4, report_to=[], disable_tqdm=True, save_strategy="no",
    )
    names = {**globals(), **locals()}
    exec(head, names)
    made = eval(made, names) if made else None
    if isinstance(made, transformers.TrainingArguments):
        trainer = Trainer(Rows(), made, train_dataset=[{"x": torch.ones(4), "labels": torch.ones(3)}] * 16)
        trainer.train()
        told["native_amp"] = trainer.accelerator.native_amp
    else:
        loss = loop(made, type_)
        watch.logged(str(loss.dtype))
        told.update(loss_type=str(loss.dtype), native_amp=made and made.native_amp)
    for path in sorted(folder.glob("*.before_optimizations.txt")):
        watch.graph_compiled(hlo.parse(path.read_text()), path.name)
    watch.close()


class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x=None, labels=None):
        out = self.layer(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


def loop(accelerator, type_):
    model = torch.nn.Linear(4, 3).to(type_)
    model = accelerator.prepare(model) if accelerator else model.to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, wide = torch.ones(8, 4).to("xla").to(type_), torch.ones(3, 3, dtype=torch.float64).to("xla")
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        accelerator.backward(loss) if accelerator else loss.backward()
        optimizer.step()
        wide = wide @ wide
        torch_xla.sync()
    return loss


cases, root = json.loads(sys.argv[1]), Path(sys.argv[2])
for name, (option, head, made, environment) in cases.items():
    folder = root / name.replace(" ", "-")
    folder.mkdir()
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        continue
    try:
        records, told = [], {}
        os.dup2(os.open(folder / "stdout", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        kind = unbuffered if environment.pop("PYTHONUNBUFFERED", "") else fully
        ctypes.CDLL(None).setvbuf(stdout, None, kind, 0)
        os.environ.update(environment, XLA_FLAGS=f"--xla_dump_to={folder} --xla_dump_hlo_as_text")
        try:
            main(folder, option, head, made)
        except Exception as error:
            told.update(error=str(error), error_type=type(error).__name__, trace=traceback.format_exc())
        told.update(records=records, environment={key: os.environ[key] for key in os.environ if "_BF16" in key})
        ctypes.CDLL(None).fflush(None)
        (folder / "told.json").write_text(json.dumps(told))
    finally:
        os._exit(0)
"""


@dataclass(frozen=True)
class Ran:
    """What one program told: its last Precision record, all of them, and what it printed."""

    told: dict[str, Any]
    printed: str

    @property
    def records(self) -> list[Precision]:
        assert all(kind == "precision" for kind, _ in self.told["records"]), self.told["records"]
        return [Precision(0.0, 0, **fields) for _, fields in self.told["records"]]

    @property
    def last(self) -> Precision:
        assert "trace" not in self.told, self.told["trace"]
        return self.records[-1]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    folder = tmp_path_factory.mktemp("precision")
    names = ("_BF16", "ACCELERATE_", "XLA_FLAGS", "PYTHONUNBUFFERED")
    environment = {key: value for key, value in os.environ.items() if not any(name in key for name in names)}
    words = (json.dumps(CASES), folder)
    forks.run("torch_xla", PROGRAM, *words, cwd=folder, environment={**environment, "PJRT_DEVICE": "CPU"})
    return {name: Ran(*_told(folder / name.replace(" ", "-"))) for name in CASES}


def _told(folder: Path) -> tuple[dict[str, Any], str]:
    return json.loads((folder / "told.json").read_text()), (folder / "stdout").read_text()


# -- what each precision is --------------------------------------------------------------------------------------------
# What was asked -> the share of multiplications in bf16, and the types of the parameters that are no whole numbers.
GRAPHS: dict[str, tuple[float, set[str]]] = {
    "": (0, {"f32", "f64"}),
    "fp32": (0, {"f32", "f64"}),
    "bf16": (1, {"bf16"}),  # float and double become bfloat16
    "bf16-downcast": (2 / 3, {"bf16", "f32"}),  # float becomes bfloat16, double float32
}


@pytest.mark.parametrize(
    ("name", "asked", "source"),
    [
        ("plain", "", ""),
        ("fp32", "fp32", "--precision"),
        ("bf16", "bf16", "--precision"),
        ("downcast", "bf16-downcast", "--precision"),
        ("environment", "bf16", "XLA_USE_BF16"),
        ("accelerator", "", ""),
        ("accelerator bf16", "bf16", 'Accelerator(mixed_precision="bf16")'),
        ("accelerator downcast", "bf16-downcast", 'Accelerator(mixed_precision="bf16", downcast_bf16=True)'),
        ("accelerator yes", "bf16-downcast", 'Accelerator(mixed_precision="bf16", downcast_bf16=True)'),
        ("accelerator no downcast", "bf16", 'Accelerator(mixed_precision="bf16", downcast_bf16=False)'),
        ("positional", "bf16", 'Accelerator(mixed_precision="bf16")'),
        ("option and accelerator", "bf16", "--precision"),
        ("its variable", "bf16", "ACCELERATE_MIXED_PRECISION"),
        ("its variables", "bf16-downcast", "ACCELERATE_DOWNCAST_BF16"),
        ("trainer", "bf16", "--precision"),
        ("trainer bf16", "bf16", "TrainingArguments(bf16=True)"),
    ],
)
def test_who_asked_and_the_graphs_types(ran: dict[str, Ran], name: str, asked: str, source: str) -> None:
    last = ran[name].last
    assert (last.asked, last.source) == (asked, source)
    share, parameters = GRAPHS[asked]
    assert last.share == pytest.approx(share)
    assert {dtype for dtype in last.parameters if dtype[:2] != "s6"} == parameters
    assert last.agrees
    assert "before XLA optimizes the graph" in last.text


def test_the_sentence(ran: dict[str, Ran]) -> None:
    rest = "before XLA optimizes the graph."
    what = "matmuls and convolutions in bf16"
    assert ran["plain"].last.text == f"no precision requested: 0 of 3 {what} (2 f32, 1 f64), {rest}"
    assert ran["bf16"].last.text == f"bf16 requested by --precision: 3 of 3 {what}, {rest}"
    assert ran["downcast"].last.text == f"bf16-downcast requested by --precision: 2 of 3 {what} (others: 1 f32), {rest}"


def test_accelerate_alone_differs_here_from_a_tpu(ran: dict[str, Ran]) -> None:
    """What is changed: under autocast the parameters would stay f32, and a TPU's Accelerator has no autocast."""
    assert ran["accelerator bf16"].told["native_amp"] is False
    assert ran["accelerator bf16"].told["environment"] == {"XLA_USE_BF16": "1"}
    assert ran["accelerator downcast"].told["environment"] == {"XLA_DOWNCAST_BF16": "1"}
    assert ran["twice"].told["native_amp"] is False
    assert ran["twice"].last.source == 'Accelerator(mixed_precision="bf16")'


# -- whose word counts -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "asked", "note"),
    [
        ("accelerator no", "fp32", 'Accelerator(mixed_precision="no") overrides --precision bf16'),
        ("accelerator wins", "bf16", 'Accelerator(mixed_precision="bf16") overrides --precision bf16-downcast'),
        ("accelerator over fp32", "bf16", 'Accelerator(mixed_precision="bf16") overrides --precision fp32'),
        ("trainer bf16", "bf16", "TrainingArguments(bf16=True) overrides --precision fp32"),
        ("fp32 over environment", "fp32", "--precision fp32 overrides XLA_USE_BF16 in the environment"),
    ],
)
def test_the_more_specific_wins(ran: dict[str, Ran], name: str, asked: str, note: str) -> None:
    last = ran[name].last
    assert last.asked == asked
    assert last.share == (1 if asked == "bf16" else 0)
    assert last.agrees
    assert any(one.startswith(note) for one in last.notes)


def test_our_option_wins_over_accelerates_variable(ran: dict[str, Ran]) -> None:
    last = ran["option over its variable"].last
    assert (last.asked, last.source, last.share) == ("fp32", "--precision", 0)
    assert ran["option over its variable"].told["native_amp"] is False


def test_downcast_alone_asks_for_nothing(ran: dict[str, Ran]) -> None:
    last = ran["only downcast"].last
    assert (last.asked, last.share) == ("", 0)
    assert 'downcast_bf16 has no effect without mixed_precision="bf16".' in last.notes


def test_other_errors_stay_accelerates_own(ran: dict[str, Ran]) -> None:
    assert ran["unknown argument"].told["error_type"] == "TypeError"
    assert "mixed" in ran["unknown argument"].told["error"]


# -- where request and truth differ ------------------------------------------------------------------------------------
def test_an_accelerator_that_comes_too_late_is_told(ran: dict[str, Ran]) -> None:
    last = ran["too late"].last
    assert not last.agrees
    assert last.share == 0
    assert "0 of 3" in last.text
    assert "created on the device before the Accelerator" in last.text
    assert "Create the Accelerator first." in last.text


def test_whole_numbers_on_the_device_are_not_too_early(ran: dict[str, Ran]) -> None:
    assert ran["not too late"].last.agrees
    assert ran["not too late"].last.share == 1


def test_fp32_asked_while_a_variable_makes_bf16(ran: dict[str, Ran]) -> None:
    last = ran["set in the cell"].last
    assert not last.agrees
    assert last.text.startswith("fp32 requested by --precision: 3 of 3 ")
    assert last.text.endswith(" XLA_USE_BF16 is set in the worker.")


def test_bf16_asked_while_the_model_is_half(ran: dict[str, Ran]) -> None:
    last = ran["half"].last
    assert not last.agrees
    assert "1 of 3" in last.text  # what was torch.double
    assert "2 f16" in last.text
    assert "half()" in last.text


def test_bf16_that_nobody_asked_for_is_no_contradiction(ran: dict[str, Ran]) -> None:
    last = ran["bfloat16"].last
    assert (last.asked, last.agrees) == ("", True)
    assert last.share == pytest.approx(2 / 3)
    assert any("Convert their inputs with .float()" in note for note in last.notes)


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("fp16", 'Accelerator(mixed_precision="fp16")'),
        ("fp16 by variable", "ACCELERATE_MIXED_PRECISION"),
        ("trainer fp16", "TrainingArguments(fp16=True)"),
    ],
)
def test_fp16_is_explained(ran: dict[str, Ran], name: str, who: str) -> None:
    told = ran[name].told
    assert told["error_type"] == "TpuMagicsError"
    what, why, todo = told["error"].splitlines()
    assert what == f"{who} requests fp16 mixed precision, which TPUs do not support."
    assert why.startswith("Why: TPUs compute in bf16, and accelerate rejects fp16 on them.")
    assert todo.startswith("What to do: Use bf16")


# -- notes -------------------------------------------------------------------------------------------------------------
def test_deprecations_are_noted(ran: dict[str, Ran]) -> None:
    for name, variable in (
        ("bf16", "XLA_USE_BF16"),
        ("environment", "XLA_USE_BF16"),
        ("downcast", "XLA_DOWNCAST_BF16"),
    ):
        assert any(
            note.startswith(f"{variable}, which sets ") and "deprecated" in note for note in ran[name].last.notes
        )
    assert not any("deprecated" in note for note in ran["fp32"].last.notes)
    assert not any("deprecated" in note for note in ran["bfloat16"].last.notes)


def test_parameters_that_are_not_what_torch_says(ran: dict[str, Ran]) -> None:
    assert ran["bf16"].told["loss_type"] == "torch.float32"
    count = ran["bf16"].last.parameters["bf16"]
    assert f"{count} inputs of the compiled graph are bf16, although tensor.dtype shows float32 or float64." in (
        ran["bf16"].last.notes
    )


def test_downcast_is_advised_where_bf16_is_logged(ran: dict[str, Ran]) -> None:
    assert any("With --precision bf16-downcast" in note for note in ran["bf16"].last.notes)
    assert any("downcast_bf16=True" in note for note in ran["accelerator bf16"].last.notes)
    assert any("Compute them in torch.double" in note for note in ran["downcast"].last.notes)
    assert not any("Logged" in note for note in ran["plain"].last.notes)
    assert not any("Logged" in note for note in ran["trainer"].last.notes)  # nothing of the device was logged


@pytest.mark.parametrize("name", ["bf16", "downcast", "accelerator bf16", "accelerator downcast", "trainer bf16"])
def test_torch_xlas_warning_is_not_printed(ran: dict[str, Ran], name: str) -> None:
    assert "deprecated" not in ran[name].printed


@pytest.mark.parametrize("name", ["buffered", "unbuffered"])
def test_what_else_is_printed_is_kept(ran: dict[str, Ran], name: str) -> None:
    assert ran[name].printed == "from C\n"


def test_a_persons_own_variable_is_left_alone(ran: dict[str, Ran]) -> None:
    """It also shows that there is something to leave out."""
    assert "XLA_USE_BF16 will be deprecated" in ran["environment"].printed


def test_few_records(ran: dict[str, Ran]) -> None:
    assert all(1 <= len(one.records) <= 3 for one in ran.values() if "error" not in one.told)


# -- without a runtime -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("option", "environment", "expected"),
    [
        ("", {"XLA_USE_BF16": "1"}, {}),
        ("fp32", {}, {}),
        ("fp32", {"XLA_USE_BF16": "1", "XLA_DOWNCAST_BF16": "0"}, {"XLA_USE_BF16": "false"}),
        ("bf16", {"XLA_DOWNCAST_BF16": "true"}, {"XLA_USE_BF16": "1", "XLA_DOWNCAST_BF16": "false"}),
        ("bf16-downcast", {"XLA_USE_BF16": "1"}, {"XLA_DOWNCAST_BF16": "1", "XLA_USE_BF16": "false"}),
    ],
)
def test_variables(option: str, environment: dict[str, str], expected: dict[str, str]) -> None:
    assert variables(option, environment) == expected


@pytest.mark.parametrize(
    ("value", "on"),
    [
        (None, False),
        ("", False),
        ("0", False),
        ("false", False),
        ("no", False),
        ("1", True),
        ("true", True),
        ("2x", True),
    ],
)
def test_a_variable_is_read_as_torch_xla_reads_it(value: str | None, on: bool) -> None:
    assert precision_request.is_on(value) is on


class Notes:
    """What a watch writes."""

    def __init__(self) -> None:
        self.written: list[tuple[type[events.Event], dict[str, Any]]] = []

    def __call__(self, kind: type[events.Event], **fields: Any) -> None:
        self.written.append((kind, fields))


def module(count: int, dtype: str = "bf16") -> hlo.Graph:
    """A graph with `count` matrix multiplications."""
    lines = [f"  %p.0 = {dtype}[2,2] parameter(0)"]
    lines += [f"  %d.{n} = {dtype}[2,2] dot(%p.0, %p.0), lhs_contracting_dims={{1}}" for n in range(1, count + 1)]
    return hlo.parse("\n".join(["HloModule m", f"ENTRY %m (p.0: {dtype}[2,2]) -> {dtype}[2,2] {{", *lines, "}"]))


def test_the_graph_with_the_most_multiplications_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        monkeypatch.delenv(name, raising=False)
    written = Notes()
    watch = precision.TorchPrecisionWatch("", written)
    for number in (0, 2, 1, 2, 0, 5):
        watch.graph_compiled(module(number), f"graph{number}")
    assert [fields["ops"] for _, fields in written.written] == [0, 2, 5]
    assert [fields["graph"] for _, fields in written.written] == ["graph0", "graph2", "graph5"]
    first = written.written[0][1]
    assert first["share"] is None
    assert first["text"] == "no precision requested: the graph has no matmuls and no convolutions."
    assert all(kind is Precision for kind, _ in written.written)


def test_records_can_be_written() -> None:
    facts = precision.judge(PrecisionRequest("bf16", "--precision"), module(1, "f32"), "hash", in_use="bf16")
    record = Precision(1.0, 0, **facts)
    assert events.from_line(events.to_line(record)) == record
    assert not record.agrees
    assert record.text.startswith(
        "bf16 requested by --precision: 0 of 1 matmuls and convolutions in bf16 (1 f32), before"
    )


def test_a_failing_watch_stops_itself_and_says_so() -> None:
    told: list[tuple[type[events.Event], dict[str, Any]]] = []

    def write(kind: type[events.Event], **fields: Any) -> None:
        if kind is Precision:
            raise OSError("the disk is full")
        told.append((kind, fields))

    watch = precision.TorchPrecisionWatch("", write)
    watch.graph_compiled(module(1), "a")
    watch.graph_compiled(module(2), "b")
    watch.logged("float32")
    watch.close()
    assert [kind for kind, _ in told] == [Warned]
    assert told[0][1]["code"] == "precision-stopped"
    assert "the disk is full" in told[0][1]["text"]


def test_what_torch_xla_prints_is_still_what_is_left_out() -> None:
    """The texts of torch_xla 2.9.0 (csrc/dtype.cpp), among other lines."""
    printed = (
        b"before\nXLA_USE_BF16 will be deprecated after the 2.6 release, please convert your model to bf16 directly\n"
        b"XLA_DOWNCAST_BF16 will be deprecated after the 2.6 release, please downcast your model directly\nafter\n"
    )
    assert precision.DEPRECATION.sub(b"", printed) == b"before\nafter\n"
