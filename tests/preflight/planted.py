"""Training functions with one fault each, and tuned ones, for the advice of a preflight. All are small: each compile
takes seconds. The line of a fault ends with `# planted`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Make = Callable[[], nn.Module]
Loss = Callable[..., Any]
words, length, rows = 512, 520, 4  # names of a notebook, which the functions read


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
    pairs = zip(sizes[:-1], sizes[1:], strict=True)
    return nn.Sequential(*(part for pair in pairs for part in (nn.Linear(*pair), nn.ReLU())))


class Residual(nn.Module):
    """A block of a transformer without attention."""

    def __init__(self, width: int, again: bool = False) -> None:
        super().__init__()
        self.inner, self.again = layers(width, 4 * width, width), again

    def forward(self, x: Any) -> Any:
        if self.again:
            return x + torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)  # planted
        return x + self.inner(x)


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


class Classifier(nn.Module):
    """Of tokens. `island`: its head multiplies in f32."""

    def __init__(self, vocabulary: int, width: int = 256, island: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.island = layers(width, width), nn.Linear(width, vocabulary, bias=False), island

    def forward(self, x: Any) -> Any:
        x = self.body(x)
        if self.island:
            with torch.autocast("xla", enabled=False):
                return self.head(x.float())  # planted
        return self.head(x)  # planted


def cross_entropy(model: nn.Module, x: Any) -> Any:
    found = model(x)
    return functional.cross_entropy(found.float(), torch.zeros(len(x), dtype=torch.long, device=x.device))


def convolutions(*channels: int) -> nn.Sequential:
    pairs = zip(channels[:-1], channels[1:], strict=True)
    return nn.Sequential(*(part for pair in pairs for part in (nn.Conv2d(*pair, 3, padding=1), nn.ReLU())))


# -- faults -----------------------------------------------------------------------------------------------------------


def f32_matmuls() -> None:
    fit(lambda: layers(1024, 1024), [(4096, 1024)], mean, bf16=False)


def f32_convolutions() -> None:
    fit(lambda: convolutions(128, 128), [(64, 128, 16, 16)], mean, bf16=False)


def f32_head() -> None:
    fit(lambda: Classifier(4096, island=True), [(2048, 256)], mean)


def f32_loss() -> None:
    def loss(model: Any, x: Any) -> Any:
        found = model(x)
        with torch.autocast("xla", enabled=False):
            return (found.float() @ found.float().t()).mean()  # planted

    fit(lambda: layers(512, 512), [(2048, 512)], loss)


def f32_attention() -> None:
    fit(lambda: AttentionInF32(512, 4), [(8, 256, 512)], mean)


def unaligned_vocabulary() -> None:
    fit(lambda: Classifier(1030), [(8192, 256)], mean)


def unaligned_hidden_size() -> None:
    fit(lambda: layers(160, 160), [(16384, 160)], mean)


def unaligned_feed_forward() -> None:
    fit(lambda: layers(256, 1100, 256), [(8192, 256)], mean)


def unaligned_fused_projection() -> None:
    fit(lambda: Attention(480, 4), [(16, 128, 480)], mean)


def small_heads() -> None:
    fit(lambda: Attention(512, 8), [(8, 512, 512)], mean)


def small_heads_of_an_unaligned_size() -> None:
    fit(lambda: Attention(480, 6), [(8, 512, 480)], mean)


def scores_in_memory() -> None:
    fit(lambda: Attention(256, 2), [(8, 1024, 256)], mean)


def scores_of_a_transformers_model() -> None:
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertEncoder

    sizes = {"hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 256}
    config = BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager")
    fit(lambda: BertEncoder(config), [(8, 1024, 256)], lambda model, x: model(x)[0].float().mean())


def unaligned_length() -> None:
    fit(lambda: Attention(256, 2), [(16, length, 256)], mean)


def copies_of_a_convolution() -> None:
    fit(lambda: convolutions(256, 512), [(64, 256, 7, 7)], mean)


def copies_of_moments() -> None:
    fit(lambda: convolutions(256, 512), [(64, 256, 7, 7)], mean, momentum=0.9)


def tiny_batch(batch: int = 2) -> None:
    fit(lambda: layers(1024, 1024), [(batch, 1024)], mean)


def batch_of_part_of_a_tile() -> None:
    fit(lambda: Residual(256), [(rows, words, 256)], mean)


def recomputed_without_need() -> None:
    fit(lambda: nn.Sequential(*(Residual(256, again=True) for _ in range(2))), [(4096, 256)], mean)


def activations_fill_the_memory() -> None:
    fit(lambda: nn.ModuleList(Residual(512) for _ in range(3)), [(1 << 20, 512)], through_all)


def too_large(batch: int = 1 << 22) -> None:
    fit(lambda: Residual(256), [(batch, 256)], mean)


def through_all(model: Any, x: Any) -> Any:
    for block in model:
        x = block(x)
    return x.float().mean()
