"""Parts of SPMD that need no run: shardings as text, outputs of wrapped parts, and the start on a TPU."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_xla")

from tpu_magics.backends.base import WorkerSpec  # noqa: E402
from tpu_magics.backends.torch.modules import structure  # noqa: E402
from tpu_magics.backends.torch_xla import library_fixes, spmd, worker  # noqa: E402
from tpu_magics.errors import TpuMagicsError  # noqa: E402


@pytest.mark.parametrize(
    ("text", "split"),
    [  # recorded with torch_xla 2.9.0; the last three from XLA's own forms
        ("", False),
        ("{replicated}", False),
        ("{devices=[8,1]0,1,2,3,4,5,6,7}", True),
        ("{devices=[8]0,1,2,3,4,5,6,7}", True),
        ("{devices=[4,2]0,1,2,3,4,5,6,7}", True),
        ("{devices=[4,1,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", True),
        ("{devices=[1,2,4]0,2,4,6,1,3,5,7 last_tile_dim_replicate}", True),
        ("{devices=[1,1,8]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", False),
        ("{maximal device=0}", False),
        ("{manual}", None),
    ],
)
def test_shardings_are_read(text: str, split: bool | None) -> None:
    assert spmd.is_split(text) is split


def test_a_sharding_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch_xla

    monkeypatch.setattr(torch_xla._XLAC, "_get_xla_sharding_spec", lambda _tensor: "{manual}")
    assert spmd.spread([torch.nn.Parameter(torch.ones(2))]) == spmd.ShardingSummary(unknown="{manual}")


def test_torch_xla_has_what_is_called() -> None:
    """Private names, read in torch_xla 2.9: this fails clearly when one of them goes away."""
    import torch_xla
    from torch_xla._internal import pjrt

    assert callable(torch_xla._XLAC._get_xla_sharding_spec) and callable(pjrt._initialize_single_process)


# -- the start --------------------------------------------------------------------------------------------------------


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Whatever a test does to these variables is put back."""
    import torch_xla.runtime as xr

    for name in ("PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT", "TPU_VISIBLE_CHIPS", "TPU_PROCESS_BOUNDS"):
        monkeypatch.setenv(name, "to be put back")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XLA_USE_SPMD", "0")
    monkeypatch.setenv("CPU_NUM_DEVICES", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.setattr(xr, "use_spmd", xr.use_spmd)  # which arrange() replaces
    return monkeypatch


def test_on_a_tpu_one_process_sees_all_chips(variables: pytest.MonkeyPatch) -> None:
    spec = WorkerSpec(index=0, count=1, device="TPU", precision="fp32", spmd=0)
    variables.setenv("PJRT_DEVICE", "TPU")
    spmd.arrange(spec)
    start = worker._start(spec)
    start(spec.index, spec.count)
    assert start is spmd.start and os.environ["XLA_USE_SPMD"] == "1"
    assert os.environ["CPU_NUM_DEVICES"] == "1"  # none of its business
    assert os.environ["PJRT_LOCAL_PROCESS_COUNT"] == "1" and os.environ["PJRT_LOCAL_PROCESS_RANK"] == "0"
    assert "TPU_VISIBLE_CHIPS" not in os.environ and "TPU_PROCESS_BOUNDS" not in os.environ


def test_a_worker_of_another_kind_does_not_inherit_spmd(variables: pytest.MonkeyPatch) -> None:
    spec = WorkerSpec(index=0, count=8, device="TPU", precision="fp32")
    spmd.refuse_leftover(spec)
    variables.setenv("XLA_USE_SPMD", "true")
    with pytest.raises(TpuMagicsError, match="XLA_USE_SPMD is set in the notebook"):
        spmd.refuse_leftover(spec)
    spmd.refuse_leftover(WorkerSpec(index=0, count=1, device="TPU", precision="fp32", spmd=0))


# -- FSDP v2 ----------------------------------------------------------------------------------------------------------

ROWS = torch.ones(4, 2)


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (ROWS, True),
        ((ROWS, torch.ones(1)), True),
        ((torch.tensor(1.0), ROWS), True),  # a loss comes first where labels were given and no dict is wanted
        ({"loss": torch.tensor(1.0), "logits": ROWS}, True),
        ({"attentions": torch.ones(1), "last_hidden_state": ROWS}, True),
        ({"something": ROWS}, True),
        (torch.tensor(1.0), False),
        ({"loss": torch.tensor(1.0), "logits": None}, False),
        ((), False),
        (None, False),
    ],
)
def test_the_tensor_of_an_output_that_has_the_samples(output: Any, found: bool) -> None:
    assert library_fixes.main_tensor(output) is (ROWS if found else None)


def test_transformers_outputs_are_mappings() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    output = outputs.SequenceClassifierOutput(loss=torch.tensor(1.0), logits=ROWS)
    assert library_fixes.main_tensor(output) is ROWS


def test_transformers_has_what_is_mended() -> None:
    """Where one of these is gone, transformers may have closed the gap itself (read in 5.23.0)."""
    trainer = pytest.importorskip("transformers.trainer")
    integration = pytest.importorskip("transformers.integrations.tpu")
    assert callable(trainer.Trainer._wrap_model) and callable(trainer.Trainer.create_optimizer)
    assert integration.wrap_model_xla_fsdp.__module__ == "transformers.integrations.tpu"


def test_wrappers_change_no_structure() -> None:
    class Wrapper(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, module: Any) -> None:
            super().__init__()
            self._orig_module = module

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    before = structure(model)
    model[0] = Wrapper(model[0])
    assert structure(model) == before == structure(Wrapper(model))
