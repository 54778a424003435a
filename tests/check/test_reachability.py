"""The findings that concern a run, by the names that its function reads in any cell of the notebook."""

from __future__ import annotations

import pytest

from tpu_magics.check import check_cells
from tpu_magics.check.cells import cell_of
from tpu_magics.check.reachability import reachable_findings

HEAD = "import torch\nimport torch.nn as nn\nimport torch_xla\nfrom torch.utils.data import DataLoader\n"
NET = """
class Net(nn.Module):
    def forward(self, x):
        return x[x > 0]
"""
HELPER = """
def helper(x: torch.Tensor):
    if x.sum() > 0:
        return x
"""
TRAIN = "%%tpu_train\ndef train():\n    return model(torch.ones(3, device=torch_xla.device()))\n"


def codes(*cells: str, name: str = "train") -> list[str]:
    """The codes with the numbers of their cells, HEAD being the first."""
    read = [cell_of(text, f"In [{number}]", number) for number, text in enumerate((HEAD, *cells), 1)]
    return [f"{one.code} {one.cell}" for one in reachable_findings(check_cells(read), read, name)]


@pytest.mark.parametrize(
    "made",
    [
        "model = Net()\n",
        "parts = []\nparts.append(Net())\nmodel = nn.Sequential(*parts)\n",
        "parts = {}\nfor name in 'ab':\n    parts[name] = Net()\nmodel = parts['a']\n",
        "def make():\n    return Net()\nmodel = make()\n",
        "try:\n    model = torch.load('x')\nexcept OSError:\n    model = Net()\n",
        "with torch.device('cpu'):\n    model = Net()\n",
    ],
)
def test_a_class_is_reached_through_what_made_the_object(made: str) -> None:
    assert codes(NET, made, TRAIN) == ["TPU201 2"]


def test_an_option_of_the_magic_is_no_name() -> None:
    run, own = f"{HELPER.replace('helper', 'run')}", "def own():\n    pass\n"
    assert codes(run, own, "%tpu_train --run-name x own\n", name="own") == []
    assert codes(run, own, "%tpu_train --run-name x run\n", name="run") != []


def test_methods_of_a_class_that_nothing_made_are_not_reached() -> None:
    assert codes(NET, "model = nn.Linear(3, 3)\n", TRAIN) == []
    assert codes(NET, "model = nn.Linear(3, 3)\n", "other = Net()\nprint(other)\n", TRAIN) == []


def test_a_base_class_and_a_mixin_are_reached() -> None:
    assert codes(NET, "class Big(Net):\n    pass\nmodel = Big()\n", TRAIN) == ["TPU201 2"]


def test_what_plain_cells_did_with_the_model_is_not_the_run() -> None:
    plain = (
        "device = torch_xla.device()\nx = model(torch.ones(3, device=device))\n"
        "for _ in range(3):\n    helper(x)\n    if x.sum() > 0:\n        print(x.sum().item())\n"
    )
    found = codes("model = nn.Linear(3, 3)\n", HELPER, plain, TRAIN)
    assert [one for one in found if not one.startswith("TPU4")] == []
    assert any(one.startswith("TPU402") for one in found), "the device too early is of the process, whoever reads it"
    assert "TPU101 3" in codes(
        "model = nn.Linear(3, 3)\n", HELPER, TRAIN.replace("    return", "    helper(torch.ones(3))\n    return")
    )


def test_a_function_is_reached_by_any_use_of_its_name() -> None:
    for use in ("    helper(torch.ones(3))\n", "    dict(step=helper)\n", "    def inner():\n        return helper\n"):
        assert codes("model = 1\n", HELPER, TRAIN.replace("    return", use + "    return")) == ["TPU101 3"], use
    hidden = "%%tpu_train\ndef train(helper):\n    return helper(3)\n"
    assert codes(HELPER, hidden) == [], "its own parameter of that name"
    assert codes(HELPER, "%%tpu_train\ndef train():\n    global helper\n    return helper\n") == ["TPU101 2"]


def test_a_method_is_trained_with_what_its_object_was_made_of() -> None:
    own = "class Own:\n    def __init__(self, model):\n        self.model = model\n    def fit(self):\n        pass\n"
    assert codes(NET, own, "t = Own(Net())\n", "%tpu_train t.fit\n", name="fit") == ["TPU201 2"]
    assert codes(NET, own, "t = Own(nn.ReLU())\n", "%tpu_train t.fit\n", name="fit") == []


def test_what_the_magic_names_is_reached() -> None:
    assert codes(NET, "net = Net()\n", "%%tpu_train net\ndef train(net):\n    return net(1)\n") == ["TPU201 2"]
    cell = "def train(step, net):\n    return step(net)\n"
    assert codes(NET, HELPER, "net = Net()\n", cell, "%tpu_train train helper net\n") == ["TPU201 2", "TPU101 3"]


def test_plain_statements_are_the_run_itself() -> None:
    cell = "%%tpu_train\nx = torch.ones(3, device=torch_xla.device())\ny = x[x > 0]\n"
    assert codes(cell, name="") == ["TPU201 2"]
    assert codes(cell, "%%tpu_train\nz = 1\n", name="") == [], "that cell trained before"
    made = "net = Net()\n"
    assert codes(NET, made, "%%tpu_train\nprint(1)\n", name="") == [], "it uses none of it"
    assert codes(NET, made, "%%tpu_train\nprint(net)\n", name="") == ["TPU201 2"]


def test_a_model_that_another_cell_replaced_is_not_of_the_run() -> None:
    plain = "model = nn.Linear(3, 3)\n"
    assert codes(NET, "model = Net()\n", TRAIN) == ["TPU201 2"]
    assert codes(NET, "model = Net()\n", plain, TRAIN) == []
    assert codes(NET, "model, other = Net(), 1\n", "model, other = nn.Linear(3, 3), 2\n", TRAIN) == []
    assert codes(NET, "model = Net()\n", plain, "%%tpu_train model\n" + TRAIN.split("\n", 1)[1]) == []
    for kept in ("if flag:\n    model = 1\n", "model = nn.Sequential(model)\n", "model.name = 1\n"):
        assert codes(NET, "model = Net()\n", kept, TRAIN) == ["TPU201 2"], kept
    wrapped = "old = Net()\n", "model = old\n", "old = 3\n"
    assert codes(NET, *wrapped, TRAIN) == ["TPU201 2"], "the name stood for it when the model was made of it"


def test_findings_of_other_cells_functions_are_not_of_the_run() -> None:
    other = (
        "def other(index):\n    scaler = torch.amp.GradScaler('cuda')\n"
        "    net = nn.Linear(3, 3).to(torch_xla.device())\n"
        "    opt = torch.optim.SGD(net.parameters(), lr=0.1)\n    for x in DataLoader([1.0] * 8):\n"
        "        net(x.to(torch_xla.device())).sum().backward()\n        opt.step()\n"
    )
    assert any(one.startswith("TPU5") for one in codes(other, "%%tpu_train\ndef train():\n    other(0)\n"))
    assert codes(other, "%%tpu_train\ndef train():\n    pass\n") == []


def test_a_lambda_of_an_earlier_cell_runs_later() -> None:
    use = "%%tpu_train\ndef train():\n    return pick(torch.ones(3, device=torch_xla.device()))\n"
    assert codes("pick = lambda x: x[x > 0]\n", use) == ["TPU201 2"]


def test_of_a_function_that_no_cell_defines_plain_cells_tell_what_is_used() -> None:
    assert codes(HELPER, name="elsewhere") == []
    assert codes(HELPER, "helper(torch.ones(3))\n", name="elsewhere") == ["TPU101 2"]


def test_registered_implementations_go_with_their_function() -> None:
    show = "import functools\n@functools.singledispatch\ndef show(x):\n    pass\n"
    one = "@show.register\ndef _(x: torch.Tensor):\n    if x.sum() > 0:\n        return x\n"
    assert codes(show, one, "%%tpu_train\ndef train():\n    show(1)\n") == ["TPU101 3"]
    assert codes(show, one, "%%tpu_train\ndef train():\n    pass\n") == []


def test_a_cell_that_does_not_parse_is_reported() -> None:
    assert codes("def broken(:\n", TRAIN) == ["TPU001 2"]


def test_a_function_that_another_training_cell_called_ran_then() -> None:
    """What it returned is used; it does not run again, but a function that it made may."""
    cell = "%%tpu_train\n{}y = first(torch.ones(3, device=torch_xla.device()))\n"
    then = cell.format("def first(x):\n    return x[x > 0]\n")
    assert codes(then, "%%tpu_train\nprint(y)\n", name="") == []
    assert codes(then, "%%tpu_train\nprint(y, first(y))\n", name="") == ["TPU201 2"]
    made = cell.format("def first(x):\n    def again():\n        return x[x > 0]\n    return again\n")
    assert codes(made, "%%tpu_train\ny()\n", name="") == ["TPU201 2"]
