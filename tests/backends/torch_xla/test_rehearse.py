"""Ranks on XLA:CPU: each collective, as a user calls it, gives what plain torch gives for the tensors of all ranks.
Real forks, real gloo; one launch for each number of ranks runs a whole table of cases.

Also here: that what is replaced exists in the installed torch_xla, and that torch_xla's own reductions, which run on
one rank, are what the rehearsal takes them for.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torch_xla")

from tests import forks
from tests.backends.torch_xla import rehearsed, rehearsed_distributed, rehearsed_library, rehearsed_xm
from tests.backends.torch_xla.rehearsed import Case, differences, launched
from tests.launch.launching import failed, said
from tpu_magics.backends.torch.rehearsal import group
from tpu_magics.backends.torch_xla.rehearse import collectives

CASES = [*rehearsed_xm.cases(), *rehearsed_distributed.cases(), *rehearsed_library.cases()]


def of_size(size: int) -> list[Case]:
    return [case for case in CASES if size in case.sizes]


def all_cases(size: int) -> dict[str, tuple[str, Any]]:
    return rehearsed.outcomes(of_size(size))


def problems(case: Case, rank: int, size: int, found: tuple[str, Any]) -> list[str]:
    """What is not as it should be in what a rank got."""
    kind, value = found
    if case.error:
        return [] if kind == "error" and case.error in value else [f"{kind}: {value}, and not {case.error}"]
    return differences(value, case.expected(rank, size), case.tolerance) if kind == "value" else [value]


@pytest.mark.process
@pytest.mark.timeout(500)
@pytest.mark.parametrize("size", [1, 2, 4, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 8))])
def test_every_rank_gets_what_plain_torch_gives(size: int, tmp_path: Path) -> None:
    ranks = launched(all_cases, size, tmp_path, size).values
    assert len(ranks) == size
    found = {
        f"{case.name}, rank {rank}": wrong
        for case in of_size(size)
        for rank, values in enumerate(ranks)
        if (wrong := problems(case, rank, size, values[case.name]))
    }
    assert found == {}


def test_cases_have_names_of_their_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


# -- ranks that do not do the same ------------------------------------------------------------------------------------


def in_different_collectives() -> None:
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    value = torch.ones(4, device="xla")
    if xr.global_ordinal() == 1:
        xm.all_gather(value, pin_layout=False)
    else:
        xm.all_reduce("sum", value)


def with_different_shapes() -> None:
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    xm.all_reduce("sum", [torch.ones(2, device="xla"), torch.ones(4 + xr.global_ordinal() // 2, device="xla")])


def with_different_scales() -> None:
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    xm.all_reduce("sum", [torch.ones(2, device="xla")], scale=1.0 + xr.global_ordinal())


@pytest.mark.process
@pytest.mark.usefixtures("fresh_session")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            in_different_collectives,
            ["ranks 0, 2: all_reduce sum of float32[4]", "rank 1: all_gather of float32[4]"],
        ),
        (
            with_different_shapes,
            ["ranks 0, 1: all_reduce sum of float32[2] and 1 more", "rank 2: all_reduce sum of float32[2] and 1 more"],
        ),
        (with_different_scales, ["rank 0: all_reduce sum", "rank 1: all_reduce sum", "rank 2: all_reduce sum"]),
    ],
)
def test_ranks_in_different_collectives_are_named(function: Callable[[], None], words: list[str]) -> None:
    text = said(failed(function, workers=3)).lower()
    assert "the ranks are in different collectives" in text
    assert [word for word in words if word not in text] == [], text


# -- torch_xla itself -------------------------------------------------------------------------------------------------


def arguments_of(docstring: str) -> int:
    """How many arguments a function of the C++ module takes, as pybind11 says it."""
    return len(re.findall(r"arg\d+: ", docstring.splitlines()[0]))


@pytest.mark.parametrize("name", collectives._NAMES)
def test_torch_xla_has_what_is_replaced(name: str) -> None:
    """Private names and their arguments, read in torch_xla 2.9.0: this fails clearly when one goes away or changes."""
    import torch_xla

    original = getattr(torch_xla._XLAC, f"_xla_{name}")
    ours = inspect.signature(getattr(collectives.Collectives, name)).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in ours):
        return
    assert arguments_of(original.__doc__) == len(ours) - 1, original.__doc__


def test_torch_xla_has_what_is_used() -> None:
    import torch_xla
    from torch_xla.core import xla_model
    from torch_xla.distributed import xla_backend

    names = ("_xla_sync_live_tensors", "_xla_get_cpu_tensors", "_xla_tensors_from_aten", "_xla_get_num_processes")
    assert [name for name in names if not callable(getattr(torch_xla._XLAC, name, None))] == []
    assert callable(xla_model._all_gather_using_all_reduce) and callable(xla_backend._ret_work)
    assert callable(xla_backend.ProcessGroupXla.barrier)
    registered = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    assert [name for name in registered if not hasattr(torch.ops._c10d_functional, name)] == []


ONE_RANK = """
import json, sys, torch, torch_xla, torch_xla.distributed.xla_backend
import torch.distributed as dist, torch.distributed._functional_collectives as fc

extension = torch_xla._XLAC
dist.init_process_group("xla", init_method="xla://")
types, kinds, scales = json.loads(sys.argv[1])

def said(call):
    try:
        value = call()
        return value.cpu().double().tolist() if isinstance(value, torch.Tensor) else value
    except Exception as error:
        return str(error).splitlines()[0]

def scaled(name, kind, scale):
    value = torch.tensor([0, 1, 2, 3]).to(getattr(torch, name)).to("xla")
    return said(lambda: extension._xla_all_reduce(kind, value, scale, [], True))

value = torch.ones(1, 3, device="xla")
parameter = torch.nn.Parameter(torch.ones(2, 2, device="xla"))
token = extension._get_all_reduce_token(str(value.device))
facts = {
    "scaled": {f"{n} {k} {s}": scaled(n, k, s) for n in types for k in kinds for s in scales},
    "gradients": [one.requires_grad for one in (
        extension._xla_all_reduce("sum", parameter, 2.0, [], True),
        extension._xla_reduce_scatter("sum", parameter, token, 1.0, 0, 1, [], True, None, None)[0],
        extension._xla_all_to_all(parameter, token, 0, 0, 1, [], True)[0],
        extension._xla_collective_permute(parameter, token, [[0, 0]])[0],
        extension._xla_all_gather(parameter, 0, 1, [], False, None, None),
    )],
    "refused": [
        said(lambda: fc.all_reduce(value, "avg", dist.group.WORLD)),
        said(lambda: fc.reduce_scatter_tensor(value, "avg", 0, dist.group.WORLD)),
        said(lambda: dist.all_reduce(value, dist.ReduceOp.AVG)),
        said(lambda: extension._xla_reduce_scatter("sum", value, token, 1.0, -1, 1, [], True, None, None)[0]),
        said(lambda: extension._xla_all_to_all(value, token, 0, -1, 1, [], True)[0]),
        said(lambda: extension._xla_reduce_scatter("sum", value, token, 1.0, 1, 2, [], True, None, None)[0]),
        # Last: a graph that cannot be lowered stays pending.
        said(lambda: extension._xla_all_reduce("and", value, 1.0, [], True)),
    ],
}
print(json.dumps(facts))
"""

# bfloat16 is not here: XLA:CPU has no all-reduce of its own for it ("AllReduce for datatype 'bf16' is not supported").
REDUCED_BY_XLA = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
REDUCED_HOW = ("sum", "mul", "min", "max")
SCALES = (1.0, 0.5, 1 / 3, 2.0, 2.7)


@pytest.fixture(scope="module")
def xla_itself(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What torch_xla's own collectives give in a process of their own, in a world of one."""
    arguments = json.dumps([REDUCED_BY_XLA, REDUCED_HOW, SCALES])
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    told = forks.run("torch_xla", ONE_RANK, arguments, cwd=tmp_path_factory.mktemp("one"), environment=environment)
    return json.loads(told.splitlines()[-1])


@pytest.mark.process
@pytest.mark.long
def test_torch_xla_itself_scales_as_the_rehearsal_does(xla_itself: Any) -> None:
    whole = torch.tensor([0, 1, 2, 3])
    expected = {
        f"{name} {kind} {scale}": group.scaled(whole.clone().to(getattr(torch, name)), scale).double().tolist()
        for name in REDUCED_BY_XLA
        for kind in REDUCED_HOW
        for scale in SCALES
    }
    assert xla_itself["scaled"] == expected


@pytest.mark.process
@pytest.mark.long
def test_torch_xla_itself_refuses_what_the_rehearsal_refuses(xla_itself: Any) -> None:
    """The cases of rehearsed_*.py that are refused: an average, a dimension from the end, bits of floats."""
    words = ["Unknown AllReduce type: avg", "Invalid string for AllReduceType: avg", "Invalid reduce op"]
    words += ["scatter_dimension >= 0", "concat_dimension -1 is out-of-bounds", "must be dividable by shard_count"]
    words += ["Error while lowering: [] xla::cross_replica_sum"]
    found = xla_itself["refused"]
    assert [word for word, text in zip(words, found, strict=True) if word not in str(text)] == [], found


@pytest.mark.process
@pytest.mark.long
def test_torch_xla_itself_says_what_needs_a_gradient(xla_itself: Any) -> None:
    """The case "what needs a gradient" of rehearsed_xm.py, on one rank."""
    assert xla_itself["gradients"] == [True, True, True, True, False]
