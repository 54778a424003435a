"""Whatever a notebook is made of: after a training cell it is as after the same cell without the magics, or what is not
is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import forks
from tests.launch import random_notebooks

pytestmark = pytest.mark.process

MODULES = "torch_xla transformers.trainer"
LONG = [pytest.param(first, 15, marks=pytest.mark.long) for first in range(2, 152, 15)]


@pytest.fixture(scope="module", autouse=True)
def _forking() -> None:
    """It is there before the first test, and so it is nothing that a test leaves."""
    forks.server(MODULES, "")


@pytest.mark.parametrize(("first", "count"), [(0, 2), *LONG])
def test_a_random_notebook_is_as_after_a_plain_run(first: int, count: int, tmp_path: Path) -> None:
    variables = {**os.environ, "PJRT_DEVICE": "CPU", "TPU_MAGICS_RUNS": str(tmp_path / "runs"), "MPLBACKEND": "agg"}
    program = "import sys; from tests.launch.random_notebooks import main; main(sys.argv[1:])"
    told = forks.run(MODULES, program, str(first), str(count), cwd=tmp_path, environment=variables)
    found = json.loads(told.strip().splitlines()[-1])
    assert not found, "\n\n".join(f"seed {seed}: {name}: {text}" for seed, name, text in found)


def test_each_part_is_looked_at() -> None:
    seen = {name for seed in range(152) for name in random_notebooks.compose(seed).parts.values()}
    assert seen == set(random_notebooks.PARTS)
