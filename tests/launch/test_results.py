"""Home again: values, names and weights from the run folder, all or nothing; what of a rank's results can travel."""

from __future__ import annotations

import atexit
import json as json_module
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import results
from tpu_magics.launch.results import MissingValue, RunResults, TrainResult, collect_results
from tpu_magics.launch.state.snapshot import StateSnapshot
from tpu_magics.launch.work import CellWork, FunctionWork, ScriptWork, packed
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run


class Net:
    """A model of the weights `weight`, with parts."""

    def __init__(self, weight: str = "", *parts: Net) -> None:
        self.weight, self.parts = weight, parts

    def modules(self) -> list[Net]:
        return [self, *self.parts]


class FakeBackend:
    """Weights as a JSON file, so that what the launcher does with them is seen. `fails`: where it stops."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.calls: list[str] = []
        self.results = self.models = self  # its own parts

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def is_model(self, value: object) -> bool:
        return isinstance(value, Net)

    def structure(self, model: Net) -> str:
        return model.weight

    def check_weights(self, models: dict[str, Any], folder: Path) -> Any:
        self.calls.append(f"check {sorted(models)}")
        if self.fails == "check":
            raise TpuMagicsError("They do not fit.")
        return models

    def load_weights(self, staged: Any) -> list[str]:
        self.calls.append("load")
        if self.fails == "load":
            raise TpuMagicsError("Half-way.")
        for model in staged.values():
            model["weight"] = "new"
        return list(staged)


def put(files: RunFiles, rank: int, content: bytes) -> None:
    files.value_path(rank).write_bytes(content)


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles(tmp_path)


def test_values_names_and_weights(files: RunFiles) -> None:
    backend = FakeBackend()
    model = {"weight": "old"}
    extra = {"names": {"x": pickle.dumps(1)}, "modules": {"json": "json"}, "same": {"alias": "m"}, "left": {"g": "why"}}
    put(files, 0, packed("first", backend, models=["m"], **extra))  # type: ignore[arg-type]
    put(files, 1, packed("second", backend))  # type: ignore[arg-type]
    (files.path / "result-weights.json").write_text("{}")
    home = collect_results(files, 2, {"m": model}, backend)  # type: ignore[arg-type]
    assert home.values == ["first", "second"]
    assert home.names == {"x": 1, "json": json_module, "alias": model} and home.left == {"g": "why"}
    assert model == {"weight": "new"} and backend.calls == ["check ['m']", "load"]
    assert list(files.path.glob("result-*")) == []


def test_models_that_the_cell_built_are_named(files: RunFiles, tmp_path: Path) -> None:
    backend, hoisted = FakeBackend(), Net("w")
    built = {"net": Net("w", Net("w")), "loss": Net(), "x": 1, "late": Net("w")}
    extra = {"names": {name: pickle.dumps(value) for name, value in built.items()}, "same": {"alias": "m"}}
    put(files, 0, packed(None, backend, models=[], **extra))  # type: ignore[arg-type]
    home = collect_results(files, 1, {"m": hoisted}, backend)  # type: ignore[arg-type]
    assert home.made == ["net", "late"], "not what has no weights, and not the notebook's own by another name"
    result = TrainResult(Run(tmp_path), {})
    assert result.made == []
    result.settle(home)
    assert result.made == ["net", "late"]


def test_a_rank_that_wrote_nothing(files: RunFiles) -> None:
    put(files, 0, packed(1, FakeBackend()))  # type: ignore[arg-type]
    backend, model = FakeBackend(), {"weight": "old"}
    with pytest.raises(TpuMagicsError, match=r"(?s)Rank 1 wrote no result.*result-value-1\.pkl is not"):
        collect_results(files, 2, {"m": model}, backend)  # type: ignore[arg-type]
    assert model == {"weight": "old"} and backend.calls == []


def test_what_cannot_be_loaded_holds_nothing_else_back(files: RunFiles) -> None:
    gone = b"c__main__\nGone\n."  # a class that is not there
    names = {"x": pickle.dumps(1), "late": gone, "torn": b"\x80\x04", "y": pickle.dumps(2)}
    put(files, 0, pickle.dumps({"value": gone, "problem": "", "names": names, "modules": {"m": "no.such.module"}}))
    home = collect_results(files, 1, {}, FakeBackend())  # type: ignore[arg-type]
    assert home.names == {"x": 1, "y": 2} and set(home.left) == {"late", "torn", "m"}
    assert "Gone" in home.left["late"] and "Define classes and functions at the top of the cell" in home.left["late"]
    assert "no.such" in home.left["m"] or "No module named" in home.left["m"]
    assert (
        isinstance(home.values[0], MissingValue)
        and "could not be loaded in the notebook: AttributeError" in home.values[0].reason
    )


class Exits:
    """An object whose own code ends the program while it is loaded."""

    def __reduce__(self) -> Any:
        return sys.exit, ("over",)


def test_an_object_that_exits_holds_nothing_else_back(files: RunFiles) -> None:
    data = pickle.dumps(Exits())
    names = {"x": data, "y": pickle.dumps(2)}
    put(files, 0, pickle.dumps({"value": data, "problem": "", "names": names}))
    home = collect_results(files, 1, {}, FakeBackend())  # type: ignore[arg-type]
    assert home.names == {"y": 2} and home.left == {"x": "SystemExit: over"}
    assert isinstance(home.values[0], MissingValue) and home.values[0].reason.endswith("SystemExit: over")


@pytest.mark.parametrize(("fails", "calls"), [("check", ["check ['m']"]), ("load", ["check ['m']", "load"])])
def test_results_stay_where_the_weights_cannot_be_loaded(files: RunFiles, fails: str, calls: list[str]) -> None:
    backend = FakeBackend(fails)
    put(files, 0, packed(1, backend, names={"x": pickle.dumps(1)}, models=["m"]))  # type: ignore[arg-type]
    model = {"weight": "old"}
    with pytest.raises(TpuMagicsError):
        collect_results(files, 1, {"m": model}, backend)  # type: ignore[arg-type]
    assert model == {"weight": "old"} and backend.calls == calls
    assert files.value_path(0).exists()


def test_no_models_no_weights(files: RunFiles) -> None:
    backend = FakeBackend()
    put(files, 0, packed(1, backend, models=[]))  # type: ignore[arg-type]
    collect_results(files, 1, {"m": {"weight": "old"}}, backend)  # type: ignore[arg-type]
    assert backend.calls == []


# -- what a rank packs ------------------------------------------------------------------------------------------------


def unpacked(content: bytes) -> dict[str, Any]:
    found = pickle.loads(content)
    assert isinstance(found, dict)
    return found


def test_a_value_that_cannot_be_pickled_is_named() -> None:
    pack = unpacked(packed((i for i in range(2)), FakeBackend()))  # type: ignore[arg-type]
    assert pack["value"] is None and "generator" in pack["problem"]
    assert pickle.loads(unpacked(packed({"a": 1}, FakeBackend()))["value"]) == {"a": 1}  # type: ignore[arg-type]


def note(code: str, text: str) -> None:
    raise AssertionError(f"{code}: {text}")


def test_a_function_is_called_as_it_was_asked_for() -> None:
    seen: list[Any] = []
    work = FunctionWork(lambda *args, **kwargs: seen.append((args, kwargs)), (1, 2), {"k": 3}, index_first=True)
    work.install(note, 1)
    work.run(5, 0)
    assert seen == [((5, 1, 2), {"k": 3})]


def test_a_second_device_is_given_copies() -> None:
    model = {"weight": [1]}
    seen: list[Any] = []
    work = FunctionWork(lambda first, out: out.append(first), (model, seen), models={"m": model})
    work.install(note, 2)
    work.run(0, 0)
    work.run(1, 1)
    assert seen == [model] and seen[0] is model  # the second one wrote into its own copy of the list


def test_only_the_first_rank_packs_a_cells_names() -> None:
    space: dict[str, Any] = {"old": 1, "same": 2, "model": {"w": 1}}
    work = CellWork(
        compile("new = old + 1\nold = 5\nalias = model\n_hidden = 1\nimport json", "<cell>", "exec"),
        compile("new", "<cell>", "eval"),
        space,
        {"m": space["model"]},
        before=dict(space),
    )
    work.install(note, 1)
    work.run(0, 0)
    pack = unpacked(work.results(0, None, FakeBackend()))  # type: ignore[arg-type]
    assert {name: pickle.loads(data) for name, data in pack["names"].items()} == {"new": 2, "old": 5}
    assert pack["modules"] == {"json": "json"} and pack["same"] == {"alias": "m"} and pack["left"] == {}
    assert "names" not in unpacked(work.results(1, None, FakeBackend()))  # type: ignore[arg-type]


def test_the_last_expression_is_shown_on_the_first_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(ordinal: int, expression: str) -> str:
        work = CellWork(compile("", "<cell>", "exec"), compile(expression, "<cell>", "eval"), {})
        work.install(note, 1)
        work.run(ordinal, 0)
        return capsys.readouterr().out

    assert shown(0, "1 + 1") == "2\n" and shown(1, "1 + 1") == "" and shown(0, "None") == ""


def test_a_script_without_mp_fn_runs_as_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["notebook"])
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('never')\nassert __name__ == '__main__'\nassert sys.argv[1:] == ['--x']\n")
    assert ScriptWork(str(script), ("--x",), False).run(0, 0) is None


def test_what_a_script_wants_at_its_end_is_done(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    lines = ["import atexit, functools, sys", "@atexit.register", "def last(): print('last')"]
    more = ["atexit.register(lambda x: 1 / x, 0)", "atexit.register(sys.exit, 3)", "atexit.register(print, 'function')"]
    more += ["class W:\n  def close(self): print('method')\n  def __call__(self): print('object')"]
    more += ["atexit.register(W().close); atexit.register(W()); atexit.register(functools.partial(print, 'partial'))"]
    more += ["exec(compile('atexit.register(print, \"library\")', sys.modules['os'].__file__, 'exec'))"]
    ends = ["@atexit.register", "def never(): print('never')", "atexit.unregister(never)", "print('end'); sys.exit()"]
    script.write_text("\n".join([*lines, *more, *ends]))
    register = atexit.register
    ScriptWork(str(script), (), False).run(0, 0)
    atexit.unregister(print)
    shown = capfd.readouterr()
    assert shown.out.split() == ["end", "partial", "object", "method", "function", "last"]
    assert "ZeroDivisionError" in shown.err and "SystemExit: 3" in shown.err
    assert atexit.register is register


# -- what people hold -------------------------------------------------------------------------------------------------


def test_a_result_before_and_after(runs: Path) -> None:
    folder = RunFolder.create("named")
    folder.release()
    result = TrainResult(Run(folder.path), {"m": 1})
    assert result.status == "starting" and result.steps == 0 and result.compiles is None
    with pytest.raises(TpuMagicsError, match="'named' has no results: its status is starting"):
        _ = result.value
    result.settle(RunResults(values=[1, MissingValue("because")]))
    assert result.value == 1
    with pytest.raises(TpuMagicsError, match="because"):
        _ = result.values
    assert result.wait() is result
    result.failure = TpuMagicsError("it failed")
    with pytest.raises(TpuMagicsError, match="it failed"):
        result.wait()
    assert isinstance(results.MissingValue("x"), MissingValue)


def test_a_hoisted_model_is_called_as_the_cell_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    hoisted, known = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    snapshot = StateSnapshot(main={"build": print, "known": known})
    names = {"nets": {"a": hoisted}, "best": known}
    assert results._name_of(hoisted, "build", names, snapshot) == "nets['a']"
    assert results._name_of(hoisted, "net", {"net": hoisted, "nets": [hoisted]}, snapshot) == "net"
    monkeypatch.setitem(vars(sys.modules["__main__"]), "known", known)
    assert results._name_of(known, "known", names, snapshot) == "known"
    monkeypatch.setitem(vars(sys.modules["__main__"]), "known", hoisted)
    assert results._name_of(known, "known", names, snapshot) == "the known from before it was assigned again"
    assert results._name_of(hoisted, "build", {}, snapshot) == "build"
