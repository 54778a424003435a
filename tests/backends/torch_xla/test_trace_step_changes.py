"""Changes that a preflight makes to a function while it traces it: the graphs are those of the changed code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("torch_xla")
pytest.importorskip("accelerate")

from tests import framework
from tests.backends.torch_xla.traced import steady
from tpu_magics.backends.lowered import LoweredGraph
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import train
from tpu_magics.launch.plan import Options
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.preflight.pipeline import trace

pytestmark = [pytest.mark.process, pytest.mark.timeout(280), pytest.mark.usefixtures("fresh_session", "libraries")]


def graph(function: Callable[..., None], *args: Any, changes: tuple[str, ...] = ()) -> LoweredGraph:
    request = train.function_request(function, args, {})
    found: LoweredGraph = steady(trace(request, Options(), TracingOptions(changes=changes)))
    return found


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return x + self.inner(x).sin()


class Net(torch.nn.Module):
    def __init__(self, words: int, again: bool = False) -> None:
        super().__init__()
        self.words = words
        self.embedding = torch.nn.Embedding(words, 16)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(16, words)
        self.again = again

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x).view(-1, self.words)


def trains(words: int = 50, again: bool = False, island: bool = False) -> None:
    model = Net(words, again).to(framework.device())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        ids = torch.randint(0, 50, (4, 8)).to(framework.device())
        with torch.autocast("xla", dtype=torch.bfloat16):
            logits = model(ids)
            with torch.autocast("xla", enabled=False):
                logits = logits.float() @ torch.ones(words, words, device=logits.device) if island else logits
            loss = functional.cross_entropy(logits, ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        framework.sync()


def phases(found: LoweredGraph) -> set[tuple[str, str]]:
    return {(one.module, one.phase) for one in found.scopes.values()}


def test_gradient_checkpointing_of_each_block_and_without_it() -> None:
    plain, again = graph(trains), graph(trains, 50, True)
    assert ("blocks.0.inner", "recompute") in phases(again) - phases(plain)
    on, off = graph(trains, changes=("remat=on",)), graph(trains, 50, True, changes=("remat=off",))
    assert (on.hash, off.hash) == (again.hash, plain.hash)


def test_a_vocabulary_is_padded_with_all_that_has_its_size() -> None:
    padded = graph(trains, changes=("pad=50:64",))
    assert padded.parameters == graph(trains, 64).parameters
    assert any("[64,16] embedding.weight" in one for one in padded.parameters)


def test_an_island_of_f32_is_multiplied_in_bf16() -> None:
    plain = graph(trains, 50, False, True)
    place = next(one for one in plain.places.values() if "logits.float() @" in one.code)
    changed = graph(trains, 50, False, True, changes=(f"bf16=@{place}",))
    assert changed.hash != plain.hash
    assert changed.parameters == plain.parameters
    elsewhere = graph(trains, 50, False, True, changes=(f"bf16=head@{place}",))
    assert elsewhere.hash == plain.hash


def test_transformers_models_do_it_themselves() -> None:
    def bert() -> None:
        from transformers import BertConfig, BertForSequenceClassification

        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes)).to(framework.device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            ids = torch.randint(0, 50, (4, 8)).to(framework.device())
            model(input_ids=ids, labels=ids[:, 0] % 2).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            framework.sync()

    changed = graph(bert, changes=("remat=on",))
    assert ("bert.encoder.layer.0.attention.self.query", "recompute") in phases(changed)


def test_an_unknown_change_is_refused() -> None:
    with pytest.raises(TpuMagicsError, match="no such change: fast=yes"):
        graph(trains, changes=("fast=yes",))
