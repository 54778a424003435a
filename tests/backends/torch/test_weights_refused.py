"""Weights that do not fit the notebook's models, or did not arrive whole: what is said, and that nothing changes."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from tests import forks
from tpu_magics.backends.torch import weights_files
from tpu_magics.backends.torch.weights import check_weights, collect_weights
from tpu_magics.errors import TpuMagicsError

from .weights_samples import bring_home, content, holding


# -- a structure that differs ------------------------------------------------------------------------------------------
def test_another_shape_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    home = nn.ModuleDict({"body": nn.Linear(8, 8), "classifier": nn.Linear(8, 3)})
    worker = nn.ModuleDict({"body": nn.Linear(8, 8), "classifier": nn.Linear(8, 5)})
    before = content(home)
    with pytest.raises(TpuMagicsError) as caught:
        bring_home(home, worker, tmp_path)
    assert caught.value.what == (
        "The structure of the trained `model` differs from the model in the notebook, so nothing was loaded."
    )
    assert "`classifier.weight` is [3, 8] in the notebook and [5, 8] in the worker" in caught.value.why
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
        (
            nn.Linear(2, 2),
            nn.Sequential(nn.Linear(2, 2)),
            "`weight` exists only in the notebook; `bias` exists only in the notebook",
        ),
        (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)), "`0.weight` exists only in the worker"),
        (nn.Linear(2, 2, bias=False), nn.Linear(2, 2), "`bias` is None in the notebook and [2] in the worker"),
        (nn.Linear(2, 2), nn.Linear(2, 2, bias=False), "`bias` is [2] in the notebook and None in the worker"),
        (nn.Linear(2, 2), nn.LazyLinear(2), "`weight` is [2, 2] in the notebook and not initialised in the worker"),
        (
            nn.Linear(2, 2),
            nn.Linear(2, 2, device="meta"),
            "`weight` is [2, 2] in the notebook and without values (meta device) in",
        ),
        (
            nn.Linear(2, 3, device="meta"),
            nn.Linear(2, 2),
            "`weight` is without values (meta device) in the notebook and [2, 2] in",
        ),
        (
            holding(t=torch.ones(2)),
            holding(t=nn.Parameter(torch.ones(2))),
            "`t` is a buffer in the notebook and a parameter in",
        ),
        (
            holding(t=torch.eye(2)),
            holding(t=torch.eye(2).to_sparse()),
            "`t` is [2, 2] in the notebook and [2, 2] (sparse_coo)",
        ),
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
    with pytest.raises(TpuMagicsError, match="weights are incomplete") as caught:
        check_weights({"model": model}, tmp_path)
    assert f"has {size - 5000} bytes instead of {size}" in caught.value.why


def test_changed_bytes_are_recognised(tmp_path: Path) -> None:
    model = nn.Linear(60, 60)
    collect_weights({"model": model}, tmp_path)
    with open(tmp_path / weights_files.PLAIN, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff" * 8)
    with pytest.raises(TpuMagicsError, match="the checksum of weight differs"):
        check_weights({"model": model}, tmp_path)


@pytest.mark.parametrize("name", weights_files.FILES)
def test_missing_files_are_recognised(name: str, tmp_path: Path) -> None:
    model = holding(a=torch.ones(2), b=torch.ones(2, dtype=torch.complex128))
    collect_weights({"model": model}, tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(TpuMagicsError, match="weights are incomplete"):
        check_weights({"model": model}, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 9}', '{"version": 1, "models": {}}'])
def test_a_torn_manifest_is_recognised(text: str, tmp_path: Path) -> None:
    (tmp_path / weights_files.MANIFEST).write_text(text)
    with pytest.raises(TpuMagicsError, match="weights are incomplete"):
        check_weights({}, tmp_path)


def test_the_manifest_says_what_came(tmp_path: Path) -> None:
    model = nn.Embedding(3, 2)
    collect_weights({"model": model}, tmp_path)
    record = json.loads((tmp_path / weights_files.MANIFEST).read_text())
    assert record["models"]["model"]["weight"] == {
        "kind": "parameter",
        "state": "data",
        "persistent": True,
        "requires_grad": True,
        "shape": [3, 2],
        "dtype": "float32",
        "layout": "strided",
        "key": "weight",
    }
    assert record["files"] == {weights_files.PLAIN: (tmp_path / weights_files.PLAIN).stat().st_size}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((weights_files.PLAIN, weights_files.MANIFEST))


def test_too_little_space_is_said_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 12_300_000})
    monkeypatch.setattr(weights_files.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(TpuMagicsError, match="could not be written") as caught:
        collect_weights({"model": nn.Linear(2000, 2000)}, tmp_path)
    assert "They need 16.0 MB" in caught.value.why
    assert "12.3 MB are free there" in caught.value.why
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from tpu_magics.backends.torch.weights import collect_weights
from tpu_magics.errors import TpuMagicsError

resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
model = torch.nn.Linear(1000, 1000).to(getattr(torch, sys.argv[2]))
try:
    collect_weights({"model": model}, Path(sys.argv[1]))
except TpuMagicsError as error:
    print(error)
"""


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.process
def test_a_file_that_cannot_be_finished_leaves_nothing(dtype: str, tmp_path: Path) -> None:
    told = forks.run("torch_xla", LIMITED, tmp_path, dtype)
    assert "The trained weights could not be written." in told
    assert "No incomplete files were left" in told
    assert list(tmp_path.iterdir()) == []
