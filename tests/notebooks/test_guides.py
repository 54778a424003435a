"""The guides under notebooks/guides as they are saved: each shows the wrong form, and what the magics do with it. nbval
runs their cells (`make test`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests import _notebooks, overlay
from tests.notebooks.test_tutorials import ROOT
from tpu_magics.check import check_paths

FOLDER = ROOT / "notebooks" / "guides"
GUIDES = sorted(FOLDER.glob("*.ipynb"))

# What each has to show: in the cells that are executed, and in the outputs that nbval compares.
SHOWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "01_accelerate_guide": (
        (
            "%%tpu_check",
            "xmp.spawn",
            "--hoist off",
            "notebook_launcher(training_function, (model,))",
            "downcast_bf16=True",
        ),
        (
            "BrokenProcessPool: A process in the process pool was terminated abruptly",
            "models built: 4, by the notebook: False",
            "models built: 1, by the notebook: True",
            "bf16-downcast: float 1.0, double 1.0009765625",
            "last-batch",
        ),
    ),
    "02_simple_nlp": (
        ('padding="longest"', 'padding="max_length"', "notebook_launcher(training_function, (model,))", "%tpu_pad"),
        ("input-shape", "last-batch", "reads: outputs = model(**batch)", "200 rows; gather gives 240"),
    ),
    "03_simple_cv": (
        ("notebook_launcher(training_loop, args, num_processes=2)", "OneCycleLR(", "requires_grad = False"),
        ("fp16 mixed precision, which TPUs do not support", "120 pictures to test with, 256 counted", "last-batch"),
    ),
    "04_transformers_tpu": (
        (
            "if loss > 1:",
            "[keep]",
            "%tpu_pad",
            "adamw_torch_xla",
            "auto_find_batch_size",
            "gradient_accumulation_steps",
        ),
        ("data-branch", "data-shape", "input-shape", "same losses: True"),
    ),
    "05_tensorflow_tpu": (
        ('TPUClusterResolver(tpu="")', "strategy.scope()", ".fit(", "strategy.run(", "tf.GradientTape()"),
        ("Please provide a TPU Name to connect to", "last-batch"),
    ),
}


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def text_of(cell: Any) -> str:
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def test_there_is_each_guide() -> None:
    assert [path.stem for path in GUIDES] == list(SHOWS)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_a_guide_shows_what_goes_wrong_and_what_the_magics_do_with_it(path: Path) -> None:
    written, seen = SHOWS[path.stem]
    source = "\n".join(cell.source for cell in cells(path))
    outputs = "\n".join(text_of(cell) for cell in cells(path))
    assert [one for one in written if one not in source] == []
    assert [one for one in seen if one not in outputs] == []
    assert "%tpu_init" in source and re.search(r"%tpu_train|tpu_magics\.train\(", source)


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_a_guide_fetches_nothing_and_names_its_source(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = "\n".join(cell.source for cell in cells(path)[1:])  # the first is the hosts' (test_first_cell.py)
    assert not re.search(r"https?://|from_pretrained|load_dataset|urlretrieve|!pip|%pip", code)
    assert "https://" in notebook.cells[0].source, "the guide itself is linked"


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_links_lead_to_something(path: Path) -> None:
    prose = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", prose) if not target.startswith("http")]
    assert [target for target in targets if not (FOLDER / target).exists()] == []


def test_rules_hold_but_where_a_guide_breaks_them_on_purpose() -> None:
    assert list(check_paths([str(FOLDER)])) == []


def test_tensorflows_kernels_have_its_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "python_path", lambda: "its packages")
    notebooks = (ROOT / "notebooks").rglob("*.ipynb")
    chosen = {path.stem for path in notebooks if "PYTHONPATH" in _notebooks.environment(path)}
    assert chosen == {"06_tensorflow", "05_tensorflow_tpu"}
