"""What was made of an object, kept for as long as that very object comes again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
MOST = 2_000  # objects that are kept


class _ById(Generic[T]):
    """Equal to others of the same object only; it keeps the object, so that its id stays its own."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def by_identity(make: Callable[[T], R]) -> Callable[[T], R]:
    """The function, called once for each object, which must not change."""
    made = lru_cache(maxsize=MOST)(lambda wrapped: make(wrapped.value))
    return lambda value: made(_ById(value))
