"""Tied weights: kept tied through a move to a device, and named when they came apart."""

from __future__ import annotations

import tempfile

import pytest
import torch
from torch import nn

from tests import framework
from tpu_magics.backends.torch import trainer
from tpu_magics.backends.torch.tied_weights import keep_ties, record_ties, same_bits

from .forked_scenarios import in_worker

pytestmark = pytest.mark.process


class TinyBert(nn.Module):
    """An embedding whose weight the decoder uses too, and a bias that is kept twice, as in transformers' BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.encoder = nn.LSTM(8, 8, batch_first=True)
        self.decoder = nn.Linear(8, 11)
        self.bias = nn.Parameter(torch.zeros(11))
        self.decoder.weight = self.embedding.weight
        self.decoder.bias = self.bias
        self.register_buffer("positions", torch.arange(4))
        self.register_buffer("same_positions", self.positions)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(self.embedding(ids))[0])


def train(model: nn.Module, device: torch.device, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    ids = torch.arange(8).view(2, 4).to(device)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        framework.sync()


TIES = ((("m", "embedding.weight"), ("m", "decoder.weight")), (("m", "bias"), ("m", "decoder.bias")))


def test_record_ties_names_each_group_once() -> None:
    recorded = record_ties({"m": TinyBert()})
    assert {frozenset(group) for group in recorded} == {
        *(frozenset(group) for group in TIES),
        frozenset({("m", "positions"), ("m", "same_positions")}),
    }


def test_record_ties_sees_what_two_models_share() -> None:
    left, right = nn.Linear(3, 3), nn.Linear(3, 3)
    right.weight = left.weight
    assert record_ties({"left": left, "right": right}) == ((("left", "weight"), ("right", "weight")),)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor(1, dtype=torch.int8), torch.tensor(1, dtype=torch.int16), False),
        (torch.tensor([1j, 2], dtype=torch.complex128), torch.tensor([1j, 2], dtype=torch.complex128), True),
        (torch.tensor([1j, 2], dtype=torch.complex128), torch.tensor([1j, 3], dtype=torch.complex128), False),
        (torch.tensor([True]), torch.tensor([True]), True),
        (torch.empty(0), torch.empty(0), True),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
        (torch.eye(2).to_sparse(), torch.eye(2), False),
        (torch.arange(4.0).view(2, 2).t(), torch.arange(4.0).view(2, 2).t().contiguous(), True),
    ],
)
def test_same_bits(left: torch.Tensor, right: torch.Tensor, same: bool) -> None:
    assert same_bits(left, right) is same


def scenario_a_move_without_us_breaks_ties() -> None:
    model = TinyBert()

    def work() -> None:
        model.to(framework.device())
        assert model.embedding.weight is not model.decoder.weight
        train(model, framework.device())
        assert not same_bits(model.embedding.weight.cpu(), model.decoder.weight.cpu())

    in_worker(work)


def scenario_keep_ties_holds_them_through_training() -> None:
    model = TinyBert()

    def work() -> None:
        keep_ties()
        keep_ties()
        assert model.to(framework.device()) is model
        assert model.embedding.weight is model.decoder.weight
        assert model.positions is model.same_positions
        assert model.bias.device.type == framework.TYPE
        before = model.embedding.weight.cpu()
        train(model, framework.device())
        assert model.embedding.weight is model.decoder.weight
        assert not torch.equal(before, model.embedding.weight.cpu())
        model.to(torch.bfloat16)
        assert model.embedding.weight is model.decoder.weight
        model.cpu()
        assert model.embedding.weight is model.decoder.weight
        assert model.embedding.weight.device.type == "cpu"

    in_worker(work)


def scenario_keep_ties_holds_them_through_accelerate() -> None:
    from accelerate import Accelerator

    model = TinyBert()

    def work() -> None:
        keep_ties()
        accelerator = Accelerator()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        assert model.embedding.weight is model.decoder.weight
        assert model.embedding.weight.device.type == framework.TYPE
        ids = torch.arange(8).view(2, 4).to(accelerator.device)
        before = model.embedding.weight.detach().cpu()
        for _ in range(2):
            optimizer.zero_grad()
            accelerator.backward(prepared(ids).square().mean())
            optimizer.step()
            framework.sync()
        assert model.embedding.weight is model.decoder.weight
        assert not torch.equal(before, model.embedding.weight.cpu())

    in_worker(work)


def scenario_what_two_models_share_stays_shared_through_two_moves() -> None:
    left, right = nn.Linear(3, 3), nn.Linear(3, 3)
    right.weight = left.weight

    def work() -> None:
        keep_ties()
        left.to(framework.device())
        with torch.no_grad():
            left.weight.add_(1)
        right.to(framework.device())
        assert right.weight is left.weight
        assert right.bias is not left.bias

    in_worker(work)


def scenario_a_tied_rnn_uses_the_tied_weight() -> None:
    model = nn.ModuleDict({"one": nn.LSTM(4, 4), "two": nn.LSTM(4, 4)})
    model["two"].weight_ih_l0 = model["one"].weight_ih_l0

    def work() -> None:
        keep_ties()
        model.to(framework.device())
        assert model["two"].weight_ih_l0 is model["one"].weight_ih_l0
        assert any(weight is model["one"].weight_ih_l0 for weight in model["two"]._flat_weights)

    in_worker(work)


def scenario_files_of_weights_hold_what_is_tied_once() -> None:
    from safetensors.torch import load_file, load_model, save_file, save_model

    def body() -> None:
        trainer.arrange()
        model = TinyBert()
        keep_ties()
        train(model.to(framework.device()), framework.device())
        state = {name: one.cpu() for name, one in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/model.safetensors"
            save_model(model, file)
            saved = load_file(file)
            assert len(saved) == len(state) - 3, sorted(saved)
            assert len(saved) == len(state) - 3, sorted(saved)
            assert all(torch.equal(state[name], one) for name, one in saved.items())
            with torch.no_grad():
                model.bias.add_(1)
            load_model(model, file)
            assert torch.equal(model.bias.cpu(), state["bias"])
            with pytest.raises(RuntimeError, match="Some tensors share memory"):
                save_file(dict(model.state_dict()), file)

    in_worker(body)


def test_scenario(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == ""
