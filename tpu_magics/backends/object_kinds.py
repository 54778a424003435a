"""Kinds of objects (protocols.Kind) that the launcher and the frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpu_magics.backends.protocols import Label, Undo


class BaseKind:
    """For kinds whose objects have no parts, and whose content is pickled as a whole."""

    named = ""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:  # noqa: ARG002
        return iter(())

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:  # noqa: ARG002
        return []

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:  # noqa: ARG002
        return None


class StateKind(BaseKind):
    """Objects whose whole state can be read and set: random generators, StringIO, BytesIO."""

    def __init__(self, get: Callable[[Any], Any], put: Callable[[Any, Any], None]) -> None:
        self._get = get
        self._put = put

    def mark(self, value: Any) -> Any:
        return self._get(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return not _equal(self._get(value), mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return self._get(value)

    def put(self, value: Any, content: Any) -> Undo:
        old = self._get(value)
        self._put(value, content)
        return lambda: self._put(value, old)


def _equal(left: Any, right: Any) -> bool:
    """Whether two states are equal: numbers, texts, arrays, and dicts and sequences of them."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_equal, left, right))
    result = left == right
    return bool(result.all()) if hasattr(result, "all") else bool(result)
