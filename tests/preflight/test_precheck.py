"""What is asked before a training: real functions, the real compiler, and a training that begins or does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launching import said
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session, train
from tpu_magics.launch.options import NO_SPMD, Options
from tpu_magics.launch.request import function_request
from tpu_magics.preflight import run as gates
from tpu_magics.preflight.report import Preflight
from tpu_magics.preflight.run import Callbacks, preflight_check
from tpu_magics.runs import preflights
from tpu_magics.runs.reader import list_runs

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("own_cache")]


@dataclass
class Heard:
    """Who hears of a gate's preflights; `open`: whether somebody listens now."""

    found: list[Preflight] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    opened: int = 0
    open: bool = False

    @contextmanager
    def telling(self) -> Iterator[Callbacks]:
        self.opened, self.open = self.opened + 1, True
        try:
            yield Callbacks(line=self.lines.append, found=self.found.append)
        finally:
            self.open = False


def rows(batch: int) -> None:
    """32 MiB of HBM for each row of the batch."""
    import torch
    import torch_xla

    device = torch_xla.device()
    model = torch.nn.Sequential(torch.nn.Linear(8, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.zeros(batch, 8).to(device)[:, None].expand(-1, 2048, -1)).mean().backward()
        optimizer.step()
        torch_xla.sync()


def test_what_fits_goes_on_to_train(runs: Path) -> None:
    heard = Heard()
    asked = preflight_check("v5e-1", heard.telling)
    done = train.train(rows, 1, gate=lambda request, options: asked(request, options), hoist="off")
    assert done.run.status == "done" and (heard.opened, heard.open) == (1, False)
    [found] = heard.found
    assert found.function == "rows" and found.fits and found.fit == ()
    assert [(one.function, one.status) for one in preflights.newest()] == [("rows", "fits")] and runs.is_dir()


def test_what_does_not_fit_is_refused_before_anything_is_made() -> None:
    heard = Heard()
    asked = preflight_check(["v6e-1", "v5e-1"], heard.telling)
    with pytest.raises(TpuMagicsError) as caught:
        train.train(rows, 900, gate=asked, background=True)
    text = said(caught.value)
    assert re.match(r"`rows` was not trained: on v5litepod-1 it needs \d\d\.\d\d GiB of HBM, but only 15\.75 ", text)
    assert "%tpu_preflight rows ... --target v5litepod-1 --fit NAME finds the largest batch." in text
    assert "To train anyway, leave out --preflight." in text
    assert [one.status for one in heard.found[0].results] == ["fits", "too-large"], "v6e has twice as much"
    assert heard.lines == ["rows: tracing for one rank"] and not heard.open
    assert list_runs() == [] and session.current.active_run is None and session.current.last is None


@pytest.mark.long
def test_it_is_asked_anew_for_each_training() -> None:
    heard = Heard()
    asked = preflight_check("v5e-1", heard.telling)
    for batch in (1, 2):
        asked(function_request(rows, (batch,)), Options())
    assert heard.opened == 2 and len(heard.found) == 2


def test_what_cannot_be_asked_is_told_at_once() -> None:
    with pytest.raises(TpuMagicsError, match='There is no TPU named "v9-8"'):
        preflight_check("v9-8", Heard().telling)


@pytest.mark.parametrize(
    ("given", "of_session", "spmd"),
    [
        pytest.param({}, {}, False, marks=pytest.mark.long),
        pytest.param({"spmd": 0}, {}, True, marks=pytest.mark.long),
        pytest.param({}, {"spmd": 8}, True, marks=pytest.mark.long),
        ({"spmd": NO_SPMD}, {"spmd": 8}, False),
    ],
)
def test_it_is_spmd_where_the_training_is(given: dict[str, Any], of_session: dict[str, Any], spmd: bool) -> None:
    session.initialise(**of_session)
    heard = Heard()
    preflight_check("v5e-4", heard.telling)(function_request(rows, (4,)), Options(**given))
    assert heard.lines == [f"rows: tracing for {'one process with 4 devices' if spmd else '4 ranks'}"]


def refusal(**changes: Any) -> str:
    """What is said of a result whose compiler said something else."""
    heard = Heard()
    preflight_check("v5e-1", heard.telling)(function_request(rows, (1,)), Options())
    [one] = heard.found[0].results
    changed = replace(one, compiled=tuple(replace(each, **changes) for each in one.compiled))
    with pytest.raises(TpuMagicsError) as caught:
        gates._require(replace(heard.found[0], results=(changed,)), is_function=True)
    return said(caught.value)


def test_other_answers_of_a_compiler() -> None:
    refused = refusal(status="refused", error="UNIMPLEMENTED: fft\nand pages more")
    assert "`rows` was not trained: the compiler refuses it for v5litepod-1: UNIMPLEMENTED: fft." in refused
    assert "See the table above." in refused and "--fit" not in refused
    assert "it could not be compiled for v5litepod-1: stopped." in refusal(status="failed", error="stopped")
    assert "it does not fit into the HBM of v5litepod-1." in refusal(status="too-large", memory=None)
