"""Weights from a worker to the notebook: every kind of tensor, all or nothing, and what is said when they do not fit."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from forked_scenarios import in_worker, names, outcomes, run_scenarios
from torch import nn

from tpu_magics.backends.torch_xla import weights_files, weights_load
from tpu_magics.backends.torch_xla.weights import check_weights, collect_weights, load_weights
from tpu_magics.errors import TpuMagicsError

DTYPES = [
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("complex64", "complex128", "uint16", "float8_e4m3fn", "float8_e5m2"),
]
XLA_DTYPES = [dtype for dtype in DTYPES if dtype != "uint16"]


def sample(dtype: str, *shape: int, seed: int = 0) -> torch.Tensor:
    """Arbitrary bits of that dtype: NaNs with payloads, infinities and subnormals as well."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(0, dtype=kind).element_size()
    return torch.randint(0, 256, (*shape, size), dtype=torch.uint8, generator=generator).view(kind).view(shape)


def content(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """All that must be byte for byte the same: identity, type, place in memory, bits, strides, flags."""
    found: dict[str, tuple[Any, ...]] = {}
    for prefix, module in model.named_modules():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                found[f"{prefix}.{key}"] = describe(tensor)
    return found


def describe(tensor: Any) -> tuple[Any, ...]:
    if tensor is None or torch.nn.parameter.is_lazy(tensor):
        return (id(tensor), type(tensor))
    base = (id(tensor), type(tensor), tensor.dtype, tuple(tensor.shape), tensor.requires_grad)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return (*base, str(tensor))
    return (*base, tensor.stride(), tensor.data_ptr(), bits(tensor))


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def holding(**tensors: Any) -> nn.Module:
    """A module with buffers of these names; Parameters become parameters."""
    module = nn.Module()
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
    return module


def bring_home(home: Any, worker: Any, folder: Path) -> tuple[str, ...]:
    """All three steps for one model; the notes."""
    collect_weights({"model": worker}, folder)
    staged = check_weights({"model": home}, folder)
    load_weights(staged)
    return staged.notes


# -- every kind of tensor ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 4)])
def test_every_dtype_comes_home_bit_by_bit(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    home, worker = holding(t=sample(dtype, *shape)), holding(t=sample(dtype, *shape, seed=1))
    before = describe(home.t)
    assert bring_home(home, worker, tmp_path) == ()
    assert bits(home.t) == bits(worker.t)
    assert describe(home.t)[:-1] == before[:-1]


def test_parameters_keep_identity_and_requires_grad(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    home[0].bias.requires_grad_(False)
    worker = copy.deepcopy(home)
    worker[0].bias.requires_grad_(True)
    worker.train()
    worker(torch.randn(5, 3))
    with torch.no_grad():
        for parameter in worker.parameters():
            parameter.add_(1)
    before = content(home)
    bring_home(home, worker, tmp_path)
    for name, tensor in home.state_dict().items():
        assert bits(tensor) == bits(worker.state_dict()[name]), name
    assert {name: value[:-1] for name, value in content(home).items()} == {n: v[:-1] for n, v in before.items()}
    assert home[1].num_batches_tracked.item() == 1
    assert not home[0].bias.requires_grad


def test_buffers_that_are_not_saved_come_home_too(tmp_path: Path) -> None:
    home, worker = nn.Module(), nn.Module()
    home.register_buffer("count", torch.zeros(2), persistent=False)
    worker.register_buffer("count", torch.ones(2), persistent=False)
    bring_home(home, worker, tmp_path)
    assert home.count.tolist() == [1, 1]


def test_strides_stay_those_of_the_notebook(tmp_path: Path) -> None:
    home = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    worker = nn.Conv2d(3, 4, 3).to(torch.float64)
    worker.to(torch.float32)
    strides = home.weight.stride()
    bring_home(home, worker, tmp_path)
    assert home.weight.stride() == strides != worker.weight.stride()
    assert torch.equal(home.weight, worker.weight)


def test_strides_stay_when_the_dtype_is_taken_over(tmp_path: Path) -> None:
    home = nn.Conv2d(3, 4, 3).bfloat16().to(memory_format=torch.channels_last)
    strides = home.weight.stride()
    worker = nn.Conv2d(3, 4, 3)
    bring_home(home, worker, tmp_path)
    assert home.weight.stride() == strides
    assert torch.equal(home.weight, worker.weight)


def test_noncontiguous_trained_tensors_are_written(tmp_path: Path) -> None:
    home = nn.Conv2d(3, 4, 3)
    worker = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    bring_home(home, worker, tmp_path)
    assert home.weight.is_contiguous()
    assert torch.equal(home.weight, worker.weight)


def test_tied_weights_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    home[1].weight = home[0].weight
    worker = copy.deepcopy(home)
    with torch.no_grad():
        worker[0].weight.add_(1)
    bring_home(home, worker, tmp_path)
    assert home[1].weight is home[0].weight
    assert torch.equal(home[0].weight, worker[0].weight)
    assert list(safetensors.torch.load_file(tmp_path / weights_files.PLAIN)) == ["0.weight"]


def test_two_tensors_in_one_memory(tmp_path: Path) -> None:
    def model(start: int) -> nn.Module:
        whole = torch.arange(start, start + 10.0)
        return holding(whole=whole, tail=whole[4:], again=whole[:], apart=whole[:2])

    home, worker = model(0), model(100)
    bring_home(home, worker, tmp_path)
    assert home.whole.tolist() == worker.whole.tolist()
    assert home.tail.data_ptr() == home.whole[4:].data_ptr()


def test_different_values_for_one_memory_are_refused(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    home = holding(whole=whole, tail=whole[4:])
    worker = holding(whole=torch.arange(10.0), tail=torch.zeros(6))
    before = content(home)
    with pytest.raises(TpuMagicsError, match="came apart in the worker") as caught:
        bring_home(home, worker, tmp_path)
    assert "`whole` and `tail`" in str(caught.value)
    assert content(home) == before


def test_ties_that_came_apart_are_named(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    home[1].weight = home[0].weight
    worker = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    before = content(home)
    with pytest.raises(TpuMagicsError, match="tied in the notebook came apart") as caught:
        bring_home(home, worker, tmp_path)
    assert "`0.weight` and `1.weight`" in str(caught.value)
    assert "load_state_dict" in caught.value.todo
    assert content(home) == before


def test_untied_in_the_worker_but_equal_is_fine(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    home[1].weight = home[0].weight
    worker = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    worker[1].weight = nn.Parameter(worker[0].weight.detach().clone())
    bring_home(home, worker, tmp_path)
    assert torch.equal(home[0].weight, worker[0].weight)


def test_what_safetensors_refuses_travels_in_the_second_file(tmp_path: Path) -> None:
    def model(scale: float) -> nn.Module:
        return holding(
            sparse=(torch.eye(3) * scale).to_sparse(),
            quantised=torch.quantize_per_tensor(torch.tensor([1.0, 2.0]) * scale, 0.1, 3, torch.qint8),
            complex=torch.full((2,), scale + 1j, dtype=torch.complex128),
            conjugate=torch.full((2,), scale + 1j, dtype=torch.complex64).conj(),
        )

    home, worker = model(1), model(2)
    kept = {name: id(buffer) for name, buffer in home.named_buffers()}
    bring_home(home, worker, tmp_path)
    assert torch.equal(home.sparse.to_dense(), torch.eye(3) * 2)
    assert torch.equal(home.quantised, worker.quantised)
    assert torch.equal(home.complex, worker.complex)
    assert home.conjugate.is_conj()
    assert torch.equal(home.conjugate, worker.conjugate)
    assert {name: id(buffer) for name, buffer in home.named_buffers()} == kept
    assert (tmp_path / weights_files.ODD).exists()


def test_expanded_buffers(tmp_path: Path) -> None:
    home = holding(same=torch.arange(3).expand(2, 3), other=torch.arange(3).expand(2, 3))
    worker = holding(same=torch.arange(3).expand(2, 3), other=torch.tensor([[1, 2, 3], [4, 5, 6]]))
    pointer = home.same.data_ptr()
    bring_home(home, worker, tmp_path)
    assert home.other.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert home.same.data_ptr() == pointer


def test_buffers_that_were_none(tmp_path: Path) -> None:
    home, worker = holding(new=None, gone=torch.ones(2), never=None), holding(new=torch.ones(3), gone=None, never=None)
    bring_home(home, worker, tmp_path)
    assert home.new.tolist() == [1, 1, 1]
    assert home.gone is None
    assert home.never is None
    assert "new" in home.state_dict()


def test_a_cache_that_only_one_side_has_stays(tmp_path: Path) -> None:
    home, worker = nn.Linear(2, 2), nn.Linear(2, 2)
    worker.register_buffer("angles", torch.ones(3), persistent=False)
    home.register_buffer("table", torch.ones(3), persistent=False)
    worker.register_buffer("table", torch.ones(6), persistent=False)
    notes = bring_home(home, worker, tmp_path)
    assert home.table.shape == (3,)
    assert torch.equal(home.weight, worker.weight)
    assert notes == (
        "model: `table` is [3] at home and [6] in the worker; it is not saved with a model and stays as it was.",
        "model: `angles` exists only in the worker; it is not saved with a model and stays as it was.",
    )


def test_lazy_modules_are_initialised(tmp_path: Path) -> None:
    home = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    worker = copy.deepcopy(home)
    weight = home[0].weight
    worker[:2](torch.randn(5, 3))
    bring_home(home, worker, tmp_path)
    assert home[0].weight is weight
    assert torch.equal(home[0].weight, worker[0].weight)
    assert torch.equal(home[1].running_mean, worker[1].running_mean)
    assert torch.nn.parameter.is_lazy(home[2].weight)
    assert torch.equal(home.eval()[:2](torch.ones(1, 3)), worker.eval()[:2](torch.ones(1, 3)))
    assert type(home[0]) is nn.Linear


def test_a_model_without_values_gets_them(tmp_path: Path) -> None:
    home, worker = nn.Linear(2, 3, device="meta"), nn.Linear(2, 3)
    weight = home.weight
    bring_home(home, worker, tmp_path)
    assert home.weight is weight
    assert isinstance(weight, nn.Parameter)
    assert torch.equal(weight, worker.weight)


def test_inference_tensors(tmp_path: Path) -> None:
    with torch.inference_mode():
        home = holding(made=torch.zeros(3))
    bring_home(home, holding(made=torch.ones(3)), tmp_path)
    assert home.made.tolist() == [1, 1, 1]


def test_an_unchanged_model_comes_home_unchanged(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = content(home)
    assert bring_home(home, home, tmp_path) == ()
    assert content(home) == before


def test_several_models_that_share_a_weight(tmp_path: Path) -> None:
    home = {"gen": nn.Linear(3, 3), "dis": nn.Linear(3, 3)}
    home["dis"].weight = home["gen"].weight
    worker = copy.deepcopy(home)
    with torch.no_grad():
        worker["gen"].weight.add_(1)
        worker["dis"].bias.add_(1)
    collect_weights(worker, tmp_path)
    load_weights(check_weights(home, tmp_path))
    assert home["dis"].weight is home["gen"].weight
    assert torch.equal(home["gen"].weight, worker["gen"].weight)
    assert torch.equal(home["dis"].bias, worker["dis"].bias)
    assert sorted(safetensors.torch.load_file(tmp_path / weights_files.PLAIN)) == ["dis/bias", "gen/bias", "gen/weight"]


def test_no_models(tmp_path: Path) -> None:
    collect_weights({}, tmp_path)
    load_weights(check_weights({}, tmp_path))


def test_names_of_compiled_and_wrapped_layers_are_plain(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Linear(2, 2))
    worker = copy.deepcopy(home)
    worker[0] = torch.compile(worker[0])
    with torch.no_grad():
        worker[0].weight.add_(1)
    bring_home(home, worker, tmp_path)
    assert torch.equal(home[0].weight, worker[0].weight)


# -- dtypes that differ ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("trained", ["bfloat16", "float16"])
def test_an_exact_conversion_keeps_the_notebooks_dtype(trained: str, tmp_path: Path) -> None:
    home, worker = nn.Linear(3, 3), nn.Linear(3, 3).to(getattr(torch, trained))
    notes = bring_home(home, worker, tmp_path)
    assert home.weight.dtype is torch.float32
    assert torch.equal(home.weight, worker.weight.float())
    assert notes == (f"model: 2 tensors were {trained} in the worker and stay float32 here (no value changes).",)


def test_a_conversion_that_loses_takes_the_trained_dtype_over(tmp_path: Path) -> None:
    home, worker = nn.Linear(3, 3).bfloat16(), nn.Linear(3, 3)
    home.weight.grad = torch.ones_like(home.weight)
    weight = home.weight
    notes = bring_home(home, worker, tmp_path)
    assert home.weight is weight
    assert torch.equal(home.weight, worker.weight)
    assert home.weight.grad.dtype is torch.float32
    home(torch.ones(1, 3)).sum().backward()
    assert notes == ("model: 2 tensors were float32 in the worker and are float32 here now, too (before: bfloat16).",)


@pytest.mark.parametrize(
    ("home", "trained", "kept"),
    [("float64", "float32", True), ("int32", "int64", False), ("float16", "bfloat16", False)],
)
def test_what_counts_as_exact(home: str, trained: str, kept: bool, tmp_path: Path) -> None:
    here, there = holding(t=sample(home, 4)), holding(t=torch.ones(4, dtype=getattr(torch, trained)))
    bring_home(here, there, tmp_path)
    assert str(here.t.dtype) == f"torch.{home if kept else trained}"
    assert here.t.tolist() == [1, 1, 1, 1]


# -- a structure that differs ------------------------------------------------------------------------------------------
def test_another_shape_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    home = nn.ModuleDict({"body": nn.Linear(8, 8), "classifier": nn.Linear(8, 3)})
    worker = nn.ModuleDict({"body": nn.Linear(8, 8), "classifier": nn.Linear(8, 5)})
    before = content(home)
    with pytest.raises(TpuMagicsError) as caught:
        bring_home(home, worker, tmp_path)
    assert caught.value.what == (
        "The trained `model` has another structure than the one in the notebook, so nothing was loaded."
    )
    assert "`classifier.weight` is [3, 8] at home and [5, 8] in the worker" in caught.value.why
    assert content(home) == before


def test_the_way_out_that_the_error_names_works(tmp_path: Path) -> None:
    home = {"model": nn.Linear(2, 2), "b.c": nn.Linear(2, 2)}
    worker = {"model": nn.Linear(2, 3), "b.c": nn.Linear(2, 2)}
    collect_weights(worker, tmp_path)
    with pytest.raises(TpuMagicsError) as caught:
        check_weights(home, tmp_path)
    line = next(part for part in caught.value.todo.split(": ", 1)[1].split(". Or change") if "load_state_dict" in part)
    model = nn.Linear(2, 3)
    exec(line, {"model": model, "safetensors": safetensors})
    assert torch.equal(model.weight, worker["model"].weight)


@pytest.mark.parametrize(
    ("home", "worker", "said"),
    [
        (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), "`weight` exists only at home; `bias` exists only at home"),
        (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), "`0.weight` exists only in the worker"),
        (nn.Linear(2, 2, bias=False), nn.Linear(2, 2), "`bias` is None at home and [2] in the worker"),
        (nn.Linear(2, 2), nn.Linear(2, 2, bias=False), "`bias` is [2] at home and None in the worker"),
        (nn.Linear(2, 2), nn.LazyLinear(2), "`weight` is [2, 2] at home and not initialised in the worker"),
        (nn.Linear(2, 2), nn.Linear(2, 2, device="meta"), "`weight` is [2, 2] at home and without values (on meta) in"),
        (nn.Linear(2, 3, device="meta"), nn.Linear(2, 2), "`weight` is without values (on meta) at home and [2, 2] in"),
        (
            holding(t=torch.ones(2)),
            holding(t=nn.Parameter(torch.ones(2))),
            "`t` is a buffer at home and a parameter in",
        ),
        (holding(t=torch.eye(2)), holding(t=torch.eye(2).to_sparse()), "`t` is [2, 2] at home and [2, 2] (sparse_coo)"),
        (nn.Sequential(), nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))), "; and 3 more"),
    ],
)
def test_differences_are_named(home: nn.Module, worker: nn.Module, said: str, tmp_path: Path) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        bring_home(home, worker, tmp_path)
    assert said in caught.value.why


def test_lora_is_another_structure(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Linear(4, 4))
    worker = copy.deepcopy(home)
    worker[0].lora_A = nn.Linear(4, 1, bias=False)
    with pytest.raises(TpuMagicsError, match=r"`0\.lora_A\.weight` exists only in the worker"):
        bring_home(home, worker, tmp_path)


def test_a_model_that_the_worker_does_not_know(tmp_path: Path) -> None:
    collect_weights({"a": nn.Linear(1, 1)}, tmp_path)
    with pytest.raises(TpuMagicsError, match="no weights for `b`"):
        check_weights({"b": nn.Linear(1, 1)}, tmp_path)


# -- files that are not whole ------------------------------------------------------------------------------------------
def test_a_shortened_file_is_recognised_before_it_is_mapped(tmp_path: Path) -> None:
    model = nn.Linear(600, 600)
    collect_weights({"model": model}, tmp_path)
    path = tmp_path / weights_files.PLAIN
    size = path.stat().st_size
    os.truncate(path, size - 5000)
    with pytest.raises(TpuMagicsError, match="did not arrive whole") as caught:
        check_weights({"model": model}, tmp_path)
    assert f"has {size - 5000} bytes instead of {size}" in caught.value.why


def test_changed_bytes_are_recognised(tmp_path: Path) -> None:
    model = nn.Linear(60, 60)
    collect_weights({"model": model}, tmp_path)
    with open(tmp_path / weights_files.PLAIN, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff" * 8)
    with pytest.raises(TpuMagicsError, match="CRC-32 differs"):
        check_weights({"model": model}, tmp_path)


@pytest.mark.parametrize("name", weights_files.FILES)
def test_missing_files_are_recognised(name: str, tmp_path: Path) -> None:
    model = holding(a=torch.ones(2), b=torch.ones(2, dtype=torch.complex128))
    collect_weights({"model": model}, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(TpuMagicsError, match="did not arrive whole"):
        check_weights({"model": model}, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1, "models": {}}'])
def test_a_torn_manifest_is_recognised(text: str, tmp_path: Path) -> None:
    (tmp_path / weights_files.MANIFEST).write_text(text)
    with pytest.raises(TpuMagicsError, match="did not arrive whole"):
        check_weights({}, tmp_path)


def test_the_manifest_says_what_came(tmp_path: Path) -> None:
    model = nn.Embedding(3, 2)
    collect_weights({"model": model}, tmp_path)
    record = json.loads((tmp_path / weights_files.MANIFEST).read_text())
    assert record["models"]["model"]["weight"] == {
        **{"kind": "parameter", "state": "data", "persistent": True, "requires_grad": True},
        **{"shape": [3, 2], "dtype": "float32", "layout": "strided", "key": "weight"},
    }
    assert record["files"][weights_files.PLAIN]["bytes"] == (tmp_path / weights_files.PLAIN).stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((weights_files.PLAIN, weights_files.MANIFEST))


def test_too_little_space_is_said_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 12_300_000})
    monkeypatch.setattr(weights_files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(TpuMagicsError, match="could not be written") as caught:
        collect_weights({"model": nn.Linear(2000, 2000)}, tmp_path)
    assert "They take 16.0 MB" in caught.value.why
    assert "12.3 MB are free there" in caught.value.why
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from tpu_magics.backends.torch_xla.weights import collect_weights
from tpu_magics.errors import TpuMagicsError

resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
model = torch.nn.Linear(1000, 1000).to(getattr(torch, sys.argv[2]))
try:
    collect_weights({"model": model}, Path(sys.argv[1]))
except TpuMagicsError as error:
    print(error)
"""


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_a_file_that_cannot_be_finished_leaves_nothing(dtype: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path, dtype], capture_output=True, text=True, timeout=100)
    assert "The trained weights could not be written." in done.stdout, done.stderr
    assert "Nothing half-written was left" in done.stdout
    assert list(tmp_path.iterdir()) == []


# -- all or nothing ----------------------------------------------------------------------------------------------------
def mixed(scale: float) -> nn.Module:
    """One of every way in which a model is changed."""
    model = holding(
        plain=nn.Parameter(torch.full((300,), scale)),
        last=torch.full((3, 2, 2, 2), scale).to(memory_format=torch.channels_last),
        other=torch.full((5,), scale, dtype=torch.bfloat16 if scale == 1 else torch.float32),
        sparse=(torch.eye(3) * scale).to_sparse(),
        lazy=torch.nn.UninitializedParameter() if scale == 1 else nn.Parameter(torch.ones(2)),
        meta=nn.Parameter(torch.empty(2, device="meta" if scale == 1 else "cpu")),
        none=None if scale == 1 else torch.ones(2),
        end=torch.full((300,), scale),
    )
    model.other.grad = None
    return model


class Injected(Exception):
    pass


@pytest.mark.parametrize("failing", range(8))
@pytest.mark.parametrize("free_bytes", [0, 2**40])
def test_a_failure_half_way_puts_everything_back(
    failing: int, free_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, worker = mixed(1), mixed(2)
    before = content(home)
    collect_weights({"model": worker}, tmp_path)
    staged = check_weights({"model": home}, tmp_path)
    assert len(staged.puts) == 8
    calls = []

    def breaking(method: Any) -> Any:
        def prepare(put: Any, keep: Any) -> Any:
            change, back = method(put, keep)

            def changed_then_failed() -> None:
                calls.append(put)
                change()
                if len(calls) == failing + 1:
                    raise Injected("the disk was pulled out")

            return changed_then_failed, back

        return prepare

    for name, method in list(weights_load._METHODS.items()):
        monkeypatch.setitem(weights_load._METHODS, name, breaking(method))
    with pytest.raises(TpuMagicsError, match="they are as they were") as caught:
        load_weights(staged, free_bytes)
    assert "Injected: the disk was pulled out" in caught.value.why
    assert str(tmp_path) in caught.value.todo
    assert content(home) == before
    assert not list(tmp_path.glob("result-undo*"))
    assert type(home.lazy) is torch.nn.UninitializedParameter
    monkeypatch.undo()
    load_weights(staged, free_bytes)
    assert home.end.tolist() == worker.end.tolist()
    assert torch.equal(home.last, worker.last)


def test_an_error_in_the_middle_of_one_tensor_puts_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, worker = nn.Linear(50, 50), nn.Linear(50, 50)
    before = content(home)
    collect_weights({"model": worker}, tmp_path)
    staged = check_weights({"model": home}, tmp_path)
    real = torch.Tensor.copy_

    def half(self: torch.Tensor, source: torch.Tensor, *args: Any) -> torch.Tensor:
        if self is home.bias and source is staged.puts[1].value:
            real(self[:25], source[:25])
            raise KeyboardInterrupt
        return real(self, source, *args)

    monkeypatch.setattr(torch.Tensor, "copy_", half)
    with pytest.raises(KeyboardInterrupt):
        load_weights(staged)
    assert content(home) == before


def test_no_room_for_the_old_values_is_said_before_anything_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = nn.Linear(50, 50)
    before = content(home)
    collect_weights({"model": nn.Linear(50, 50)}, tmp_path)
    staged = check_weights({"model": home}, tmp_path)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights_load.os, "posix_fallocate", full)
    with pytest.raises(TpuMagicsError) as caught:
        load_weights(staged, free_bytes=1000)
    assert "0.0 MB of memory are free, and the disk has no room either" in caught.value.why
    assert content(home) == before


def test_frozen_tensors_are_not_written(tmp_path: Path) -> None:
    home = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    worker = copy.deepcopy(home)
    with torch.no_grad():
        worker[1].weight.add_(1)
    versions = [parameter._version for parameter in home.parameters()]
    bring_home(home, worker, tmp_path)
    assert [parameter._version - old for parameter, old in zip(home.parameters(), versions)] == [0, 0, 1, 0]


@pytest.mark.parametrize("other_thread", [False, True])
def test_an_interrupt_waits_until_all_is_loaded(
    other_thread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, worker = (
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))),
        nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))),
    )
    collect_weights({"model": worker}, tmp_path)
    staged = check_weights({"model": home}, tmp_path)
    real = weights_load._METHODS["copy"]
    done = threading.Event()
    if other_thread:  # one that does not block SIGINT, as those of a Jupyter kernel do not
        threading.Thread(target=done.wait, daemon=True).start()

    def interrupted(put: Any, keep: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        return real(put, keep)

    monkeypatch.setitem(weights_load._METHODS, "copy", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        load_weights(staged)
    done.set()
    assert all(torch.equal(here, there) for here, there in zip(home.parameters(), worker.parameters(), strict=True))
    assert signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


# -- from a device -----------------------------------------------------------------------------------------------------
class Everything(nn.Module):
    """Parameters, buffers of every dtype that XLA has, tied weights, BatchNorm, channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.norm = nn.BatchNorm1d(8)
        self.conv = nn.Conv2d(1, 2, 3, padding=1).to(memory_format=torch.channels_last)
        self.decoder = nn.Linear(8, 11, bias=False)
        self.decoder.weight = self.embedding.weight
        for dtype in XLA_DTYPES:
            self.register_buffer(
                f"some_{dtype}", torch.ones(2, 3).to(getattr(torch, dtype)), persistent=dtype != "bool"
            )
        self.register_buffer("scalar", torch.tensor(3))
        self.register_buffer("empty", torch.empty(0, 4))
        self.register_buffer("later", None)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embedding(ids))
        hidden = self.conv(hidden.view(-1, 1, 2, 4)).mean(1).view(-1, 8)
        return self.decoder(hidden)


def train_on_device(model: nn.Module) -> None:
    """Two steps; what follows the second is left pending, as at the end of a loop without a last sync."""
    import torch_xla

    from tpu_magics.backends.torch_xla.ties import keep_ties

    keep_ties()
    device = torch_xla.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.arange(8).to(device)
    for _ in range(2):
        torch_xla.sync()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), ids).backward()
        optimizer.step()
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.startswith("some_"):
                new = torch.zeros(2, 3).to(buffer.dtype).to(device)
                setattr(model, name, new)
        model.later = torch.arange(3, device=device)


def scenario_the_whole_way_from_a_device_to_the_notebook() -> None:
    folder = Path(tempfile.mkdtemp())
    model = Everything()
    before = content(model)
    old = copy.deepcopy(model.state_dict())

    def work() -> None:
        import torch_xla.debug.metrics as metrics

        train_on_device(model)
        compiles = metrics.counter_value("UncachedCompile")
        collect_weights({"model": model}, folder)
        assert metrics.counter_value("UncachedCompile") - compiles <= 1
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, folder / "expected.pt")

    in_worker(work)
    assert content(model) == before
    expected = torch.load(folder / "expected.pt")
    staged = check_weights({"model": model}, folder)
    assert content(model) == before
    assert staged.notes == ()
    load_weights(staged)
    for name, tensor in model.state_dict().items():
        assert bits(tensor) == bits(expected[name]), name
    assert not torch.equal(model.embedding.weight, old["embedding.weight"])
    assert model.norm.num_batches_tracked.item() == 2
    assert not model.some_bool.any()
    assert model.decoder.weight is model.embedding.weight
    after = content(model)
    assert {name: value[:-1] for name, value in after.items() if name != ".later"} == {
        name: value[:-1] for name, value in before.items() if name != ".later"
    }
    assert model.later.tolist() == [0, 1, 2]


def scenario_weights_that_came_apart_on_the_device_are_named() -> None:
    folder = Path(tempfile.mkdtemp())
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    model[1].weight = model[0].weight

    def work() -> None:
        import torch_xla

        model.to(torch_xla.device())
        with torch.no_grad():
            model[0].weight.add_(1)
        collect_weights({"model": model}, folder)

    in_worker(work)
    with pytest.raises(TpuMagicsError, match="`0.weight` and `1.weight`"):
        check_weights({"model": model}, folder)


def scenario_a_worker_that_never_used_the_device() -> None:
    folder = Path(tempfile.mkdtemp())
    model = nn.Linear(3, 3)

    def work() -> None:
        import torch_xla

        with torch.no_grad():
            model.weight.fill_(5)
        collect_weights({"model": model}, folder)
        assert not torch_xla._XLAC._xla_runtime_is_initialized()

    in_worker(work)
    load_weights(check_weights({"model": model}, folder))
    assert (model.weight == 5).all()


def scenario_a_batch_larger_than_one_transfer() -> None:
    from tpu_magics.backends.torch_xla import weights_fetch

    folder = Path(tempfile.mkdtemp())
    weights_fetch.BATCH_BYTES = 1000
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(10)), nn.Linear(100, 100))

    def work() -> None:
        import torch_xla

        with torch.no_grad():
            for number, parameter in enumerate(model.to(torch_xla.device()).parameters()):
                parameter.fill_(number)
        collect_weights({"model": model}, folder)

    in_worker(work)
    load_weights(check_weights({"model": model}, folder))
    assert all((parameter == number).all() for number, parameter in enumerate(model.parameters()))


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return outcomes(__file__)


@pytest.mark.parametrize("name", names(globals()))
def test_scenario(name: str, found: dict[str, str]) -> None:
    assert found[name] == ""


if __name__ == "__main__":
    run_scenarios(globals())
