"""The rules before a run: in its records, refused with strict, and never the reason that a run fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch_xla

from tests.launch.launching import FakeNotebook, fake_notebook, refused, run, said
from tpu_magics.backends import frameworks
from tpu_magics.check.cells import CodeCell, cell_of, without_redefined
from tpu_magics.check.rules.ranks import OptimizerStep
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import rule_check, session
from tpu_magics.runs.events import RuleFinding

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]

BROKEN = "import torch\ndef f(x: torch.Tensor):\n    if x.sum() > 0:\n        return x[x > 0]\n"
USED = "def nothing():\n    f(torch.ones(3))\n"
TRAINING = "def train(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n"
CLEAN = "import torch\ndef f(x: torch.Tensor):\n    return torch.where(x > 0, x, 0.0)\n"


class FakeCells(FakeNotebook):
    """A notebook of these cells; an exception among them is raised when they are asked for."""

    def __init__(self, *texts: str | Exception) -> None:
        super().__init__()
        self.texts = texts

    def checked_cells(self) -> list[CodeCell]:
        for text in self.texts:
            if isinstance(text, Exception):
                raise text
        return [cell_of(str(text), f"In [{number}]") for number, text in enumerate(self.texts, 1)]


def notebook(*texts: str | Exception) -> FakeCells:
    session.current.notebook = FakeCells(*texts)
    return session.current.notebook


def nothing() -> None:
    pass


def test_what_was_found_stands_in_the_run_with_its_place_and_reasons() -> None:
    notebook("a = 1", BROKEN, USED)
    found = run(nothing).run.events("finding")
    assert [(e.code, e.group, e.site.path, e.site.line, e.site.code) for e in found if isinstance(e, RuleFinding)] == [
        ("TPU101", "values", "In [2]", 3, "if x.sum() > 0:"),
        ("TPU201", "shapes", "In [2]", 4, "return x[x > 0]"),
    ]
    assert all(e.message and e.why and e.fix for e in found if isinstance(e, RuleFinding))


def test_clean_cells_leave_no_record() -> None:
    notebook(CLEAN)
    assert run(nothing, strict=True).run.events("finding") == []


def test_strict_starts_nothing_and_names_the_lines(runs: Path) -> None:
    notebook(BROKEN, USED)
    text = said(refused(nothing, strict=True))
    assert "the code breaks 2 rules." in text
    assert "TPU101 In [1], line 3" in text and "if x.sum() > 0:" in text and "# noqa: CODE" in text
    assert not runs.exists() or not list(runs.iterdir()), "a run folder was made"


def test_functions_that_the_run_does_not_use_say_nothing_of_it() -> None:
    other = BROKEN.replace("def f", "def other")
    notebook(other, "def nothing():\n    pass\n")
    assert run(nothing, strict=True).run.events("finding") == []
    for used in (
        "def nothing():\n    other(torch.ones(3))\n",
        "def nothing():\n    return dict(step=other)\n",
        "other(torch.ones(3))\n",
    ):
        notebook(other, used)
        assert "TPU101" in said(refused(nothing, strict=True)), used


def test_a_comment_silences_strict() -> None:
    notebook(BROKEN.replace("> 0:", "> 0:  # noqa: TPU101").replace("[x > 0]", "[x > 0]  # noqa"), USED)
    assert run(nothing, strict=True).run.status == "done"


def test_a_fault_of_the_checker_costs_a_line_and_no_run() -> None:
    book = notebook(RuntimeError("boom"))
    assert run(nothing).run.status == "done"
    assert "The rule check failed (RuntimeError: boom)." in book.lines
    assert "The run was not started. The rule check failed" in said(refused(nothing, strict=True))


def test_a_fault_of_one_rule_costs_a_line_and_no_other_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(OptimizerStep, "check_program", fails)
    book = notebook(BROKEN, USED)
    told = [event.code for event in run(nothing).run.events("finding") if isinstance(event, RuleFinding)]
    assert told and "TPU003" not in told
    (line,) = [one for one in book.lines if "TPU405" in one]
    assert line == "The rule TPU405 (optimizer-step) failed with KeyError: 'boom'. What it would have found is missing."
    assert "--strict requires the rule check." in said(refused(nothing, strict=True))


def test_a_plain_program_is_checked_as_its_file() -> None:
    cells = session.current.notebook.checked_cells()
    path = getattr(sys.modules["__main__"], "__file__", None)  # pytest's own program, and none in a worker of xdist
    assert [cell.path for cell in cells] == ([str(path)] if path else [])


# -- the checklist -------------------------------------------------------------------------------------------------


def items(*texts: str) -> dict[str, rule_check.ChecklistItem]:
    from tpu_magics.check import check_cells

    cells = [cell_of(text, f"In [{number}]") for number, text in enumerate(texts, 1)]
    return {item.question: item for item in rule_check.checklist(cells, check_cells(cells))}


RULES = [
    "XLA rule 1: no condition on data, no value read in a step",
    "XLA rule 2: no shape that depends on data",
    "XLA rule 3: few distinct shapes",
]
TRIED, FITS, PLACE = (
    "Trained some steps with XLA without a TPU",
    "Fits in the TPU's memory",
    "Initialization and strategy present",
)
JIT = "jit_compile set correctly for a TPU"


def test_broken_rules_fail_their_item_and_no_other() -> None:
    found = items(BROKEN, TRAINING)
    assert [found[question].state for question in RULES] == ["failed", "failed", "passed"]
    assert "TPU101 at In [1], line 3" in found[RULES[0]].evidence


def test_what_nothing_is_known_of_is_unknown_with_the_reason() -> None:
    found = items(CLEAN)
    assert found[TRIED].state == found[FITS].state == "unknown"
    assert "No run here" in found[TRIED].evidence and "%tpu_preflight" in found[FITS].evidence
    for nothing_to_read in (items(), items("%load_ext tpu_magics"), items("import torch"), items(CLEAN)):
        assert all(nothing_to_read[question].state == "unknown" for question in RULES)
    assert all(items(CLEAN, TRAINING)[question].state == "passed" for question in RULES)


def test_a_launch_is_looked_for() -> None:
    assert items(CLEAN)[PLACE].state == "failed"
    assert items(CLEAN, "%%tpu_train x\ndef g(x):\n    return f(x)\n")[PLACE].state == "passed"
    assert items(CLEAN, "from accelerate import notebook_launcher\nnotebook_launcher(f, (1,))")[PLACE].state == "passed"


def test_the_strategy_of_tpu_init_is_known() -> None:
    scope = "import tensorflow as tf\nwith strategy.scope():\n    m = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
    assert items("%tpu_init --framework tensorflow\n", scope)[PLACE].state == "passed"
    assert items(scope)[PLACE].state == "failed"
    own = "resolver = tf.distribute.cluster_resolver.TPUClusterResolver('local')\n"
    assert items("%tpu_init --framework tensorflow\n", scope + own)[PLACE].state == "failed", "its own is incomplete"


def test_what_only_tpu_init_imported_is_no_framework_of_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    monkeypatch.setattr(frameworks, "prepared", {"torch"})
    assert frameworks.choose_framework("auto", cells=["import tensorflow as tf"]) == "tensorflow"
    for both in ("import torch", "from transformers import Trainer", "import numpy, torch_xla"):
        with pytest.raises(TpuMagicsError, match="unclear"):
            frameworks.choose_framework("auto", cells=["import tensorflow as tf", both])
    monkeypatch.setattr(frameworks, "prepared", set())
    with pytest.raises(TpuMagicsError, match="unclear"):
        frameworks.choose_framework("auto", cells=["import tensorflow as tf"])


def test_a_script_that_was_given_an_xla_device_is_checked_as_one(tmp_path: Path) -> None:
    script = tmp_path / "gpu.py"
    script.write_text(
        "import torch, sys\nmodel = torch.nn.Linear(4, 2).to(sys.argv[1])\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor i in range(9):\n"
        "    loss = model(torch.ones(3, 4).to(sys.argv[1])).sum()\n    loss.backward()\n    optimizer.step()\n"
    )
    with_device = rule_check.check_code(object(), script, False, 1, ("--device=xla",))
    assert [(one.code, one.line) for one in with_device] == [("TPU405", 7)]
    assert rule_check.check_code(object(), script, False, 1) == []
    script.write_text("import torch\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n")
    assert [(one.code, one.line) for one in rule_check.check_code(object(), script, False, 1)] == [("TPU413", 2)]
    assert rule_check.check_code(object(), script, False, 1, ("--device", "xla:0")) == []


def test_tensorflow_needs_resolver_initialisation_and_strategy() -> None:
    head = "import tensorflow as tf\nresolver = tf.distribute.cluster_resolver.TPUClusterResolver('local')\n"
    found = items(head)[PLACE]
    assert found.state == "failed" and "initialize_tpu_system, TPUStrategy" in found.evidence
    rest = "tf.tpu.experimental.initialize_tpu_system(resolver)\nstrategy = tf.distribute.TPUStrategy(resolver)\n"
    assert items(head + rest)[PLACE].state == "passed"
    assert items(head + rest + "step = tf.function(lambda x: x, jit_compile=True)\n")[JIT].state == "failed"


def read_each_step(steps: int) -> None:
    x = torch.ones(4, device=torch_xla.device())
    for step in range(steps):
        x = x * torch.full((1,), float(step + 2), device=x.device)
        y = torch.zeros(4 + step, device=x.device) + x.sum()
        print(y.sum().item())
        torch_xla.sync()


def test_an_earlier_run_is_evidence_also_against() -> None:
    fake_notebook()
    result = run(read_each_step, 5)
    found = items(CLEAN, TRAINING)
    assert found[TRIED].state == "passed" and "): 5 steps" in found[TRIED].evidence
    assert found[RULES[0]].state == "failed", "what was measured counts against what the code looks like"
    assert "read values within steps" in found[RULES[0]].evidence
    assert result.recompiles and any("recompiled" in item.evidence for item in found.values())


def test_every_item_rests_on_something() -> None:
    for found in (items(CLEAN), items(BROKEN), items()):
        assert all(
            item.evidence.endswith(".") and item.state in ("passed", "failed", "unknown") for item in found.values()
        )


def test_the_definition_that_will_run_is_looked_at() -> None:
    """Not an older one of its name, nor what only that one used."""
    helper = BROKEN.replace("def f", "def helper")
    old = "def nothing():\n    helper(torch.ones(3))\n    for loss in losses:\n        print(loss)\n"
    notebook(helper, old, "def nothing():\n    return 1\n")
    assert run(nothing, strict=True).run.events("finding") == []
    notebook(helper, "def nothing():\n    return 1\n", old)
    assert "TPU101" in said(refused(nothing, strict=True))


def test_a_function_that_was_replaced_since_is_looked_at_where_it_is_what_runs() -> None:
    cells = notebook(BROKEN, "def nothing():\n    f(torch.ones(3))\n", "def nothing():\n    pass\n")
    cells.cell_names = lambda: {__file__: "In [2]"}  # type: ignore[method-assign]
    assert "TPU101" in said(refused(nothing, strict=True))
    cells.cell_names = lambda: {__file__: "In [3]"}  # type: ignore[method-assign]
    assert run(nothing, strict=True).run.events("finding") == []


def test_what_is_registered_under_one_name_is_all_kept() -> None:
    registered = "@show.register\ndef _(x: torch.Tensor):\n    if x.sum() > 0:\n        return x\n"
    cells = [
        cell_of(registered, "In [1]"),
        cell_of(registered, "In [2]"),
        cell_of("class A:\n    pass\n" * 2, "In [3]"),
    ]
    kept = without_redefined(cells)
    assert kept[:2] == cells[:2] and len(kept[2].tree.body if kept[2].tree else []) == 1
