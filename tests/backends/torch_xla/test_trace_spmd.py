"""One process with eight devices is traced: the graphs carry the shardings of parameters and batches, and what nobody
has split lies as in training, so far as that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("torch_xla")

from tests.backends.torch_xla.traced import compiled, taken, traced, trained
from tpu_magics.backends.torch_xla.trace.mesh import MeshSharding

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]
DEVICES = 8


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def by_hand(model: Any, biases: bool) -> None:
    """The loop of torch_xla's own guide; `biases`: whether these are said to lie somewhere, too."""
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device, mesh = torch_xla.device(), xs.get_global_mesh()
    model.to(device)
    for parameter in model.parameters():
        if parameter.dim() > 1 or biases:
            xs.mark_sharding(parameter, mesh, ("data", None)[: parameter.dim()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(5):
        x, y = torch.randn(16, 16).to(device), torch.randint(0, 8, (16,)).to(device)
        xs.mark_sharding(x, mesh, ("data", None))
        xs.mark_sharding(y, mesh, ("data",))
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def test_everything_that_is_split_is_as_in_training() -> None:
    found = traced(by_hand, net(), True, devices=DEVICES)
    real = compiled(trained(by_hand, net(), True, devices=DEVICES))
    assert taken(found) == real[:2] and found.settled and found.notes == ()
    assert {(one.replicas, one.partitions) for one in found.graphs} == {(1, DEVICES)}


def test_what_nobody_has_split_is_taken_to_lie_whole() -> None:
    """XLA splits the bias beside a split weight; its state and the weights' is as in training."""
    found = traced(by_hand, net(), False, devices=DEVICES)
    real = trained(by_hand, net(), False, devices=DEVICES)
    assert taken(found)[0] == compiled(real)[0] and found.settled
    assert found.graphs[1].donors == tuple(sorted(real[1].donated))
    names = [name.partition(" ")[2] for name in found.graphs[1].parameters]
    shardings = {
        names[int(op.value)]: op.attributes.partition("sharding=")[2]
        for op in real[1].ops
        if op.opcode == "parameter" and op.attributes
    }
    assert "devices=[8]" in shardings["exp_avg of 0.bias"], "then this test has nothing to say any more"


def fully_sharded(model: Any) -> None:
    """torch_xla's FSDP v2 by hand."""
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs
    from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

    device, mesh = torch_xla.device(), xs.Mesh(np.arange(DEVICES), (DEVICES,), ("fsdp",))
    wrapped = SpmdFullyShardedDataParallel(model.to(device), mesh=mesh)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(16, 16).to(device)
        xs.mark_sharding(x, mesh, ("fsdp", None))
        wrapped(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def test_fully_sharded() -> None:
    found = traced(fully_sharded, net(), devices=DEVICES)
    assert taken(found) == compiled(trained(fully_sharded, net(), devices=DEVICES))[:2]
    assert found.settled and found.notes == () and found.batch == 16
    assert any(name.endswith(" 0.weight") for name in found.graphs[0].parameters)


def on_own_mesh(device_ids: Sequence[int]) -> None:
    """It is not set as the global one."""
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device, mesh = torch_xla.device(), xs.Mesh(list(device_ids), (4, 2), ("rows", "columns"))
    model = torch.nn.Linear(16, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(16, 16).to(device)
        xs.mark_sharding(x, mesh, ("rows", None))
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


@pytest.mark.parametrize(
    ("device_ids", "axes"),
    [(range(DEVICES), (("rows", 4), ("columns", 2))), ((0, 2, 4, 6, 1, 3, 5, 7), ())],
    ids=["in order", "in another order"],
)
def test_the_axes_of_a_functions_own_mesh(device_ids: Sequence[int], axes: tuple[tuple[str, int], ...]) -> None:
    """Where groups of devices tell them."""
    assert traced(on_own_mesh, device_ids, devices=DEVICES).graphs[-1].mesh == axes


# -- a mesh without a change of the function --------------------------------------------------------------------------


def unchanged(model: Any, as_made: bool = False) -> None:
    """`as_made`: the batch is made on the device."""
    import torch_xla

    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(16, 16, device=device) if as_made else torch.randn(16, 16).to(device)
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def on_a_mesh(model: Any, sizes: dict[str, int], *specs: tuple[Any, ...]) -> None:
    """The same with a mesh by hand. `specs`: of the batch, and of each parameter."""
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device = torch_xla.device()
    mesh = xs.Mesh(np.arange(DEVICES), tuple(sizes.values()), tuple(sizes))
    model.to(device)
    for parameter, spec in zip(model.parameters(), specs[1:], strict=True):
        if any(spec):
            xs.mark_sharding(parameter, mesh, spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(16, 16).to(device)
        xs.mark_sharding(x, mesh, specs[0])
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


BATCH = ("data", None)
MESHES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "data:8,model:1": (BATCH, (None, None), (None,), (None, None), (None,)),
    "data:4,model:2": (BATCH, ("model", None), ("model",), (None, "model"), (None,)),
    "fsdp:8": (("fsdp", None), ("fsdp", None), (None,), (None, None), (None,)),
    "data:2,fsdp:4": ((("data", "fsdp"), None), ("fsdp", None), (None,), (None, None), (None,)),
}


@pytest.mark.parametrize("mesh", MESHES)
def test_a_mesh_shards_a_function_as_marks_by_hand_do(mesh: str) -> None:
    """The layers are 16 x 64 and 64 x 8; with fewer than 1024 elements they stay whole on an axis "fsdp"."""
    sizes = {axis: int(size) for axis, _, size in (one.partition(":") for one in mesh.split(","))}
    found = traced(unchanged, net(), devices=DEVICES, changes=(f"mesh={mesh}",))
    assert taken(found) == taken(traced(on_a_mesh, net(), sizes, *MESHES[mesh], devices=DEVICES))
    assert found.settled and found.notes == () and found.batch == 16
    assert [(name, size) for name, size in found.graphs[-1].mesh if name in sizes] == list(sizes.items())


def test_a_batch_that_is_made_on_the_device_is_sharded_too() -> None:
    plain = traced(unchanged, net(), True, devices=DEVICES)
    sharded = traced(unchanged, net(), True, devices=DEVICES, changes=("mesh=data:8",))
    assert plain.settled and sharded.settled and plain.graphs[-1].hash != sharded.graphs[-1].hash


def test_what_a_function_marks_itself_stays() -> None:
    plain = traced(by_hand, net(), True, devices=DEVICES)
    assert taken(traced(by_hand, net(), True, devices=DEVICES, changes=("mesh=data:8",))) == taken(plain)


def with_embedding(spec: tuple[Any, ...]) -> None:
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device, mesh = torch_xla.device(), xs.get_global_mesh()
    model: Any = torch.nn.Embedding(64, 16).to(device)
    xs.mark_sharding(model.weight, mesh, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        model(torch.arange(8).to(device)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def test_an_embedding_is_sharded_over_its_vectors_instead_of_its_rows() -> None:
    rows, vectors = ("data", None), (None, "data")
    change = ("vectors=64x16",)
    wanted = taken(traced(with_embedding, vectors, devices=DEVICES))
    assert taken(traced(with_embedding, rows, devices=DEVICES)) != wanted
    assert taken(traced(with_embedding, rows, devices=DEVICES, changes=change)) == wanted
    assert taken(traced(with_embedding, vectors, devices=DEVICES, changes=change)) == wanted


def accelerated(model: Any, by_hand: bool) -> None:
    """`by_hand`: batches are marked in the loop."""
    import numpy as np
    import torch_xla.distributed.spmd as xs
    from accelerate import Accelerator

    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(96, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=16, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for [x] in loader:
        if by_hand:
            xs.mark_sharding(x, xs.Mesh(np.arange(DEVICES), (DEVICES,), ("data",)), BATCH)
        accelerator.backward(model(x).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.usefixtures("libraries")
def test_the_batches_of_a_loader_are_sharded() -> None:
    pytest.importorskip("accelerate")
    found = traced(accelerated, net(), False, devices=DEVICES, changes=("mesh=data:8",))
    assert taken(found) == taken(traced(accelerated, net(), True, devices=DEVICES))
    assert taken(found) != taken(traced(accelerated, net(), False, devices=DEVICES))


@pytest.mark.parametrize("mesh", ["fsdp:8", "data:4,model:2"])
def test_a_batch_that_a_function_marks_otherwise_is_marked_so(mesh: str) -> None:
    """On its own mesh, of all devices."""
    found = traced(accelerated, net(), True, devices=DEVICES, changes=(f"mesh={mesh}",))
    assert found.settled and found.batch == 16


def on_device(whole: bool) -> None:
    """Weights that are made there. `whole`: marked as such by hand, with the batch."""
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs

    device, mesh = torch_xla.device(), xs.Mesh(np.arange(DEVICES), (DEVICES,), ("data",))
    model = torch.nn.Linear(16, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(16, 16).to(device)
        if whole:
            xs.mark_sharding(x, mesh, BATCH)
        model(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


def test_weights_that_are_made_on_the_device_are_no_inputs() -> None:
    found = traced(on_device, False, devices=DEVICES, changes=("mesh=data:8",))
    assert found.graphs[-1].hash == traced(on_device, True, devices=DEVICES).graphs[-1].hash


@pytest.mark.parametrize(
    ("path", "sizes", "dimension"),
    [
        ("mlp.up_proj", (16, 64), 0),
        ("mlp.down_proj", (64, 16), 1),
        ("self_attn.q_proj", (64, 64), 0),
        ("self_attn.k_proj", (64, 16), 0),  # fewer heads of keys
        ("self_attn.o_proj", (64, 64), 1),
        ("attention.self.query", (64, 64), 0),
        ("attention.output.dense", (64, 64), 1),
        ("head", (64, 64), 0),
    ],
)
def test_tensor_parallelism_sums_once_after_what_makes_features(
    path: str, sizes: tuple[int, int], dimension: int
) -> None:
    layer = torch.nn.Linear(*sizes)
    sharding = MeshSharding({"model": 2}, lambda: False)
    spec = sharding.spec(path, layer, "weight", layer.weight)
    assert [place for place, axis in enumerate(spec) if axis] == [dimension]
    assert sharding.spec(path, layer, "bias", layer.bias) == (("model",) if dimension == 0 else (None,))
