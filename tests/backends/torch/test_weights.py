"""Weights from a worker to the notebook: every kind of tensor, from the CPU and from a device."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from tests import framework
from tpu_magics.backends.torch import weights_files
from tpu_magics.backends.torch.weights import check_weights, collect_weights, load_weights
from tpu_magics.errors import TpuMagicsError

from .forked_scenarios import in_worker
from .weights_samples import DTYPES, XLA_DTYPES, bits, bring_home, content, describe, holding, sample


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


def convolution(dtype: torch.dtype = torch.float32, layout: torch.memory_format = torch.contiguous_format) -> nn.Module:
    return nn.Conv2d(3, 4, 3).to(dtype).to(memory_format=layout)


@pytest.mark.parametrize(
    ("home", "worker"),
    [
        (convolution(layout=torch.channels_last), convolution()),
        (convolution(torch.bfloat16, torch.channels_last), convolution()),  # whose dtype is taken over
        (convolution(), convolution(layout=torch.channels_last)),
    ],
)
def test_strides_stay_those_of_the_notebook(home: Any, worker: Any, tmp_path: Path) -> None:
    strides = home.weight.stride()
    bring_home(home, worker, tmp_path)
    assert home.weight.stride() == strides != worker.weight.stride()
    assert torch.equal(home.weight, worker.weight)


def tied(together: bool = True) -> nn.Module:
    """An embedding and a decoder with one weight, or with two."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    if together:
        model[1].weight = model[0].weight
    return model


def test_tied_weights_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    home = tied()
    worker = copy.deepcopy(home)
    with torch.no_grad():
        worker[0].weight.add_(1)
    collect_weights({"model": worker}, tmp_path)
    assert list(safetensors.torch.load_file(tmp_path / weights_files.PLAIN)) == ["0.weight"]
    load_weights(check_weights({"model": home}, tmp_path))
    assert home[1].weight is home[0].weight
    assert torch.equal(home[0].weight, worker[0].weight)


def test_two_tensors_in_one_memory(tmp_path: Path) -> None:
    def model(start: int) -> nn.Module:
        whole = torch.arange(start, start + 10.0)
        return holding(whole=whole, tail=whole[4:], again=whole[:], apart=whole[:2])

    home, worker = model(0), model(100)
    bring_home(home, worker, tmp_path)
    assert home.whole.tolist() == worker.whole.tolist()
    assert home.tail.data_ptr() == home.whole[4:].data_ptr()


def in_one_memory(whole: torch.Tensor) -> nn.Module:
    return holding(whole=whole, tail=whole[4:])


@pytest.mark.parametrize(
    ("home", "worker", "names"),
    [
        (
            in_one_memory(torch.arange(10.0)),
            holding(whole=torch.arange(10.0), tail=torch.zeros(6)),
            "`whole` and `tail`",
        ),
        (tied(), tied(together=False), "`0.weight` and `1.weight`"),
    ],
)
def test_ties_that_came_apart_are_named(home: nn.Module, worker: nn.Module, names: str, tmp_path: Path) -> None:
    before = content(home)
    with pytest.raises(TpuMagicsError, match="tied in the notebook are not tied in the worker") as caught:
        bring_home(home, worker, tmp_path)
    assert names in str(caught.value)
    assert "load_state_dict" in caught.value.todo
    assert content(home) == before


def test_tied_only_in_the_worker(tmp_path: Path) -> None:
    """Two tensors here take their values from one in the file."""
    home, worker = tied(together=False), tied()
    with torch.no_grad():
        worker[0].weight.fill_(7)
    bring_home(home, worker, tmp_path)
    assert (home[0].weight == 7).all()
    assert (home[1].weight == 7).all()
    assert home[0].weight.data_ptr() != home[1].weight.data_ptr()


def test_untied_in_the_worker_but_equal_is_fine(tmp_path: Path) -> None:
    home, worker = tied(), tied(together=False)
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
        "model: `table` is [3] in the notebook and [6] in the worker. It is not saved with the model, so it was not "
        "updated.",
        "model: `angles` exists only in the worker. It is not saved with the model, so it was not updated.",
    )


def test_lazy_modules_are_initialised(tmp_path: Path) -> None:
    home, worker = (nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2)) for _ in range(2))
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


def test_without_memory_for_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor would wait forever for one that dies as it begins."""
    monkeypatch.setattr(weights_files, "begin_thread", lambda _body: False)
    monkeypatch.setattr(weights_files, "ThreadPoolExecutor", None)
    home, worker = nn.Linear(3, 2), nn.Linear(3, 2)
    bring_home(home, worker, tmp_path)
    assert torch.equal(home.weight, worker.weight)


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
    assert sorted(safetensors.torch.load_file(tmp_path / weights_files.PLAIN)) == ["dis/bias", "gen/bias", "gen/weight"]
    load_weights(check_weights(home, tmp_path))
    assert home["dis"].weight is home["gen"].weight
    assert torch.equal(home["gen"].weight, worker["gen"].weight)
    assert torch.equal(home["dis"].bias, worker["dis"].bias)


def test_one_model_under_two_names(tmp_path: Path) -> None:
    home, worker = nn.Linear(2, 2), nn.Linear(2, 2)
    collect_weights({"model": worker, "alias": worker}, tmp_path)
    staged = check_weights({"model": home, "alias": home}, tmp_path)
    assert len(staged.puts) == 2
    load_weights(staged)
    assert torch.equal(home.weight, worker.weight)


def test_names_of_any_letters(tmp_path: Path) -> None:
    keys = ["a b", 'say "x"', "ü", "a/b", "back\\slash"]
    home, worker = (
        nn.ParameterDict({key: torch.full((2,), start + n) for n, key in enumerate(keys)}) for start in (0.0, 9.0)
    )
    bring_home(home, worker, tmp_path)
    assert [home[key][0].item() for key in keys] == [9, 10, 11, 12, 13]


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
    assert notes == (
        f"model: 2 tensors were {trained} in the worker and stay float32 in the notebook (no value changes).",
    )


def test_a_conversion_that_loses_takes_the_trained_dtype_over(tmp_path: Path) -> None:
    home, worker = nn.Linear(3, 3).bfloat16(), nn.Linear(3, 3)
    home.weight.grad = torch.ones_like(home.weight)
    weight = home.weight
    notes = bring_home(home, worker, tmp_path)
    assert home.weight is weight
    assert torch.equal(home.weight, worker.weight)
    assert home.weight.grad.dtype is torch.float32
    home(torch.ones(1, 3)).sum().backward()
    assert notes == (
        "model: 2 tensors were float32 in the worker and are now float32 in the notebook too (before: bfloat16).",
    )


@pytest.mark.parametrize(
    ("home", "trained", "kept"),
    [("float64", "float32", True), ("int32", "int64", False), ("float16", "bfloat16", False)],
)
def test_what_counts_as_exact(home: str, trained: str, kept: bool, tmp_path: Path) -> None:
    here, there = holding(t=sample(home, 4)), holding(t=torch.ones(4, dtype=getattr(torch, trained)))
    bring_home(here, there, tmp_path)
    assert str(here.t.dtype) == f"torch.{home if kept else trained}"
    assert here.t.tolist() == [1, 1, 1, 1]


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
    from tpu_magics.backends.torch.tied_weights import keep_ties

    keep_ties()
    device = framework.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.arange(8).to(device)
    for _ in range(2):
        framework.sync()
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
        train_on_device(model)
        compiles = framework.compiles()
        collect_weights({"model": model}, folder)
        assert framework.TORCH_TPU or framework.compiles() - compiles <= 1
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
    model = tied()

    def work() -> None:
        model.to(framework.device())
        with torch.no_grad():
            model[0].weight.add_(1)
        collect_weights({"model": model}, folder)

    in_worker(work)
    with pytest.raises(TpuMagicsError, match=r"`0\.weight` and `1\.weight`"):
        check_weights({"model": model}, folder)


def scenario_a_worker_that_never_used_the_device() -> None:
    folder = Path(tempfile.mkdtemp())
    model = nn.Linear(3, 3)

    def work() -> None:
        with torch.no_grad():
            model.weight.fill_(5)
        collect_weights({"model": model}, folder)
        assert not framework.runtime_is_up()

    in_worker(work)
    load_weights(check_weights({"model": model}, folder))
    assert (model.weight == 5).all()


def scenario_a_batch_larger_than_one_transfer() -> None:
    from tpu_magics.backends.torch import tensor_transfer

    folder = Path(tempfile.mkdtemp())
    tensor_transfer.BATCH_BYTES = 1000
    model = nn.Sequential(*(nn.Linear(10, 10) for _ in range(10)), nn.Linear(100, 100))

    def work() -> None:
        with torch.no_grad():
            for number, parameter in enumerate(model.to(framework.device()).parameters()):
                parameter.fill_(number)
        collect_weights({"model": model}, folder)

    in_worker(work)
    load_weights(check_weights({"model": model}, folder))
    assert all((parameter == number).all() for number, parameter in enumerate(model.parameters()))


def grown(call: Callable[[], Any]) -> float:
    """By how many MB the resident memory of this process rose above what it was, at most, during `call`."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size now
    before = peak()
    call()
    return peak() - before


def peak() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1000


def scenario_neither_side_needs_memory_for_a_second_model() -> None:
    folder = Path(tempfile.mkdtemp())
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(50)))  # 200 MB

    def work() -> None:
        from tpu_magics.backends.torch.tensor_transfer import settle

        with torch.no_grad():
            for parameter in model.to(framework.device()).parameters():
                parameter.add_(1)
        settle()
        assert grown(lambda: collect_weights({"model": model}, folder)) < 100

    in_worker(work)
    before = model[-1].weight.detach().clone()
    staged = check_weights({"model": model}, folder)
    assert grown(lambda: load_weights(staged)) < 50
    assert torch.equal(model[-1].weight, before + 1)


@pytest.mark.process
def test_scenario(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == ""
