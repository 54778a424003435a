"""The group `launch`: TPU401 agrees with the launcher's hoisting, and findings that depend on other cells."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.check.group_checks import TORCH_XLA
from tpu_magics.backends.torch_xla.library_fixes import RESTORED
from tpu_magics.check import Finding, check_cells, check_text
from tpu_magics.check.cells import cell_of
from tpu_magics.check.inference.library_results import REMOVED, XM
from tpu_magics.check.rules import RULES

LAUNCH = [rule for rule in RULES if rule.group == "launch"]
RULE = {rule.code: rule for rule in LAUNCH}


def found(*cells: str) -> list[Finding]:
    """The findings of this group in the cells of a notebook."""
    return check_cells(
        [cell_of(textwrap.dedent(text), "nb.ipynb", number) for number, text in enumerate(cells, 1)], LAUNCH
    )


def codes(*cells: str) -> list[str]:
    return [one.code for one in found(*cells)]


# -- static and run time agree ---------------------------------------------------------------------------------------

# What only building the model, or the values in the notebook, can tell.
AT_RUN_TIME = (
    "around a model", "own generator", "generator as an argument", "cannot be copied", "keeps its argument",
    "changes its argument", "raises", "fails to evaluate",
)  # fmt: skip


def trained_by_us(before: str, body: str) -> list[Finding]:
    text = f"{before}\ndef train(flag=True):\n    {body}\n    return 1\nimport tpu_magics\ntpu_magics.train(train)\n"
    return check_text(text, "x.py", [RULE["TPU401"]])


def test_what_the_launcher_declines_to_hoist_is_found() -> None:
    pytest.importorskip("torch_xla")
    from tests.launch import hoisting, test_hoist_declined

    before = hoisting.NOTEBOOK + test_hoist_declined.NAMES
    told = {case: trained_by_us(before, body) for case, (body, *_) in test_hoist_declined.DECLINED.items()}
    assert set(AT_RUN_TIME) < set(told)
    assert sorted(case for case, findings in told.items() if not findings) == sorted(AT_RUN_TIME)
    assert all("cannot be hoisted" in one.message for findings in told.values() for one in findings)


def test_what_the_launcher_hoists_is_fine() -> None:
    pytest.importorskip("torch_xla")
    from tests.launch import hoisting, test_hoist

    before = hoisting.NOTEBOOK + test_hoist.HELPERS
    told = {case: trained_by_us(before, body) for case, (body, _) in test_hoist.FORMS.items()}
    assert {case: findings for case, findings in told.items() if findings} == {}


def test_the_programs_that_compiles_are_watched_with_make_their_steps_right() -> None:
    folder = Path(__file__).parents[1] / "cases" / "recompiles"
    told = {path.name: check_text(path.read_text(), "x.py", [RULE["TPU405"]]) for path in folder.glob("*.py")}
    never_synced = [told.pop(name) for name in [*told] if name.endswith("never_synced.py")]
    assert [[one.code for one in findings] for findings in never_synced] == [["TPU405"]] * 2
    assert {name: findings for name, findings in told.items() if findings} == {}


# -- the notebook around a line --------------------------------------------------------------------------------------

STEPPING = """
def train():
    device = torch_xla.device()
    model = torch.nn.Linear(4, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4, device=device)).sum().backward()
        optimizer.step()
        torch_xla.sync()
"""


@pytest.mark.parametrize(
    ("init", "magic", "wanted"),
    [
        ("%tpu_init", "%%tpu_train", []),  # as many as there are chips: one on Colab
        ("%tpu_init -n 8", "%%tpu_train", ["TPU405"]),
        ("%tpu_init --processes 8", "%%tpu_train -n 1", []),
        ("%tpu_init -n 1", "%%tpu_train --processes=4", ["TPU405"]),
        ("%tpu_init", "%%tpu_train -n2", ["TPU405"]),
    ],
)
def test_how_many_ranks_the_magics_ask_for(init: str, magic: str, wanted: list[str]) -> None:
    assert codes(f"%load_ext tpu_magics\n{init}\n{TORCH_XLA}", f"{magic}\n{STEPPING}") == wanted


def test_a_cell_that_says_ranks_is_written_for_several() -> None:
    told = STEPPING.replace("    for _", "    xm.master_print('starts')\n    for _")
    assert codes(f"%load_ext tpu_magics\n{TORCH_XLA}", f"%%tpu_train\n{told}") == ["TPU405"]


PREPARED = """
from accelerate import Accelerator
accelerator = Accelerator()
net, optimizer = accelerator.prepare(torch.nn.Linear(4, 2), torch.optim.SGD([torch.zeros(1)], lr=0.1))
"""
LIGHTNING = """
import lightning as L
class Lit(L.LightningModule):
    def training_step(self, batch, index):
        return self(batch)
"""
WRAPPED = """
from torch.nn.parallel import DistributedDataParallel as DDP
def build():
    return DDP(torch.nn.Linear(4, 2))
"""
OWN_MODEL = STEPPING.replace("    model = torch.nn.Linear(4, 2).to(device)\n", "")
GIVEN_MODEL = OWN_MODEL.replace("def train()", "def train(model)")


def of_ranks(*cells: str) -> list[str]:
    return [one for one in codes(f"%load_ext tpu_magics\n{TORCH_XLA}", *cells) if one in ("TPU405", "TPU407")]


@pytest.mark.parametrize("earlier", [PREPARED, LIGHTNING, WRAPPED, WRAPPED + "model = build()\n"])
def test_what_other_cells_wrap_does_not_handle_a_run_that_uses_nothing_of_it(earlier: str) -> None:
    assert of_ranks(earlier, f"%%tpu_train -n 2\n{STEPPING}") == ["TPU405"]
    assert of_ranks(earlier, STEPPING, "%tpu_train train -n 2") == ["TPU405"]
    statements = textwrap.dedent(STEPPING.replace("def train():", ""))
    assert of_ranks(earlier, f"%%tpu_train -n 2\n{statements}") == ["TPU405"]


LOADER = "loader = torch.utils.data.DataLoader([1.0] * 8, shuffle=True)\n"
READING = "%%tpu_train -n 2\ndef train():\n    for x in loader:\n        print(x)\n"


def test_a_loader_is_prepared_before_it_is_read_or_not_at_all() -> None:
    assert of_ranks(PREPARED, LOADER, READING) == ["TPU407"]
    assert of_ranks(PREPARED, LOADER, "loader = accelerator.prepare(loader)\n", READING) == []
    given = READING.replace("train -n", "train loader -n").replace("train()", "train(loader)")
    assert of_ranks(PREPARED, LOADER, given) == ["TPU407"]
    assert of_ranks(PREPARED, LOADER, "loader = accelerator.prepare(loader)\n", given) == []


@pytest.mark.parametrize(
    ("earlier", "trained"),
    [
        (WRAPPED + "model = build()\n", f"%%tpu_train -n 2\n{OWN_MODEL}"),
        (WRAPPED + "net = build()\n", f"%%tpu_train net -n 2\n{GIVEN_MODEL}"),
        (
            WRAPPED + "net = build()\n",
            f"%%tpu_train -n 2\n{GIVEN_MODEL}\nimport torch_xla\ntorch_xla.launch(train, (net,))",
        ),
        (WRAPPED, f"%%tpu_train -n 2\n{STEPPING.replace('torch.nn.Linear(4, 2)', 'build()')}"),
        (
            PREPARED,
            f"%%tpu_train -n 2\n{STEPPING.replace('.backward()', '.backward(); accelerator.backward(model(1))')}",
        ),
        ("import torch_xla.runtime as xr\nxr.use_spmd()\n", f"%%tpu_train -n 2\n{STEPPING}"),
        ("import torch_xla.runtime as xr\ndef go():\n    xr.use_spmd()\ngo()\n", f"%%tpu_train -n 2\n{STEPPING}"),
    ],
)
def test_what_the_run_uses_of_other_cells_handles_its_steps(earlier: str, trained: str) -> None:
    assert of_ranks(earlier, trained) == []


def test_names_of_an_earlier_loop_and_of_earlier_runs_are_not_those_of_this_one() -> None:
    looped = "for x in loader:\n    accelerator.backward(net(x)); optimizer.step()\n"
    data = "loader = accelerator.prepare(torch.utils.data.DataLoader([1.0] * 8))\n"
    earlier = f"%%tpu_train{PREPARED}{data}{looped}", f"%%tpu_train\n{looped}"
    loop = """
device = torch_xla.device()
model = torch.nn.Linear(4, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    model(x.to(device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
"""
    assert sorted(of_ranks(*earlier, LOADER, f"%%tpu_train -n 2{loop}")) == ["TPU405", "TPU407"]
    function = "def train():" + loop.replace("\n", "\n    ").rstrip() + "\n"
    assert sorted(of_ranks(*earlier, LOADER, f"%%tpu_train -n 2\n{function}")) == ["TPU405", "TPU407"]


def test_a_model_that_was_replaced_after_it_was_wrapped_is_handled_by_nothing() -> None:
    again = "model = torch.nn.Linear(4, 2)\n"
    assert of_ranks(WRAPPED + "model = build()\n", again, f"%%tpu_train -n 2\n{OWN_MODEL}") == ["TPU405"]


def test_our_launcher_honours_what_torch_xla_refuses() -> None:
    launch = "xmp.spawn(f, nprocs=8)"
    setup = "import torch_xla.distributed.xla_multiprocessing as xmp\ndef f(index):\n    pass\n"
    assert codes(setup, launch) == ["TPU410", "TPU404"]
    assert codes("%load_ext tpu_magics", setup, f"%%tpu_train\n{launch}") == []


def test_a_function_of_scripts_that_no_call_starts_is_nothing() -> None:
    assert codes("def _mp_fn(index):\n    pass\n", "%%tpu_train\nb = 1") == []


def test_what_comes_behind_the_launch_is_not_too_early() -> None:
    function = "def f():\n    pass\n"
    setup = "from accelerate import Accelerator, notebook_launcher\n"
    assert codes(setup, "accelerator = Accelerator()", f"{function}\nnotebook_launcher(f)") == ["TPU402"]
    assert codes(setup, f"{function}\nnotebook_launcher(f)", "accelerator = Accelerator()") == []
    assert codes(setup, "accelerator = Accelerator()", f"{function}\nnotebook_launcher(f, num_processes=1)") == []


def test_seeds_and_arguments_are_kept_quiet_by_tpu_magics() -> None:
    cells = (
        "from accelerate.utils import set_seed\nfrom transformers import TrainingArguments",
        "set_seed(0)\narguments = TrainingArguments('out')",
    )
    assert codes("from accelerate import notebook_launcher", *cells, "def f():\n    pass\nnotebook_launcher(f)") == [
        "TPU402",
        "TPU402",
    ]
    assert codes("%load_ext tpu_magics", *cells, "%%tpu_train\ndef f():\n    pass\n") == []


def test_one_problem_is_reported_once() -> None:
    cells = (
        "import torch\nimport torch_xla.core.xla_model as xm\nfrom accelerate import notebook_launcher",
        "weights = torch.ones(3).to(xm.xla_device())",
        "def f():\n    print(weights)\n\nnotebook_launcher(f)",
    )
    assert codes(*cells) == ["TPU403"]


def test_an_optimizer_of_an_earlier_cell_trains_under_our_launcher() -> None:
    setup = "import torch\nimport torch_xla\nfrom accelerate import notebook_launcher\n"
    made = "model = torch.nn.Linear(4, 2)\noptimizer = torch.optim.Adam(model.parameters())\n"

    def told(*cells: str) -> list[str]:
        return [one.message for one in found(setup, made, *cells) if one.code == "TPU403"]

    function = "def f():\n    model.to(torch_xla.device())\n    optimizer.step()\n    torch_xla.sync()\n"
    assert told(f"{function}notebook_launcher(f)")
    assert told(f"%%tpu_train\n{function}") == []
    assert told(f"%%tpu_train\n{function}notebook_launcher(f)") == []
    assert told(f"{function}notebook_launcher(f)", f"%%tpu_train\n{function}")


def test_a_notebook_for_gpus_is_left_alone() -> None:
    cells = (
        "!nvidia-smi\nimport torch\nfrom accelerate import notebook_launcher",
        "def f():\n    model = torch.nn.Linear(4, 4)\n    outputs = model\n\nnotebook_launcher(f, num_processes=4)",
    )
    assert codes(*cells) == []
    assert codes("# or on a TPU", *cells) == ["TPU401", "TPU404"]


def test_a_fix_for_a_cell_says_where_the_weights_are() -> None:
    (one,) = found(
        "%load_ext tpu_magics\nimport torch\nmodel = torch.nn.Linear(4, 4)",
        "%%tpu_train model\ndef f(model):\n    torch.save(model.state_dict(), 'model.pt')",
    )
    assert one.code == "TPU408"
    assert "next cell" in one.fix


SAVING = """
import json, torch, torch_xla
import torch_xla.core.xla_model as xm

model = torch.nn.Linear(4, 4)

def f(index):
    model.to(torch_xla.device())
    SAVE

torch_xla.launch(f, args=())
"""


@pytest.mark.parametrize(
    ("save", "fix", "fixed"),
    [
        ("torch.save(model.state_dict(), 'a.pt')", "`xm.save(model.state_dict(), 'a.pt')`", True),
        ("torch.save(model, 'a.pt')", "`xm.save(model.state_dict(), 'a.pt')`", False),
        (
            "with open(path, 'wb') as file: torch.save(model.state_dict(), file)",
            "`xm.save(model.state_dict(), path)`",
            False,
        ),
        ("torch.save(model, open(path, 'wb'))", "`xm.save(model.state_dict(), path)`", False),
        (
            "with open(path, 'w') as file: json.dump({}, file)",
            "it and `open(path, 'w')`, which empties the file,",
            False,
        ),
        ("json.dump({}, file)", "Put it under", False),
    ],
)
def test_a_save_of_one_rank_empties_no_file_and_holds_what_the_cpu_can_load(save: str, fix: str, fixed: bool) -> None:
    (one,) = check_text(SAVING.replace("SAVE", save), "x.py", [RULE["TPU408"]])
    assert fix in one.fix
    assert bool(one.edits) is fixed


def test_a_removed_name_is_advice_where_it_is_restored() -> None:
    old = "import torch_xla.core.xla_model as xm\ndef train():\n    return xm.xrt_world_size()"
    assert [one.advice for one in found(old)] == [False]
    assert [one.advice for one in found("%tpu_init", old)] == [True]
    assert [one.advice for one in found("%tpu_init", "import torch_xla.experimental.pjrt")] == [False]
    of_model = {name.removeprefix(XM): now for name, (_, now) in REMOVED.items() if name.startswith(XM)}
    assert of_model == {name: f"torch_xla.runtime.{now}" for name, now in RESTORED.items()}
