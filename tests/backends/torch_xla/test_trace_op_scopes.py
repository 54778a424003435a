"""What operations belong to, forward and backward, on the CPU: each operation of torch's notes which scope is open."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tpu_magics.backends.lowered import OpScope, SourceLine
from tpu_magics.backends.torch_xla.trace.op_scopes import OpScopes

pytestmark = pytest.mark.process  # hooks of torch's that stay


class Opened:
    """The open scopes. A scope closes when it is destroyed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def push(self, name: str) -> Any:
        names = self.names
        names.append(name)

        class Scope:
            def __del__(self) -> None:
                names.remove(name)

        return Scope()


class Noted(TorchDispatchMode):
    def __init__(self, opened: Opened, scopes: OpScopes) -> None:
        super().__init__()
        self.opened, self.scopes = opened, scopes
        self.found: list[tuple[str, OpScope, str]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scope, place = self.scopes.of("/".join(self.opened.names))
        self.found.append((function._overloadpacket.__name__, scope, place.code if place else ""))
        return function(*args, **kwargs or {})


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.inner(x).sin()  # mine


class Model(torch.nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.again = again

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return {"loss": x.exp().mean()}


def _line(frame: FrameType | None) -> SourceLine | None:
    import linecache

    while frame is not None and frame.f_code.co_filename != __file__:
        frame = frame.f_back
    if frame is None:
        return None
    return SourceLine(__file__, frame.f_lineno, linecache.getline(__file__, frame.f_lineno).strip())


def noted(again: bool, step: Callable[[Any, Any], None]) -> list[tuple[str, OpScope, str]]:
    opened = Opened()
    scopes = OpScopes(opened.push, _line)
    scopes.install()
    model = Model(again)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with Noted(opened, scopes) as mode:
        step(model, optimizer)
    assert not opened.names
    return mode.found


def train(model: Any, optimizer: Any) -> None:
    loss = model(torch.ones(2, 4))["loss"] * 2  # scaled
    loss.backward()
    optimizer.step()


def scenario_operations_have_their_module_their_phase_and_their_line() -> None:
    found = noted(False, train)
    for layer in "01":
        inner, block = f"blocks.{layer}.inner", f"blocks.{layer}"
        assert ("addmm", OpScope(inner, "forward"), "return self.inner(x).sin()  # mine") in found
        assert (
            "sin",
            OpScope(block, "forward"),
            "x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)",
        ) in found
        assert ("mm", OpScope(inner, "backward"), "return self.inner(x).sin()  # mine") in found
        assert ("cos", OpScope(block, "backward"), "return self.inner(x).sin()  # mine") in found
    assert ("mul", OpScope("", "backward"), 'loss = model(torch.ones(2, 4))["loss"] * 2  # scaled') in found
    assert ("add_", OpScope("SGD", "optimizer"), "optimizer.step()") in found


def scenario_a_forward_pass_again_is_told_from_the_first() -> None:
    found = noted(True, train)
    phases = [scope.phase for name, scope, _ in found if name == "addmm" and scope.module == "blocks.0.inner"]
    assert phases == ["forward", "recompute"]
    assert ("cos", OpScope("blocks.1", "backward"), "return self.inner(x).sin()  # mine") in found


def odd(model: Any, optimizer: Any) -> None:
    """A view whose base changed without autograd, a function of one's own, and an error in a backward pass."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient.tan()

    base = torch.ones(4, 4, requires_grad=True) * 1
    view = base[0]
    with torch.no_grad():
        base.add_(1)
        view.mul_(2)
    Own.apply(model(torch.ones(2, 4))["loss"]).backward()
    wrong = torch.ones(3, requires_grad=True).clone()
    wrong.register_hook(lambda _gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (wrong * 2).sum().backward()


def scenario_views_own_functions_and_errors_do_not_disturb_it() -> None:
    found = noted(False, odd)
    assert any(name == "tan" and scope.phase == "backward" for name, scope, _ in found)


def test_scenario(scenario: str, outcomes: dict[str, str]) -> None:
    assert outcomes[scenario] == ""
