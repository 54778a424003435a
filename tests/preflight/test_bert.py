"""A whole preflight of BERT-base and AdamW for one chip of v5e: what fits, what does not, what is bf16.

Of each case only the graph of the steady step is compiled: the first step's is as large, and takes as long. BERT-base
takes up to two minutes of processor time for each graph, most of it for its error functions; in `make test`, the
notebook 05_preflight compiles a small one.
"""

from __future__ import annotations

import pytest

from tpu_magics.launch import session
from tpu_magics.launch.options import Options
from tpu_magics.launch.request import function_request
from tpu_magics.launch.strategies.tracing import TracingOptions
from tpu_magics.preflight.compilation import compile_graphs
from tpu_magics.preflight.compile_result import CompileResult, TraceResult
from tpu_magics.preflight.roofline import bf16_share
from tpu_magics.preflight.run import trace_request
from tpu_magics.preflight.targets import parse

GIB = 2**30
PARAMETERS = 109_483_778  # with a head for two classes

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.timeout(900)]


def training_function(batch: int, length: int) -> None:
    import torch
    import torch_xla
    from transformers import BertConfig, BertForSequenceClassification

    device = torch_xla.device()
    model = BertForSequenceClassification(BertConfig()).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros((batch, length), dtype=torch.long)
    for _ in range(5):
        loss = model(input_ids=ids.to(device), labels=ids[:, 0].to(device)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()


@pytest.fixture(autouse=True)
def _ready(fresh_session: session.Session, tpu_compiler: tuple[str, ...]) -> None:
    fresh_session.backend.prepare()


def preflight(batch: int, length: int, precision: str | None = None) -> tuple[TraceResult, CompileResult]:
    request = function_request(training_function, (batch, length))
    traced = trace_request(request, Options(precision=precision, force=True), TracingOptions())
    assert traced.settled and traced.syncs == 3 and traced.batch == batch and not traced.reads
    steady = [graph for graph in traced.graphs if graph.steady]
    [compiled] = compile_graphs(steady, parse("v5e-1"), store=None, on_progress=lambda _now: None)
    return traced, compiled


def test_a_batch_of_32_x_128_fits_and_its_matrix_multiplications_are_not_bf16() -> None:
    traced, compiled = preflight(32, 128)
    assert compiled.status == "fits"
    memory = compiled.memory
    assert memory is not None and memory.arguments is not None and memory.aliased is not None
    state = 3 * 4 * PARAMETERS  # weights and two moments, f32
    assert state < memory.arguments < 1.05 * state
    assert 0.99 * state < memory.aliased <= memory.arguments, "all of that is donated"
    assert memory.available == pytest.approx(15.75 * GIB, rel=0.01)
    assert 3 * GIB < memory.needed < 8 * GIB
    assert compiled.flops == pytest.approx(2.16e12, rel=0.05), "this was measured"
    share = bf16_share(compiled)
    assert share is not None and share < 0.1
    words = [one for one in compiled.buffers if one.shape == "f32[30522,768]" and one.kind == "argument"]
    assert words[0].size >= 30522 * 768 * 4
    made = [one.place.code for one in compiled.buffers if one.kind == "temporary" and one.place is not None]
    assert made[0] == "loss = model(input_ids=ids.to(device), labels=ids[:, 0].to(device)).loss"
    assert any(name.endswith("bert.embeddings.word_embeddings.weight") for name in traced.graphs[-1].parameters)


def test_with_bf16_nearly_all_of_them_are() -> None:
    _, compiled = preflight(32, 128, precision="bf16")
    assert compiled.status == "fits"
    share = bf16_share(compiled)
    assert share is not None and share > 0.95


def test_a_batch_of_512_x_512_is_refused() -> None:
    _, compiled = preflight(512, 512)
    assert compiled.status == "too-large"
    assert compiled.memory is not None and compiled.memory.available is not None
    assert compiled.memory.needed == pytest.approx(184 * GIB, rel=0.02)
    assert compiled.memory.available == pytest.approx(15.75 * GIB, rel=0.01)
    largest = compiled.buffers[0]
    assert largest.shape == "f32[512,12,512,512]" and largest.place is not None
    assert "model(input_ids" in largest.place.code
