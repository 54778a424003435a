"""What is on the device, while other threads let go of it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch_xla")

from tests import forks

pytestmark = pytest.mark.process

LOOKED_AT = """
import gc, sys, threading
import torch, torch_xla
from tpu_magics.backends.torch_xla.trace import live_tensors

torch_xla.device()
sys.setswitchinterval(1e-5)
gc.freeze()  # as in a worker
done = threading.Event()

def load():
    while not done.is_set():  # as a loader's thread moves a batch, and drops it
        torch_xla._XLAC._xla_tensors_from_aten([torch.ones(4) for _ in range(64)], ["xla:0"] * 64)

threads = [threading.Thread(target=load) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(LOOKS):
    for one in map(live_tensors.inner, live_tensors.outer_tensors()):
        live_tensors.number(one)
done.set()
for thread in threads:
    thread.join()
print("done")
"""
LEFT_TO_CPP = """
import torch, torch_xla
from tpu_magics.backends.torch_xla.trace import live_tensors

live_tensors.watch_hooks()
weight = torch.ones(3, device=torch_xla.device(), requires_grad=True)
if HOOKED:
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
        pass

def loss_of():
    kept = weight.exp()
    return EXPRESSION

loss = loss_of()  # only autograd refers to the exponentials
outer = live_tensors.outer_tensors()
print([one in map(id, outer) for one in map(id, (weight, loss))], len(outer))
print(live_tensors.alive() - len(live_tensors.tensors()))
"""


def test_a_thread_that_drops_a_batch_goes_on() -> None:
    """It was ended a second time, by whoever had found the inner tensor in a list: about every second time here."""
    assert forks.run("torch_xla", LOOKED_AT.replace("LOOKS", "10000")) == "done\n"


@pytest.mark.parametrize(
    ("hooked", "expression"),
    [
        (False, "(kept * weight).sum()"),
        (True, "(kept * weight).sum()"),  # a hook forbids to ask autograd
        (False, "(kept.unsqueeze(0) @ weight.unsqueeze(1)).sum()"),
        (
            False,
            "torch.einsum('i,j->ij', kept + 1, kept - 1).sum()",
        ),  # saved by torch_xla's own function, in C++
    ],
)
def test_what_only_cpp_refers_to_is_found(hooked: bool, expression: str) -> None:
    program = LEFT_TO_CPP.replace("HOOKED", str(hooked)).replace("EXPRESSION", expression)
    assert forks.run("torch_xla", program) == "[True, True] 2\n0\n"
