"""Training functions with one fault each, and tuned ones, for the advice of a preflight. All are small: each compile
takes seconds. The line of a fault ends with `# planted`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Make = Callable[[], nn.Module]
Loss = Callable[..., Any]
length, aligned, rows = 520, 512, 20  # names of a notebook, which the functions read


def fit(make: Make, shapes: Sequence[tuple[int, ...]], loss: Loss, bf16: bool = True, **optimizer: Any) -> None:
    """Train on inputs of these shapes. `optimizer`: arguments of SGD."""
    import torch_xla

    device = torch_xla.device()
    model = make().to(device)
    steps = torch.optim.SGD(model.parameters(), 0.1, **optimizer)
    for _ in range(3):
        inputs = [torch.zeros(shape).to(device) for shape in shapes]
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=bf16):
            found = loss(model, *inputs)
        found.backward()
        steps.step()
        steps.zero_grad()
        torch_xla.sync()


def mean(model: nn.Module, x: Any) -> Any:
    return model(x).float().mean()


def layers(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())))


class Residual(nn.Module):
    """A block of a transformer without attention."""

    def __init__(self, width: int, again: bool = False) -> None:
        super().__init__()
        self.inner, self.again = layers(width, 4 * width, width), again

    def forward(self, x: Any) -> Any:
        if self.again:
            return x + torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        return x + self.inner(x)


def blocks(count: int, width: int, again: bool = False) -> nn.Sequential:
    return nn.Sequential(*(Residual(width, again) for _ in range(count)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        split = self.projections(x).view(rows, length, 3, self.num_heads, self.head_dim)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        found = self.attend(query, key, value).transpose(1, 2)
        return x + self.out(found.reshape(rows, length, width))

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        return functional.scaled_dot_product_attention(query, key, value)  # planted


class AttentionInF32(Attention):
    def attend(self, query: Any, key: Any, value: Any) -> Any:
        with torch.autocast("xla", enabled=False):
            scores = query.float() @ key.float().transpose(-1, -2)  # planted
        return scores.softmax(-1).to(value.dtype) @ value


class Gated(nn.Module):
    """A gated feed-forward layer, whose two projections are one matrix."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(width, 2 * inner), nn.Linear(inner, width)

    def forward(self, x: Any) -> Any:
        value, gate = self.inner(x).chunk(2, -1)
        return x + self.out(value * gate.sigmoid())


class Tied(nn.Module):
    """An embedding whose table is that of the logits."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocabulary, width))

    def forward(self, ids: Any) -> Any:
        return functional.embedding(ids.long(), self.table) @ self.table.t()


class InF32(nn.Module):
    """What is inside takes f32."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Any) -> Any:
        with torch.autocast("xla", enabled=False):
            return self.inside(x.float())  # planted


def cross_entropy(model: nn.Module, x: Any) -> Any:
    found = model(x)
    return functional.cross_entropy(found.float(), torch.zeros(len(x), dtype=torch.long, device=x.device))


def convolutions(*channels: int) -> nn.Sequential:
    return nn.Sequential(*(part for pair in pairwise(channels) for part in (nn.Conv2d(*pair, 3, padding=1), nn.ReLU())))


def bert(heads: int, again: bool = False) -> nn.Module:
    """A layer of BERT with eager attention. `again`: with gradient checkpointing."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertModel

    sizes = {"hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": heads, "intermediate_size": 256}
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "vocab_size": 128}
    lengths = {"max_position_embeddings": 1024, "attn_implementation": "eager", "hidden_act": "relu"}
    model = BertModel(BertConfig(**sizes, **without, **lengths), add_pooling_layer=False)
    if again:
        model.gradient_checkpointing_enable()
    return model.train()


def first(model: nn.Module, x: Any) -> Any:
    """Of a model of transformers, which gets embeddings."""
    return model(inputs_embeds=x)[0].float().mean()


# -- faults -----------------------------------------------------------------------------------------------------------


def f32_matmuls() -> None:
    fit(lambda: layers(1024, 1024), [(4096, 1024)], mean, bf16=False)


def f32_convolutions() -> None:
    fit(lambda: convolutions(128, 128), [(64, 128, 16, 16)], mean, bf16=False)


def f32_head() -> None:
    fit(lambda: nn.Sequential(layers(256, 256), InF32(nn.Linear(256, 4096))), [(2048, 256)], mean)


def f32_block() -> None:
    fit(lambda: nn.Sequential(layers(512, 4096, 512), InF32(layers(512, 2048, 512))), [(8192, 512)], mean)


def f32_similarity() -> None:
    def loss(model: Any, x: Any) -> Any:
        found = model(x)
        with torch.autocast("xla", enabled=False):
            scores = found.float() @ found.float().t()  # planted
        return scores.softmax(-1).square().mean()

    fit(lambda: layers(512, 1024), [(4096, 512)], loss)


def f32_attention() -> None:
    fit(lambda: AttentionInF32(512, 4), [(16, 1024, 512)], mean)


def unaligned_gate() -> None:
    fit(lambda: Gated(256, 1100), [(8192, 256)], mean)


def unaligned_vocabulary() -> None:
    fit(lambda: Tied(2100, 256), [(4096,)], cross_entropy)


def unaligned_heads() -> None:
    fit(lambda: nn.Sequential(nn.Linear(256, 480), Attention(480, 4)), [(16, 128, 256)], mean)


def small_heads() -> None:
    fit(lambda: Attention(512, 8), [(8, 512, 512)], mean)


def small_heads_of_an_unaligned_size() -> None:
    fit(lambda: nn.Sequential(nn.Linear(256, 480), Attention(480, 6)), [(8, 512, 256)], mean)


def small_heads_of_a_torch_layer() -> None:
    layer = {"dim_feedforward": 256, "dropout": 0.0, "batch_first": True}
    fit(lambda: nn.TransformerEncoderLayer(256, 4, **layer), [(8, 512, 256)], mean)


def small_heads_of_a_transformers_model() -> None:
    fit(lambda: bert(4), [(8, 512, 256)], first)


def scores_in_memory() -> None:
    fit(lambda: Attention(512, 4), [(16, 1024, 512)], mean)


def scores_of_a_transformers_model() -> None:
    fit(lambda: bert(2), [(32, 1024, 256)], first)


def unaligned_length() -> None:
    fit(lambda: Attention(256, 2), [(16, length, 256)], mean)


def copies_of_a_convolution() -> None:
    fit(lambda: convolutions(256, 512), [(64, 256, 7, 7)], mean)


def copies_of_moments() -> None:
    fit(lambda: convolutions(256, 512), [(64, 256, 7, 7)], mean, momentum=0.9)


def tiny_batch(batch: int = 2) -> None:
    fit(lambda: layers(1024, 1024), [(batch, 1024)], mean)


def small_batch(batch: int = 64) -> None:
    fit(lambda: layers(1024, 1024), [(batch, 1024)], mean)


def batch_of_part_of_a_tile() -> None:
    fit(lambda: layers(512, 512), [(rows, 512)], mean)


def recomputed_without_need() -> None:
    fit(lambda: blocks(2, 256, again=True), [(4096, 256)], mean)


def recomputed_by_transformers() -> None:
    fit(lambda: bert(2, again=True), [(16, 128, 256)], first)


def activations_fill_the_memory() -> None:
    fit(lambda: blocks(3, 512), [(15 << 16, 512)], mean)


def too_large(batch: int = 1 << 23) -> None:
    fit(lambda: Residual(256), [(batch, 256)], mean)


FAULTS: dict[Callable[..., None], str] = {  # with the beginning of the change that they need
    f32_matmuls: "precision=bf16",
    f32_convolutions: "precision=bf16",
    f32_head: "precision=bf16",
    f32_block: "precision=bf16",
    f32_similarity: "bf16=",
    f32_attention: "bf16=",
    unaligned_heads: "heads=4x120:4x128",
    small_heads: "heads=8x64:4x128",
    small_heads_of_an_unaligned_size: "heads=6x80:4x128",
    small_heads_of_a_torch_layer: "heads=4x64:2x128",
    small_heads_of_a_transformers_model: "heads=4x64:2x128",
    scores_in_memory: "flash=on",
    scores_of_a_transformers_model: "flash=on",
    unaligned_length: "length = 640",
    copies_of_a_convolution: "transpose=512x256x3x3:0,1",
    copies_of_moments: "transpose=512x256x3x3:0,1",
    tiny_batch: "batch = 8",
    small_batch: "batch = 128",
    batch_of_part_of_a_tile: "rows = 24",
    recomputed_without_need: "remat=off",
    recomputed_by_transformers: "remat=off",
    activations_fill_the_memory: "remat=on",
    too_large: "batch = 4194304",
}
# Sizes that fill no tile, alone on a chip: the compiler pads them itself, and more of them takes more.
WITHOUT_GAIN: dict[Callable[..., None], str] = {
    unaligned_gate: "pad=1100:1152",
    unaligned_vocabulary: "pad=2100:2176",
}


# -- tuned programs ---------------------------------------------------------------------------------------------------


def tuned_layers() -> None:
    fit(lambda: layers(256, 1024, 256), [(4096, 256)], mean)


def tuned_convolutions() -> None:
    fit(lambda: convolutions(128, 128), [(64, 128, 16, 16)], mean)


def tuned_classifier() -> None:
    fit(lambda: layers(256, 1024), [(4096, 256)], cross_entropy)


def tuned_attention() -> None:
    fit(lambda: Attention(256, 2), [(32, 128, 256)], mean)


def tuned_transformers_model() -> None:
    fit(lambda: bert(2), [(16, 128, 256)], first)


def tuned_torch_layer() -> None:
    layer = {"dim_feedforward": 1024, "dropout": 0.0, "batch_first": True}
    fit(lambda: nn.TransformerEncoderLayer(256, 2, **layer), [(16, 128, 256)], mean)


def tuned_length() -> None:
    fit(lambda: Attention(256, 2), [(4, aligned, 256)], mean)


def tuned_batch(batch: int = 9 << 16) -> None:
    fit(lambda: blocks(3, 512), [(batch, 512)], mean)


def tuned_memory() -> None:
    fit(lambda: blocks(3, 512, again=True), [(1 << 20, 512)], mean)


def tuned_optimizer() -> None:
    fit(lambda: layers(256, 1024, 512), [(4096, 256)], mean, momentum=0.9, nesterov=True)


TUNED: dict[Callable[..., None], tuple[str, ...]] = {  # with the beginnings of changes that would undo it
    tuned_layers: ("precision=", "bf16=", "pad="),
    tuned_convolutions: ("precision=", "transpose="),
    tuned_classifier: ("precision=", "pad="),
    tuned_attention: ("precision=", "heads=", "pad="),
    tuned_transformers_model: ("precision=", "heads=", "remat="),
    tuned_torch_layer: ("precision=", "heads="),
    tuned_length: ("aligned =",),
    tuned_batch: ("batch =",),
    tuned_memory: ("remat=off",),
    tuned_optimizer: ("transpose=", "pad="),
}
