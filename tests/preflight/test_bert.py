"""A whole preflight of BERT-base and AdamW for one chip of v5e: what fits, what does not, what is bf16.

Of each case only the graph of the steady step is compiled: the first step's is as large, and takes as long. BERT-base
takes up to two minutes of processor time for each graph, most of it for its error functions; so a small one without
GELU stands for it in `make test`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tpu_magics.launch import session
from tpu_magics.launch.plan import Options
from tpu_magics.launch.request import function_request
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.preflight.compilation import compile_graphs
from tpu_magics.preflight.compile_result import CompileResult, TraceResult
from tpu_magics.preflight.roofline import bf16_share
from tpu_magics.preflight.run import trace_request
from tpu_magics.preflight.targets import parse

GIB = 2**30
LENGTH = 128


@dataclass(frozen=True)
class Bert:
    """`parameters`: with a head for two classes."""

    layers: int
    width: int
    activation: str
    batch: int
    parameters: int


SMALL = Bert(1, 128, "relu", 8, 4_187_906)
BASE = Bert(12, 768, "gelu", 32, 109_483_778)

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def training_function(bert: Bert, batch: int, length: int) -> None:
    import torch
    import torch_xla
    from transformers import BertConfig, BertForSequenceClassification

    device = torch_xla.device()
    sizes = {"num_hidden_layers": bert.layers, "hidden_size": bert.width, "intermediate_size": 4 * bert.width}
    config = BertConfig(**sizes, num_attention_heads=bert.width // 64, hidden_act=bert.activation)
    model = BertForSequenceClassification(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros((batch, length), dtype=torch.long)
    for _ in range(5):
        loss = model(input_ids=ids.to(device), labels=ids[:, 0].to(device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


@pytest.fixture(params=[pytest.param(SMALL, id="small"), pytest.param(BASE, id="base", marks=pytest.mark.long)])
def bert(request: pytest.FixtureRequest, fresh_session: session.Session, tpu_compiler: tuple[str, ...]) -> Bert:
    pytest.importorskip("transformers")
    fresh_session.backend.prepare()
    return request.param  # type: ignore[no-any-return]


def preflight(
    bert: Bert, batch: int, length: int = LENGTH, precision: str | None = None
) -> tuple[TraceResult, CompileResult]:
    request = function_request(training_function, (bert, batch, length))
    traced = trace_request(request, Options(precision=precision, force=True), TracingOptions())
    assert traced.settled and traced.syncs == 3 and traced.batch == batch and not traced.reads
    steady = [graph for graph in traced.graphs if graph.steady]
    [compiled] = compile_graphs(steady, parse("v5e-1"), store=None, on_progress=lambda _now: None)
    return traced, compiled


def test_a_batch_of_32_x_128_fits_and_its_matrix_multiplications_are_not_bf16(bert: Bert) -> None:
    traced, compiled = preflight(bert, bert.batch)
    assert compiled.status == "fits"
    memory = compiled.memory
    assert memory is not None and memory.arguments is not None and memory.aliased is not None
    small = bert is SMALL
    state = 3 * 4 * bert.parameters  # weights and two moments, f32
    assert state < memory.arguments < 1.05 * state
    assert 0.99 * state < memory.aliased <= memory.arguments, "all of that is donated"
    assert memory.available == pytest.approx(15.75 * GIB, rel=0.01)
    assert (state if small else 3 * GIB) < memory.needed < (GIB if small else 8 * GIB)
    if small:  # forward, twice as much backward, and AdamW's own operations on each weight
        multiplied = 3 * bert.layers * bert.batch * LENGTH * (24 * bert.width**2 + 4 * LENGTH * bert.width)
        assert multiplied < (compiled.flops or 0) < multiplied + 30 * bert.parameters
    else:
        assert compiled.flops == pytest.approx(2.16e12, rel=0.05), "this was measured"
    share = bf16_share(compiled)
    assert share is not None and share < (0.25 if small else 0.1)
    words = [one for one in compiled.buffers if one.shape == f"f32[30522,{bert.width}]" and one.kind == "argument"]
    assert words[0].size >= 30522 * bert.width * 4
    made = [one.place.code for one in compiled.buffers if one.kind == "temporary" and one.place is not None][:1]
    line = "loss = model(input_ids=ids.to(device), labels=ids[:, 0].to(device)).loss"
    assert made == [line] or (small and not made), "temporaries of a small one may all lie on the chip"
    assert any(name.endswith("bert.embeddings.word_embeddings.weight") for name in traced.graphs[-1].parameters)


def test_with_bf16_nearly_all_of_them_are(bert: Bert) -> None:
    _, compiled = preflight(bert, bert.batch, precision="bf16")
    assert compiled.status == "fits"
    share = bf16_share(compiled)
    assert share is not None and share > 0.95


@pytest.mark.long
@pytest.mark.parametrize("bert", [pytest.param(BASE, id="base")], indirect=True)
def test_a_batch_of_512_x_512_is_refused(bert: Bert) -> None:
    _, compiled = preflight(bert, 512, 512)
    assert compiled.status == "too-large"
    assert compiled.memory is not None and compiled.memory.available is not None
    assert compiled.memory.needed == pytest.approx(184 * GIB, rel=0.02)
    assert compiled.memory.available == pytest.approx(15.75 * GIB, rel=0.01)
    largest = compiled.buffers[0]
    assert largest.shape == f"f32[512,{bert.width // 64},512,512]" and largest.place is not None
    assert "model(input_ids" in largest.place.code
