"""The group `shapes`: fixes give equal results, edits that are not offered, and torch_xla behaves as described."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest

from tests.check.group_checks import GroupChecks
from tests.check.measurements import measurements
from tpu_magics.check import check_cells, check_text
from tpu_magics.check.cells import cell_of
from tpu_magics.check.rules.shapes import RULES
from tpu_magics.check.rules.values import RULES as OF_VALUES

TORCH = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nimport torch_xla\n\n\n"


GROUP = GroupChecks(RULES, TORCH)
found, fixed_text = GROUP.found, GROUP.fixed_text


def the_fix(text: str) -> str:
    """The code between the first backticks of the only fix."""
    (finding,) = found(text)
    said = re.search(r"`(.+?)`", finding.fix)
    assert said is not None, finding.fix
    return said[1]


# -- a formula without a mask gives what the mask gave ----------------------------------------------------------------

SEEDS = range(8)


def tensors(seed: int = 3) -> dict[str, Any]:
    """Tensors of one random shape of one to three dimensions, `out` with a score for each of five classes."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(seed)
    shape = [5, 4, 3][: 1 + seed % 3]
    labels = torch.randint(0, 5, shape)
    labels[0] = -100
    labels.view(-1)[-1] = 2
    names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "PAD": 2}
    names |= {"out": torch.randn(*shape, 5), "labels": labels, "other": torch.where(labels == -100, -1, labels)}
    names |= {"x": torch.randn(shape), "y": torch.randn(shape), "preds": torch.randint(0, 5, shape)}
    gaps = torch.where(torch.rand(shape) < 0.3, torch.nan, torch.randn(shape))
    return names | {"gaps": gaps, "weights": torch.rand(5), "keep": labels >= 0}


# The lines before it, and the expression whose value the formula has.
EQUAL = [
    ("", "F.cross_entropy(out[labels != -100], labels[labels != -100])"),
    ("", "F.cross_entropy(out[labels >= 0], labels[labels >= 0], weight=weights, label_smoothing=0.1)"),
    ("", "F.cross_entropy(out[labels >= 0], labels[labels >= 0], weights)"),
    ("", "F.cross_entropy(out[other != -1], target=other[other != -1])"),
    ("", "F.cross_entropy(out[other != -1], other[other != -1], ignore_index=-1)"),
    ("keep = (labels != -100) & (labels != PAD)", 'F.cross_entropy(out[keep], labels[keep], reduction="sum")'),
    ("keep = labels.ge(0)", "F.nll_loss(out[keep], labels[keep])"),
    ("keep = labels >= 0\nkept = out[keep]\nwanted = labels[keep]", "F.cross_entropy(kept, wanted)"),
    ("criterion = nn.CrossEntropyLoss()", "criterion(out[labels >= 0], labels[labels >= 0])"),
    (
        "criterion = nn.CrossEntropyLoss(weight=weights, ignore_index=-1)",
        "criterion(out[other >= 0], other[other >= 0])",
    ),
    ("", "F.mse_loss(x[x > 0], y[x > 0])"),
    ("keep = y.abs() < 1", "F.l1_loss(x[keep], y[keep])"),
    ("keep = ~torch.isnan(gaps)", "F.mse_loss(x[keep], gaps[keep])"),
    ("keep = y > 0", 'F.smooth_l1_loss(x[keep], y[keep], reduction="sum", beta=0.5)'),
    ("keep = y > 0", "F.huber_loss(x[keep], y[keep], delta=0.5)"),
    ("p = x.sigmoid()\nt = y.sigmoid()\nkeep = t > 0.4", "F.binary_cross_entropy(p[keep], t[keep])"),
    ("t = y.sigmoid()\nkeep = t > 0.4", "F.binary_cross_entropy_with_logits(x[keep], t[keep])"),
    ("", "x[x > 0].sum()"),
    ("keep = ~torch.isnan(gaps)", "gaps[keep].mean()"),
    ("z = x.float()", "z[(z > 0) | (z < -1)].max()"),
    ("z = gaps.float()", "z[~z.isnan()].min()"),
    ("", "x[x > 0].numel()"),
    ("", "torch.masked_select(x, x > 0).mean()"),
    (
        'flat = labels.flatten()\nloss = F.cross_entropy(out.flatten(0, -2), flat, reduction="none")',
        "loss[flat != -100].mean()",
    ),
    ("", "(preds[labels != -100] == labels[labels != -100]).float().mean()"),
    ("", "(preds[labels != -100] == labels[labels != -100]).sum()"),
    ("", "(preds[labels == PAD] == labels[labels == PAD]).all()"),
    ("", "torch.any(preds[labels == PAD] == labels[labels == PAD])"),
]
NAMES = "out, labels: torch.Tensor, other: torch.Tensor, x: torch.Tensor, y: torch.Tensor, preds, gaps, weights"


def checked(lines: str, value: str, names: str = NAMES) -> list[Any]:
    body = textwrap.indent(f"{lines}\nreturn {value}", "    ")
    return found(f"PAD = 2\n\n\ndef f({names}):\n{body}")


def formula_of(lines: str, value: str) -> str:
    finding = checked(lines, value)[0]
    said = re.search(r"`(.+)`\.$", finding.fix)
    assert said is not None, finding.fix
    return said[1]


@pytest.mark.parametrize(("lines", "value"), EQUAL)
def test_a_formula_gives_the_same_value_and_gradient(lines: str, value: str) -> None:
    torch = pytest.importorskip("torch")
    formula = formula_of(lines, value)
    for seed in SEEDS:
        results = []
        for code in (value, formula):
            names = tensors(seed)
            inputs = [names[name].requires_grad_() for name in ("out", "x")]
            exec(lines, names)
            result = torch.as_tensor(eval(code, names)).float()
            if result.requires_grad:
                result.backward()
            results += [[result.detach(), *(torch.zeros(()) if one.grad is None else one.grad for one in inputs)]]
        for one, other in zip(*results, strict=True):
            assert torch.allclose(one, other, atol=1e-5, equal_nan=True), (seed, formula)


def torch_equal(one: Any, other: Any) -> bool:
    torch = pytest.importorskip("torch")
    return bool(torch.allclose(torch.as_tensor(one).float(), torch.as_tensor(other).float(), atol=1e-6))


# Nothing shows that the mask has the shape of what it selects from, or the value would be another one.
NOT_KNOWN = [
    ("", "x[keep].mean()"),
    ("", "x[keep[..., None]].sum()"),
    ("", "x[labels == PAD].mean()"),
    ("", "F.mse_loss(x[keep], y[keep])"),
    ("keep = labels == PAD", "F.mse_loss(x[keep], y[keep])"),
    ("", "x[x > 0].mean(0)"),
    ("", "x[x > y].mean()"),
    ("keep = x > 0\nx = x.mean(0)", "x[keep].mean()"),
    ("", "x[x > 0].max()"),  # an integer tensor would become a float
    ("", "F.cross_entropy(out[keep], labels[keep])"),
    ("", 'F.cross_entropy(out[labels >= 0], labels[labels >= 0], reduction="none")'),
    ("", "F.cross_entropy(out[labels >= 0].view(-1, 5), labels[labels >= 0])"),
    ("", "F.mse_loss(x[x > 0], y[y > 0])"),
    ("", "F.mse_loss(x[x > 0], y[x > 0], weight=weights)"),
    ("", "F.kl_div(x[x > 0], y[x > 0])"),
    ("", "criterion(out[labels >= 0], labels[labels >= 0])"),
    ("", "(preds[keep] == labels[keep]).float().mean()"),
    ("", "(preds[labels >= 0] == labels[labels >= 0]).float().mean(0)"),
    ("", "(preds[labels >= 0] == other[preds >= 0]).float().mean()"),
    ("", "(labels[labels >= 0] == preds.flatten()).sum()"),
    ("y.grad = x.mean(0)", "y.grad[y.grad > 0].mean()"),
    ("FIRST = x[0]", "x[x > FIRST].mean()"),
    ("", "x[:, x[0] > 0].sum()"),
]


@pytest.mark.parametrize(("lines", "value"), NOT_KNOWN)
def test_no_formula_is_printed_that_may_give_another_value(lines: str, value: str) -> None:
    findings = checked(lines, value, f"{NAMES}, keep: torch.BoolTensor, criterion")
    assert findings and all(one.code == "TPU201" for one in findings)
    for one in findings:
        assert not re.search(r"`[^`]*\([^`]*`", one.fix), one.fix


def test_where_nothing_is_averaged_nothing_is_divided() -> None:
    for value in ("x[x > 0]", "x[keep]", "x[keep].sum()", 'F.mse_loss(x[keep], y[keep], reduction="sum")'):
        [finding] = checked("", value, "x: torch.Tensor, y: torch.Tensor, keep: torch.BoolTensor")
        assert not re.search(" / |divide|average|mean", finding.fix), finding.fix


def test_a_row_mask_would_have_given_another_loss() -> None:
    """What is avoided: the rows are averaged as if each had one element."""
    torch = pytest.importorskip("torch")
    z, y = torch.ones(4, 3), torch.tensor([0, 1, 1, 0])
    assert z[y == 1].mean() == 1 and (z * (y == 1)[:, None]).sum() / (y == 1).sum() == 3


def test_selected_tensors_with_names_of_their_own_come_together_in_the_loss() -> None:
    findings = checked("keep = labels >= 0\nkept = out[keep]\nwanted = labels[keep]", "F.cross_entropy(kept, wanted)")
    assert [one.line for one in findings] == [12, 13]
    assert len({one.fix for one in findings}) == 1


@pytest.mark.parametrize(
    "line",
    [
        "x[keep] = y[keep]",
        "x[keep] = 2.0",
        "x[keep] *= 3.0",
        "x[keep] += y[keep]",
        "x[labels == 1] = 0.5",
        "x[keep] -= 1",
    ],
)
def test_assignments_with_where_give_equal_results(line: str) -> None:
    names = tensors()
    code = the_fix(
        f"def f(x: torch.Tensor, y, labels: torch.Tensor, keep: torch.BoolTensor):\n    {line}\n    return x"
    )
    before, after = {**names, "x": names["x"].clone()}, {**names, "x": names["x"].clone()}
    exec(line, before)
    exec(code, after)
    assert torch_equal(before["x"], after["x"]), code


@pytest.mark.parametrize(
    "line", ["x[:, keep] = 0.0", "x[keep, :] = 0.0", "x[keep, 1:] = 5.0", "x[keep, 0] = 1.0", "x[..., keep] = 2.0"]
)
def test_a_mask_among_other_indices_keeps_its_dimension(line: str) -> None:
    torch = pytest.importorskip("torch")
    code = the_fix(f"def f(x: torch.Tensor, keep: torch.BoolTensor):\n    {line}\n    return x")
    before, after = (
        {"torch": torch, "x": torch.arange(16.0).reshape(4, 4), "keep": torch.tensor([True, False, True, False])}
        for _ in "ab"
    )
    exec(line, before)
    exec(code, after)
    assert torch.equal(before["x"], after["x"]), code


def test_repeating_by_counts_with_a_fixed_length() -> None:
    torch = pytest.importorskip("torch")
    code = the_fix(
        "def f(x: torch.Tensor, counts: torch.Tensor):\n    return torch.repeat_interleave(x, counts, dim=0)"
    )
    x, counts = torch.randn(5, 2), torch.tensor([2, 0, 3, 1, 1])
    after = eval(code, {"x": x, "counts": counts, "places": torch.arange(12)})
    assert torch.equal(after[:7], torch.repeat_interleave(x, counts, dim=0)), code


@pytest.mark.parametrize("index", [":n", "n:", "-n:", ":-n", "n : n + 2", "0:n", "n:-1", ":, :n"])
def test_a_mask_keeps_what_the_slice_kept(index: str) -> None:
    torch = pytest.importorskip("torch")
    code = the_fix(
        f"def f(x: torch.Tensor, lengths: torch.Tensor):\n    n = lengths.max().item()\n    return x[{index}]"
    )
    for n in range(1, 5):
        x = torch.arange(1, 10).repeat(9, 1) if "," in index else torch.arange(1, 10)
        names = {"torch": torch, "n": n, "x": x, "size": 9, "device": "cpu"}
        kept, mask = eval(f"x[{index}]", names), eval(code, names)
        assert (
            x.expand(mask.shape)[mask].tolist() == kept.tolist() if kept.dim() == 1 else (x * mask).sum() == kept.sum()
        )


def test_an_index_that_keeps_a_dimension_and_counts_of_classes_give_the_same() -> None:
    torch = pytest.importorskip("torch")
    text = f"{TORCH}def f(x: torch.Tensor, lengths: torch.Tensor):\n    return x[0, lengths[1] - 1]\n"
    [indexed] = check_text(text, "x.py", OF_VALUES)
    index = re.search(r"`(.+?)`", indexed.fix)
    counted = the_fix("def f(kinds: torch.Tensor):\n    return torch.bincount(kinds)")
    for seed in SEEDS:
        torch.manual_seed(seed)
        x, lengths, kinds = torch.randn(3, 9), torch.randint(1, 9, (3,)), torch.randint(0, 5, (20,))
        names = {"torch": torch, "F": torch.nn.functional, "x": x, "lengths": lengths, "kinds": kinds, "num_classes": 5}
        assert index is not None and eval(f"x[0, {index[1]}].squeeze()", names) == x[0, lengths[1] - 1]
        assert torch.equal(eval(counted, names), torch.bincount(kinds, minlength=5))


def test_pieces_are_not_compared_with_a_list() -> None:
    [finding] = found("def f(x: torch.Tensor, n: torch.Tensor):\n    return x.split(n.tolist())")
    assert "arange" not in finding.fix


# -- edits ------------------------------------------------------------------------------------------------------------

ASSIGNED = TORCH + textwrap.dedent(
    """
    PAD = 0


    class Net(nn.Module):
        def forward(self, ids, scores: torch.Tensor):
            labels = ids.clone()
            view = labels[1:]
            labels[labels == PAD] = -100
            scores[scores < 0.0] = 0
            self.last = scores
            self.last[self.last > 1] = 1
            return labels, view, scores, self.last
    """
)


def ran(text: str, dtype: str) -> list[Any]:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {}
    exec(text.replace("import torch_xla\n", ""), names)
    torch.manual_seed(0)
    ids, scores = torch.randint(0, 3, (4, 6)), torch.randn(4, 6).to(getattr(torch, dtype))
    return [*names["Net"]()(ids, scores), ids, scores]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "int8"])
def test_a_number_assigned_to_what_is_compared_is_rewritten_and_gives_the_same(dtype: str) -> None:
    text = fixed_text(ASSIGNED)
    assert "labels.masked_fill_(labels == PAD, -100)" in text
    assert "scores.masked_fill_(scores < 0.0, 0)" in text
    assert "self.last.masked_fill_(self.last > 1, 1)" in text
    assert not check_text(text, "x.py", RULES)
    for before, after in zip(ran(ASSIGNED, dtype), ran(text, dtype), strict=True):
        assert torch_equal(before, after)
        assert before.dtype == after.dtype


@pytest.mark.parametrize(
    "line",
    [
        "x[keep] = 0",  # the mask may have fewer dimensions
        "x[x > 0] = 0.5",  # an integer tensor would be refused
        "x[x > y] = 0",  # y may have more dimensions
        "x[x > 0] = y[x > 0]",
        "x[x > 0] += 1",
        "x[:, x[0] > 0] = 0",
        "x[x > 0] = n",
    ],
)
def test_no_rewrite_without_equal_results(line: str) -> None:
    (finding,) = found(f"def f(x: torch.Tensor, y: torch.Tensor, keep: torch.BoolTensor, n):\n    {line}\n    return x")
    assert finding.code == "TPU202"
    assert not finding.edits


def test_the_last_line_of_a_cell_is_not_rewritten_into_one_that_shows_the_tensor() -> None:
    text = "%%tpu_train\nimport torch\nx = torch.randn(4).to('xla')\nx[x == 0] = 1\n"
    (finding,) = check_cells([cell_of(text, "In [1]")], RULES)
    assert (finding.code, finding.edits) == ("TPU202", ())


def test_what_a_function_loads_is_not_on_the_device() -> None:
    lines = ("def NAME(edges):", "degrees = torch.sqrt(torch.sum(edges, dim=1))", "degrees[degrees == 1] = 0")
    text = "\n    ".join((*lines, "return degrees\n"))
    assert [one.code for one in found(text.replace("NAME", "scaled"))] == ["TPU202"]
    assert found(text.replace("NAME", "load_graph")) == []


# -- places -----------------------------------------------------------------------------------------------------------


def test_one_mask_on_one_line_is_one_finding() -> None:
    lines = [
        one.line
        for one in found("def f(a: torch.Tensor, b: torch.Tensor, m: torch.BoolTensor):\n    return a[m] + b[m] * a[m]")
    ]
    assert lines == [8]


@pytest.mark.parametrize(("magic", "codes"), [("%%tpu_check", ["TPU201"]), ("%%tpu_train", ["TPU201"]), ("", [])])
def test_a_snippet_that_one_asks_about_is_judged_by_its_names(magic: str, codes: list[str]) -> None:
    """Nothing else says what they are: in a file they may as well be arrays of NumPy."""
    text = f"{magic}\nmasked = outputs[labels >= 0]\nfirst = frame[frame.year > 2000]\n"
    assert [one.code for one in check_cells([cell_of(text, "In [1]")], RULES)] == codes


def test_positions_of_an_unknown_function_are_no_mask() -> None:
    assert not found("def f(boxes: torch.Tensor, scores):\n    keep = nms(boxes, scores, 0.5)\n    return boxes[keep]")


def test_tensorflow_that_is_not_compiled_may_have_any_shape() -> None:
    text = "import tensorflow as tf\n\n\n@tf.function\ndef f(x):\n    return tf.boolean_mask(x, x > 0)\n"
    assert not check_text(text, "x.py", RULES)
    compiled = text.replace("@tf.function\n", "@tf.function(jit_compile=True)\n")
    assert [one.code for one in check_text(compiled, "x.py", RULES)] == ["TPU203"]


def test_sizes_that_a_layer_hands_on_are_no_data() -> None:
    assert not found(
        """
        class Patches(nn.Module):
            def forward(self, pixels):
                _, _, height, width = pixels.shape
                return pixels.flatten(2), height, width

        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.patches = Patches()

            def forward(self, pixels):
                hidden, height, width = self.patches(pixels)
                return hidden.reshape(hidden.shape[0], height, width, -1)[:, : height // 2]
        """
    )


# -- what torch_xla does ----------------------------------------------------------------------------------------------

MEASURED = """
import json, torch, torch_xla
import torch.nn.functional as F
import torch_xla.debug.metrics as met

device = torch_xla.device()
others = (torch.randn(16, 5).to(device), torch.randn(16).to(device), 2)

def compiles(step):
    counts = []
    for true in (2, 5, 7, 9):
        torch.manual_seed(0)
        x, labels = torch.randn(16).to(device), torch.full((16,), -100)
        labels[:true] = 1
        labels = labels.to(device)
        torch_xla.sync()
        met.clear_all()
        kept = step(x, labels, *others) if step.__code__.co_argcount > 2 else step(x, labels)
        torch_xla.sync()
        counts.append(met.counter_value("UncachedCompile") or 0)
    return counts

def assigned(x, labels):
    x[labels >= 0] = 0.0
    return x

found = {
    "TPU201": compiles(lambda x, labels: x[labels >= 0].exp()),
    **{f"{one} fixed": compiles(eval(f"lambda x, labels, out, y, PAD: {one}")) for one in FORMULAS},
    "TPU202": compiles(assigned),
    "TPU202 fixed": compiles(lambda x, labels: x.masked_fill_(labels >= 0, 0.0)),
    "TPU203": compiles(lambda x, labels: torch.nonzero(labels >= 0) * 2),
    "TPU204": compiles(lambda x, labels: x[: (labels >= 0).sum()] * 2),
    "TPU204 fixed": compiles(lambda x, labels: x * (torch.arange(16, device=device) < (labels >= 0).sum())),
    "TPU205": compiles(lambda x, labels: torch.repeat_interleave(x, (labels >= 0).long()) * 3),
    "TPU104": compiles(lambda x, labels: x[(labels >= 0).sum()] * 2),
    "TPU104 fixed": compiles(lambda x, labels: x[(labels >= 0).sum()[None]].squeeze(0) * 2),
    "TPU203 of counts": compiles(lambda x, labels: torch.bincount((labels >= 0).long().cumsum(0)) * 2),
    "TPU203 of counts fixed": compiles(lambda x, labels: F.one_hot((labels >= 0).long().cumsum(0), 17).sum(0) * 2),
}
print("FOUND", json.dumps(found))
"""


TENSORS_OF_OTHERS = r"\b(other|gaps|preds|weights)\b"  # which the measured program does not have


@pytest.mark.process
def test_torch_xla_compiles_for_each_size_and_the_cures_once() -> None:
    """The reasons that the rules give, as measured on XLA:CPU."""
    pytest.importorskip("torch_xla")
    formulas = [
        formula_of("", value) for lines, value in EQUAL if not lines and not re.search(TENSORS_OF_OTHERS, value)
    ]
    assert len(formulas) == 5
    counts = measurements(f"FORMULAS = {formulas!r}\n{MEASURED}")
    for name, each in counts.items():
        later = each[1:]
        assert all(later) != name.endswith("fixed"), counts
        assert any(later) != name.endswith("fixed"), counts
