"""What a training has changed, as JSON and tensors, applied to the objects of another process: here to a second set."""

from __future__ import annotations

import json
import math
import random
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from tpu_magics.backends.torch.checkpoints import TorchStore
from tpu_magics.backends.torch.state import TorchState
from tpu_magics.launch.resume.objects import Misfit, TrackedObjects, read_more


class Meter:
    """A person's own object."""

    def __init__(self) -> None:
        self.total = 0.0
        self.parts: list[Any] = []
        self.removed = 1


def tracked(roots: dict[str, Any]) -> TrackedObjects:
    return TrackedObjects(list(roots.items()), TorchState(), TorchStore())


def carried(before: TrackedObjects, after: TrackedObjects, folder: Path, more: Any = None, **local: Any) -> Any:
    """Write the changes of one set to files, and apply them to the other. Returns the local variables."""
    store = TorchStore()
    document = before.changes([local], more)
    store.write(folder / "rank-0", store.fetch(document.tensors))
    data = json.loads(json.dumps(document.data, allow_nan=False))
    tensors = store.read(folder / "rank-0")
    assert same(read_more(data, tensors, store), more)
    [found] = after.apply(data, tensors)
    return found, document.left


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype and bool(torch.equal(left, right)) and left.requires_grad == right.requires_grad
        )
    if isinstance(left, (np.ndarray, np.generic)):
        return bool(left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes())
    if isinstance(left, dict):
        return list(map(str, left)) == list(map(str, right)) and all(map(same, left.values(), right.values()))
    if isinstance(left, (list, tuple, deque)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and bool(left == right)


ODD = {
    "numbers": [1, -(2**70), 0.1, -0.0, math.inf, -math.inf, math.nan, True, None, 1 + 2j],
    "texts": ["", "ä\0\n", b"\x00\xff", bytearray(b"x")],
    "containers": [
        (1, (2,)),
        {1, 2},
        frozenset({"a"}),
        deque([1, 2]),
        range(3),
        slice(1, None, 2),
        {(1, 2): "x", None: 3},
    ],
    "kinds": [OrderedDict(b=1, a=2), Counter("abca"), defaultdict(list, {"k": [1]})],
    "arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(1.5), np.array([], dtype=bool), np.array(2.0)],
    "tensors": [
        torch.arange(3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]),
        torch.empty(0),
        torch.tensor(1.5, requires_grad=True),
        torch.tensor([True]),
    ],
    "torch": [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
}


@pytest.mark.parametrize("kind", ODD)
def test_every_kind_of_value_comes_back(kind: str, tmp_path: Path) -> None:
    one: dict[str, Any] = {"history": []}
    other: dict[str, Any] = {"history": []}
    before, after = tracked(one), tracked(other)
    one["history"].extend(ODD[kind])
    found, left = carried(before, after, tmp_path, more=ODD[kind], value=ODD[kind][0])
    assert same(other["history"], one["history"])
    assert same(found, {"value": ODD[kind][0]})
    assert not left


PLAIN = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text() | some.binary()
NESTED = some.recursive(
    PLAIN, lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner) | some.tuples(inner, inner)
)


@given(NESTED)
def test_nested_values_come_back(value: Any) -> None:
    one, other = {"state": {"x": 0}}, {"state": {"x": 0}}
    before, after = tracked(one), tracked(other)
    one["state"]["x"] = value
    document = before.changes([{}], None)
    after.apply(json.loads(json.dumps(document.data, allow_nan=False)), {})
    assert same(other["state"]["x"], value)


def test_one_object_stays_one_and_may_contain_itself(tmp_path: Path) -> None:
    one: dict[str, Any] = {"left": [], "right": []}
    other: dict[str, Any] = {"left": [], "right": []}
    before, after = tracked(one), tracked(other)
    shared: list[Any] = [1]
    shared.append(shared)
    tensor = torch.ones(3)
    one["left"].extend([shared, shared, tensor, tensor, one["right"]])
    carried(before, after, tmp_path)
    first, second, a, b, right = other["left"]
    assert first is second and first[1] is first
    assert a is b
    assert right is other["right"], "an object of the program is referred to"


def test_attributes_are_set_and_removed(tmp_path: Path) -> None:
    one, other = {"meter": Meter()}, {"meter": Meter()}
    before, after = tracked(one), tracked(other)
    one["meter"].total = 2.5
    one["meter"].parts.append((1, 2))
    one["meter"].more = "new"  # type: ignore[attr-defined]
    del one["meter"].removed
    carried(before, after, tmp_path)
    assert vars(other["meter"]) == vars(one["meter"])


def training() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=9)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "random": random.Random(3)}


def steps(parts: dict[str, Any], count: int) -> float:
    loss = torch.zeros(())
    for _ in range(count):
        inputs = torch.tensor([[parts["random"].random() for _ in range(3)] for _ in range(4)])
        loss = parts["model"](inputs).pow(2).mean()
        parts["optimizer"].zero_grad()
        loss.backward()
        parts["optimizer"].step()
        parts["scheduler"].step()
    return float(loss.detach())


def test_a_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    one, other = training(), training()
    before, after = tracked(one), tracked(other)
    steps(one, 4)
    carried(before, after, tmp_path)
    assert steps(one, 4) == steps(other, 4)
    for left, right in zip(one["model"].state_dict().values(), other["model"].state_dict().values(), strict=True):
        assert torch.equal(left, right)


def fake_ddp(model: Any) -> Any:
    """A DistributedDataParallel without the other ranks."""
    made = torch.nn.parallel.DistributedDataParallel.__new__(torch.nn.parallel.DistributedDataParallel)
    torch.nn.Module.__init__(made)
    made.module = model
    made.require_forward_param_sync = True
    made.mine = {"parameters": list(model.parameters()), "counts": [0]}
    return made


@pytest.mark.parametrize(("before_wraps", "after_wraps"), [(True, False), (False, True), (True, True)])
def test_what_several_ranks_have_around_a_model(before_wraps: bool, after_wraps: bool, tmp_path: Path) -> None:
    def parts(wraps: bool) -> dict[str, Any]:
        made = training()
        model = fake_ddp(made["model"]) if wraps else made["model"]
        return {"0:model": model, "0:raw": made["model"], **made, "history": {}}

    one, other = parts(before_wraps), parts(after_wraps)
    before, after = tracked(one), tracked(other)
    steps(one, 4)
    one["history"]["best"] = one["0:model"]
    if before_wraps:
        one["0:model"].require_forward_param_sync = False
        one["0:model"].mine["counts"].append(1)
    found, _ = carried(before, after, tmp_path, model=one["0:model"], raw=one["0:raw"])
    assert found == {"model": other["0:model"], "raw": other["0:raw"]}
    assert (other["history"]["best"] is other["0:model"]) == (before_wraps or not after_wraps)
    if before_wraps and after_wraps:
        assert not other["0:model"].require_forward_param_sync
        assert other["0:model"].mine["counts"] == [0, 1]
    assert steps(one, 4) == steps(other, 4)


def test_what_cannot_be_saved_is_named_and_the_rest_is_saved(tmp_path: Path) -> None:
    one: dict[str, Any] = {"found": {}}
    other: dict[str, Any] = {"found": {"kept": 0}}
    one["found"]["kept"] = 0
    before, after = tracked(one), tracked(other)
    one["found"].update(kept=5, nested=[[1], {"a": (2,)}], meter=Meter(), function=len)
    found, left = carried(before, after, tmp_path, good=1, bad=Meter())
    assert other["found"] == {"kept": 5, "nested": [[1], {"a": (2,)}]}
    assert found == {"good": 1}
    assert set(left) == {"found['meter']", "found['function']", "bad"}
    assert "Meter" in left["bad"]


def test_a_module_is_known_by_its_name_and_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one: dict[str, Any] = {"found": []}
    other: dict[str, Any] = {"found": []}
    before, after = tracked(one), tracked(other)
    one["found"].append(math)
    monkeypatch.setitem(sys.modules, "not_there", types.ModuleType("not_there"))
    local = {"math": math, "absent": sys.modules["not_there"], "loose": types.ModuleType("loose"), "good": 1}
    document = before.changes([local], None)
    monkeypatch.delitem(sys.modules, "not_there")
    assert set(document.left) == {"loose"}
    assert after.apply(json.loads(json.dumps(document.data)), {}) == [{"math": math, "good": 1}]
    assert other["found"] == [math]


def test_other_objects_are_a_misfit(tmp_path: Path) -> None:
    one, other = training(), training()
    del other["scheduler"]
    other["model"] = torch.nn.Linear(3, 1)
    before, after = tracked(one), tracked(other)
    steps(one, 1)
    with pytest.raises(Misfit, match="there is no"):
        carried(before, after, tmp_path)


def test_gradients_are_saved_between_a_loss_and_its_step(tmp_path: Path) -> None:
    one, other = training(), training()
    before, after = tracked(one), tracked(other)
    one["model"](torch.ones(4, 3)).sum().backward()
    store = TorchStore()
    document = before.changes([{}], None, gradients=True)
    store.write(tmp_path / "rank-0", store.fetch(document.tensors))
    after.apply(json.loads(json.dumps(document.data)), store.read(tmp_path / "rank-0"))
    for left, right in zip(one["model"].parameters(), other["model"].parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)
