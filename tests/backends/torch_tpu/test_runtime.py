"""TorchTPU's runtime as the shared room asks for it, with a fake of torch_tpu's module: its random state is what
torch_tpu 0.2.0 gives (16 bytes: the seed, then how many numbers were drawn)."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from tpu_magics.backends.torch import runtime
from tpu_magics.backends.torch_tpu import runtime as tpu


class FakeBackend(types.ModuleType):
    """torch_tpu's `_device_ops_backend`."""

    def __init__(self) -> None:
        super().__init__(tpu._BACKEND)
        self.started = False
        self.state = torch.tensor([5, *[0] * 7, 2, *[0] * 7], dtype=torch.uint8)  # after manual_seed(5) and a draw

    def _is_initialized(self) -> bool:
        return self.started

    def get_rng_state(self, device: int) -> torch.Tensor:
        assert device == -1  # the current one
        return self.state

    def set_rng_state(self, state: torch.Tensor, device: int) -> None:
        assert (device, state.dtype, tuple(state.shape)) == (-1, torch.uint8, (16,))
        self.state = state


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    fake = FakeBackend()
    monkeypatch.setitem(sys.modules, "torch_tpu", types.ModuleType("torch_tpu"))
    monkeypatch.setitem(sys.modules, tpu._BACKEND, fake)
    return fake


def test_the_framework_that_is_imported_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch_xla", "torch_tpu"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert runtime.current() is None
    assert not runtime.running()
    assert runtime.running_seed() is None
    runtime.settle()  # there is nothing to wait for
    monkeypatch.setitem(sys.modules, "torch_xla", types.ModuleType("torch_xla"))
    found = runtime.current()
    assert found is not None
    assert found.device_type == "xla"
    monkeypatch.setitem(sys.modules, "torch_tpu", types.ModuleType("torch_tpu"))
    found = runtime.current()
    assert found is not None
    assert found.device_type == "tpu"
    assert not runtime.running()  # imported, but its backend is not


def test_it_runs_when_the_device_was_used(backend: FakeBackend) -> None:
    assert not runtime.running()
    assert runtime.running_seed() is None
    backend.started = True
    assert runtime.running()
    assert runtime.running_seed() == 5 + (2 << 64)


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1, 5 + (2 << 64)])
def test_a_seed_is_the_whole_state(backend: FakeBackend, seed: int) -> None:
    tpu.set_seed(seed)
    assert tpu.get_seed() == seed
    assert backend.state[:8].tolist() == list((seed % 2**64).to_bytes(8, "little"))


def test_tensors_of_the_host_are_fetched_without_a_runtime(backend: FakeBackend) -> None:
    kept = torch.arange(3)
    assert not runtime.on_device(kept)
    assert runtime.fetch([kept])[0] is kept
