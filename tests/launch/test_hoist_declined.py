"""Models that stay in the training function: the reasons that are given, and that nothing changes by the attempt."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_xla")

from tpu_magics.launch.hoist.functions import function_source

from .hoisting import BACKEND, Notebook, in_worker, reasons, same, states


@pytest.fixture(scope="module", autouse=True)
def _prepared():
    BACKEND.prepare()
    yield
    assert not BACKEND.runtime_initialized()


@pytest.fixture
def notebook():
    made = Notebook()
    made.run(NAMES)
    before = states()
    yield made
    assert states() == before, "hoisting left something behind"


NAMES = """
import importlib
from accelerate import Accelerator, init_empty_weights
CFG = Config()
SEEN = []
base = Net(4)
stream_of_numbers = (i for i in range(3))
generator = np.random.default_rng(0)

def pair():
    model = Net(4)
    return model, 1
def some(flag):
    if flag:
        return None
    return Net(4)
def moved():
    model = Net(4)
    return model.to("cpu")
def counting():
    SEEN.append(1)
    return Net(4)
def on_device():
    import torch_xla
    model = Net(4)
    model.to(torch_xla.device())
    return model
def through():
    return counting()
class Wrapper(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.head = nn.Linear(4, 2)
class OnDevice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2).to("xla")
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = nn.Parameter(torch.tensor(generator.random(3)))
class Kept(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(table)
class Changing(nn.Module):
    def __init__(self, table):
        super().__init__()
        table += 1
        self.layer = nn.Linear(2, 2)
TABLE = torch.zeros(4, 4)
def unknown(): return 4
"""

# A line for the case, the call that stays and the reason; then the body of `train(flag=True)`.
CASES = """
# if | Net(4) | it is built inside an `if` (line 3)
if flag:
    model = Net(4)
# for | Net(4) | it is built in a loop (line 3): each pass makes a different model
for _ in range(2):
    model = Net(4)
# while | Net(4) | it is built in a loop (line 3): each pass makes a different model
while flag:
    model = Net(4)
# comprehension | Net(4) | it is built in a comprehension (line 3): each pass makes a different model
models = [Net(4) for _ in range(2)]
# try | Net(4) | it is built inside a `try` (line 3)
try:
    model = Net(4)
except ValueError: pass
# match | Net(4) | it is built inside a `match` (line 3)
match flag:
    case True: model = Net(4)
# condition | Net(4) | it is built only on a condition (line 3)
model = Net(4) if flag else None
# or | Net(4) | it is built only on a condition (line 3)
model = flag or Net(4)
# inner function | Net(4) | it is in the inner function `build` (line 3), which may run any number of times
def build():
    return Net(4)
model = build()
# lambda | Net(4) | it is in a lambda (line 3), which may run any number of times
build = lambda: Net(4)
# with | Net(4) | it is inside `with init_empty_weights()` (line 3), which may change how it is built
with init_empty_weights():
    model = Net(4)
# inner class | Own() | its class is defined in the code that is trained (line 3), not before
class Own(nn.Module): pass
model = Own()
# device | Net(4, device=d) | argument `d` comes from line 4 (`d = accelerator.device`), which depends on the device
accelerator = Accelerator()
d = accelerator.device
model = Net(4, device=d)
# world size | Net(accelerator.num_processes) | argument `accelerator.num_processes` comes from line 3 (`accelerator =
#   Accelerator()`), which depends on the device
accelerator = Accelerator()
model = Net(accelerator.num_processes)
# unknown call | Net(n + 1) | argument `n + 1` comes from line 3 (`n = unknown()`), which calls `unknown`, whose
#   result is known only when the function runs
n = unknown()
model = Net(n + 1)
# in two steps | Net(m) | argument `m` comes from line 4 (`m = n`), which comes from line 3 (`n = unknown()`), which
#   calls `unknown`, whose result is known only when the function runs
n = unknown()
m = n
model = Net(m)
# set twice | Net(n) | argument `n` comes from line 4 (`n = 4`), which sets it in line 3 and again in line 4
n = 3
n = 4
model = Net(n)
# set in an if | Net(n) | argument `n` comes from line 3 (`if flag: ...`), which sets it in a way that is known only
#   when the function runs
if flag:
    n = 4
model = Net(n)
# unpacked | Net(n) | argument `n` comes from line 3 (`n, m = 4, 5`), which sets it in a way that is known only when
#   the function runs
n, m = 4, 5
model = Net(n)
# parameter set again | Net(flag) | argument `flag` comes from line 3 (`flag = 4`), which sets it as a parameter and
#   again in line 3
flag = 4
model = Net(flag)
# changed config | Configured(c) | argument `c` needs `c`, which is changed in line 4 (`c.width = 8`)
c = Config()
c.width = 8
model = Configured(c)
# changed global | Configured(CFG) | argument `CFG` needs `CFG`, which is changed in line 3 (`CFG.width = 8`)
CFG.width = 8
model = Configured(CFG)
# changed dict | Net(**d) | argument `d` needs `d`, which is changed in line 4 (`if flag: ...`)
d = dict(width=4)
if flag:
    d.update(depth=2)
model = Net(**d)
# changed class | Net(4) | it needs `Net`, which is changed in line 3 (`Net.extra = 8`)
Net.extra = 8
model = Net(4)
# lambda argument | Net(4, f=lambda x: x) | argument `lambda x: x` is more than an expression that reads values
model = Net(4, f=lambda x: x)
# tuple helper | pair() | `pair` returns a tuple (line 12); only a helper that returns the model alone is hoisted
model, n = pair()
# helper with another return | some(False) | `some` returns `None` (line 15), which is no call that builds a model
model = some(False)
# helper with a method | moved() | `moved` returns `model.to("cpu")` (line 19), which is no call that builds a model
model = moved()
# helper with an effect | counting() | `counting` changes `SEEN.append`, which is not its own (line 21)
model = counting()
# helper of a helper with an effect | through() | `counting` changes `SEEN.append`, which is not its own (line 21)
model = through()
# helper that uses the device | on_device() | its code uses `torch_xla`, which may start the accelerator's runtime in
#   the notebook
model = on_device()
# class that uses the device | OnDevice() | its code uses "xla", which may start the accelerator's runtime in the
#   notebook
model = OnDevice()
# device as an argument | Net(4, device='xla') | one of its arguments depends on the device
model = Net(4, device='xla')
# around a model | Wrapper(base) | one of its arguments is a model, which the build might change
model = Wrapper(base)
# own generator | Noisy() | its code reads the random generator `generator`
model = Noisy()
# generator as an argument | Net(4, rng=generator) | one of its arguments is a random generator
model = Net(4, rng=generator)
# cannot be copied | Net(4, numbers=stream_of_numbers) | an argument cannot be copied (TypeError: cannot pickle
#   'generator' object)
model = Net(4, numbers=stream_of_numbers)
# keeps its argument | Kept(TABLE) | the model lies in the memory of one of its arguments, so nothing is copied
model = Kept(TABLE)
# changes its argument | Changing(TABLE) | building it changes argument 1
model = Changing(TABLE)
# raises | Net(4, 'four') | building it in the notebook raised TypeError: 'str' object cannot be interpreted as an
#   integer
model = Net(4, 'four')
# fails to evaluate | Net(CFG.height) | an argument could not be evaluated in the notebook (AttributeError: 'Config'
#   object has no attribute 'height')
model = Net(CFG.height)
# part in a comprehension | nn.Sequential(*[nn.Linear(4, 4) for _ in range(2)]) | its part `nn.Linear(4, 4)` cannot be
#   hoisted: it is built in a comprehension (line 3): each pass makes a different model
model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(2)])
"""


def declined(table):
    """The cases of such a table: name -> body, call, reason."""
    found = {}
    for case in re.split(r"\n(?=# \S)", table.strip()):
        lines = case.splitlines()
        head = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        name, code, reason = head.split(" | ")
        found[name] = "\n    ".join(line for line in lines if not line.startswith("#")), code, reason
    return found


DECLINED = declined(CASES)


@pytest.mark.parametrize("case", DECLINED)
def test_the_reason_is_told_and_the_notebook_stays_as_it_was(notebook, case):
    body, code, reason = DECLINED[case]
    kept = states()
    held = notebook.names["TABLE"].sum(), list(notebook.names["SEEN"]), vars(notebook.names["CFG"]).copy()
    plan = notebook.plan_of(f"\ndef train(flag=True):\n    {body}\n    return 1\n")
    assert plan.hoisted == ()
    assert reasons(plan) == {code: reason}
    assert plan.code is None
    assert states() == kept
    assert (notebook.names["TABLE"].sum(), notebook.names["SEEN"], vars(notebook.names["CFG"])) == held


def test_what_is_said(notebook):
    plan = notebook.plan_of("def train():\n    for _ in range(2):\n        model = Net(4)\n")
    assert plan.warnings() == [
        "`Net(4)` in line 3 is built by each worker: it is built in a loop (line 2): each pass makes a different model"
    ]
    assert plan.describe(8) == []


@pytest.mark.process
def test_the_part_of_a_model_that_stays_is_hoisted(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(1)
            n = unknown()
            model = nn.ModuleDict({"a": Net(4), "b": square(n), "c": Net(4)})
            return bits(model), stream()
        def square(n): return nn.Linear(n, n)
    """)
    assert list(plan.models) == ["Net"]
    assert reasons(plan) == {
        'nn.ModuleDict({"a": Net(4), "b": square(n), "c": Net(4)})': "its part `square(n)` cannot be hoisted: argument "
        "`n` comes from line 4 (`n = unknown()`), which calls `unknown`, whose result is known only when the function "
        "runs",
        "Net(4)": "`square(n)` (line 5) runs before it and draws random numbers in the worker only",
    }
    same(notebook, plan)


@pytest.mark.process
def test_models_after_one_that_stays_are_hoisted_only_behind_a_seed(notebook):
    plan = notebook.plan_of("""
        def train():
            seed(1)
            first = Net(unknown())
            second = Net(4)
            torch.manual_seed(2)
            third = Net(4)
            return [bits(m) for m in (first, second, third)], stream()
    """)
    assert list(plan.models) == ["third"]
    assert (
        reasons(plan)["Net(4)"]
        == "`Net(unknown())` (line 4) runs before it and draws random numbers in the worker only"
    )
    same(notebook, plan)


def test_a_function_without_source(notebook):
    exec(compile("def train():\n    return Net(4)", "<made up>", "exec"), notebook.names)
    plan = notebook.plan("train")
    assert plan.hoisted == ()
    assert reasons(plan) == {"Net": "the source of the function is not available"}


def test_source_that_was_edited_since(notebook, tmp_path):
    import importlib.util

    file = tmp_path / "edited_since.py"
    file.write_text("from torch import nn\ndef train():\n    model = nn.Linear(2, 2)\n    return 1\n")
    spec = importlib.util.spec_from_file_location("edited_since", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    file.write_text("from torch import nn\ndef train():\n    model = nn.Linear(3, 3)\n    return 1\n")
    notebook.names["train"] = module.train
    plan = notebook.plan("train")
    assert plan.hoisted == ()
    assert reasons(plan) == {
        "nn.Linear(3, 3)": "the available source is not that of the running function (edited since, or changed at "
        "import)"
    }


@pytest.mark.process
def test_a_function_of_a_file(notebook, tmp_path):
    import importlib.util

    file = tmp_path / "of_a_file.py"
    file.write_text("from torch import nn\ndef train(n):\n    model = nn.Linear(n, n)\n    return id(model)\n")
    spec = importlib.util.spec_from_file_location("of_a_file", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    notebook.names["train"] = module.train
    plan = notebook.plan("train", 3)
    assert in_worker(lambda: module.train(3), plan).value == id(plan.models["model"])


@pytest.mark.process
def test_a_model_that_changes_what_another_was_built_from(notebook):
    """The first would come with the second's change: it stays, and the second too has what it needs."""
    plan = notebook.plan_of("""
        class Once(nn.Module):
            def __init__(self, config):
                super().__init__()
                config.count = getattr(config, "count", 0) + 1
                self.config, self.layer = config, nn.Linear(2, 2)
        def train():
            seed(1)
            config = Config()
            first = Once(config)
            count = config.count
            second = Once(config)
            return count, second.config.count, bits(first), bits(second), stream()
    """)
    assert list(plan.models) == ["second"]
    assert reasons(plan) == {"Once(config)": "building a later model changes the same arguments"}
    assert same(notebook, plan)[:2] == (1, 2)


def test_the_source_of_a_module_that_was_edited_and_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "edited_by_a_test.py"
    path.write_text("def build():\n    return 1\n")
    module = importlib.import_module(path.stem)
    first = function_source(module.build)
    assert first is not None
    path.write_text("# another line\ndef build():\n    return 1\n")
    again = function_source(module.build)
    assert again is not None and again.text == first.text  # not loaded again: the lines that were read are its own
    importlib.reload(module)
    second = function_source(module.build)
    assert second is not None and "another line" in second.text and "another" not in first.text
    monkeypatch.delitem(sys.modules, path.stem)


SIDE_EFFECTS = """
import collections
class Registry:
    items = []
class Catalogue:
    def __init__(self):
        self.made = {"a": [1]}
        self.names = collections.deque(["x"])
catalogue = Catalogue()
counts = collections.Counter()
total = 0
class Counted(nn.Module):
    made = 0
    def __init__(self):
        super().__init__()
        type(self).made += 1
        type(self).last = self
        self.layer = nn.Linear(2, 2)
class Sub(Counted):
    pass
class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        Registry.items.append(self)
        Registry.newest = self
        catalogue.made["a"].append(2)
        catalogue.names.appendleft("y")
        catalogue.extra = True
        counts["made"] += 1
        self.layer = nn.Linear(2, 2)
class Global(nn.Module):
    def __init__(self):
        super().__init__()
        global total, new_name
        total += 1
        new_name = self
        self.layer = nn.Linear(2, 2)
class Failing(Counted):
    def __init__(self):
        super().__init__()
        raise ValueError("no data")
backbone = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))
parts = nn.ModuleDict({"x": nn.Linear(2, 2)})
blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
def with_new_head() -> nn.Module:
    backbone[2] = nn.Linear(2, 4)
    return backbone
"""


@pytest.mark.parametrize(
    "build",
    ["Counted", "Sub", "Listed", "Global", "Failing", "with_new_head", "backbone.pop", "blocks.pop", "parts.pop"],
)
def test_what_building_changes_besides_the_model_is_as_before(build: str) -> None:
    """The notebook's objects are tried out before the run: if that changes them, they are put back, and the worker
    builds. A method of a model, which may take parts out of it, is not tried."""
    made = Notebook()
    made.run(NAMES)
    made.run(SIDE_EFFECTS)
    names = made.names
    registry, catalogue, backbone = names["Registry"], names["catalogue"], names["backbone"]

    def state() -> list[object]:
        return [
            *(dict(vars(names[one])) for one in ("Counted", "Sub", "Registry")),
            *([*registry.items], {**catalogue.made}, [*catalogue.made["a"]], [*catalogue.names], {*vars(catalogue)}),
            *(dict(names["counts"]), names["total"], "new_name" in names),
            *([*backbone], [*names["blocks"]], [*names["parts"]]),
        ]

    before = state()
    arguments = {"backbone.pop": "-1", "blocks.pop": "0", "parts.pop": '"x"'}.get(build, "")
    plan = made.plan_of(f"def train():\n    model = {build}({arguments})\n    return 1\n")
    assert plan.hoisted == ()
    assert state() == before
