"""What is changed in transformers and accelerate, without a runtime: which texts count as a lack of memory, what
becomes of a metrics report, a norm over what is no shard. Training itself is tested in tests/launch/test_trainer.py."""

from __future__ import annotations

import gc
import importlib.util
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla")
accelerate = pytest.importorskip("accelerate")

from tests.launch.test_diagnosis import HBM_ALLOCATE, HBM_E1000, HBM_PIECES, HBM_RESERVE, HBM_USED  # noqa: E402
from tpu_magics.backends.torch import trainer  # noqa: E402
from tpu_magics.backends.torch_xla import library_fixes  # noqa: E402
from tpu_magics.backends.torch_xla import trainer as reports  # noqa: E402
from tpu_magics.runs.events import Metrics, only  # noqa: E402
from tpu_magics.runs.reader import Run  # noqa: E402
from tpu_magics.runs.writer import EventWriter  # noqa: E402

ON_THE_HOST = "Out of memory allocating 70368744177664 bytes."  # XLA:CPU of torch_xla 2.9.0


# -- a lack of memory -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [HBM_USED, HBM_E1000, HBM_RESERVE, HBM_ALLOCATE, HBM_PIECES, ON_THE_HOST])
def test_xlas_texts_are_known(text: str) -> None:
    assert trainer.is_out_of_memory(RuntimeError(text))
    assert trainer.is_out_of_memory(ValueError("Bad StatusOr access", text))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 33.00M of 16.00M vmem."),
        RuntimeError("RESOURCE_EXHAUSTED: Received message larger than max (5000000 vs. 4194304)"),
        RuntimeError("Evaluation hit an out-of-memory error. `auto_find_batch_size` only adjusts the training batch"),
        RuntimeError("No executable batch size found, reached zero."),
        OSError(28, "No space left on device"),
        RuntimeError(),
    ],
)
def test_other_texts_are_not(error: Exception) -> None:
    assert not trainer.is_out_of_memory(error)


@pytest.fixture
def memory() -> Any:
    """accelerate's own module, loaded once more: that of this process stays as it is."""
    found = importlib.util.find_spec("accelerate.utils.memory")
    assert found is not None and found.origin
    spec = importlib.util.spec_from_file_location("accelerate.utils._memory_of_a_test", found.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def little_garbage() -> Iterator[None]:
    """accelerate collects garbage after each size: here it need not look at all that was ever imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("little_garbage")
@pytest.mark.parametrize("args", [(HBM_USED,), (HBM_E1000,), ("Bad StatusOr access", HBM_USED), (ON_THE_HOST,)])
def test_accelerate_takes_a_smaller_batch(memory: Any, args: tuple[str, ...]) -> None:
    tried: list[int] = []

    def fake_training(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > 10:
            raise RuntimeError(*args)
        return batch_size

    with pytest.raises(RuntimeError):  # as it is without us
        memory.find_executable_batch_size(fake_training, starting_batch_size=16)()
    tried.clear()
    trainer._know_out_of_memory(memory)
    trainer._know_out_of_memory(memory)  # twice is once
    assert memory.find_executable_batch_size(fake_training, starting_batch_size=16)() == 10
    assert tried == [16, 14, 12, 10]


def test_accelerates_own_judgement_stays(memory: Any) -> None:
    trainer._know_out_of_memory(memory)
    assert memory.should_reduce_batch_size(RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."))
    assert not memory.should_reduce_batch_size(RuntimeError("shapes cannot be multiplied"))


# -- metrics reports --------------------------------------------------------------------------------------------------
@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EventWriter]:
    made = EventWriter(tmp_path / "rank-0.jsonl", 0)
    with trainer.recording(made):
        yield made
    made.close()


def fake_trainer_module(printed: list[Any], master: bool = True) -> Any:
    """What transformers/trainer.py has of it: `xm` and `met`."""
    xm = types.SimpleNamespace(
        master_print=lambda *args, **_: printed.extend(args), is_master_ordinal=lambda local=True: master
    )
    met = types.SimpleNamespace(metrics_report=lambda: "Metric: CompileTime\n", metric_data=None)
    return types.SimpleNamespace(xm=xm, met=met)


def reporting(printed: list[Any], master: bool = True) -> Any:
    """Such a module, that has printed a report."""
    module = fake_trainer_module(printed, master)
    reports._keep_reports(module)
    module.xm.master_print(module.met.metrics_report())
    return module


def records(writer: EventWriter) -> list[Metrics]:
    return only(Run(writer.path.parent).events("metrics"), Metrics)


def test_a_report_becomes_a_file_and_a_record(writer: EventWriter) -> None:
    printed: list[Any] = []
    module = reporting(printed)
    module.xm.master_print("Metric: mine")  # what the user prints is printed
    assert printed == ["Metric: mine"]
    (record,) = records(writer)
    assert (record.file, record.number, record.rank) == ("rank-0-metrics-0.txt", 0, 0)
    path = writer.path.parent / record.file
    assert path.read_text() == "Metric: CompileTime\n" and path.stat().st_mode & 0o777 == 0o600
    # nothing has been compiled in this process: no figure, and not zero
    assert (record.compiles, record.compile_seconds, record.executions, record.execute_seconds) == (None,) * 4


def test_other_ranks_write_none(writer: EventWriter) -> None:
    reporting([], master=False)
    assert records(writer) == []


def test_without_a_run_it_is_printed() -> None:
    printed: list[Any] = []
    reporting(printed)
    assert printed == ["Metric: CompileTime\n"]


def test_many_and_long_reports_keep_bounds(writer: EventWriter) -> None:
    for number in range(reports.REPORTS_KEPT + 5):
        reports.keep_report(f"{number} " + "x" * (2 * reports.REPORT_BYTES if number % 7 == 0 else 10))
    found = sorted(writer.path.parent.glob("rank-0-metrics-*.txt"))
    assert len(found) == reports.REPORTS_KEPT
    assert max(path.stat().st_size for path in found) == reports.REPORT_BYTES
    assert [one.number for one in records(writer)] == list(range(reports.REPORTS_KEPT + 5))
    assert (writer.path.parent / records(writer)[-1].file).read_text().startswith(str(reports.REPORTS_KEPT + 4))


def test_a_folder_that_cannot_be_written_ends_no_training(writer: EventWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    reports.keep_report("Metric: CompileTime")  # opens the records

    def fake_full_disk(*_args: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.open", fake_full_disk)
        reports.keep_report("Metric: CompileTime")
    assert [one.file for one in records(writer)] == ["rank-0-metrics-0.txt", ""]


# -- a version that has other pieces ----------------------------------------------------------------------------------
def test_pieces_that_are_missing_leave_the_others() -> None:
    class FakeHandler:
        def on_log(self, args: Any, state: Any, control: Any, logs: Any) -> str:
            return "logged"

    original = FakeHandler.on_log
    module = types.ModuleType("transformers.trainer")
    module.CallbackHandler = FakeHandler  # type: ignore[attr-defined]
    trainer._change_trainer(module)
    assert FakeHandler.on_log is not original
    assert FakeHandler().on_log(None, types.SimpleNamespace(is_world_process_zero=True), None, {}) == "logged"


# -- gradients without shards -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.1, 1e6])
def test_whole_gradients_are_clipped_as_torch_does(norm_type: float, max_norm: float) -> None:
    def parameters() -> list[Any]:
        torch.manual_seed(0)
        made = [
            torch.nn.Parameter(torch.randn(3, 4)),
            torch.nn.Parameter(torch.randn(5)),
            torch.nn.Parameter(torch.ones(1)),
        ]
        for one in made[:2]:
            one.grad = torch.randn_like(one)
        return made

    ours, theirs = parameters(), parameters()
    assert not any(map(library_fixes.is_shard, ours))
    norm = library_fixes.clip(ours, max_norm, norm_type)
    assert torch.allclose(norm, torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type))
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(ours[:2], theirs[:2], strict=True))
    assert library_fixes.clip(ours[2:], max_norm, norm_type) == 0.0
