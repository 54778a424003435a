"""Models of many kinds are traced. That their graphs compile, and what they cost: tests/preflight/test_closed_forms.py
and docs/preflight.md."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla")
pytest.importorskip("transformers")

from tests.backends.torch_xla.traced import steady, traced
from tests.preflight.architectures import ARCHITECTURES, train
from tpu_magics.errors import TpuMagicsError

pytestmark = [pytest.mark.process, pytest.mark.timeout(280), pytest.mark.usefixtures("fresh_session", "libraries")]

QUICK = ("Whisper", "Llama, LoRA", "UNet2DConditionModel", "Mixtral")
FAILING = ("DETR",)
ON_HOST = {  # torch_xla 2.9.0 has no kernel for them, on a TPU neither
    "Wav2Vec2, CTC": {
        *("_ctc_loss.Tensor", "_ctc_loss_backward.Tensor"),
        *("_weight_norm_interface", "_weight_norm_interface_backward"),
    },
    "PatchTST": {"unfold_copy"},
}
CASES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in ARCHITECTURES if name not in FAILING
]


def trained_parameters(name: str) -> int:
    """How many get a gradient, on the CPU."""
    model, inputs = ARCHITECTURES[name].make()
    found = model.train()(**inputs)
    getattr(found, "loss", found).backward()
    return sum(one.grad is not None for one in model.parameters())


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_one_graph_from_the_second_step_on(name: str) -> None:
    if package := ARCHITECTURES[name].requires:
        pytest.importorskip(package)
    found = traced(train, name)
    graph = steady(found)
    moments = [one for one in graph.parameters if " exp_avg of " in one or " exp_avg_sq of " in one]
    assert len(moments) == 2 * trained_parameters(name), "AdamW has two for each parameter that gets a gradient"
    assert graph.scopes and {one.op.removeprefix("aten::") for one in found.refused} == ON_HOST.get(name, set())


def test_a_matching_on_the_host_fails_and_the_zeros_that_it_read_are_named() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        traced(train, "DETR")
    assert "boxes1 must be in" in caught.value.what and "such a zero may be the cause" in caught.value.why
    assert any("loss_for_object_detection.py" in line for line in caught.value.details)


@pytest.mark.long
def test_lengths_for_ctc_are_inexact_in_bf16_and_the_error_says_so() -> None:
    with pytest.raises(TpuMagicsError, match=r"a length of 50 for CTC, but 49 frames") as caught:
        traced(train, "Wav2Vec2, CTC", precision="bf16")
    assert "XLA_USE_BF16" in caught.value.why
