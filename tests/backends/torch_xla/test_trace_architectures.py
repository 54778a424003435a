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
CASES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in ARCHITECTURES if name not in FAILING
]


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_one_graph_from_the_second_step_on(name: str) -> None:
    if package := ARCHITECTURES[name].requires:
        pytest.importorskip(package)
    found = traced(train, name)
    graph = steady(found)
    trained = [one for one in ARCHITECTURES[name].make()[0].named_parameters() if one[1].requires_grad]
    moments = [one for one in graph.parameters if " exp_avg of " in one or " exp_avg_sq of " in one]
    assert len(moments) == 2 * len(trained), "AdamW has two for each parameter that is trained, and for no other"
    assert graph.scopes and not found.refused


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
