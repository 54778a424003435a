"""The road of a run: values, logs and weights of several ranks come home, or nothing changes."""

from __future__ import annotations

import os
import pickle
import re
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import tpu_magics
from tests import framework
from tests.launch.launching import digest, failed, fake_notebook, of, refused, run, said, waits_for
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import results, session
from tpu_magics.launch.options import Options
from tpu_magics.launch.strategies import forked

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def who() -> dict[str, Any]:
    print(f"I am {os.getpid()}")
    return {"pid": os.getpid(), "parent": os.getppid()}


def sgd(model: Any, steps: int = 3) -> float:
    """Move, train, return the last loss."""
    model.to(framework.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.arange(32.0).reshape(4, 8).to(framework.device()) / 32
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        framework.sync()
    return float(loss)


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))


def changed(model: Any, before: dict[str, Any]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def trained_names(before: dict[str, Any]) -> set[str]:
    """All, with running_mean and num_batches_tracked among them."""
    return {name for name in before if framework.BATCH_NORM or ".running_" not in name}


def copy_of(model: Any) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_three_ranks_give_three_values_and_three_logs(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(who, workers=3)
    pids = [value["pid"] for value in result.values]
    assert len(set(pids)) == 3 and os.getpid() not in pids
    assert {value["parent"] for value in result.values} == {os.getpid()}
    assert result.value == result.values[0]
    assert [result.run.log(rank).strip() for rank in range(3)] == [f"I am {pid}" for pid in pids]
    assert capsys.readouterr().out.strip() == f"I am {pids[0]}"  # only the first rank is shown live
    assert result.status == "done"
    assert result.run.ranks == (0, 1, 2)
    assert [worker["exit"] for worker in result.run.info["workers"]] == [0, 0, 0]
    assert [event.pid for event in result.run.events("start")] != []
    assert {event.rank for event in result.run.events("start")} == {0, 1, 2}
    assert {event.world_size for event in result.run.events("start")} == {3}


def give(value: Any) -> Any:
    return value() if callable(value) else value


def test_a_value_that_cannot_be_pickled_fails_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    for make, word in ((threading.Lock, "lock"), (lambda: (i for i in range(3)), "generator")):
        result = run(give, make)
        assert result.status == "done"
        with pytest.raises(TpuMagicsError, match=word) as caught:
            _ = result.value
        assert "return value of rank 0 could not be sent" in caught.value.what
        assert "Return plain values" in caught.value.todo
        assert word in capsys.readouterr().out  # said at once, not only when it is asked for


def device_tensors() -> Any:
    device = framework.device()
    return {"loss": torch.ones(2, device=device) * 3, "list": [torch.zeros(1, 2).to(device)], "lr": 0.1}


def test_device_tensors_come_home_on_the_cpu() -> None:
    value = run(device_tensors).value
    assert value["loss"].device.type == "cpu" and torch.equal(value["loss"], torch.full((2,), 3.0))
    assert value["list"][0].device.type == "cpu"
    assert value["lr"] == 0.1


def huge() -> bytes:
    return b"x" * (64 << 20)


def test_a_large_value_comes_home_and_leaves_the_disk() -> None:
    result = run(huge)
    assert len(result.value) == 64 << 20
    assert sum(path.stat().st_size for path in result.run.path.rglob("*") if path.is_file()) < 1 << 20


def defined_inside() -> Any:
    class Here:
        pass

    return Here()


def test_an_object_of_a_class_of_the_worker_comes_home_by_its_code() -> None:
    assert type(run(defined_inside).value).__name__ == "Here"


def test_no_values_before_the_end_or_after_a_failure() -> None:
    result = results.TrainResult(run(who).run, {})
    with pytest.raises(TpuMagicsError, match="has no results"):
        _ = result.values


# -- weights ----------------------------------------------------------------------------------------------------------

model_of_the_module = net()


def trains_a_global() -> None:
    sgd(model_of_the_module)


def trains_all(many: Any) -> None:
    for one in many.values() if isinstance(many, dict) else many:
        sgd(one)


class Trainer:
    """A model that is an attribute."""

    def __init__(self) -> None:
        self.model = net()
        self.lr = 0.1

    def fit(self) -> float:
        return sgd(self.model)


def trains_an_attribute(trainer: Trainer) -> float:
    return sgd(trainer.model)


@pytest.mark.smoke
def test_weights_and_buffers_of_an_argument_come_home() -> None:
    model = net()
    before, identities = copy_of(model), [id(tensor) for tensor in model.state_dict(keep_vars=True).values()]
    result = run(sgd, model)
    assert changed(model, before) == trained_names(before)
    assert [id(tensor) for tensor in model.state_dict(keep_vars=True).values()] == identities
    assert list(result.models) == ["model"] and result.models["model"] is model
    assert all(tensor.device.type == "cpu" for tensor in model.state_dict().values())
    assert result.run.info["models"] == ["model"]
    assert not [path for path in result.run.path.iterdir() if path.name.startswith("result")]


def sgd_and_show(model: Any) -> dict[str, Any]:
    sgd(model)
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def test_they_are_the_weights_that_the_worker_had() -> None:
    model = net()
    seen = run(sgd_and_show, model).value
    assert seen.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, seen[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("how", ["global", "list", "dict", "closure", "attribute", "method", "default", "keyword"])
def test_wherever_the_function_finds_its_model(how: str) -> None:
    trainer = Trainer()
    model = model_of_the_module if how == "global" else trainer.model

    def closes_over() -> None:
        sgd(model)

    def by_default(one: Any = model) -> None:
        sgd(one)

    before = copy_of(model)
    calls: dict[str, Any] = {
        "global": lambda: run(trains_a_global),
        "list": lambda: run(trains_all, [model]),
        "dict": lambda: run(trains_all, {"first": model}),
        "closure": lambda: run(closes_over),
        "attribute": lambda: run(trains_an_attribute, trainer),
        "method": lambda: run(trainer.fit),
        "default": lambda: run(by_default),
        "keyword": lambda: run(sgd, kwargs={"model": model, "steps": 2}),
    }
    result = calls[how]()
    assert changed(model, before) == trained_names(before)
    assert len(result.models) == 1


def test_weights_of_a_model_that_was_only_read_stay() -> None:
    model = net().eval()
    before = digest(model)

    def reads() -> float:
        return float(model(torch.ones(4, 8)).sum())

    assert isinstance(run(reads).value, float)
    assert digest(model) == before


def test_two_ranks_bring_the_first_ones_weights() -> None:
    model, alone = net(), net()
    run(sgd, model, workers=2)
    run(sgd, alone)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), alone.state_dict().values(), strict=True))


def breaks(model: Any, how: str) -> None:
    sgd(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7)
    if how == "raise":
        raise ValueError("boom <script>alert(1)</script> \x1b[31m")
    if how == "exit":
        sys.exit(3)
    os._exit(5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", ["Rank 0 raised ValueError", "boom <script>"]),
        ("exit", ["Rank 0 called sys.exit(3)"]),
        ("_exit", ["Rank 0 exited before it finished (exit code 5)"]),
    ],
)
def test_a_failure_changes_no_weight(how: str, words: list[str]) -> None:
    model = net()
    before = digest(model)
    error = failed(breaks, model, how)
    assert digest(model) == before
    assert all(word in said(error) for word in words), said(error)
    assert error.rank == 0 and of(error).status == "failed"
    assert of(error).info["failure"]["what"] == error.what
    assert session.current.last is not None and session.current.last.failure is error
    assert run(sgd, model).status == "done"  # and the next one trains
    assert digest(model) != before


def raises_deep(model: Any) -> None:
    def inner(matrix: Any) -> Any:
        return matrix @ torch.ones(3, device=matrix.device)

    model.to(framework.TYPE)
    inner(next(model.parameters()))


def test_the_persons_own_line_is_shown() -> None:
    error = failed(raises_deep, net())
    text = said(error)
    assert "return matrix @ torch.ones(3, device=matrix.device)" in text
    assert f"{Path(__file__).name}, line" in text and "in raises_deep" in text and "in inner" in text
    assert "tpu_magics/launch/work.py" not in text


def changes_structure(model: Any) -> None:
    model.append(torch.nn.Linear(2, 2))
    model[-1].lock = threading.Lock()
    sgd(model)


def test_weights_that_do_not_fit_fail_whole_and_stay_on_disk() -> None:
    model = net()
    before = digest(model)
    error = failed(changes_structure, model)
    assert digest(model) == before and of(error).status == "failed" and "structure of the trained" in error.what
    kept = [path for path in of(error).path.iterdir() if path.name.startswith("result-") and path.suffix != ".pkl"]
    assert kept and any(str(path) in said(error) for path in kept), said(error)


# -- steps ------------------------------------------------------------------------------------------------------------


def endless(model: Any) -> None:
    model.to(framework.TYPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        try:
            optimizer.zero_grad()
            model(torch.ones(4, 8, device=framework.TYPE)).sum().backward()
            optimizer.step()
            framework.sync()
        except Exception:
            print("the limit was caught")


@pytest.mark.parametrize("workers", [1, 3])
def test_steps_stops_after_so_many_and_changes_nothing(workers: int) -> None:
    model = net()
    before = digest(model)
    result = run(endless, model, steps=4, workers=workers)
    assert (result.status, result.steps, result.value, result.values) == ("stopped", 4, None, [])
    assert digest(model) == before
    assert "the limit" not in result.run.log(0)
    assert [event.status for event in result.run.events("end")] == ["limit"] * workers
    assert result.run.info["models"] == []


def test_a_function_with_fewer_steps_than_the_limit_is_done() -> None:
    model = net()
    before = digest(model)
    result = run(sgd, model, steps=10)
    assert (result.status, result.steps) == ("done", 3)
    assert digest(model) != before


# -- the public function ----------------------------------------------------------------------------------------------


def test_train_takes_what_the_magic_takes(runs: Path) -> None:
    model = net()
    result = tpu_magics.train(sgd, model, kwargs={"steps": 2}, run_name="first try", hoist="off", timeout=60)
    assert result.run.name == "first try" and result.run.path.parent == runs
    assert result.steps == 2
    assert tpu_magics.find_run("first try").path == result.run.path
    shown = r"<TrainResult 'first try': done, 2 steps( of [\d.]+ ms)?, \d compiles?( \(\d recompiles?\))?, "
    assert re.fullmatch(shown + "updated in the notebook: model; see %tpu_panel first try>", repr(result))


def test_options_are_checked_before_anything_forks(runs: Path) -> None:
    for options, word in (
        ({"processes": 0}, "-n 0"),
        ({"steps": 0}, "--steps 0"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"timeout": float("nan")}, "--timeout nan"),
        ({"precision": "fp16"}, "--precision fp16"),
        ({"hoist": "on"}, "--hoist on"),
        ({"run_name": "a/b"}, "a/b"),
        ({"run_name": ""}, "cannot be named"),
        ({"processes": 8, "spmd": 8}, "-n 8 and --spmd"),
    ):
        error = refused(who, **options)
        assert word in error.what and error.todo, error
    assert not runs.exists() and Options().check() is None


def test_a_folder_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPU_MAGICS_RUNS", str(tmp_path / "file" / "runs"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    notebook = fake_notebook()
    result = run(who)
    assert result.status == "done" and not str(result.run.path).startswith(str(tmp_path / "file"))
    assert any("cannot be written" in line and str(result.run.path) in line for line in notebook.lines)
    assert result.run.summary().warnings


# -- the background ---------------------------------------------------------------------------------------------------


def waits_and_trains(path: Path, model: Any) -> float:
    waits_for(path)
    return sgd(model)


def test_a_background_run_comes_home_with_wait(tmp_path: Path) -> None:
    model = net()
    before = digest(model)
    result = run(waits_and_trains, tmp_path / "go", model, background=True, run_name="later")
    assert result.status == "running" and digest(model) == before
    with pytest.raises(TpuMagicsError, match="has no results: its status is running"):
        _ = result.value
    error = refused(who)
    assert "'later' is still running" in error.what and "%tpu_stop later" in error.todo
    assert "--background" in error.why
    (tmp_path / "go").touch()
    assert result.wait() is result and result.status == "done"
    assert isinstance(result.value, float) and digest(model) != before
    assert result.wait() is result  # again does no harm
    assert run(who).status == "done"


def test_what_is_said_of_a_background_run_has_the_name_of_its_result(tmp_path: Path) -> None:
    notebook = fake_notebook()
    result = run(waits_and_trains, tmp_path / "go", net(), background=True, output="bg")
    assert any("bg.wait() loads its results" in line for line in notebook.lines)
    assert "Wait for it with bg.wait()" in refused(who).todo
    (tmp_path / "go").touch()
    result.wait()


def test_a_background_run_that_is_stopped_changes_nothing(tmp_path: Path) -> None:
    model = net()
    before = digest(model)
    result = run(waits_and_trains, tmp_path / "never", model, background=True)
    going = session.current.active_run
    assert going is not None
    going.stop()
    assert going.ended
    with pytest.raises(tpu_magics.TrainingInterrupted):
        result.wait()
    assert digest(model) == before and result.status == "interrupted"
    with pytest.raises(tpu_magics.TrainingInterrupted):  # again: the same answer
        result.wait()
    assert run(who).status == "done"


def test_a_background_run_that_fails_says_so_when_it_comes_home() -> None:
    model = net()
    result = run(breaks, model, "raise", background=True)
    with pytest.raises(tpu_magics.TrainingFailed, match="boom"):
        result.wait()
    assert result.status == "failed"


# -- the request ------------------------------------------------------------------------------------------------------


def test_a_run_is_named_after_its_function() -> None:
    assert run(lambda: 1).run.name == "lambda"
    assert run(types.MethodType(lambda self: 1, object())).run.name
    assert run(who).run.name == "who"


def test_two_models_with_one_name_both_come_home() -> None:
    first, second = net(), net()
    befores = digest(first), digest(second)

    def inner(model: Any) -> None:
        sgd(model)
        sgd(first)

    result = run(inner, second)
    assert digest(first) != befores[0] and digest(second) != befores[1]
    assert len(result.models) == 2


# -- a run folder that others can write to -----------------------------------------------------------------------------


class Hostile:
    """A pickle that runs code when it is loaded."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "x")


@pytest.mark.parametrize("complete", [True, False])
def test_results_come_from_the_folder_of_the_run_and_not_from_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, complete: bool
) -> None:
    """Another account renames the folder, and puts one with results of its own there, or a link to it."""
    load = forked.ForkedStrategy.load

    def exchanged(self: Any, run: Any, ranks: int) -> Any:
        path = run.folder.path
        own = path.rename(tmp_path / "taken")
        (tmp_path / "theirs").mkdir()
        for file in own.iterdir():
            (tmp_path / "theirs" / file.name).write_bytes(file.read_bytes())
            if file.suffix == ".pkl":
                (tmp_path / "theirs" / file.name).write_bytes(pickle.dumps(Hostile(str(tmp_path / "ran"))))
                file.unlink() if not complete else None
        path.symlink_to(tmp_path / "theirs")
        return load(self, run, ranks)

    monkeypatch.setattr(forked.ForkedStrategy, "load", exchanged)
    model = net()
    before = digest(model)
    if complete:
        assert isinstance(run(sgd, model).value, float) and digest(model) != before
    else:
        error = failed(sgd, model)
        assert error.what == "The run folder was moved or replaced during the run." and digest(model) == before
        assert "Set TPU_MAGICS_RUNS to a folder that only you can change" in error.todo
    assert not (tmp_path / "ran").exists()
    assert b'"running"' not in (tmp_path / "taken" / "run.json").read_bytes()
    assert b'"done"' not in (tmp_path / "theirs" / "run.json").read_bytes()
