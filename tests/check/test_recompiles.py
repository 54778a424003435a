"""The group `recompiles`: the rules agree with measurements of programs and operations, and rewritten code gives equal
results.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests import forks
from tests.cases.programs import Program, all_programs
from tests.check.group_checks import GroupChecks
from tpu_magics.check import check_cells, check_text
from tpu_magics.check.cells import read_file
from tpu_magics.check.rules import _changing_numbers
from tpu_magics.check.rules.recompiles import RULES

HEAD = "import torch\nimport torch_xla\nfrom transformers import AutoTokenizer, DataCollatorWithPadding\n\n"


GROUP = GroupChecks(RULES, HEAD)
found, fixed_text = GROUP.found, GROUP.fixed_text


# -- programs whose compiles were counted ------------------------------------------------------------------------------

# What must be found in the programs of tests/cases/recompiles and those beside the repository, by the first word of the
# program's name or by its whole name. A program that is not named here must be left alone by this group.
EXPECTED = {
    "growing_list": {"TPU304"},
    "last_batch": {"TPU302"},
    "python_number": {"TPU303"},
    "varying_length": {"TPU303"},
    "last_batch_accelerate": {"TPU302"},
    "last_batch_dict": {"TPU302"},
    "last_batch_loader": {"TPU302"},
    "live_history": {"TPU304"},
    "number_counter_beside": {"TPU303"},
    "number_crop": {"TPU303"},
    "number_position": {"TPU303"},
    "number_power": {"TPU303"},
    "number_step_counter": {"TPU303"},
    "shape_compiled_function": {"TPU303"},
    "shape_trainer": {"TPU301"},
    "state_and_shapes": {"TPU303"},
}
CAUSES = {
    "TPU301": {"input-shape", "last-batch"},
    "TPU302": {"last-batch", "input-shape"},
    "TPU303": {"python-number", "input-shape"},
    "TPU304": {"live-tensors"},
}


@pytest.mark.parametrize("program", all_programs(), ids=lambda one: one.name)
def test_the_findings_agree_with_what_was_measured(program: Program) -> None:
    codes = {one.code for one in check_cells(read_file(program.path), RULES)}
    assert codes == EXPECTED.get(program.name, set())
    measured = {cause for one in program.recompiles for cause in one.causes}
    for code in codes:
        assert CAUSES[code] & measured, f"{program.name} recompiles for {measured}, not for what {code} says"


# -- what torch_xla does ---------------------------------------------------------------------------------------------

# One call for each operation of the tables; each is run with three values of `step`.
FIXED = {
    "topk": "x.topk(step)", "kthvalue": "x.kthvalue(step)", "pow": "x.pow(step)", "pow_": "x.clone().pow_(step)",
    "roll": "torch.roll(x, step, dims=0)", "tril": "x.tril(step)", "triu": "torch.triu(x, diagonal=step)",
    "diag": "torch.diag(x[0], step)", "diagonal": "x.diagonal(step)", "select": "x.select(0, step)",
    "norm": "x.norm(p=step)", "normalize": "F.normalize(x, p=step)", "threshold": "F.threshold(x, 0.1 * step, 0.0)",
    "std": "x.std(correction=step)", "var": "x.var(correction=step)", "logit": "torch.logit(x, eps=0.01 * step)",
    "layer_norm": "F.layer_norm(x, (16,), eps=1e-3 * step)",
    "batch_norm": "F.batch_norm(x, None, None, training=True, eps=1e-3 * step)",
    "narrow": "x.narrow(1, step, 2)", "repeat": "x.repeat(step, 1)", "tile": "x.tile((step,))",
    "expand": "x.expand(step, 8, 16)", "broadcast_to": "torch.broadcast_to(x, (step, 8, 16))",
    "split": "x.split(step)[0] * 2", "tensor_split": "torch.tensor_split(y, step)[0] * 2",
    "chunk": "torch.chunk(y, step)[0] * 2",
    "adaptive_avg_pool1d": "F.adaptive_avg_pool1d(y, 2**step)",
    "repeat_interleave": "x.repeat_interleave(step, 0)",
    "one_hot": "F.one_hot(torch.zeros(4, dtype=torch.long, device=device), step)", "pad": "F.pad(x, (0, step))",
    "interpolate": "F.interpolate(x[None, None], size=(4 * step, 4 * step))", "avg_pool1d": "F.avg_pool1d(x, step)",
    "max_pool1d": "F.max_pool1d(x, step)",
    "avg_pool2d": "F.avg_pool2d(x[None], step)", "max_pool2d": "F.max_pool2d(x[None], step)",
    "adaptive_avg_pool2d": "F.adaptive_avg_pool2d(y[None], 2**step)",
    "new_zeros": "x.new_zeros(step, 3)", "new_ones": "x.new_ones(step, 3)", "new_empty": "x.new_empty(step, 3)",
    "new_full": "x.new_full((step, 3), 2.5)", "zeros": "torch.zeros(4, step, device=device)",
    "ones": "torch.ones(step, device=device)", "empty": "torch.empty(step, device=device)",
    "rand": "torch.rand(step, 4, device=device)", "randn": "torch.randn(step, 4).to(device) * 2.5",
    "full": "torch.full((step,), 2.5, device=device)", "arange": "torch.arange(step, device=device)",
    "eye": "torch.eye(step, device=device)", "randperm": "torch.randperm(step, device=device)",
    "linspace": "torch.linspace(0, 3, step, device=device)", "logspace": "torch.logspace(0, 3, step, device=device)",
    "view": "x.view(2**step, -1) * 2", "reshape": "x.reshape(2**step, -1) * 2",
    "operator **": "x**step", "operator ** of a tensor": "step**x", "operator <<": "x.long() << step",
    "operator >>": "x.long() >> step", "an index": "x[step]", "a column": "x[:, step]", "a slice": "x[:, :step]",
    "a window": "x[step : step + 2]", "randint's size": "torch.randint(0, 100, (4, step)).to(device) * 2",
    "a position in a tensor without dimensions": "x[torch.tensor(step, device=device)]",
}  # fmt: skip
# What takes its number as data: one graph for all.
DATA = {
    "times": "x * (0.37 * step)", "plus": "x + 0.37 * step", "by": "x / (0.3 * step)", "compare": "x > step",
    "full": "torch.full((4, 4), 0.37 * step, device=device)", "clamp": "x.clamp(max=0.3 * step)",
    "dropout": "F.dropout(x, p=0.1 * step)", "lerp": "torch.lerp(x, x * 2, 0.1 * step)",
    "masked_fill": "x.masked_fill(x > 0, 0.3 * step)", "alpha": "x.add(x, alpha=0.3 * step)",
    "randint's bounds": "torch.randint(0, step, (4, 4), device=device)",
    "the fix of an index": "x[torch.tensor([step], device=device)]",
    "the fix of a window": "x[torch.arange(2, device=device) + torch.tensor([step], device=device)]",
    "the fix of a slice": "x * (torch.arange(16, device=device) < torch.tensor([step], device=device))",
    "the fix of a power": "x.abs() ** torch.tensor(float(step), device=device)",
    "the fix of topk": "x.topk(8).values * (torch.arange(8, device=device) < torch.tensor([step], device=device))",
}  # fmt: skip
GROWING = {
    "stack": ("kept.append(loss.detach()); use = torch.stack(kept)", 6),
    "sum": ("kept.append(loss.detach()); use = sum(kept)", 6),
    "cat": ("total = torch.cat([total, loss.detach()[None]])", 6),
    "only kept": ("kept.append(loss.detach())", 1),
    "kept with its graph": ("kept.append(loss)", 1),
}
MEASURE = """
import json, sys, torch, torch_xla
import torch.nn.functional as F
import torch_xla.debug.metrics as met

device = torch_xla.device()
fixed, data, growing = json.loads(sys.argv[1])
cases = 0

def compiles(code, steps):
    global cases
    cases += 1
    x, y = torch.rand(8, 16).to(device) + 0.5, torch.rand(64, 64).to(device)
    names = {"torch": torch, "F": F, "device": device, "x": x, "y": y, "kept": [], "total": torch.zeros(1).to(device)}
    w = torch.nn.Parameter(torch.randn(16, 4).to(device))
    torch_xla.sync()
    met.clear_all()
    for step in steps:
        loss = (x @ w).pow(2).mean()
        loss.backward()
        w.grad = None
        names |= {"step": step, "loss": loss}
        exec(code, names)
        own = torch.zeros(100 + cases, device=device) + 2.5  # no graph is that of another case
        torch_xla.sync()
    return met.counter_value("UncachedCompile") or 0

found = {name: compiles("out = " + code, range(2, 5)) for name, code in {**fixed, **data}.items()}
grown = {name: compiles(code, range(6)) for name, (code, count) in growing.items()}
print(json.dumps([found, grown]))
"""


@pytest.fixture(scope="module")
def measured() -> tuple[dict[str, int], dict[str, int]]:
    """How often torch_xla compiled for each operation, with three different numbers."""
    pytest.importorskip("torch_xla")
    data = {f"{name} as data": code for name, code in DATA.items()}
    cases = json.dumps([FIXED, data, GROWING])
    told = forks.run("torch_xla", MEASURE, cases, environment={**os.environ, "PJRT_DEVICE": "CPU"})
    counted, grown = json.loads(told.splitlines()[-1])
    return counted, grown


def test_every_operation_of_the_tables_is_measured() -> None:
    known = {*_changing_numbers._ARGUMENTS, *_changing_numbers._SHAPES, *_changing_numbers._MAKERS}
    assert known <= set(FIXED), known - set(FIXED)


@pytest.mark.long
@pytest.mark.process
def test_a_number_in_the_graph_compiles_for_each_value(measured: tuple[dict[str, int], dict[str, int]]) -> None:
    counted, _ = measured
    assert {name: counted[name] for name in FIXED if counted[name] < 3} == {}


@pytest.mark.process
def test_a_number_that_is_data_compiles_once(measured: tuple[dict[str, int], dict[str, int]]) -> None:
    counted, _ = measured
    assert {name: count for name, count in counted.items() if name.endswith(" as data") and count > 1} == {}


@pytest.mark.process
def test_what_is_computed_from_a_growing_list_compiles_at_each_step(
    measured: tuple[dict[str, int], dict[str, int]],
) -> None:
    assert measured[1] == {name: count for name, (_, count) in GROWING.items()}


@pytest.mark.parametrize("name", sorted(FIXED.keys() - {"a position in a tensor without dimensions"}))
def test_what_was_measured_to_compile_is_found(name: str) -> None:
    assert [one.code for one in found(STEPS.format(code=FIXED[name]))] == ["TPU303"], FIXED[name]


@pytest.mark.parametrize("name", sorted(DATA))
def test_what_was_measured_to_be_data_is_not_found(name: str) -> None:
    assert not found(STEPS.format(code=DATA[name])), DATA[name]


STEPS = """
import torch.nn.functional as F
device = torch_xla.device()
x, y = torch.rand(8, 16).to(device), torch.rand(64, 64).to(device)
for step in range(2, 7):
    out = {code}
    torch_xla.sync()
"""


# -- edits ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tokenizer() -> Any:
    """A tokenizer of whole words, made here."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "[UNK]": 1, **{f"w{number}": number + 2 for number in range(50)}}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")


TEXTS = [" ".join(f"w{number}" for number in range(length)) for length in (3, 17, 9, 40)]
CALLS = [
    'tokenizer(batch["text"], padding=True)',
    'tokenizer(batch["text"], padding=True,)',
    'tokenizer(\n        batch["text"],\n        padding="longest",\n    )',
    'tokenizer(batch["text"], padding="longest", truncation=True, max_length=32)',
    'tokenizer(batch["text"], padding=True, truncation=True, max_length=48)',
    'tokenizer(batch["text"], padding=True, pad_to_multiple_of=None)',
    'tokenizer.pad(tokenizer(batch["text"]))',
    'DataCollatorWithPadding(tokenizer)([{"input_ids": ids} for ids in tokenizer(batch["text"])["input_ids"]])',
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_padding_to_a_multiple_keeps_every_token(call: str, tokenizer: Any) -> None:
    before = HEAD + f"def tokenize(batch):\n    return {call}\n"
    after = fixed_text(before)
    assert not check_text(after, "x.py", RULES), after
    short, long = ran(before, tokenizer), ran(after, tokenizer)
    length = len(long["input_ids"][0])
    assert length % 16 == 0 and length >= len(short["input_ids"][0])
    for key in ("input_ids", "attention_mask"):
        for old, new in zip(short[key], long[key], strict=True):
            old, new = [int(one) for one in old], [int(one) for one in new]
            assert new == old + [0] * (length - len(old))


def ran(text: str, tokenizer: Any) -> Any:
    names: dict[str, Any] = {}
    exec(text.replace("import torch_xla\n", ""), names)
    names["tokenizer"] = tokenizer
    return names["tokenize"]({"text": TEXTS})


@pytest.mark.parametrize(
    "call",
    [
        'tokenizer(batch["text"], padding=True, truncation=True, max_length=50)',  # no multiple divides it
        'tokenizer(batch["text"], padding=True, truncation=True, max_length=length)',
        'tokenizer(batch["text"], padding=True  # to the longest\n    )',
    ],
)
def test_no_rewrite_that_transformers_might_reject(call: str) -> None:
    (finding,) = found(f"def tokenize(batch, length=50):\n    return {call}")
    assert (finding.code, finding.edits) == ("TPU301", ())


KEPT = """
def train(x, steps):
    w = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = torch.optim.SGD([w], lr=0.1)
    losses = []
    for step in range(steps):
        loss = (x @ w).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses, w
"""


def test_a_detached_loss_is_the_same_number() -> None:
    torch = pytest.importorskip("torch")
    after = fixed_text(HEAD + KEPT)
    assert "losses.append(loss.detach())" in after
    assert not check_text(after, "x.py", RULES)
    x = torch.randn(8, 4)
    results = []
    for text in (KEPT, after.replace(HEAD, "")):
        names: dict[str, Any] = {"torch": torch}
        exec(text, names)
        losses, w = names["train"](x, 5)
        results.append(([float(one.detach()) for one in losses], w.tolist()))
    assert results[0] == results[1]


def test_a_loss_that_is_gone_backward_from_later_is_not_detached() -> None:
    text = KEPT.replace("    return losses", "    sum(losses).backward()\n    return losses")
    assert not [one for one in found(text) if one.edits]


@pytest.mark.parametrize("code", ["TPU302", "TPU306"])
def test_rows_are_never_dropped_by_a_rewrite(code: str) -> None:
    text = """
    import tensorflow as tf
    from torch.utils.data import DataLoader
    train_loader = DataLoader([1, 2, 3], batch_size=2, shuffle=True)
    train_data = tf.data.Dataset.range(3).shuffle(3).batch(2)
    """
    assert [(one.code, one.edits) for one in found(text) if one.code == code] == [(code, ())]


# -- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "batch", "said"),
    [(64, 32, None), (65, 32, "1 rows instead of 32"), (20, 32, "20 rows instead of 32"), (10, 1, None)],
)
def test_a_known_length_decides(length: int, batch: int, said: str | None) -> None:
    text = f"""
    from torch.utils.data import DataLoader, TensorDataset
    train_loader = DataLoader(TensorDataset(torch.zeros({length}, 2)), batch_size={batch}, shuffle=True)
    """
    messages = [one.message for one in found(text)]
    assert messages == [] if said is None else said in messages[0]


def test_a_loop_inside_the_step_is_unrolled_and_no_fault() -> None:
    text = """
    def train(encoder, decoder, loader, optimizer):
        device = torch_xla.device()
        for source, target in loader:
            source, target = source.to(device), target.to(device)
            state = encoder(source)
            loss = 0
            for position in range(1, 16):
                output, state = decoder(target[:, position - 1], state)
                loss = loss + torch.nn.functional.cross_entropy(output, target[:, position])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
    """
    assert not found(text)


def test_code_that_trains_nothing_may_have_any_loader() -> None:
    text = "from torch.utils.data import DataLoader\n\nloader = DataLoader(rows, batch_size=7, shuffle=True)\n"
    assert not check_text(text, "data.py", RULES)


@pytest.mark.parametrize(
    ("chunk", "positions"),
    [
        ("data[start : start + 4]", "torch.arange(4, device=device) + torch.tensor([start], device=device)"),
        ("data[:, start : size + start]", "torch.arange(size, device=device) + torch.tensor([start], device=device)"),
        ("data[n * 4 : (n + 1) * 4]", "torch.arange(4, device=device) + torch.tensor([n * 4], device=device)"),
        ("data[start : end(start)]", "torch.arange(size, device=device) + torch.tensor([start], device=device)"),
    ],
)
def test_the_fix_of_a_chunk_keeps_its_values(chunk: str, positions: str) -> None:
    """A mask over all elements would give another result."""
    torch = pytest.importorskip("torch")
    [finding, *_] = found(
        f"""
        def train(model, loader, size, end):
            data, start = torch.randn(40, 40).to("xla"), 0
            for n, batch in enumerate(loader):
                model({chunk}, batch).mean().backward()
                start += 4
                torch_xla.sync()
        """
    )
    assert finding.code == "TPU303" and f"`{positions}`" in finding.fix and "mask" not in finding.fix
    names = {"torch": torch, "device": "cpu", "data": torch.randn(40, 40), "start": 8, "n": 2, "size": 4}
    names["end"] = lambda start: start + 4
    index = eval(positions, names)
    gathered = names["data"][:, index] if ":, " in chunk else names["data"][index]
    assert torch.equal(gathered, eval(chunk, names))


# -- TorchTPU ----------------------------------------------------------------------------------------------------------

TORCH_TPU = """
import torch
import torch_tpu
from torch.utils.data import DataLoader
step = torch.compile(torch.nn.Linear(8, 2).to("tpu"))
for x in DataLoader(torch.randn(100, 8), batch_size=16):
    x = x.to("tpu"){marked}
    step(x).sum().backward()
"""


@pytest.mark.parametrize(
    ("marked", "codes"), [("", ["TPU302"]), ("\n    torch._dynamo.mark_dynamic(x, 0, min=1, max=16)", [])]
)
def test_a_dimension_that_torch_compile_knows_to_change_is_no_new_shape(marked: str, codes: list[str]) -> None:
    findings = check_text(TORCH_TPU.format(marked=marked), "train.py")
    assert [one.code for one in findings] == codes
