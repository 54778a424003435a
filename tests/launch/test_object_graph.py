"""What a training function can reach: its models and its optimisers, wherever they are."""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from tpu_magics.launch import object_graph


def is_model(value: object) -> bool:
    return isinstance(value, torch.nn.Module)


def models(function: Any, **arguments: Any) -> dict[str, Any]:
    return object_graph.find_models(object_graph.reachable_objects(function, arguments), is_model)


def net() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))


alone = net()
held = {"a": net(), "b": [net()]}
not_read = net()


class Holder:
    """Models among attributes, deeper ones too."""

    def __init__(self) -> None:
        self.model = net()
        self.parts = types.SimpleNamespace(head=net())

    def method(self) -> Any:
        return self.model

    @classmethod
    def made(cls) -> Any:
        return alone


holder = Holder()


def reads_a_global() -> Any:
    return alone


def reads_through_a_helper() -> Any:
    return reads_a_global()


def reads_in_an_inner_function() -> Any:
    def inner() -> Any:
        return [lambda: alone]

    return inner


def reads_containers() -> Any:
    return held, holder


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        return function(*args)

    return around


@wrapped
def decorated() -> Any:
    return alone


def recursive() -> Any:
    return recursive() or alone


def makes_a_model() -> Any:
    not_read = net()
    not_read.eval()
    return not_read


def nothing(*_: Any) -> None:
    pass


given = net()
HELD = {
    "held['a']": held["a"],
    "held['b'][0]": held["b"][0],  # type: ignore[index]
    "holder.model": holder.model,
    "holder.parts.head": holder.parts.head,
}


@pytest.mark.parametrize(
    ("function", "arguments", "found"),
    [
        *(
            (function, {}, {"alone": alone})
            for function in (reads_a_global, reads_through_a_helper, reads_in_an_inner_function, decorated, recursive)
        ),
        (Holder.made, {}, {"alone": alone}),
        (reads_containers, {}, HELD),
        (reads_a_global, {"model": given, "again": alone}, {"model": given, "again": alone}),
        (nothing, {"x": [given, {"deep": given}]}, {"x[0]": given}),
        (nothing, {"part": given[0], "whole": given}, {"whole": given}),
        (nothing, {"whole": given, "part": given[0]}, {"whole": given}),
        (nothing, {"x": given, "y": given}, {"x": given}),
        (makes_a_model, {}, {}),
        (len, {}, {}),
        (functools.reduce, {}, {}),
    ],
)
def test_models_are_found_under_their_names(function: Any, arguments: dict[str, Any], found: dict[str, Any]) -> None:
    """Arguments come first; parts come home with the whole; what is not read is not found."""
    assert models(function, **arguments) == found


def test_closures_defaults_methods_and_partials() -> None:
    model, other = net(), net()

    def inner() -> Any:
        return model

    assert models(inner) == {"model": model}
    assert models(holder.method) == {"self.model": holder.model, "self.parts.head": holder.parts.head}
    assert models(functools.partial(inner)) == {"model": model}
    assert models(functools.partial(max, model, key=other)) == {"argument 0": model, "key": other}


def test_a_cell_that_is_still_empty_is_passed_over() -> None:
    def outer() -> Any:
        def inner() -> Any:
            return later

        found = models(inner)
        later = net()
        return found, later

    assert outer()[0] == {}


def test_objects_that_resist() -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

    loop: list[Any] = [net()]
    loop.append(loop)
    assert list(models(lambda: 0, odd=Odd(), loop=loop)) == ["loop[0]"]


def test_large_things_cost_little() -> None:
    """Arrays and long lists are not walked through item by item."""
    seen = list(object_graph.reachable_objects(lambda: 0, {"long": [[0]] * 1, "many": [[i] for i in range(100_000)]}))
    assert len(seen) <= object_graph.WIDTH + 4
    found = list(object_graph.reachable_objects(lambda: 0, {"array": torch.zeros(100)}))
    assert [name for name, _ in found] == ["array"]


def test_statements_read_their_globals() -> None:
    space: Mapping[str, Any] = {"model": alone, "unused": not_read, "helper": reads_a_global, "n": 3}
    code = compile("def f():\n    return model\nx = n\nf()", "<cell>", "exec")
    assert object_graph.find_models(object_graph.objects_of_code(code, space), is_model) == {"model": alone}


def test_inside() -> None:
    assert [name for name, _ in object_graph.contents("x", {"a": [net()]})][:3] == ["x", "x['a']", "x['a'][0]"]


def test_the_stream_of_a_thread_is_the_kernels() -> None:
    thread = threading.Thread(target=net)
    names = [name for name, _ in object_graph.contents("own", {"thread": thread})]
    assert "own['thread']._started" in names and not any("_stderr" in name for name in names)
