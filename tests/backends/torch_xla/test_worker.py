"""How a forked process becomes a rank: environment, precision, modes of the notebook's thread, autograd, devices."""

from __future__ import annotations

import contextvars
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.launch.launching import digest, failed, in_forked_notebook, run, said
from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch import precision_request
from tpu_magics.backends.torch import worker as torch_worker
from tpu_magics.backends.torch_xla import worker
from tpu_magics.launch import plan, session, train
from tpu_magics.launch.options import PRECISION_NAMES

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


@pytest.fixture(scope="module", autouse=True)
def _forking() -> None:
    """It is there before the first test, and so it is nothing that a test leaves."""
    forks.server("torch_xla", "")


# -- environment and precision ----------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return dict(os.environ)


def test_the_environment_is_the_workers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "local")
    spec = WorkerSpec(1, 4, "CPU", "bf16", {"TPU_PROCESS_ADDRESSES": None, "ACCELERATE_MIXED_PRECISION": "bf16"})
    before = dict(os.environ)
    try:
        worker.apply_environment(spec)
        assert os.environ["PJRT_DEVICE"] == "CPU" and os.environ["XLA_USE_BF16"] == "1"
        assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16" and os.environ["LOCAL_RANK"] == "1"
        assert "TPU_PROCESS_ADDRESSES" not in os.environ
    finally:
        os.environ.clear()
        os.environ.update(before)


def of_old_notebooks() -> list[int]:
    import torch_xla.core.xla_model as xm

    return [xm.xrt_world_size(), xm.get_ordinal(), xm.get_ordinal(defval=-1)]


def test_names_that_torch_xla_has_removed_are_there() -> None:
    assert run(of_old_notebooks, workers=2).values == [[2, 0, 0], [2, 1, 1]]


def test_every_precision_of_the_options_is_known() -> None:
    on = {"XLA_USE_BF16": "1", "XLA_DOWNCAST_BF16": "1"}
    told = {name: tuple(sorted(precision_request.variables(name, on).items())) for name in PRECISION_NAMES}
    assert len(set(told.values())) == len(told), told  # each turns on and off what it means
    assert precision_request.variables("", on) == {}


def test_compiled_programs_are_kept_on_a_tpu_only(tmp_path: Path) -> None:
    """torch_xla 2.9 reads the variables when it compiles for the first time."""
    code = """
import os, sys
from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch_xla import worker
for device in ("CPU", "TPU"):
    worker._use_cache(WorkerSpec(0, 1, device, cache=sys.argv[1]))
    print(os.environ.get("XLA_PERSISTENT_CACHE_PATH"), os.environ.get("XLA_PERSISTENT_CACHE_READ_ONLY"))
"""
    assert forks.run("torch_xla", code, tmp_path).split() == ["None", "None", str(tmp_path), "0"]


def multiplies() -> dict[str, Any]:
    """How a product that bfloat16 cannot hold comes out, and what the graph says."""
    import torch_xla

    device = torch_xla.device()
    x = torch.full((2, 2), 1.001, device=device)
    product = x @ x
    text = torch_xla._XLAC._get_xla_tensors_hlo([product])
    return {"text": text, "value": float(product[0, 0]), "dtype": str(product.dtype)}


@pytest.mark.parametrize(("precision", "rounded"), [("fp32", False), ("bf16", True), ("bf16-downcast", True)])
def test_precision_is_set_before_the_first_tensor(precision: str, rounded: bool) -> None:
    value = run(multiplies, precision=precision).value
    assert ("bf16" in value["text"]) == rounded
    assert (abs(value["value"] - 2 * 1.001**2) > 1e-4) == rounded
    assert value["dtype"] == "torch.float32"
    assert not {"XLA_USE_BF16", "XLA_DOWNCAST_BF16"} & set(os.environ)


# -- the notebook's thread --------------------------------------------------------------------------------------------

chosen = contextvars.ContextVar("chosen", default="none")


def modes() -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "chosen": chosen.get(),
        "device": str(torch.empty(1).device),
        "main": threading.current_thread() is threading.main_thread(),
    }


def test_modes_of_the_notebooks_thread_hold_in_the_ranks() -> None:
    """Grad mode, the default device and context variables belong to a thread; the ranks run in another."""
    assert run(modes).value == {
        "grad": True,
        "dtype": "torch.float32",
        "chosen": "none",
        "device": "cpu",
        "main": False,
    }
    token = chosen.set("mine")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            found = run(modes).value
    finally:
        torch.set_default_dtype(torch.float32)
        chosen.reset(token)
    assert (found["grad"], found["dtype"], found["chosen"]) == (False, "torch.float64", "mine")
    with torch.device("meta"):
        assert run(modes).value["device"] == "meta"


def raises(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("a"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_whatever_a_thread_raises_is_raised(error: BaseException) -> None:
    assert type(error).__name__ in str(failed(raises, error)) or "sys.exit(3)" in str(failed(raises, error))


# -- accelerate -------------------------------------------------------------------------------------------------------


def launched() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(4, 2))
    accelerator.print("printed by the first")
    return {
        "device": str(accelerator.device),
        "type": str(accelerator.distributed_type),
        "processes": accelerator.num_processes,
        "main": accelerator.is_main_process and accelerator.is_local_main_process,
        "weights": str(next(model.parameters()).device),
        "forked": os.environ.get("FORK_LAUNCHED"),
    }


@pytest.mark.parametrize("imported", [False, True])
def test_an_accelerator_takes_the_device(imported: bool) -> None:
    if imported:
        import accelerate  # noqa: F401 - then its own PrepareForLaunch calls the function
    result = run(launched)
    value = result.value
    assert value["device"].startswith("xla") and value["weights"].startswith("xla") and value["type"].endswith("XLA")
    assert value["processes"] == 1 and value["main"] and value["forked"] == "1"
    assert "printed by the first" in result.run.log(0)
    assert "FORK_LAUNCHED" not in os.environ


# -- autograd ---------------------------------------------------------------------------------------------------------

NO_BACKWARD_BEFORE = """
import os, sys
import torch
from tests.launch.launching import run

def trains():
    import torch_xla
    x = torch.ones(4, device="xla", requires_grad=True)
    (x * 3).sum().backward()
    return x.grad.sum().item()

for attempt in range(int(sys.argv[1])):
    assert run(trains, workers=3, timeout=20.0).values == [12.0] * 3
torch.ones(1, requires_grad=True).sum().backward()
for attempt in range(int(sys.argv[2])):
    assert run(trains, workers=3, timeout=20.0).values == [12.0] * 3
"""


@pytest.mark.parametrize(("without", "after"), [(3, 1), pytest.param(8, 4, marks=pytest.mark.long)])
def test_autograd_starts_with_and_without_a_backward_before(without: int, after: int) -> None:
    """Starting its threads a second time hung in about one of six workers whose notebook had done no backward."""
    forks.run("torch_xla", NO_BACKWARD_BEFORE, str(without), str(after), cwd=forks.ROOT)


def test_without_the_symbols_the_error_is_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpu_magics.errors import TpuMagicsError

    monkeypatch.setattr(torch_worker, "_START_DEVICE_THREADS", "_ZN5torch8autograd6Engine7missingEv")
    with pytest.raises(TpuMagicsError, match="threads cannot be started") as caught:
        torch_worker.start_autograd_threads()
    assert "missing" in caught.value.why and "pytorch/xla#4174" in caught.value.why


# -- devices ----------------------------------------------------------------------------------------------------------

model_of_the_module = torch.nn.Linear(2, 2)
several = {"first": torch.nn.Linear(2, 2), "shared": threading.Lock()}


def fills(model: Any, value: float) -> None:
    import torch_xla

    model.to(torch_xla.device())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def fills_the_global(value: float) -> None:
    fills(model_of_the_module, value)


class Trainer:
    """A model that is an attribute, trained by a method."""

    def __init__(self, tied: Any) -> None:
        self.model = torch.nn.Linear(2, 2)
        self.model.weight = tied.weight
        self.lock = threading.Lock()

    def fit(self, rank: int, model: Any, log: list[str], value: float) -> dict[str, Any]:
        import torch_xla

        for one in (model, several["first"], self.model):
            fills(one, value + rank)
        fills_the_global(value + rank)
        torch_xla.sync()
        log.append(str(rank))
        return {
            "rank": rank,
            "device": str(torch_xla.device()),
            "weights": [float(m.weight[0, 0].item()) for m in (model, model_of_the_module, several["first"])],
            "tied": self.model.weight is model.weight,
            "identity": id(model),
            "thread": threading.get_ident(),
            "log": log,
        }


@pytest.fixture
def two_devices(fresh_session: session.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has two, as a process of v2 and v3 has; here XLA:CPU shows two."""
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    session.initialise(tpu_branch=False)  # XLA:CPU in a TPU's place has one device in each process
    made = plan.make_plan
    monkeypatch.setattr(plan, "make_plan", lambda *args: replace(made(*args), replicas=2))


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("workers", [1, 2])
def test_two_devices_in_one_worker_train_two_copies(workers: int) -> None:
    model = torch.nn.Linear(2, 2)
    trainer = Trainer(model)
    before = digest(model)
    request = train.function_request(trainer.fit, (model, [], 5.0), index_first=True)
    result = train.start(request, train.Options(hoist="off", timeout=60.0), workers=workers)
    values = result.values
    assert [value["rank"] for value in values] == list(range(2 * workers))
    assert [value["device"] for value in values] == ["xla:0", "xla:1"] * workers
    assert [value["weights"] for value in values] == [[5.0 + rank] * 3 for rank in range(2 * workers)]
    assert all(value["tied"] for value in values)
    assert [value["log"] for value in values] == [[str(rank)] for rank in range(2 * workers)]
    assert values[0]["identity"] != values[1]["identity"] and values[0]["thread"] != values[1]["thread"]
    assert digest(model) != before
    for one in (model, model_of_the_module, several["first"]):  # what comes home is the first rank's
        assert torch.equal(one.weight, torch.full((2, 2), 5.0))
    assert trainer.model.weight is model.weight


def test_devices_beyond_the_plan_stay_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU_NUM_DEVICES is set in some notebooks; in-process replicas on XLA:CPU hang in their first collective."""
    monkeypatch.setenv("CPU_NUM_DEVICES", "4")
    result = run(environment)
    assert len(result.values) == 1


def test_which_start_of_torch_xla_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """One chip: torch_xla's start of a single process, which leaves the bounds variables alone; several: the other."""
    from torch_xla._internal import pjrt

    used: list[tuple[int, int, str]] = []

    def fake_run(
        rank: int, count: int, function: Callable[[], Any], start: Callable[[int, int], None]
    ) -> Mapping[int, Any]:
        name = "one" if start is not pjrt.initialize_multiprocess else "several"
        if name == "one":
            start(rank, count)
        used.append((rank, count, name))
        return {}

    started: list[str] = []
    monkeypatch.setattr(pjrt, "_run_thread_per_device", fake_run)
    monkeypatch.setattr(pjrt, "initialize_singleprocess", lambda: started.append("single"))
    for spec in (WorkerSpec(0, 1, "TPU"), WorkerSpec(2, 4, "TPU"), WorkerSpec(0, 1, "CPU"), WorkerSpec(1, 3, "CPU")):
        worker._on_each_device(spec, lambda *_: None, lambda *_: None, lambda *_: None)
    assert used == [(0, 1, "one"), (2, 4, "several"), (0, 1, "several"), (1, 3, "several")]
    assert started == ["single"]


def test_torch_xla_has_what_is_called() -> None:
    """Private names, read in torch_xla 2.9: this test fails clearly when one of them goes away."""
    from torch_xla._internal import pjrt

    for name in ("_run_thread_per_device", "initialize_multiprocess", "initialize_singleprocess"):
        assert callable(getattr(pjrt, name))
    assert "torch_xla" in sys.modules


def works_on_both() -> float:
    import torch_xla

    product = torch.randn(300, 300) @ torch.randn(300, 300)
    x = torch.ones(3, device=torch_xla.device(), requires_grad=True)
    (x * bool(product.isfinite().all())).sum().backward()
    return float(x.grad.sum().item()) if x.grad is not None else 0.0


@pytest.mark.usefixtures("two_devices")
def test_threads_that_the_notebook_chose(tmp_path: Path) -> None:
    """torch.set_num_threads() in the notebook makes each new thread of a worker ask for the pool."""

    def cells() -> None:
        torch.set_num_threads(2)
        for _ in range(5):
            assert run(works_on_both, workers=2).values == [3.0] * 4

    in_forked_notebook(cells, tmp_path / "out")


# -- autocast ---------------------------------------------------------------------------------------------------------


def under_autocast() -> dict[str, str]:
    import torch_xla
    from torch_xla.amp import autocast

    model, rows = torch.nn.Linear(8, 4).to("xla"), torch.ones(2, 8, device="xla")
    contexts = {
        "its own": autocast(torch_xla.device()),
        "by name": autocast("xla"),
        "torch's": torch.autocast("xla", dtype=torch.bfloat16),
        "off": autocast(torch_xla.device(), enabled=False),
    }
    told = {}
    for name, context in contexts.items():
        with context:
            result = model(rows)
        told[name] = str(result.dtype)
    loss = model(rows).mean()
    with autocast(torch_xla.device()):
        loss = loss + model(rows).mean()
    loss.backward()
    torch_xla.sync()
    return {**told, "gradient": str(next(model.parameters()).grad.dtype)}


def test_torch_xlas_autocast_computes_in_bf16_as_on_a_tpu() -> None:
    """torch_xla 2.9 leaves it half made on XLA:CPU: "'autocast' object has no attribute 'device'"."""
    half, whole = "torch.bfloat16", "torch.float32"
    result = run(under_autocast, workers=1)
    assert result.value == {"its own": half, "by name": half, "torch's": half, "off": whole, "gradient": whole}


def test_torch_xla_still_asks_for_the_hardware() -> None:
    """What library_fixes.fix_autocast replaces; if this goes away, so may that function."""
    from torch_xla.amp import autocast_mode
    from torch_xla.core import xla_model

    assert autocast_mode.xm is xla_model and "xm.xla_device_hw(device)" in Path(autocast_mode.__file__).read_text()


# -- faults of torch_xla -----------------------------------------------------------------------------------------------

ELUS = {
    "elu": lambda x: torch.nn.functional.elu(x, alpha=0.7),
    "elu in place": lambda x: torch.nn.functional.elu(x * 1, alpha=0.7, inplace=True),
    "celu": lambda x: torch.nn.functional.celu(x, 2.0),
    "celu in place": lambda x: torch.nn.functional.celu(x * 1, 2.0, inplace=True),
    "selu": torch.nn.functional.selu,
    "selu in place": lambda x: torch.nn.functional.selu(x * 1, inplace=True),
}


infinite = float("inf")
COMPUTED: Mapping[str, Callable[[Any], Any]] = {
    "amax": lambda x: x.amax(),
    "amin": lambda x: torch.amin(x),
    "amax of some": lambda x: x.amax((1, 3), keepdim=True),
    "norm of infinite order": lambda x: x.norm(infinite),
    "of some": lambda x: torch.norm(x, -infinite, dim=(2, 3)),
    "plain norm": lambda x: torch.norm(x),
    "nearest": lambda x: torch.nn.functional.interpolate(x, scale_factor=1.7),
    "bilinear": lambda x: torch.nn.functional.interpolate(x, scale_factor=(0.6, 1.3), mode="bilinear"),
    "doubled": lambda x: torch.nn.Upsample(scale_factor=2, mode="bilinear")(x),
    "to a size": lambda x: torch.nn.functional.interpolate(x, (13, 5)),
    "anew": lambda x: torch.nn.functional.interpolate(x, scale_factor=1.7, recompute_scale_factor=True),
    "sum of windows": lambda x: torch.nn.AvgPool2d(3, 2, 1, divisor_override=1)(x),
    "means of windows": lambda x: torch.nn.AvgPool2d((3, 2), count_include_pad=False)(x),
    "scripted": lambda x: torch.jit.script(torch.nn.AvgPool2d(2))(x),
    "scripted, too": lambda x: torch.jit.script(_compared)(x),
}


def _compared(x: torch.Tensor) -> torch.Tensor:
    return torch.amax(x, [1]) if torch.equal(x, x) else x


def slopes(device: Any) -> dict[str, list[float]]:
    found = {}
    for name, function in ELUS.items():
        x = torch.tensor([-2.0, -0.5, 0.5], device=device).requires_grad_()
        function(x).sum().backward()
        found[name] = x.grad.cpu().tolist()  # type: ignore[union-attr]
    for affine, shape in ((True, (2, 3, 2, 2)), (False, (4, 3)), (True, (2, 3, 4))):
        kinds = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}
        norm = kinds[len(shape)](3, affine=affine).train()
        data = torch.arange(float(torch.Size(shape).numel())).reshape(shape).sin()
        norm(data)
        norm.to(device).eval()
        x = data.to(device).requires_grad_()
        norm(x).square().sum().backward()
        gradients = [one.grad.flatten().tolist() for one in (x, *norm.parameters())]  # type: ignore[union-attr]
        found[f"frozen statistics, {shape}"] = [number for one in gradients for number in one]
    for name, function in COMPUTED.items():
        x = torch.arange(2.0 * 3 * 8 * 8).reshape(2, 3, 8, 8).mul(1.7).sin().to(device).requires_grad_()
        result = function(x)
        (result * torch.linspace(0.5, 1.5, result.numel()).reshape(result.shape).to(device)).sum().backward()
        found[name] = [*result.flatten().tolist(), *x.grad.flatten().tolist(), *result.shape]  # type: ignore[union-attr]
    for reduction in ("mean", "none"):
        x, label = torch.tensor([0.5, 1.0, -2.0], device=device).requires_grad_(), torch.tensor(1, device=device)
        loss = torch.nn.functional.cross_entropy(x, label, reduction=reduction)
        loss.backward()
        found[f"one row, {reduction}"] = [loss.item(), *x.grad.cpu().tolist(), loss.dim()]  # type: ignore[union-attr]
    return found


def in_inference_mode() -> list[float]:
    model = torch.nn.Linear(2, 1).to("xla")

    @torch.inference_mode()
    def evaluate() -> Any:
        return model(torch.ones(1, 2, device="xla"))

    result = evaluate()
    with torch.inference_mode(), torch.inference_mode(False):
        inside = model(torch.ones(1, 2, device="xla")).requires_grad
    return [*result.flatten().tolist(), result.requires_grad, inside, torch.is_grad_enabled()]


def test_what_torch_xla_computes_wrongly_or_refuses_is_right() -> None:
    for name, found in run(slopes, "xla").value.items():
        assert found == pytest.approx(slopes("cpu")[name], rel=1e-4, abs=1e-5), name
    assert run(in_inference_mode).value[1:] == [False, True, True]


def asked(device: str) -> dict[str, str]:
    """What each use of labels and ids raises, with as many classes and rows as 3; "" for nothing."""
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    functions, scores, ids = torch.nn.functional, torch.randn(4, 3).to(device), torch.nn.Embedding(3, 2).to(device)
    spread = torch.randn(2, 3, 2).to(device)

    def sent(*numbers: int) -> Any:
        return torch.tensor(numbers).to(device)

    def changed() -> Any:
        labels = sent(0, 1, 5, 2)
        labels[labels == 5] = 0
        return labels

    loader = [torch.tensor([0, 1, 2, 3])]
    batches: Any = loader if device == "cpu" else MpDeviceLoader(loader, torch.device("xla:0"))
    scripted = torch.jit.script(torch.nn.Embedding(3, 2)).to(device)
    uses: dict[str, Callable[[], Any]] = {
        "right": lambda: functions.cross_entropy(scores, sent(0, 1, 2, 2)),
        "label": lambda: functions.cross_entropy(scores, sent(0, 1, 2, 3)),
        "negative": lambda: torch.nn.CrossEntropyLoss()(scores, sent(0, 1, -1, 2)),
        "left out": lambda: functions.cross_entropy(scores, sent(0, 1, -100, 2)),
        "left out by name": lambda: functions.cross_entropy(scores, sent(0, 1, 255, 2), ignore_index=255),
        "left out by place": lambda: functions.nll_loss(scores, sent(0, 1, 255, 2), None, None, 255),
        "nll": lambda: functions.nll_loss(scores, sent(0, 1, 9, 2)),
        "spread": lambda: functions.cross_entropy(spread, sent(0, 1, 2, 7).reshape(2, 2)),
        "shares": lambda: functions.cross_entropy(scores, torch.ones(4, 3).to(device)),
        "changed": lambda: functions.cross_entropy(scores, changed()),
        "id": lambda: ids(sent(0, 3)),
        "from a loader": lambda: [ids(batch) for batch in batches],
        "scripted": lambda: scripted(sent(0, 2)),
        "no whole numbers": lambda: functions.cross_entropy(scores, sent(0, 1, 2, 2).double()),
    }
    found = {}
    for name, use in uses.items():
        try:
            use()
            found[name] = ""
        except (IndexError, RuntimeError) as error:
            found[name] = str(error)[:15]
    return found


def test_labels_and_ids_that_do_not_exist_are_errors_as_on_the_cpu() -> None:
    expected = asked("cpu")
    assert {name for name, text in expected.items() if text} == {
        *("label", "negative", "nll", "spread", "id", "from a loader", "no whole numbers")
    }
    assert run(asked, "xla").value == {**expected, "spread": ""}  # what is computed from what was sent is not known


# -- packages that torch_xla imports for nothing ----------------------------------------------------------------------


def imported_packages(names: tuple[str, ...], given: str) -> list[str]:
    """Those of `names` that are there once a batch has been fetched and placed on a mesh; `given` was there before."""
    import torch_xla
    import torch_xla.distributed.parallel_loader as pl
    import torch_xla.distributed.spmd as xs

    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]
    if given:
        importlib.import_module(given)
    for batch in pl.MpDeviceLoader([torch.ones(2, 2)], torch_xla.device()):
        xs.mark_sharding(batch, xs.get_global_mesh(), (None, None))
    return [name for name in names if name in sys.modules]


@pytest.mark.parametrize("given", ["", "jax"])
def test_a_worker_imports_neither_jax_nor_torchax_by_itself(given: str) -> None:
    assert run(imported_packages, ("jax", "torchax"), given, spmd=2).value == ([given] if given else [])


IN_A_NOTEBOOK = """
from tpu_magics.backends.torch import runtime
from tpu_magics.backends.torch_xla import library_fixes
library_fixes.prepare_notebook()
import torch
from torch_xla.amp import autocast
from torch_xla.utils.checkpoint import checkpoint
layer, x = torch.nn.Linear(4, 1), torch.ones(2, 4, requires_grad=True)
with autocast(torch.device("cpu"), dtype=torch.bfloat16):
    kind = layer(x).dtype
checkpoint(layer, x).sum().backward()
import torch_xla
import torch_xla.core.xla_model as xm
xm.mark_step()  # as a pipeline of diffusers
print(kind, x.grad is not None, runtime.running())
x.to("xla")
torch_xla.sync()
print(runtime.running())
"""


@pytest.mark.process
def test_cells_use_checkpoint_autocast_and_syncs_on_the_cpu_without_the_runtime() -> None:
    lines = forks.run("torch_xla", IN_A_NOTEBOOK).strip().splitlines()[-2:]
    assert lines == ["torch.bfloat16 True False", "True"]


REPLACED_IN_A_NOTEBOOK = """
from tpu_magics.backends.torch import runtime
from tpu_magics.backends.torch_xla import library_fixes
library_fixes.prepare_notebook()
library_fixes.prepare_notebook()
import torch
from torch.nn.utils import clip_grad_norm_, rnn
torch.manual_seed(0)
net, x = torch.nn.GRU(2, 3, num_layers=2, batch_first=True), torch.randn(2, 4, 2)
out, last = net(rnn.pack_padded_sequence(x, [4, 2], batch_first=True))
same = torch.equal(last[:, 0], net(x)[1][:, 0])
nothing = float(clip_grad_norm_(net.parameters(), 1.0))
last.sum().backward()
first = float(clip_grad_norm_(net.parameters(), 0.5, foreach=True))
print(same, nothing, first > 0.5, round(float(clip_grad_norm_(net.parameters(), 9.0)), 3), runtime.running())
"""


@pytest.mark.process
def test_what_torch_xla_replaces_in_torch_works_on_the_cpu() -> None:
    """GRU and clip_grad_norm_: torch_xla is imported before, in the process that this one is forked from."""
    assert forks.run("torch_xla", REPLACED_IN_A_NOTEBOOK).strip().splitlines()[-1] == "True 0.0 True 0.5 False"


LOADS_IN_A_NOTEBOOK = """
import io
from tpu_magics.backends.torch import runtime
from tpu_magics.backends.torch_xla import library_fixes
library_fixes.prepare_notebook()
library_fixes.prepare_notebook()
import torch
class OnDevice:  # as a tensor of the device is saved
    def __reduce__(self):
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, (torch.ones(2), torch.float32, "xla:0", False)
saved = io.BytesIO()
torch.save({"weight": OnDevice(), "bias": torch.zeros(1)}, saved)
def load(**options):
    saved.seek(0)
    return str(torch.load(saved, **options)["weight"].device)
print(load(), load(weights_only=False), load(map_location="cpu"), load(map_location=lambda storage, _: storage))
print(runtime.running(), load(map_location="meta"))
import torch_xla
torch_xla.device()
print(load(), load(map_location={"xla:0": "cpu"}))
"""


@pytest.mark.process
def test_what_a_run_saved_is_loaded_to_the_cpu_by_a_cell_until_the_runtime_runs() -> None:
    lines = forks.run("torch_xla", LOADS_IN_A_NOTEBOOK).strip().splitlines()[-3:]
    assert lines == ["cpu cpu cpu cpu", "False meta", "xla:0 cpu"]


class Unreadable(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> Any:
        if number == 4:
            raise ValueError(f"cannot decode image {number}")
        return torch.ones(2)


def reads_all(model: Any) -> int:
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    from tpu_magics.backends.torch_xla.observe import loaders

    loader = MpDeviceLoader(torch.utils.data.DataLoader(Unreadable(), batch_size=2), torch.device("xla:0"))
    model.to("xla")
    batches = iter(loader)
    model(next(batches)).sum().backward()
    assert loaders.length(batches) == 3  # known while the thread reads
    for batch in batches:
        model(batch).sum().backward()
    return 1


def test_an_error_of_a_dataset_ends_the_run() -> None:
    """torch_xla reads in a thread, and its error ends the loop as if the data had ended."""
    error = failed(reads_all, torch.nn.Linear(2, 1))
    assert "ValueError: cannot decode image 4" in error.what and "in reads_all: for batch in batches" in said(error)
