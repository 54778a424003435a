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
from tpu_magics.launch.options import Options
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


def test_gradient_checkpointing_of_a_model_that_is_a_list_of_blocks() -> None:
    def stack() -> None:
        model = torch.nn.Sequential(Block(), Block()).to(framework.device())
        for _ in range(4):
            model(torch.zeros(4, 16).to(framework.device())).mean().backward()
            framework.sync()

    assert ("0.inner", "recompute") in phases(graph(stack, changes=("remat=on",)))


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


class Attention(torch.nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, 256 // heads
        self.inner = torch.nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        split = self.inner(x).view(2, 128, self.num_heads, self.head_dim).transpose(1, 2)
        return functional.scaled_dot_product_attention(split, split, split, is_causal=True)


def attends(make: Callable[[], torch.nn.Module] = lambda: Attention(4)) -> None:
    model = make().to(framework.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        found = model(torch.zeros(2, 128, 256).to(framework.device()))
        (found if isinstance(found, torch.Tensor) else found[0]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        framework.sync()


def test_heads_are_regrouped() -> None:
    fewer = graph(attends, changes=("heads=4x64:2x128",))
    assert fewer.hash == graph(attends, lambda: Attention(2)).hash


def bert() -> torch.nn.Module:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEncoder

    sizes = {"hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    return BertEncoder(BertConfig(**sizes, attn_implementation="eager"))


class MaskedAttention(Attention):
    """Of eight heads with keys for two, and a mask of the keys that are padding."""

    def forward(self, x: Any) -> Any:
        query = self.inner(x).view(2, 128, 8, 32).transpose(1, 2)
        keys = query[:, :2]
        mask = torch.ones(2, 1, 1, 128, dtype=torch.bool, device=x.device)
        return functional.scaled_dot_product_attention(query, keys, keys, attn_mask=mask, enable_gqa=True)


@pytest.mark.parametrize("make", [lambda: Attention(2), lambda: MaskedAttention(8), bert])
def test_attention_by_the_kernel(make: Callable[[], torch.nn.Module]) -> None:
    plain, kernel = graph(attends, make), graph(attends, make, changes=("flash=on",))
    assert b"tpu_custom_call" not in plain.module
    assert b"tpu_custom_call" in kernel.module


def test_a_weight_is_stored_with_dimensions_swapped() -> None:
    plain, swapped = graph(attends, convolve), graph(attends, convolve, changes=("transpose=8x2x3x3:0,1",))
    assert any("[8,2,3,3]" in one for one in plain.parameters)
    assert [one.replace("[8,2,3,3]", "[2,8,3,3]") for one in plain.parameters] == list(swapped.parameters)


def convolve() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(2, 8, 3))


def test_an_unknown_change_is_refused() -> None:
    with pytest.raises(TpuMagicsError, match="no such change: fast=yes"):
        graph(trains, changes=("fast=yes",))
