"""`%tpu_check`, `%%tpu_check`, and the check before `%%tpu_train`, in a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_magics.magics.notebook import newest

from .kernel import Kernel
from .samples import MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process

STEP = """
import torch.nn.functional as F
def step(model, batch):
    logits = model(batch["x"])
    keep = batch["labels"] >= 0
    return F.cross_entropy(logits[keep], batch["labels"][keep])
def other(x: torch.Tensor):
    if x.sum() > 0:
        return x
"""
LOOP = """
def training(model, loader, optimizer):
    for batch in loader:
        loss = step(model, batch)
        loss.backward()
        optimizer.step()
        print(loss.item())
"""


TRAINING = """
import torch_xla
def training_function(model):
    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8, device=device)).pow(2).mean()
        if loss > 100:
            break
        loss.backward()
        optimizer.step()
        torch_xla.sync()
"""
"""A function whose line 10, counted with that of `%%tpu_train`, branches on a tensor's value."""


@pytest.fixture
def notebook(kernel: Kernel) -> Kernel:
    kernel.run("get_ipython().history_manager.reset(new_session=False)").good()
    kernel.run(MODEL).good()
    kernel.run(STEP).good()
    kernel.run(LOOP).good()
    return kernel


def text(kernel: Kernel, code: str) -> str:
    """The plain text that a cell displays."""
    shown = kernel.run(code).good().displays
    return "\n".join(str(bundle["text/plain"]) for bundle in shown)


def test_all_cells_so_far_are_checked_and_nothing_is_run(notebook: Kernel) -> None:
    cell = notebook.run("%tpu_check").good()
    [bundle] = cell.displays
    for shown in (bundle["text/plain"], bundle["text/html"]):
        assert all(code in shown for code in ("TPU101", "TPU102", "TPU201")), shown
    assert "logits[keep]" in bundle["text/plain"] and "torch.where(keep, " in bundle["text/plain"]
    assert "<script" not in bundle["text/html"]


def test_a_function_is_checked_with_what_it_calls(notebook: Kernel) -> None:
    shown = text(notebook, "%tpu_check training")
    assert "TPU102" in shown and "TPU201" in shown and "TPU101" not in shown
    shown = text(notebook, "%tpu_check other")
    assert "TPU101" in shown and "TPU201" not in shown


def test_a_function_of_a_file_is_checked_there(notebook: Kernel, tmp_path: Path) -> None:
    (tmp_path / "my_code.py").write_text("import torch\ndef deep(x: torch.Tensor):\n    return torch.nonzero(x)\n")
    notebook.run("import sys; sys.path.insert(0, '.'); from my_code import deep").good()
    shown = text(notebook, "%tpu_check deep")
    assert "TPU203" in shown and "my_code.py" in shown


def test_a_name_that_is_no_function_is_refused_with_what_to_do(notebook: Kernel) -> None:
    error = notebook.run("%tpu_check nothing_of_this_name").said
    assert "No cell defines a function or class nothing_of_this_name" in error
    error = notebook.run("%tpu_check --select TPU999").said
    assert "TPU999" in error


def test_what_never_ran_does_not_count(notebook: Kernel) -> None:
    """A cell below %%tpu_check, and one that did not parse."""
    notebook.run("%%tpu_check\ndef step(model, batch):\n    return model(batch)\n").good()
    assert "TPU201" in text(notebook, "%tpu_check step"), "the definition that ran is the one before"
    assert notebook.run("y = torch.zeros(3").error_type in ("SyntaxError", "_IncompleteInputError")  # Python 3.13
    assert "TPU001" not in text(notebook, "%tpu_check")


def test_words_that_are_too_many_are_told_from_options(notebook: Kernel) -> None:
    assert "does not take 'training' here" in notebook.run("%%tpu_check training\nx = 1\n").said


def test_rules_are_chosen_and_silenced(notebook: Kernel) -> None:
    shown = text(notebook, "%tpu_check --select shapes")
    assert "TPU201" in shown and "TPU101" not in shown
    shown = text(notebook, "%tpu_check --ignore TPU101,shapes")
    assert "TPU102" in shown and "TPU201" not in shown
    notebook.run(STEP.replace("if x.sum() > 0:", "if x.sum() > 0:  # noqa: TPU101")).good()
    assert "TPU101" not in text(notebook, "%tpu_check")
    shown = text(notebook, "%%tpu_check --migrate\nimport torch_xla\ntorch_xla.sync()\nprint(other(model).item())\n")
    assert "TPU801" in shown and 'backend="tpu"' in shown and "TPU102" not in shown


def test_a_cell_is_checked_with_what_others_define_and_not_run(notebook: Kernel) -> None:
    shown = text(notebook, "%%tpu_check\nran = True\ndef more(model, batch):\n    return int(step(model, batch)) * 2\n")
    assert "TPU201" not in shown and "it was not run" in shown
    assert notebook.value("'ran' in globals()") is False
    shown = text(notebook, "%%tpu_check\ndef more(x: torch.Tensor):\n    return x[x > 0]\n")
    assert "TPU201" in shown and "line 3" in shown


def test_fixes_that_are_not_there_are_said(notebook: Kernel) -> None:
    assert notebook.run("%tpu_check other --diff").good().printed == "There is no automatic fix.\n"
    refused = notebook.run("%tpu_check other --unsafe-fixes")
    assert "Write --fix or --diff beside it." in refused.said
    cell = notebook.run("%%tpu_check --fix\ndef more(x: torch.Tensor):\n    return x.sum().item()\n").good()
    assert "it was not run; there is no automatic fix" in cell.shown


def test_a_cell_that_is_mended_takes_its_own_place(notebook: Kernel) -> None:
    cell = notebook.run("%%tpu_check --fix\ndef more(x: torch.Tensor):\n    x[x > 0] = 0\n    return x\n").good()
    [payload] = [one for one in cell.payloads if one["source"] == "set_next_input"]
    assert payload["replace"] is True
    assert payload["text"].startswith("def more(x: torch.Tensor):\n") and "x[x > 0] = 0" not in payload["text"]
    assert "1 fixed" in cell.displays[0]["text/plain"]


def test_a_difference_is_shown_and_nothing_is_written(notebook: Kernel) -> None:
    notebook.run("def more(x: torch.Tensor):\n    x[x > 0] = 0\n    return x\n").good()
    cell = notebook.run("%tpu_check more --diff").good()
    assert "-    x[x > 0] = 0" in cell.printed and "+    x" in cell.printed


def test_a_cell_that_was_changed_and_run_again_counts_as_it_is_now(notebook: Kernel) -> None:
    assert "TPU102" in text(notebook, "%tpu_check")
    notebook.run(LOOP.replace("        print(loss.item())\n", "")).good()
    assert "TPU102" not in text(notebook, "%tpu_check")


def test_the_checklist_tells_what_it_rests_on(notebook: Kernel) -> None:
    shown = text(notebook, "%tpu_check --ready")
    assert "✗ failed" in shown and "TPU201 at" in shown
    assert "? unknown" in shown and "No run here has trained a step" in shown
    notebook.run(TRAIN).good()
    notebook.run("%%tpu_train model --steps 3\ndef training_function(model):\n    return train(model, 5)\n").good()
    shown = " ".join(text(notebook, "%tpu_check --ready").split())
    assert "The run training_function on XLA:CPU (" in shown


def test_the_checklist_of_one_training_leaves_out_what_it_does_not_use(notebook: Kernel) -> None:
    notebook.run("def clean(x: torch.Tensor):\n    return torch.where(x > 0, x, 0.0)\n").good()
    assert "TPU201" in text(notebook, "%tpu_check --ready")
    shown = text(notebook, "%tpu_check clean --ready")
    assert "TPU201" not in shown and "TPU101" not in shown and "✓ passed" in shown
    assert "--ready takes one NAME" in notebook.run("%tpu_check clean other --ready").said


def test_findings_stand_in_the_panel_and_do_not_stop_the_run(notebook: Kernel) -> None:
    notebook.run(f"%%tpu_train model{TRAINING}").good()
    assert notebook.value(TRAINED)
    found = notebook.value("[(e.code, e.site.path[:2], e.site.line) for e in _tpu.run.events('finding')]")
    assert ("TPU101", "In", 10) in found
    cell = notebook.run("%tpu_panel").good()
    html = "".join(
        str(output.content["data"].get("text/html", "")) for output in [*cell.panel, *cell.of("display_data")]
    )
    assert "TPU101 branch on value" in html


def test_strict_refuses_with_the_lines_and_starts_nothing(notebook: Kernel) -> None:
    cell = notebook.run(f"%%tpu_train model --strict{TRAINING}")
    assert "The run was not started: the code breaks" in cell.said
    assert "TPU101" in cell.said and "if loss > 100:" in cell.said and "--strict" in cell.said
    assert notebook.value(TRAINED) is False


def test_a_front_end_that_keeps_no_history_is_checked_as_well(kernel: Kernel) -> None:
    """nbval runs cells with store_history=False."""
    kernel.run("get_ipython().history_manager.reset(new_session=False)").good()
    for code in ("%reload_ext tpu_magics", MODEL, STEP):
        kernel.client.execute(code, store_history=False, reply=True, timeout=60)
    for code, wanted in (
        ("%tpu_check step", "TPU201"),
        ("%tpu_check other", "TPU101"),
        ("%%tpu_check\nx = 1", "No broken"),
    ):
        sent = kernel.client.execute(code, store_history=False)
        assert wanted in shown_for(kernel, sent), code


def shown_for(kernel: Kernel, sent: str) -> str:
    """The plain text that an execution displays."""
    texts = []
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != sent:
            continue
        if message["msg_type"] in ("display_data", "error", "stream"):
            texts.append(str(message["content"].get("data", message["content"])))
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return "".join(texts)


# -- which cells make up the notebook ------------------------------------------------------------------------------


def paths(texts: dict[int, str], ids: dict[str, str] | None = None) -> list[str]:
    return [cell.path for cell in newest(texts, ids or {})]


def test_front_ends_that_send_ids_tell_which_cells_were_run_again() -> None:
    texts = {1: "a = 1", 2: "b = 1", 3: "something = 'else'"}
    assert paths(texts, {"In [1]": "x", "In [2]": "y", "In [3]": "x"}) == ["In [2]", "In [3]"]


def test_without_ids_likeness_tells() -> None:
    before = "def f(x):\n    y = x + 1\n    z = y * 2\n    return z\n"
    after = before.replace("x + 1", "x + 2")
    assert paths({1: before, 2: "import os", 3: after}) == ["In [2]", "In [3]"]
    assert paths({1: before, 2: "def f(a):\n    return open(a).read()\n"}) == ["In [1]", "In [2]"]
    assert paths({1: "x = 1", 2: "x = 1"}) == ["In [2]"]
