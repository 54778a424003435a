"""The values and contexts that the walk infers, one by one; comments that suppress findings."""

from __future__ import annotations

import ast
import textwrap

import pytest

from tests.check.own_rules import finding
from tpu_magics.check import check_cells
from tpu_magics.check.cells import cell_of
from tpu_magics.check.engine import code_spans, walk
from tpu_magics.check.inference.values import NOTHING, AbstractValue, canonical
from tpu_magics.check.noqa import Noqa, without_suppressed
from tpu_magics.check.rule_context import RuleContext

HEAD = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch.nn as nn
import torch.nn.functional as F
import numpy as np
from torch.utils.data import DataLoader
from accelerate import Accelerator
"""


def probed(code: str) -> list[tuple[AbstractValue, RuleContext]]:
    """The value and place of what each `probe(...)` is given, in the order of the lines."""
    program = walk([cell_of(HEAD + textwrap.dedent(code), "x.py")], frozenset((ast.Call,)))
    calls = [(node, ctx) for node, ctx in program.recorded if isinstance(node, ast.Call)]
    wanted = [(node, ctx) for node, ctx in calls if isinstance(node.func, ast.Name) and node.func.id == "probe"]
    return [(ctx.value(node.args[0]), ctx) for node, ctx in sorted(wanted, key=lambda pair: pair[0].lineno)]


def value(code: str) -> AbstractValue:
    return probed(code)[-1][0]


def place(code: str) -> RuleContext:
    return probed(code)[-1][1]


@pytest.mark.parametrize(
    ("code", "kind", "fields"),
    [
        ("x = torch.ones(3)\nprobe(x.sum() > 0)", "tensor", {"dtype": "bool", "lib": "torch"}),
        ("from torch import ones as o\nprobe(o(3))", "tensor", {}),
        ("import torch as t\nprobe(t.nn.functional.relu(t.ones(3)))", "tensor", {"dtype": "float"}),
        ("probe(torch.ones(3).shape[0])", "number", {"shape": True}),
        ("b, n = torch.ones(3, 4).shape\nprobe(n // 2)", "number", {"shape": True}),
        ("probe(torch.ones(3).size(0))", "number", {"shape": True}),
        ("probe(len(torch.ones(3)))", "number", {"shape": True}),
        ("probe(torch.ones(3).sum().item())", "number", {"read": True}),
        ("probe(int(torch.ones(3).sum()) + 1)", "number", {"read": True}),
        ("probe(torch.ones(3).cpu())", "tensor", {"where": "host"}),
        ("probe(torch.ones(3, device='cpu') * 2)", "tensor", {"where": "host"}),
        ("probe(torch.ones(3).to(xm.xla_device()))", "tensor", {"where": "device"}),
        ("probe(torch.ones(3).numpy())", "array", {}),
        ("probe(np.ones(3) > 0)", "array", {}),
        ("probe(torch.ones(3) is None)", "number", {}),
        ("probe('a' in {'a': torch.ones(3)})", "number", {}),
        ("N = 8\nprobe(N * 2)", "number", {"const": 16}),
        ("probe(nn.Linear(2, 3)(torch.ones(2)))", "tensor", {"dtype": "float"}),
        ("model = nn.Sequential(nn.Linear(2, 3)).to(xm.xla_device())\nprobe(model)", "model", {"where": "device"}),
        ("for a, b in DataLoader([]):\n    probe(a)", "tensor", {}),
        ("for i, batch in enumerate(DataLoader([])):\n    probe(i)", "number", {"varies": True}),
        ("for batch in DataLoader([]):\n    probe({k: v for k, v in batch.items()}['x'])", "tensor", {}),
        ("total = 0\nfor b in DataLoader([]):\n    probe(total)\n    total += b.sum()", "tensor", {}),
        ("step = 0\nwhile True:\n    step += 1\n    probe(step * 2)", "number", {"varies": True}),
        ("xs = []\nxs.append(torch.ones(3))\nprobe(xs[0])", "tensor", {}),
        ("d = dict(batch_size=4)\nprobe(d['batch_size'])", "number", {}),
        ("x = None\nif DEBUG:\n    x = torch.ones(3)\nprobe(x)", "tensor", {}),
        ("x = 1 if DEBUG else torch.ones(3)\nprobe(x)", "tensor", {}),
        ("probe([y for y in torch.ones(3)][0])", "tensor", {}),
        ("if (n := torch.ones(3).sum()) > 1:\n    pass\nprobe(n)", "tensor", {}),
        ("f = lambda x: x * 2\nprobe(f(torch.ones(3)))", "tensor", {}),
        ("def f(x):\n    return x > 0\nprobe(f(torch.ones(3)))", "tensor", {"dtype": "bool"}),
        ("def f(x):\n    probe(x)\nf(torch.ones(3))", "tensor", {}),
        ("def f(x):\n    probe(x)\nf(3)", "number", {}),
        ("def f(x: torch.Tensor | None = None):\n    probe(x)", "tensor", {}),
        ("def f(n: int):\n    probe(n)", "number", {}),
        ("def f(flag=False):\n    probe(flag)", "number", {}),
        ("def f(x):\n    probe(x)\n    return F.relu(x)", "tensor", {}),
        ("def f(x):\n    probe(x)\n    return x.lower()", "unknown", {}),
        ("class N(nn.Module):\n    def forward(self, x, mask=None):\n        probe(x)", "tensor", {}),
        (
            "class N(nn.Module):\n    def __init__(self):\n        self.w = nn.Parameter(torch.ones(1))\n"
            "    def forward(self, x):\n        probe(self.w)",
            "tensor",
            {},
        ),
        ("class N(nn.Module):\n    def forward(self, x):\n        probe(self.config.use)", "unknown", {}),
        ("class N(nn.Module):\n    def forward(self, x):\n        probe(self.training)", "number", {}),
        (
            "a = Accelerator()\nm, l = a.prepare(nn.Linear(1, 1), DataLoader([]))\nfor b in l:\n    probe(b)",
            "batch",
            {"where": "device"},
        ),
        ("from elsewhere import *\nprobe(something)", "unknown", {}),
        ("from torch import *\nprobe(ones(3))", "tensor", {}),
        ("import tensorflow as tf\nprobe(tf.shape(tf.ones(3))[0])", "tensor", {"lib": "tf", "shape": True}),
        ("from tensorflow import keras\nprobe(keras.Sequential([]))", "model", {"lib": "tf"}),
        ("from transformers import AutoTokenizer as T\nprobe(T.from_pretrained('x'))", "tokenizer", {}),
        ("from transformers import AutoModel\nprobe(AutoModel.from_pretrained('x'))", "model", {}),
    ],
)
def test_a_value_is_known(code: str, kind: str, fields: dict[str, object]) -> None:
    found = value(code)
    assert found.kind == kind, found
    for name, wanted in fields.items():
        assert getattr(found, name) == wanted, found


@pytest.mark.parametrize(
    "code",
    [
        *("x = [torch.ones(3)]", "x = [n for n in range(3)]", "x = {n: n for n in range(3)}", "x = {1, 2}"),
        *("x = list()", "x = dict(a=1)", "x = {'a': 1}", "x = [*range(9)]", "x = DataLoader([])"),
        "for _ in range(3):\n    if DEBUG:\n        x = [n for n in range(3)]",
    ],
)
def test_what_is_created_knows_where(code: str) -> None:
    found = value(f"{code}\nprobe(x)")
    assert found.creator is not None and found.creator_ctx is not None


@pytest.mark.parametrize(
    "data",
    [
        "[(torch.rand(4), n % 2) for n in range(8)]",
        "[torch.rand(4), torch.rand(4)]",
        "list()",
        "{n: torch.rand(4) for n in range(8)}",
        "list(zip(torch.rand(8, 4), torch.rand(8)))",
        "[*range(8)]",
    ],
)
def test_a_dataset_of_any_form_is_checked(data: str) -> None:
    code = HEAD + textwrap.dedent(f"""
        data = {data}
        def train(index):
            device = xm.xla_device()
            model = nn.Linear(4, 2).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in DataLoader(data, batch_size=4):
                model(batch.to(device)).sum().backward()
                xm.optimizer_step(optimizer, barrier=True)
        import torch_xla
        torch_xla.launch(train)
    """)
    found = [one.code for one in check_cells([cell_of(code, "x.py")])]
    assert "TPU407" in found and "TPU003" not in found


def test_a_constant_is_followed_and_forgotten_where_it_changes() -> None:
    assert value("N = 4\nprobe(N)").const == 4
    assert value("N = 4\nN = unknown()\nprobe(N)").const is NOTHING
    assert value("N = 4\nif DEBUG:\n    N = 8\nprobe(N)").const is NOTHING
    assert value("N = 4\nfor i in range(3):\n    N = N + 1\nprobe(N)").const is NOTHING


LOOP = """
def train(model, optimizer, loader):
    for epoch in range(3):
        for step, batch in enumerate(loader):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            {here}
        {between}
    {after}
"""


def looped(**lines: str) -> RuleContext:
    return place(LOOP.format(**{"here": "pass", "between": "pass", "after": "pass", **lines}))


def test_the_innermost_loop_with_a_step_is_the_step_loop() -> None:
    assert looped(here="probe(loss)").in_step
    assert not looped(between="probe(loss)").in_step
    assert not looped(after="probe(loss)").in_step


@pytest.mark.parametrize(
    "condition",
    [
        "step % 100 == 0", "not step % 100", "(step + 1) % config.every == 0", "step == 0", "step in (1, 10)",
        "rank == 0 and step % 10 == 0", "step and step % 10 == 0",
    ],
)  # fmt: skip
def test_code_every_n_steps_is_not_in_each_step(condition: str) -> None:
    assert looped(here=f"if {condition}:\n                probe(loss)").every_n


@pytest.mark.parametrize(
    "condition", ["rank == 0", "xm.is_master_ordinal()", "loss > 3", "batch['x'].shape[1] % 8 == 0"]
)
def test_what_runs_each_step_is_not_taken_for_now_and_then(condition: str) -> None:
    assert not looped(here=f"if {condition}:\n                probe(loss)").every_n


def test_code_below_an_early_continue_runs_every_n_steps() -> None:
    assert looped(here="if step % 100:\n                continue\n            probe(loss)").every_n


def test_functions_that_a_step_calls_run_at_each_step_and_others_do_not() -> None:
    helper = "def report(loss):\n    probe(loss)\n"
    assert place(helper + LOOP.format(here="report(loss)", between="pass", after="pass")).in_step
    assert not place(helper + LOOP.format(here="pass", between="report(loss)", after="pass")).in_step


@pytest.mark.parametrize(
    ("code", "on_device"),
    [
        ("def step(x):\n    probe(x)", True),
        ("class D(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n        probe(i)", False),
        ("def collate(rows):\n    probe(rows)\nloader = DataLoader([], collate_fn=collate)", False),
        ("def tokens(rows):\n    probe(rows)\nds.map(tokens, batched=True)", False),
        ("def closure(loss):\n    probe(loss)\nxm.add_step_closure(closure, args=(1,))", False),
        ("class N(nn.Module):\n    def __init__(self, x):\n        probe(x)", False),
        ("class N(nn.Module):\n    def forward(self, x):\n        probe(x)", True),
        ("probe(torch.ones(3))", False),
    ],
)
def test_where_code_runs(code: str, on_device: bool) -> None:
    assert place(code).on_device is on_device


def test_names_have_one_spelling() -> None:
    assert canonical("tensorflow.keras.layers.Dense") == canonical("keras.layers.Dense") == "keras.layers.Dense"
    assert canonical("transformers.models.bert.modeling_bert.BertModel") == "transformers.BertModel"
    assert canonical("torch.nn.modules.linear.Linear") == "torch.nn.Linear"
    assert canonical("accelerate.accelerator.Accelerator") == "accelerate.Accelerator"
    assert canonical("numpy.linalg.norm") == "numpy.linalg.norm"


def test_cells_share_their_names_in_order() -> None:
    texts = ["import torch as t", "def f(x):\n    return t.nonzero(x)", "f(t.ones(3))"]
    cells = [cell_of(text, f"In [{number}]") for number, text in enumerate(texts, 1)]
    assert [(one.code, one.path, one.line) for one in check_cells(cells)] == [("TPU203", "In [2]", 2)]


PARTS = """
def used(x):
    return x
def collate(rows):
    return rows
def unused(x):
    return x
class Net:
    def forward(self, x):
        return helper(x)
def helper(x):
    return x
def train(model):
    return used(DataLoader([], collate_fn=collate))
"""


def test_what_a_function_uses_is_found_by_calls_and_by_names() -> None:
    cells = [cell_of(HEAD + PARTS, "In [1]")]
    lines = cells[0].lines

    def names(parts: list[object]) -> set[str]:
        return {lines[part.first - 1].split("(")[0].split()[-1] for part in parts}  # type: ignore[attr-defined]

    assert names(list(code_spans(cells, "train"))) == {"train", "used", "collate"}
    assert names(list(code_spans(cells, "Net.forward"))) == {"forward", "helper"}
    assert code_spans(cells, "nothing") == []


def silenced(text: str, line: int = 1, end_line: int = 0, code: str = "TPU901") -> bool:
    found = finding(line, 1, end_line=end_line or line, code=code)
    return not without_suppressed([found], [cell_of(text, "a.py")])


@pytest.mark.parametrize(
    "comment",
    [
        "# noqa",
        "#noqa",
        "# NoQA",
        "#  noqa  ",
        "# noqa: TPU901",
        "# noqa:TPU901",
        "# noqa : TPU901",
        "# noqa: tpu901",
        "# noqa: E501, TPU901",
        "# noqa: E501,TPU901",
        "# noqa: E501 TPU901 W1",
        "# noqa: TPU901 - the loss is read on purpose",
        "# type: ignore # noqa: TPU901",
        "# see below  # noqa",
        "# noqa because",
    ],
)
def test_a_line_is_silenced(comment: str) -> None:
    assert silenced(f"x = red(1)  {comment}")
    assert silenced(f"y = 1\nx = '#' + red('''a\n''')  {comment}", 3)


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "# noqa: E501",
        "# noqa: TPU90",
        "# noqa: TPU9",
        "# noqa: TPU9011",
        "# noqa-not",
        "# noqafy",
        "# no qa",
        "# see noqa",
        "# ruff: noqa",
        "; y = '# noqa'",
        '; y = """# noqa"""',
        "; y = f'# noqa: {TPU901}'",
        "; y = 'it\\'s # noqa'",
    ],
)
def test_a_line_is_not_silenced(comment: str) -> None:
    assert not silenced(f"x = red(1)  {comment}")


STATEMENT = """\
x = red(
    a,  # noqa: E501
    b(
        c
    ),
)  # noqa: TPU901
y = 1  # noqa
"""
STRING = "x = red('''\n# noqa\n''')\ny = red(1)\n"
EXPRESSION = "x = [\n  red(\n    1,\n  ),  # noqa\n  2,\n]\n"
BACKSLASH = "x = a + \\\n  red(1) + \\\n  2  # noqa\ny = red(1)\n"
COMPOUND = "if (red(1) and\n      b):  # noqa\n    x = 1\n    y = 2\n"


@pytest.mark.parametrize(
    ("text", "line", "end_line", "code", "expected"),
    [
        (STATEMENT, 1, 6, "TPU901", True),  # a statement: on its last line
        (STATEMENT, 3, 5, "TPU901", True),
        (STATEMENT, 4, 4, "TPU901", True),
        (STATEMENT, 1, 6, "TPU902", False),
        (STATEMENT.replace(")  # noqa: TPU901", ")"), 1, 6, "TPU901", False),
        (STRING, 1, 3, "TPU901", False),  # a string is no comment
        (STRING, 4, 4, "TPU901", False),
        (STRING.replace("(1)", "(1)  # noqa"), 4, 4, "TPU901", True),
        (EXPRESSION, 2, 4, "TPU901", True),  # an expression: on its last line
        (EXPRESSION, 1, 6, "TPU901", False),
        (EXPRESSION, 5, 5, "TPU901", False),
        (BACKSLASH, 1, 3, "TPU901", True),
        (BACKSLASH, 2, 2, "TPU901", True),
        (BACKSLASH, 4, 4, "TPU901", False),
        (COMPOUND, 1, 4, "TPU901", True),  # a compound statement: where it is headed
        ("if red(1):\n    x = 1\n    y = 2  # noqa\n", 1, 3, "TPU901", False),
    ],
)
def test_code_of_several_lines(text: str, line: int, end_line: int, code: str, expected: bool) -> None:
    assert silenced(text, line, end_line, code) is expected


@pytest.mark.parametrize(
    "comment", ["# tpu_magics: skip-file", "#tpu-magics:skip-file", "# TPU_MAGICS: skip-file (old)"]
)
def test_a_whole_file_is_skipped(comment: str) -> None:
    assert silenced(f"x = 1\n{comment}\ny = red(1)", 3)
    cells = [cell_of(text, "a.ipynb", number) for number, text in enumerate(("red(1)", comment, "red(2)"), start=1)]
    assert not without_suppressed([finding(cell=1), finding(cell=3)], cells)


@pytest.mark.parametrize("comment", ["'# tpu_magics: skip-file'", "# tpu_magics: skip", "# other: skip-file"])
def test_a_whole_file_is_not_skipped(comment: str) -> None:
    assert not silenced(f"x = 1\n{comment}\ny = red(1)", 3)


def test_a_comment_speaks_for_its_own_cell() -> None:
    cells = [cell_of(text, "a.ipynb", number) for number, text in enumerate(("red(1)", "red(1)  # noqa"), start=1)]
    findings = [finding(path="a.ipynb", cell=number) for number in (1, 2, None)]
    assert without_suppressed(findings, cells) == [findings[0], findings[2]]


def test_cells_of_a_running_notebook_differ_by_their_paths() -> None:
    cells = [cell_of("red(1)", "In [1]"), cell_of("red(1)  # noqa", "In [2]")]
    findings = [finding(path="In [1]"), finding(path="In [2]")]
    assert without_suppressed(findings, cells) == findings[:1]


def test_comments_of_a_cell_with_magics() -> None:
    text = "!echo it's fine\nx = red(1)  # noqa\n"
    assert {line: one.codes for line, one in Noqa(text).comments.items()} == {2: ()}


def test_what_does_not_parse_can_be_silenced_too() -> None:
    (cell,) = [cell_of("print 'x'  # noqa: TPU001\n", "a.py")]
    assert cell.problem is not None
    assert not without_suppressed([cell.problem], [cell])
