"""Sharded models come home whole: SPMD on four XLA:CPU devices, and FSDP with one rank and with several.

FSDP's own collectives cannot run here with more than one rank, so several ranks are made by giving FSDP
`sharding_groups` and a `sharding_rank`: the shards, their padding and their records are FSDP's own, and training is an
addition to every shard. With one rank FSDP trains, without its barrier in the forward pass (it aborts XLA:CPU).
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.backends.torch.forked_scenarios import in_worker
from tpu_magics.backends.torch.weights import check_weights, collect_weights, load_weights
from tpu_magics.backends.torch_xla.fsdp_shards import (
    Shard,
    ShardPart,
    collect_shards,
    full_weights,
    shards,
    structure,
    unflatten,
    watch_wrappers,
)
from tpu_magics.errors import TpuMagicsError


class Net(nn.Module):
    """Sizes that no number of ranks divides, a tied weight, a frozen layer, BatchNorm, a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 7)
        self.first = nn.Linear(7, 7)
        self.norm = nn.BatchNorm1d(7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.decoder = nn.Linear(7, 11, bias=False)
        self.decoder.weight = self.embedding.weight
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.frozen(self.norm(self.first(self.embedding(ids)))))


def wrap_first_too(model: nn.Module, fsdp: Any, **options: Any) -> Any:
    model.first = fsdp(model.first, **options)
    return fsdp(model, **options)


def wrap_by_policy(model: nn.Module, fsdp: Any, **options: Any) -> Any:
    from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
    return fsdp(model, auto_wrap_policy=policy, **options)


def wrap_a_part(model: nn.Module, fsdp: Any, **options: Any) -> Any:
    """The wrapper is not put into the model: only what `watch_wrappers` remembered leads to it."""
    import torch_xla

    wrapper = fsdp(model.first, **options)
    model.to(torch_xla.device())
    return wrapper


def wrap_root(model: nn.Module, fsdp: Any, **options: Any) -> Any:
    return fsdp(model, **options)


OPTIONS = ({}, {"flatten_parameters": True}, {"shard_param_on_dim_0": True})


# -- the arithmetic, on recorded forms ---------------------------------------------------------------------------------
def test_flat_shards_are_joined_cut_and_named() -> None:
    parts = (ShardPart(("a.weight", "b.weight"), (2, 2)), ShardPart(("a.bias",), (3,)), ShardPart(("scalar",), ()))
    pieces = [torch.arange(0.0, 5.0), torch.arange(5.0, 10.0)]  # 8 numbers, padded to 10
    found = dict(unflatten(Shard("m/x", parts, (0, 1), True, None), pieces))
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        "a.weight": [[0, 1], [2, 3]],
        "b.weight": [[0, 1], [2, 3]],
        "a.bias": [4, 5, 6],
        "scalar": 7,
    }
    assert found["a.weight"] is found["b.weight"]


def test_shards_along_the_first_dimension_are_joined() -> None:
    pieces = [torch.tensor([[1, 2], [3, 4]]), torch.tensor([[5, 6], [0, 0]])]
    found = dict(unflatten(Shard("m/x", (ShardPart(("w",), (3, 2)),), (0, 1), False, None), pieces))
    assert found["w"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_a_model_that_is_not_sharded_has_no_shards(tmp_path: Path) -> None:
    assert shards("m", nn.Linear(2, 2)) == []
    assert full_weights("m", nn.Linear(2, 2), tmp_path) == {}
    collect_shards({"m": nn.Linear(2, 2)}, tmp_path, 1)
    assert list(tmp_path.iterdir()) == []


# -- FSDP --------------------------------------------------------------------------------------------------------------
def one_rank(wrap: Any, options: Any) -> None:
    """Train wrapped, lose the wrapper, bring home; compare with what torch_xla's own consolidation gives."""
    folder = Path(tempfile.mkdtemp())
    model = Net()
    if wrap is wrap_by_policy:  # FSDP cannot tie what different wrappers have
        model.decoder = nn.Linear(7, 11, bias=False)

    def work() -> None:
        import torch_xla
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp
        from torch_xla.distributed.fsdp.state_dict_utils import consolidate_sharded_state_dicts

        watch_wrappers()
        watch_wrappers()

        def train() -> None:
            before = structure(model)
            wrapper = wrap(model, Fsdp, optimization_barrier_in_forward=False, **options)
            added = {("decoder.weight", (11, 7))} if wrap is wrap_a_part else set()  # model.to() has untied it
            assert structure(model) == before | added and len(before) > 5
            optimizer = torch.optim.SGD([p for p in wrapper.parameters() if p.requires_grad], lr=0.5)
            inputs = torch.randn(4, 7) if wrap is wrap_a_part else torch.arange(6)
            for _ in range(2):
                optimizer.zero_grad()
                wrapper(inputs.to(torch_xla.device())).square().mean().backward()
                optimizer.step()
                torch_xla.sync()
            state = {name: value.cpu() for name, value in wrapper.state_dict().items()}
            prefix = "first." if wrap is wrap_a_part else ""
            whole = consolidate_sharded_state_dicts([state], wrapper.get_shard_metadata())
            torch.save({prefix + name: value for name, value in whole.items()}, folder / "expected.pt")

        train()
        gc.collect()
        collect_shards({"model": model}, folder, 0)
        collect_weights({"model": model}, folder, full_weights)

    in_worker(work)
    before = copy.deepcopy(model.state_dict())
    load_weights(check_weights({"model": model}, folder))
    expected = torch.load(folder / "expected.pt")
    for name, value in expected.items():
        assert torch.equal(model.state_dict()[name], value), name
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert "first.weight" in changed
    assert not any(name.startswith("frozen") for name in changed)
    if wrap in (wrap_root, wrap_first_too):
        assert {"embedding.weight", "decoder.weight"} <= changed
        assert model.decoder.weight is model.embedding.weight
        assert model.norm.num_batches_tracked.item() == 2


def several_ranks(options: Any, count: int = 3) -> None:
    """Every rank is a process of its own, as it will be; each adds its rank's number to its shards."""
    folder = Path(tempfile.mkdtemp())
    model = Net()
    original = copy.deepcopy(model.state_dict())

    def work(rank: int) -> None:
        import torch_xla.runtime as xr
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp

        xr.global_ordinal = lambda: rank
        watch_wrappers()
        placing = {"sharding_groups": [[0, 1, 2], [3, 4, 5]], "sharding_rank": rank, "sharding_world_size": count}
        whole = structure(model)
        model.first = Fsdp(model.first, **placing, **options)
        wrapper = Fsdp(model, **placing, **options)
        assert structure(model) == whole
        with torch.no_grad():
            for parameter in wrapper.parameters():
                parameter.add_(rank + 1)
        collect_shards({"model": model}, folder, rank)
        if rank == 0:
            collect_weights({"model": model}, folder, full_weights)

    for rank in (2, 1, 0):
        in_worker(functools.partial(work, rank))
    load_weights(check_weights({"model": model}, folder))
    assert model.decoder.weight is model.embedding.weight
    for name, value in model.named_parameters():
        added = (value.detach() - original[name]).flatten()
        steps = added.round()
        assert torch.allclose(added, steps, atol=1e-5), name
        assert (steps[1:] >= steps[:-1]).all(), name  # rank 0's part first
        assert steps.min() >= 1 and steps.max() <= count, name
    spread = (model.embedding.weight.detach() - original["embedding.weight"]).round().unique()
    assert spread.tolist() == [1, 2, 3]  # every rank's part is in it


scenario_fsdp_around_the_model = functools.partial(one_rank, wrap_root, OPTIONS[0])
scenario_fsdp_around_the_model_flattened = functools.partial(one_rank, wrap_root, OPTIONS[1])
scenario_fsdp_around_the_model_by_rows = functools.partial(one_rank, wrap_root, OPTIONS[2])
scenario_fsdp_around_a_layer_and_the_model = functools.partial(one_rank, wrap_first_too, OPTIONS[0])
scenario_fsdp_around_a_layer_and_the_model_flattened = functools.partial(one_rank, wrap_first_too, OPTIONS[1])
scenario_fsdp_by_policy = functools.partial(one_rank, wrap_by_policy, OPTIONS[0])
scenario_fsdp_around_a_part_that_is_kept_elsewhere = functools.partial(one_rank, wrap_a_part, OPTIONS[0])
scenario_three_ranks = functools.partial(several_ranks, {"_shard_size_multiple": 1})
scenario_three_ranks_flattened = functools.partial(
    several_ranks, {"flatten_parameters": True, "_shard_size_multiple": 1}
)
scenario_three_ranks_by_rows = functools.partial(several_ranks, {"shard_param_on_dim_0": True})


def scenario_a_missing_shard_is_named() -> None:
    folder = Path(tempfile.mkdtemp())
    model = Net()

    def work() -> None:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp

        watch_wrappers()
        wrapper = Fsdp(model, sharding_groups=[[0, 1]], sharding_rank=0, sharding_world_size=2)
        assert wrapper is not None
        collect_shards({"model": model}, folder, 0)
        with pytest.raises(TpuMagicsError, match="`model` is sharded, and the shards of rank 1 are missing"):
            collect_weights({"model": model}, folder, full_weights)
        assert list(folder.iterdir()) == []
        torch.save({"model/first.weight": torch.ones(128)}, folder / "result-shards-1.pt")
        with pytest.raises(TpuMagicsError, match=r"lacks model/embedding\.weight \(6 of 7 are missing\)"):
            collect_weights({"model": model}, folder, full_weights)

    in_worker(work)


def scenario_a_wrapped_module_can_be_copied_and_pickled() -> None:
    def work() -> None:
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as Fsdp

        watch_wrappers()
        inner = nn.Linear(3, 3)
        wrapper = Fsdp(inner)
        assert [shard.key for shard in shards("m", inner)] == ["m/weight", "m/bias"]
        holder = next(value for key, value in vars(inner).items() if key.startswith("_tpu_magics"))
        assert copy.deepcopy(holder).wrapper is None
        assert pickle.loads(pickle.dumps(holder)).wrapper is None
        assert holder.wrapper is wrapper

    in_worker(work)


# -- SPMD --------------------------------------------------------------------------------------------------------------
def four_devices() -> Any:
    os.environ["CPU_NUM_DEVICES"] = "4"
    import numpy as np
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    xr.use_spmd()
    return xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model"))


def scenario_spmd_tensors_are_gathered() -> None:
    folder = Path(tempfile.mkdtemp())
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    original = copy.deepcopy(model.state_dict())

    def work() -> None:
        mesh = four_devices()
        import torch_xla
        import torch_xla.distributed.spmd as xs

        model.to(torch_xla.device())
        for layer in model:
            xs.mark_sharding(layer.weight, mesh, ("fsdp", "model"))
        assert "devices=[4,1]" in torch_xla._XLAC._get_xla_sharding_spec(model[0].weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        model(torch.randn(8, 8).to(torch_xla.device())).square().mean().backward()
        optimizer.step()
        collect_weights({"model": model}, folder, full_weights)
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, folder / "expected.pt")

    in_worker(work)
    load_weights(check_weights({"model": model}, folder))
    expected = torch.load(folder / "expected.pt")
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name
        assert not torch.equal(value, original[name]), name


def scenario_fsdp_v2_has_the_notebooks_names() -> None:
    folder = Path(tempfile.mkdtemp())
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    original = copy.deepcopy(model.state_dict())

    def work() -> None:
        mesh = four_devices()
        import torch_xla
        import torch_xla.distributed.spmd as xs
        from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
        from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

        xs.set_global_mesh(mesh)
        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Linear})
        wrapper = SpmdFullyShardedDataParallel(model, auto_wrap_policy=policy)
        assert "0._orig_module.weight" in dict(model.named_parameters())
        optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.5)
        wrapper(torch.randn(8, 8).to(torch_xla.device())).square().mean().backward()
        optimizer.step()
        collect_weights({"model": model}, folder, full_weights)

    in_worker(work)
    load_weights(check_weights({"model": model}, folder))
    assert all(not torch.equal(value, original[name]) for name, value in model.state_dict().items())


def scenario_a_sharded_tensor_that_is_not_a_parameter() -> None:
    def work() -> None:
        mesh = four_devices()
        import torch_xla
        import torch_xla.distributed.spmd as xs

        from tpu_magics.backends.torch.pickling import dumps
        from tpu_magics.backends.torch.tensor_transfer import to_cpu

        values = torch.arange(32.0).view(8, 4)
        sharded = xs.mark_sharding(values.to(torch_xla.device()), mesh, ("fsdp", "model"))
        assert type(sharded).__name__ == "XLAShardedTensor"
        for found in (to_cpu([sharded])[0], pickle.loads(dumps(sharded))):
            assert type(found) is torch.Tensor
            assert found.device.type == "cpu"
            assert torch.equal(found, values)

    in_worker(work)


@pytest.mark.process
def test_scenario(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == ""
