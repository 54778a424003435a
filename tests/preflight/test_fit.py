"""The name whose largest value is searched: where it is found, and that its old value comes back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.fit import Size

BATCH = 16


def train(model: Any, batch: int = 32, *, rows: int = 4) -> tuple[int, int, int]:
    """What it gets, and what it reads."""
    return batch, rows, BATCH


def passes_on(model: Any, **options: Any) -> Any:
    return train(model, **options)


def first_only(batch: int = 8, /, *rest: Any, **options: Any) -> tuple[Any, ...]:
    return batch, rest, options


def size_of(
    name: str,
    function: Any = train,
    args: tuple[Any, ...] = ("model",),
    kwargs: Mapping[str, Any] | None = None,
    namespace: dict[str, Any] | None = None,
) -> Size:
    return Size.of(name, function, args, kwargs or {}, {} if namespace is None else namespace)


def called_with(size: Size, value: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with size.at(value, args, kwargs) as (given, named):
        return function(*given, **named)


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "now", "gets"),
    [
        ("batch", ("model", 5), {}, 5, (99, 4, 16)),  # by its place
        ("batch", ("model",), {"batch": 6}, 6, (99, 4, 16)),  # by its name
        ("batch", ("model",), {}, 32, (99, 4, 16)),  # its default
        ("batch", (), {"model": "model"}, 32, (99, 4, 16)),
        ("rows", ("model", 5), {}, 4, (5, 99, 16)),
        ("rows", ("model", 5), {"rows": 7}, 7, (5, 99, 16)),
    ],
)
def test_an_argument(name: str, args: Any, kwargs: Any, now: int, gets: tuple[int, ...]) -> None:
    size = size_of(name, train, args, kwargs)
    assert (size.now, size.is_argument) == (now, True)
    assert called_with(size, 99, train, *args, **kwargs) == gets


def test_the_arguments_that_were_given_stay_as_they_are() -> None:
    kwargs = {"batch": 6}
    size = size_of("batch", train, ("model",), kwargs)
    with size.at(99, ("model",), kwargs) as (_args, named):
        named["more"] = 1
    assert kwargs == {"batch": 6}


def test_through_options_that_a_function_passes_on() -> None:
    size = size_of("batch", passes_on, kwargs={"batch": 24, "rows": 2})
    assert (size.now, size.is_argument) == (24, True)
    assert called_with(size, 99, passes_on, "model", batch=24, rows=2) == (99, 2, 16)


def test_options_that_are_not_given_have_no_value() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        size_of("batch", passes_on)
    assert caught.value.what == "--fit batch: there is no such name."
    assert "add batch=8 to the ARGs" in caught.value.todo


def test_an_argument_by_place_only() -> None:
    size = size_of("batch", first_only, (3, "more"))
    assert size.now == 3 and called_with(size, 99, first_only, 3, "more", x=1) == (99, ("more",), {"x": 1})
    assert called_with(size_of("batch", first_only, ()), 99, first_only) == (99, (), {})


def test_partials_and_classes() -> None:
    class Trainer:
        def __call__(self, batch: int = 12) -> int:
            return batch

        def run(self, batch: int) -> int:
            return batch

    one = functools.partial(train, "model", batch=10)
    assert size_of("batch", one, ()).now == 10 and called_with(size_of("batch", one, ()), 99, one)[0] == 99
    assert called_with(size_of("batch", Trainer(), ()), 99, Trainer()) == 99
    assert called_with(size_of("batch", Trainer().run, (7,)), 99, Trainer().run, 7) == 99


def test_an_argument_hides_a_name_of_the_notebook() -> None:
    namespace = {"batch": 7}
    size = size_of("batch", namespace=namespace)
    assert size.now == 32
    with size.at(99, ("model",), {}):
        assert namespace == {"batch": 7}


def test_arguments_that_the_function_does_not_take() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        size_of("batch", train, (), {"lr": 1})
    assert "does not take these arguments: " in caught.value.what and caught.value.what.startswith("train(model: ")
    assert caught.value.why == "Given: 0 positional, lr."
    assert "including batch: the search starts at its value" in caught.value.todo


# -- names of the notebook --------------------------------------------------------------------------------------------


def test_a_name_of_the_functions_module() -> None:
    size = size_of("BATCH")
    assert (size.now, size.is_argument) == (16, False)
    assert called_with(size, 99, train, "model")[2] == 99 and BATCH == 16


def test_a_name_of_the_notebook_and_of_the_module() -> None:
    """A function of a file that the notebook imports names from: both have the value for a while."""
    namespace: dict[str, Any] = {"BATCH": 8, "other": 1}
    size = size_of("BATCH", namespace=namespace)
    assert size.now == 16, "the function's own"
    with size.at(99, ("model",), {"rows": 1}) as (args, kwargs):
        assert (namespace["BATCH"], BATCH) == (99, 99) and (args, kwargs) == (("model",), {"rows": 1})
    assert (namespace, BATCH) == ({"BATCH": 8, "other": 1}, 16)


def test_a_name_that_only_the_notebook_has() -> None:
    """What the function calls may read it."""
    namespace = {"rows_of_all": 8}
    size = size_of("rows_of_all", namespace=namespace)
    with size.at(99, (), {}):
        assert namespace == {"rows_of_all": 99}
    assert namespace == {"rows_of_all": 8}


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_its_value_comes_back_after_a_failure(kind: type[BaseException]) -> None:
    namespace = {"BATCH": 8}
    with pytest.raises(kind), size_of("BATCH", namespace=namespace).at(99, (), {}):
        raise kind
    assert (namespace, BATCH) == ({"BATCH": 8}, 16)


def test_of_a_decorated_function_the_inner_ones_module_counts() -> None:
    @functools.wraps(train)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return train(*args, **kwargs)

    assert size_of("BATCH", wrapper).now == 16 and size_of("batch", wrapper).now == 32


# -- what is no size --------------------------------------------------------------------------------------------------


class Model:
    """Its repr goes on for pages."""

    def __repr__(self) -> str:
        return "Model(\n" + "  (layer): Linear()\n" * 100 + ")"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "True"),
        (8.0, "8.0"),
        (0, "0"),
        (-8, "-8"),
        (None, "None"),
        ("8", "'8'"),
        ("8" * 100, "an object of type str"),
        (Model(), "an object of type Model"),
        (np.zeros(8), "an object of type ndarray"),
    ],
)
@pytest.mark.parametrize("where", ["argument", "notebook"])
def test_what_is_no_whole_number_above_zero(value: Any, said: str, where: str) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        if where == "argument":
            size_of("batch", train, ("model", value))
        else:
            size_of("size", namespace={"size": value})
    name = "batch" if where == "argument" else "size"
    assert caught.value.what == f"--fit {name}: its value is {said}."
    assert "whole numbers above 0" in caught.value.why


def test_numpys_whole_numbers_are_taken() -> None:
    size = size_of("batch", train, ("model", np.int64(48)))
    assert size.now == 48 and type(size.now) is int


@pytest.mark.parametrize(
    ("function", "parameters"), [(train, "model, batch, rows"), (lambda: None, "it has none"), (dict, "it has none")]
)
def test_a_name_that_is_not_there(function: Any, parameters: str) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        size_of("nowhere", function, ())
    assert caught.value.what == "--fit nowhere: there is no such name."
    assert f"neither a parameter of the function ({parameters})" in caught.value.why
