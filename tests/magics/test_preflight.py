"""`%tpu_preflight` and `%%tpu_train --preflight` in a real kernel, with the real compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.preflight.conftest import tpu_compiler  # noqa: F401

from .conftest import Kernels, as_new
from .kernel import EITHER, Cell, Kernel
from .samples import MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process
LONG = pytest.mark.long

TARGET = "--target v5e-1"
WITHIN = 20.0  # seconds in which a stopped cell has to end, also on a busy machine
LARGE = """
def large(rows=2**21):
    import torch_xla
    model = nn.Sequential(nn.Linear(8, 8192), nn.ReLU(), nn.Linear(8192, 1)).to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.rand(rows, 8, device=torch_xla.device())).mean().backward()
        optimizer.step()
        torch_xla.sync()
"""
LAUNCHER = "%%tpu_train --preflight v5e-1\nfrom accelerate import notebook_launcher\n"


@pytest.fixture
def notebook(kernel: Kernel, tpu_compiler: tuple[str, ...]) -> Kernel:  # noqa: F811
    return prepared(kernel)


@pytest.fixture(params=EITHER)
def either(
    request: pytest.FixtureRequest,
    kernels: Kernels,
    tmp_path: Path,
    tpu_compiler: tuple[str, ...],  # noqa: F811
) -> Iterator[Kernel]:
    """Each of the two kernels in turn."""
    with as_new(kernels(request.param), tmp_path) as one:
        yield prepared(one)


def prepared(kernel: Kernel) -> Kernel:
    kernel.run("for name in ('_preflight', 'mine'):\n    get_ipython().user_ns.pop(name, None)").good()
    kernel.run(MODEL + TRAIN + LARGE + "import time").good()
    return kernel


def saved(cell: Cell) -> list[dict[str, Any]]:
    """What a saved notebook has of the cell's displays: each as it was at last."""
    found: dict[str, dict[str, Any]] = {}
    for number, output in enumerate(cell.of("display_data", "update_display_data", "execute_result")):
        found[output.display_id or str(number)] = output.content["data"]
    return list(found.values())


def no_progress_is_left(cell: Cell) -> bool:
    """What has shown it says something else now; an output that is there cannot be taken back."""
    texts = [str(one.get("text/plain", "")) for one in saved(cell)]
    return all(text.strip() and not re.search("tracing|compiling|starting", text) for text in texts)


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_the_result_stands_where_the_progress_was(either: Kernel) -> None:
    cell = either.run(f"%tpu_preflight train model {TARGET}").good()
    assert "v5litepod-1: compiling" in cell.shown and not cell.printed
    [shown] = saved(cell)
    assert set(shown) == {"text/plain", "text/html"}
    assert shown["text/plain"].startswith("Preflight of train: no step was executed\n")
    assert "✓ fits" in shown["text/plain"] and 'class="tpu-magics-preflight"' in shown["text/html"]
    assert either.value("(_preflight.fits, _preflight['v5e-1'].status, _preflight.function)") == (
        True,
        "fits",
        "train",
    )
    assert either.value(TRAINED) is False


def test_the_second_time_takes_what_was_kept_and_it_has_another_name(notebook: Kernel) -> None:
    notebook.run(f"%tpu_preflight train model {TARGET}").good()
    cell = notebook.run(f"%tpu_preflight train model {TARGET} -o mine").good()
    assert "v5litepod-1: compiling" not in cell.shown
    assert notebook.value("mine['v5e-1'].steady.kept") is True


def test_plain_is_text_and_the_same_each_time(notebook: Kernel) -> None:
    line = f"%tpu_preflight train model steps=3 {TARGET} --plain"
    once = notebook.run(line + " --anew").good()
    assert not once.displays and once.printed.startswith("Preflight of train")
    assert notebook.run(line).good().printed == once.printed
    assert notebook.run(line).good().printed == once.printed, "kept results change nothing of it"


def test_the_python_function_gives_the_same_and_shows_itself(notebook: Kernel) -> None:
    notebook.run("import tpu_magics").good()
    cell = notebook.run("mine = tpu_magics.preflight(train, model, target='v5e-1')\nprint('done')").good()
    assert no_progress_is_left(cell)
    [shown] = notebook.run("mine").good().displays
    assert shown["text/plain"].startswith("Preflight of train") and "<table" in shown["text/html"]
    assert notebook.run("print(mine)").good().printed.strip() == shown["text/plain"]
    magic = notebook.run(f"%tpu_preflight train model {TARGET}").good().displays
    assert notebook.value("mine['v5e-1'].steady.memory == _preflight['v5e-1'].steady.memory")
    assert len(magic) == 1


# -- before a training ------------------------------------------------------------------------------------------------

FITTING = {
    "a function of the cell": "%%tpu_train model --preflight v5e-1 --run-name gated\n" + TRAIN,
    "plain statements": "%%tpu_train --preflight v5e-1 --run-name gated\ntrain(model)\n",
    "a pasted launcher": LAUNCHER.replace("v5e-1", "v5e-1 --run-name gated")
    + "notebook_launcher(train, (model,), num_processes=1)\n",
    "a function that is there": "%tpu_train train model --preflight v5e-1 --run-name gated",
}


@pytest.mark.parametrize(
    "form", ["plain statements", *(pytest.param(f, marks=LONG) for f in sorted({*FITTING} - {"plain statements"}))]
)
def test_what_fits_is_trained_in_the_same_cell(notebook: Kernel, form: str) -> None:
    cell = notebook.run(FITTING[form]).good()
    assert saved(cell)[0]["text/plain"].startswith("Preflight of ")
    assert notebook.value(f"(_tpu.status, _preflight.fits, {TRAINED})") == ("done", True, True)


TOO_LARGE = {
    "a function of the cell": ("%%tpu_train --preflight v5e-1\n" + LARGE, "`large` was not trained"),
    "plain statements": ("%%tpu_train --preflight v5e-1\nlarge()\n", "This was not trained"),
    "a pasted launcher": (LAUNCHER + "notebook_launcher(large)\n", "`large` was not trained"),
    "a function that is there": ("%tpu_train large --preflight v5e-1", "`large` was not trained"),
}


@pytest.mark.parametrize(
    "form", ["a pasted launcher", *(pytest.param(f, marks=LONG) for f in sorted({*TOO_LARGE} - {"a pasted launcher"}))]
)
def test_what_does_not_fit_is_not_trained(notebook: Kernel, form: str) -> None:
    before = notebook.value("len(__import__('tpu_magics').list_runs())")
    code, said = TOO_LARGE[form]
    cell = notebook.run(code)
    assert cell.error_type == "TpuMagicsError"
    assert f"{said}: on v5litepod-1 it needs " in cell.said and "but only 15.75 GiB are available." in cell.said
    assert "Use a smaller batch, bf16 or gradient checkpointing" in cell.said
    assert "does not fit" in saved(cell)[-1]["text/plain"], "the result is shown all the same"
    assert notebook.value("('_tpu' in globals(), _preflight.fits)") == (False, False)
    assert notebook.value("len(__import__('tpu_magics').list_runs())") == before


def test_several_launches_of_a_cell_are_each_asked(notebook: Kernel) -> None:
    twice = "notebook_launcher(train, (model,), num_processes=1)\n" * 2 + "notebook_launcher(large)\n"
    cell = notebook.run(LAUNCHER + twice)
    assert "`large` was not trained" in cell.said
    shown = [one["text/plain"] for one in saved(cell) if one.get("text/plain", "").startswith("Preflight of")]
    assert [text.split(":")[0] for text in shown] == ["Preflight of train"] * 2 + ["Preflight of large"]
    assert notebook.value(TRAINED)


def test_with_other_options(notebook: Kernel) -> None:
    plain = notebook.run("%tpu_train train model --preflight v5e-1 --plain --steps 2").good()
    assert not plain.displays and "Preflight of train" in plain.printed and "steps" in plain.printed
    assert notebook.value(f"(_tpu.steps, {TRAINED})") == (2, False)
    notebook.run("%tpu_train train model --preflight v5e-1 --background").good()
    notebook.run("_tpu.wait()").good()
    assert notebook.value(f"(_tpu.status, {TRAINED})") == ("done", True)


def test_the_function_trains_behind_the_gate(notebook: Kernel) -> None:
    notebook.run("import tpu_magics").good()
    cell = notebook.run("tpu_magics.train(large, preflight='v5e-1')")
    assert "`large` was not trained" in cell.said
    notebook.run("result = tpu_magics.train(train, model, preflight='v5e-1', plain=True)").good()
    assert notebook.value(f"(result.status, {TRAINED})") == ("done", True)


# -- interrupts -------------------------------------------------------------------------------------------------------


SLOW = """
def slow(model):
    import torch_xla
    model.to(torch_xla.device())
    open('tracing', 'w').close()
    time.sleep(1000)
"""


@pytest.mark.parametrize("how", [f"%tpu_preflight slow model {TARGET}", "%tpu_train slow model --preflight v5e-1"])
def test_stopped_while_it_is_traced(notebook: Kernel, tmp_path: Path, how: str) -> None:
    notebook.run(SLOW).good()
    cell = notebook.send(how)
    notebook.wait_until((tmp_path / "tracing").exists, timeout=60)
    assert notebook.stop(cell) < WITHIN
    assert cell.error_type in ("KeyboardInterrupt", "TrainingInterrupted")
    assert no_progress_is_left(cell)
    left_nothing(notebook)


def test_stopped_while_it_compiles(either: Kernel) -> None:
    cell = either.send(f"%tpu_preflight train model lr=0.5 {TARGET} --anew")
    either.wait_for(cell, "compiling", timeout=60)
    assert either.stop(cell) < WITHIN
    assert cell.error_type == "KeyboardInterrupt" and no_progress_is_left(cell)
    left_nothing(either)
    assert "✓ fits" in either.run(f"%tpu_preflight train model {TARGET}").good().shown
    either.run("%tpu_train train model").good()
    assert either.value(TRAINED)


def searched_until(kernel: Kernel, code: str, text: str) -> Cell:
    """A search that is interrupted when its progress says that."""
    cell = kernel.send(code)
    kernel.wait_for(cell, text, timeout=200)
    assert kernel.stop(cell) < WITHIN
    assert cell.error_type == "SearchInterrupted"
    assert kernel.descendants() == [] and files_left(kernel) == []
    return cell


def test_an_interrupt_of_a_search_shows_and_binds_what_was_found(notebook: Kernel) -> None:
    code = "%tpu_preflight large rows=16 --target v5e-1,v6e-1 --fit rows -o found"
    cell = searched_until(notebook, code, "(16 fits)")
    assert "The search for the largest rows was interrupted." in cell.said and "Run it again to continue" in cell.said
    assert "at least 16" in cell.shown and "The search was interrupted: rows = 16 fits" in cell.shown
    assert notebook.value("[(one.largest, one.interrupted) for one in found.fit]") == [(16, True)] * 2
    assert notebook.value("found['v6e-1'].fits and found.largest('v6e-1').nice") == 16


def test_the_function_tells_it_with_its_error(notebook: Kernel) -> None:
    code = "import tpu_magics\ntpu_magics.preflight(large, 24, target='v5e-1', fit='rows')"
    cell = searched_until(notebook, code, "(24 fits)")
    assert "at least 24" in cell.shown
    assert notebook.value("__import__('sys').last_value.found.fit[0].largest") == 24


def left_nothing(notebook: Kernel) -> None:
    assert notebook.descendants() == [] and files_left(notebook) == []
    assert notebook.value(f"('_preflight' in globals(), {TRAINED})") == (False, False)


def files_left(notebook: Kernel) -> list[str]:
    return [path.name for path in (notebook.folder / "tmp").iterdir() if "preflight" in path.name]


# -- bad input --------------------------------------------------------------------------------------------------------

FUNCTIONS = """
def never():
    import torch_xla
    return torch.ones(2, device=torch_xla.device()) + 1

size = 8
early = torch.ones(size, 8)

def made_before(model):
    import torch_xla
    rows = early.to(torch_xla.device())
    model.to(torch_xla.device())
    for _ in range(4):
        loss = model(rows).sum()
        torch_xla.sync()
"""
# What a trace and a compile tell (tests/preflight/test_run.py has more); the rest: test_preflight_refused.py.
WRONG = {
    f"never {TARGET}": "never came to no sync, so it has no step to compile.",
    f"made_before model {TARGET} --fit size": "Changing size has no effect: 8 and 512 give the same graph.",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said(notebook: Kernel, line: str) -> None:
    notebook.run(FUNCTIONS).good()
    cell = notebook.run(f"%tpu_preflight {line}")
    assert cell.error_type == "TpuMagicsError" and WRONG[line] in cell.said, cell.said
    assert "What to do: " in cell.said and no_progress_is_left(cell)


@pytest.mark.parametrize(
    "line",
    [f"%tpu_preflight train model {TARGET}", "%%tpu_train --preflight v5e-1\nprint('never')\ndef f():\n    pass"],
)
def test_without_the_compiler(notebook: Kernel, line: str) -> None:
    notebook.run("from importlib import metadata\nreal = metadata.distributions").good()
    notebook.run("metadata.distributions = lambda **found: iter(())").good()
    cell = notebook.run(line)
    notebook.run("metadata.distributions = real").good()
    assert cell.error_type == "TpuMagicsError" and not cell.printed
    assert "libtpu are not installed." in cell.said
    assert "What to do: Install them with: pip install 'tpu-magics[preflight]'" in cell.said
