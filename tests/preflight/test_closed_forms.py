"""FLOPs and memory of a training step against formulas that follow from the model's sizes alone.

A multiplication of the forward pass takes two more in the backward pass, one for the gradient of its input and one for
that of its weights. Where the input is data there is no gradient of it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch_xla")
pytest.importorskip("transformers")

from tests.benchmarks import steady
from tests.preflight.architectures import (
    ARCHITECTURES,
    CLASSES,
    HEADS,
    IMAGE,
    LENGTH,
    ROWS,
    VOCABULARY,
    WIDTH,
    train,
)
from tpu_magics.launch import session
from tpu_magics.preflight.compile_result import CompileResult
from tpu_magics.preflight.profile import Profile
from tpu_magics.preflight.roofline import matmul_flops

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

WIDE = 4 * WIDTH
TOKENS = ROWS * LENGTH
TRAINED, OF_DATA = 3, 2  # multiplications of the same size in a step


# -- the parts --------------------------------------------------------------------------------------------------------


def linear(rows: int, *sizes: tuple[int, int], times: int = TRAINED) -> int:
    """Layers that each multiply `rows` vectors by a matrix of that size."""
    return sum(times * 2 * rows * fan_in * fan_out for fan_in, fan_out in sizes)


def attention(rows: int, queries: int, keys: int, width: int = WIDTH) -> int:
    """Scores and their product with the values, of all heads together: 12 * rows * queries * keys * width."""
    return TRAINED * 2 * (2 * rows * queries * keys * width)


def layer(rows: int, length: int) -> int:
    """A transformer layer: four projections, attention, and a feed-forward net of two matrices."""
    return projections(rows * length) + attention(rows, length, length) + feed_forward(rows * length)


def projections(tokens: int) -> int:
    return linear(tokens, *[(WIDTH, WIDTH)] * 4)


def feed_forward(tokens: int, matrices: int = 2) -> int:
    return linear(tokens, *[(WIDTH, WIDE)] * matrices)


def cross_attention(rows: int, queries: int, keys: int) -> int:
    """Queries and outputs of one sequence, keys and values of another."""
    of_queries = linear(rows * queries, *[(WIDTH, WIDTH)] * 2)
    return of_queries + linear(rows * keys, *[(WIDTH, WIDTH)] * 2) + attention(rows, queries, keys)


def convolution(
    sides: tuple[int, ...], channels: tuple[int, int], kernel: int, stride: int = 1, times: int = TRAINED
) -> int:
    """A convolution of ROWS inputs, padded by half its kernel. Positions in the padding are not multiplied."""
    taps = 1
    for side in sides:
        taps *= sum(0 <= start + tap - kernel // 2 < side for start in range(0, side, stride) for tap in range(kernel))
    return times * 2 * ROWS * taps * channels[0] * channels[1]


# -- the models of architectures.py -----------------------------------------------------------------------------------


def bert() -> int:
    first_token = linear(ROWS, (WIDTH, WIDTH), (WIDTH, CLASSES))  # the pooler, the classifier
    return layer(ROWS, LENGTH) + first_token


def gpt2() -> int:
    return layer(ROWS, LENGTH) + linear(TOKENS, (WIDTH, VOCABULARY))


def llama() -> int:
    """The feed-forward net has a gate."""
    block = projections(TOKENS) + attention(ROWS, LENGTH, LENGTH) + feed_forward(TOKENS, 3)
    return block + linear(TOKENS, (WIDTH, VOCABULARY))


def mixtral() -> int:
    """Without the experts: with batched_mm each token has its own copies of their matrices, so that none of them
    multiplies more than one vector, and the compiler makes sums of products of that (`experts`)."""
    return llama() - feed_forward(TOKENS, 3) + linear(TOKENS, (WIDTH, 4))


def experts() -> int:
    """Each token goes to two."""
    return 2 * feed_forward(TOKENS, 3)


def vit() -> int:
    patches = (IMAGE // 16) ** 2
    embedded = linear(ROWS * patches, (3 * 16 * 16, WIDTH), times=OF_DATA)
    return embedded + layer(ROWS, patches + 1) + linear(ROWS, (WIDTH, CLASSES))


def encoder_decoder() -> int:
    decoder = layer(ROWS, LENGTH) + cross_attention(ROWS, LENGTH, LENGTH)
    return layer(ROWS, LENGTH) + decoder + linear(TOKENS, (WIDTH, VOCABULARY))


def t5() -> int:
    """The gradient of a table of relative positions, 32 rows, is a product: the compiler makes one of the scatter."""
    return encoder_decoder() + 2 * linear(LENGTH * LENGTH, (32, HEADS), times=1)


def whisper() -> int:
    frames = convolution((2 * LENGTH,), (80, WIDTH), 3, times=OF_DATA) + convolution(
        (2 * LENGTH,), (WIDTH, WIDTH), 3, 2
    )
    return frames + encoder_decoder()


def resnet() -> int:
    """A stem of 7 x 7 with stride 2 and a pool of stride 2; two stages of two basic blocks."""
    stem = convolution((IMAGE, IMAGE), (3, 64), 7, 2, times=OF_DATA)
    return stem + stage(IMAGE // 4, 64, 128, 1) + stage(IMAGE // 4, 128, 256, 2) + linear(ROWS, (256, CLASSES))


def stage(side: int, narrow: int, wide: int, stride: int) -> int:
    shortcut = convolution((side, side), (narrow, wide), 1, stride)
    first = convolution((side, side), (narrow, wide), 3, stride)
    return shortcut + first + 3 * convolution((side // stride, side // stride), (wide, wide), 3)


def mlp() -> int:
    return linear(LENGTH, (WIDTH, WIDE), times=OF_DATA) + linear(LENGTH, (WIDE, CLASSES))


def cnn() -> int:
    first = convolution((IMAGE, IMAGE), (3, 128), 3, times=OF_DATA)
    second = convolution((IMAGE // 2, IMAGE // 2), (128, WIDTH), 3)
    return first + second + linear(ROWS, (WIDTH, CLASSES))


FORMS: dict[str, Callable[[], int]] = {
    "BERT": bert,
    "GPT-2": gpt2,
    "Llama": llama,
    "Mixtral": mixtral,
    "ViT": vit,
    "ResNet": resnet,
    "T5": t5,
    "Whisper": whisper,
    "MLP": mlp,
    "CNN": cnn,
}
SUMS_OF_PRODUCTS: dict[str, Callable[[], int]] = {"Mixtral": experts}  # FLOPs that no matrix multiplication makes
QUICK = ("MLP", "CNN", "GPT-2", "ViT")
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in FORMS]


@pytest.mark.parametrize("name", CASES)
def test_a_step_costs_what_follows_from_its_sizes(
    name: str, fresh_session: session.Session, tpu_compiler: tuple[str, ...]
) -> None:
    traced = steady.traced(train, name, target="v5e-1")
    result = steady.compiled(traced, "v5e-1")
    [found] = result.compiled
    assert found.status == "fits", found.error
    _check_places(result.profile)
    _check_flops(found, FORMS[name](), SUMS_OF_PRODUCTS.get(name, int)())
    _check_memory(found, sum(one.numel() for one in ARCHITECTURES[name].make()[0].parameters() if one.requires_grad))


def _check_places(found: Profile) -> None:
    """At least 95 % of the estimated time has the user's line, and a module or the optimizer."""
    owned = sum(one.seconds or 0.0 for one in found.ops if one.cost.scope.module)
    assert found.placed is not None and found.placed >= 0.95
    assert found.seconds and owned >= 0.95 * found.seconds


def _check_flops(found: CompileResult, expected: int, others: int) -> None:
    flops = matmul_flops(found.multiplications)
    assert flops == pytest.approx(expected, rel=0.001) and found.flops and found.multiplications
    assert sum(one.flops for one in found.costs) == pytest.approx(flops)
    by_xla = found.flops + found.multiplications.kernels
    assert 0.95 * by_xla < flops + others <= by_xla, "XLA counts additions and the like as well"


def _check_memory(found: CompileResult, trained: int) -> None:
    """The weights and both moments of AdamW, float32, are updated in place. A few small ones are padded."""
    memory, state = found.memory, 3 * 4 * trained
    assert memory is not None and memory.arguments is not None and memory.outputs is not None
    assert memory.aliased is not None and state <= memory.aliased < 1.03 * state
    assert memory.arguments >= memory.aliased and found.padding is not None and found.padding.plain >= state
    assert found.hbm_bytes is not None and found.bytes_accessed is not None
    assert memory.arguments + memory.outputs <= found.hbm_bytes <= found.bytes_accessed
    assert sum(one.bytes for one in found.costs) == pytest.approx(found.hbm_bytes)
