"""Bundles: shared memory stays shared, functions use the other process's names, large content is not in the pickle."""

from __future__ import annotations

import linecache
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tpu_magics.backends.torch.state import TorchState
from tpu_magics.launch.pods.bundle import LARGE_BYTES, pack, unpack
from tpu_magics.launch.state.snapshot import take_snapshot
from tpu_magics.launch.work import FunctionWork

ROOT = Path(__file__).parents[3]


def through(value: Any, main: dict[str, Any] | None = None, there: dict[str, Any] | None = None) -> Any:
    """The value, packed and unpacked."""
    packed = pack(value, main if main is not None else {"__name__": "__main__"})
    arrays = [bytearray(memoryview(one).cast("B")) for one in packed.arrays]
    return unpack(packed.data, arrays, there if there is not None else {})


@pytest.mark.parametrize("size", [4, LARGE_BYTES])
def test_tensors_keep_their_content_and_shared_memory(size: int) -> None:
    whole = torch.arange(size, dtype=torch.float32)
    tied = torch.nn.Parameter(whole)
    there = through({"whole": whole, "part": whole[1:3], "tied": [tied, tied]})
    assert torch.equal(there["whole"], whole) and torch.equal(there["part"], whole[1:3])
    there["whole"][1] = -1
    assert there["part"][0] == -1 and there["tied"][0] is there["tied"][1]
    assert isinstance(there["tied"][0], torch.nn.Parameter) and there["tied"][0][1] == -1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.bool, torch.float64, torch.complex64])
def test_every_type_of_tensor_can_be_sent(dtype: torch.dtype) -> None:
    value = torch.ones(3, 4).to(dtype)
    there = through([value, value.t(), torch.empty(0, dtype=dtype), torch.empty(2, device="meta", dtype=dtype)])
    assert torch.equal(there[0], value) and there[0].dtype == dtype and there[1].stride() == (1, 4)
    assert there[2].numel() == 0 and there[3].device.type == "meta"


def test_modules_of_a_class_of_their_own_are_sent_by_name() -> None:
    import torch._dynamo.config

    modules = [torch.backends.cudnn, torch.backends.mkldnn, torch.ops, torch._dynamo.config, sys]
    assert all(there is here for there, here in zip(through(modules), modules, strict=True))


def test_large_content_is_beside_the_pickles() -> None:
    small = pack({"a": torch.zeros(10), "b": np.zeros(10)}, {})
    large = pack({"a": torch.zeros(LARGE_BYTES), "b": np.zeros(LARGE_BYTES), "c": torch.zeros(LARGE_BYTES)[:5]}, {})
    assert small.arrays == () and large.array_bytes == (4 + 8 + 4) * LARGE_BYTES and len(large.arrays) == 3
    assert len(large.data) - len(small.data) < 2000


def test_arrays_are_writable() -> None:
    there = through(np.arange(LARGE_BYTES))
    there[0] = 5
    assert there[0] == 5 and there[-1] == LARGE_BYTES - 1


NOTEBOOK = """
import enum
class Kind(enum.Enum):
    A = 1
class Point:
    def __init__(self, x): self.x = x
    def moved(self): return Point(self.x + step)
def train(): return helper() + step
def helper(): return 1
step = 10
"""


def test_the_notebooks_definitions_are_in_the_other_processs_main() -> None:
    main: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, main)
    there: dict[str, Any] = {"__name__": "__main__"}
    train, point, kind = through((main["train"], main["Point"](1), main["Kind"].A), main, there)
    assert train() == 11 and point.moved().x == 11 and train.__globals__ is there
    there["step"] = 20
    assert train() == 21 and point.moved().x == 21
    assert there["Point"] is type(point) and there["Kind"].A is kind and there["train"] is train


def test_what_a_sent_function_reaches_is_found_there_as_here() -> None:
    """Its code keeps its file, by which it is known as the user's: else the optimizer would be no part of its state. A
    class has its attributes in another order."""
    main: dict[str, Any] = {"__name__": "__main__"}
    text = (
        "import collections\nT = collections.namedtuple('T', 's a')\nclass Own:\n    x, b = [], T(1, 2)\n"
        "    def a(self): pass\ndef train(model): optimizer.step(); T(1, 2); Own()\n"
    )
    exec(compile(text, "<ipython-input-1>", "exec"), main)
    model = torch.nn.Linear(2, 1)
    main["optimizer"] = torch.optim.Adam(model.parameters())
    works = [FunctionWork(main["train"], (model,), models={"model": model}, names=("model",))]
    works.append(through(works[0], main, {"__name__": "__main__"}))
    here, there = (take_snapshot(work.roots(), TorchState(), work.models) for work in works)
    there.compare(here.structure())
    assert "optimizer.state" in dict(there.items()) and not there.mismatched
    assert works[1].function.__code__.co_filename == "<ipython-input-1>"


def test_only_cells_whose_code_is_sent_are_sent() -> None:
    """For example not a cell with a token."""
    texts = {f"<cell {number}>": [f"line of {number}\n"] for number in range(4)}
    main: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(
        ("token = 'x'", "def helper(): return 1", "def train(): return helper()", "class Net:\n def f(self): return 1")
    ):
        exec(compile(code, f"<cell {number}>", "exec"), main)
    sent = pack((main["train"], main["Net"](), compile("1", "<cell 9>", "exec")), main, texts)
    assert texts["<cell 0>"][0].encode() not in sent.data and texts["<cell 1>"][0].rstrip().encode() in sent.data
    for name in texts:
        linecache.cache.pop(name, None)
    unpack(sent.data, [], {})
    assert [linecache.getline(name, 1) for name in texts] == ["", *(texts[f"<cell {n}>"][0] for n in (1, 2, 3))]


def test_a_functions_magics_find_the_other_processs_shell() -> None:
    main: dict[str, Any] = {"__name__": "__main__", "get_ipython": threading.Lock().acquire}
    exec("def train():\n    return get_ipython()", main)
    there: dict[str, Any] = {"get_ipython": lambda: "the shell there"}
    assert through(main["train"], main, there)() == "the shell there"


@pytest.mark.process
def test_a_module_beside_the_notebook_is_sent_with_it(tmp_path: Path) -> None:
    """In two processes: the second does not have the file."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "own").mkdir(parents=True)
    there.mkdir()
    (here / "own" / "__init__.py").write_text("from own.deep import FACTOR\n")
    (here / "own" / "deep.py").write_text(
        "HERE, FACTOR = __file__, 3\ndef times(x):\n    from own import FACTOR\n    return FACTOR * x\n"
    )
    sender = (
        "import sys, pathlib; sys.path.insert(0, '.')\nfrom own.deep import times\n"
        "from tpu_magics.launch.pods.bundle import pack\n"
        f"pathlib.Path({str(tmp_path / 'sent')!r}).write_bytes(pack(times, vars()).data)\n"
    )
    receiver = (
        "import pathlib\nfrom tpu_magics.launch.pods.bundle import unpack\n"
        f"data = pathlib.Path({str(tmp_path / 'sent')!r}).read_bytes()\n"
        "print(unpack(data, [], vars())(14))\n"
    )
    for code, folder in ((sender, here), (receiver, there)):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == "42\n"


def test_what_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(TypeError, match=r"_thread\.lock"):
        pack({"lock": threading.Lock()}, {})
