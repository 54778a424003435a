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

TORCH = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\nimport torch_xla\n\n\n"


GROUP = GroupChecks(RULES, TORCH)
found, fixed_text = GROUP.found, GROUP.fixed_text


def the_fix(text: str) -> str:
    """The code between the first backticks of the only fix."""
    (finding,) = found(text)
    said = re.search(r"`(.+?)`", finding.fix)
    assert said is not None, finding.fix
    return said[1]


# -- the multiply-and-divide form gives what the mask gave -------------------------------------------------------------


def tensors() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    labels = torch.randint(0, 5, (24,))
    labels[::3] = -100
    other = torch.where(labels == -100, -1, labels)
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "values": None}
    names |= {"out": torch.randn(24, 5), "labels": labels, "other": other, "keep": labels >= 0, "x": torch.randn(24)}
    return names | {"preds": torch.randint(0, 5, (24,)), "y": torch.randn(24), "criterion": torch.nn.CrossEntropyLoss()}


@pytest.mark.parametrize(
    ("parameters", "before"),
    [
        ("out, labels, keep: torch.BoolTensor", "F.cross_entropy(out[keep], labels[keep])"),
        ("out, labels", "F.cross_entropy(out[labels != -100], labels[labels != -100])"),
        ("out, other", "F.cross_entropy(out[other != -1], other[other != -1])"),
        ("out, labels, keep: torch.BoolTensor", 'F.cross_entropy(out[keep], labels[keep], reduction="sum")'),
        ("out, labels, keep: torch.BoolTensor", "F.cross_entropy(out[keep], target=labels[keep], label_smoothing=0.1)"),
        ("x, y, keep: torch.BoolTensor", "F.mse_loss(x[keep], y[keep])"),
        ("x: torch.Tensor, keep: torch.BoolTensor", "x[keep].sum()"),
        ("x: torch.Tensor, keep: torch.BoolTensor", "x[~keep].mean()"),
        ("x: torch.Tensor, keep: torch.BoolTensor", "x[keep].max()"),
        ("x: torch.Tensor, keep: torch.BoolTensor", "x[keep].min()"),
        ("x: torch.Tensor, keep: torch.BoolTensor", "x[keep].numel()"),
        ("x, keep: torch.BoolTensor", "torch.masked_select(x, keep).mean()"),
        ("preds: torch.Tensor, labels, keep: torch.BoolTensor", "(preds[keep] == labels[keep]).float().mean()"),
    ],
)
def test_the_form_without_a_mask_gives_the_same(parameters: str, before: str) -> None:
    names = tensors()
    after = the_fix(f"def f({parameters}):\n    return {before}")
    assert torch_equal(eval(before, names), eval(after, names)), after


def torch_equal(one: Any, other: Any) -> bool:
    torch = pytest.importorskip("torch")
    return bool(torch.allclose(torch.as_tensor(one).float(), torch.as_tensor(other).float(), atol=1e-6))


def test_a_loss_module_is_made_without_its_mean() -> None:
    names = tensors()
    code = the_fix(
        """
        criterion = nn.CrossEntropyLoss()

        def f(out, labels, keep: torch.BoolTensor):
            return criterion(out[keep], labels[keep])
        """
    )
    before = names["criterion"](names["out"][names["keep"]], names["labels"][names["keep"]])
    names["criterion"] = names["nn"].CrossEntropyLoss(reduction="none")
    assert torch_equal(before, eval(code, names)), code


def test_selected_tensors_with_names_of_their_own_come_together_in_the_loss() -> None:
    names = tensors()
    findings = found(
        """
        def f(out: torch.Tensor, labels: torch.Tensor):
            mask = labels != -100
            kept = out[mask]
            wanted = labels[mask]
            return F.cross_entropy(kept.view(-1, 5), wanted)
        """
    )
    assert [one.line for one in findings] == [9, 10]
    assert len({one.fix for one in findings}) == 1
    said = re.search(r"`(.+?)`", findings[0].fix)
    assert said is not None
    names["mask"] = names["keep"]
    before = names["F"].cross_entropy(names["out"][names["keep"]], names["labels"][names["keep"]])
    assert torch_equal(before, eval(said[1], names)), said[1]


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


# -- places -----------------------------------------------------------------------------------------------------------


def test_one_mask_on_one_line_is_one_finding() -> None:
    lines = [
        one.line
        for one in found("def f(a: torch.Tensor, b: torch.Tensor, m: torch.BoolTensor):\n    return a[m] + b[m] * a[m]")
    ]
    assert lines == [8]


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

def compiles(step):
    counts = []
    for true in (2, 5, 7, 9):
        torch.manual_seed(0)
        x, labels = torch.randn(16).to(device), torch.full((16,), -100)
        labels[:true] = 1
        labels = labels.to(device)
        torch_xla.sync()
        met.clear_all()
        kept = step(x, labels)
        torch_xla.sync()
        counts.append(met.counter_value("UncachedCompile") or 0)
    return counts

def assigned(x, labels):
    x[labels >= 0] = 0.0
    return x

found = {
    "TPU201": compiles(lambda x, labels: x[labels >= 0].exp()),
    "TPU201 fixed": compiles(lambda x, labels: (x.exp() * (labels >= 0)).sum() / (labels >= 0).sum()),
    "TPU202": compiles(assigned),
    "TPU202 fixed": compiles(lambda x, labels: x.masked_fill_(labels >= 0, 0.0)),
    "TPU203": compiles(lambda x, labels: torch.nonzero(labels >= 0) * 2),
    "TPU204": compiles(lambda x, labels: x[: (labels >= 0).sum()] * 2),
    "TPU204 fixed": compiles(lambda x, labels: x * (torch.arange(16, device=device) < (labels >= 0).sum())),
    "TPU205": compiles(lambda x, labels: torch.repeat_interleave(x, (labels >= 0).long()) * 3),
}
print("FOUND", json.dumps(found))
"""


@pytest.mark.process
def test_torch_xla_compiles_for_each_size_and_the_cures_once() -> None:
    """The reasons that the rules give, as measured on XLA:CPU."""
    pytest.importorskip("torch_xla")
    counts = measurements(MEASURED)
    for name, each in counts.items():
        later = each[1:]
        assert all(later) != name.endswith("fixed"), counts
        assert any(later) != name.endswith("fixed"), counts
