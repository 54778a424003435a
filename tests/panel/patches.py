"""What a front end does with a patch."""

from __future__ import annotations

from typing import Any


def patched(value: Any, patch: dict[str, Any]) -> Any:
    """The value after a patch, as `labextension/src/patch.ts` makes it."""
    if "=" in patch:
        return patch["="]
    if "o" in patch:
        return {**value, **{name: patched(value[name], one) for name, one in patch["o"].items()}}
    start, removed, items, *more = patch["l"]
    new = [*value[:start], *items, *value[start + removed :]]
    if len(more) > 1:
        new = new[: more[1]]
    for index, one in (more[0] if more else {}).items():
        new[int(index)] = patched(new[int(index)], one)
    return new
