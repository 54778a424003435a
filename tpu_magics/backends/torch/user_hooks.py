"""The hooks of modules, optimizers and tensors that a training function adds or removes."""

from __future__ import annotations

import functools
import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from tpu_magics.runs.origin import is_library_type, is_user_function

Label = tuple[str, Any]
Undo = Callable[[], None]
Key = tuple[str, int]
Changed = tuple[dict[Key, Any], list[Key], list[Key]]
"""New hooks, those that were removed, and the new ones that run before the old ones (`prepend=True`), the last of them
first; by the name of their dict and their number."""

NONE: Changed = ({}, [], [])
# torch 2.9 and 2.15, torch/_tensor.py: `register_hook`, and of a leaf `register_post_accumulate_grad_hook`.
_OF_TENSOR = ("_backward_hooks", "_post_accumulate_grad_hooks")
# torch/nn/modules/module.py and torch/optim/optimizer.py: dicts in the object's own.
_ENDS = ("_hooks", "_hooks_with_kwargs", "_hooks_always_called")


# torch 2.9: pruning, and weight_norm and spectral_norm of the old form, compute the weight in a hook.
_REPARAMETRIZES = "torch.nn.utils."


def dicts(value: Any) -> Iterator[tuple[str, Any]]:
    """The dicts of its hooks by their names."""
    if issubclass(type(value), torch.Tensor):
        found = ((name, getattr(value, name)) for name in _OF_TENSOR if name == _OF_TENSOR[0] or is_leaf(value))
        return ((name, hooks) for name, hooks in found if hooks is not None)
    if issubclass(type(value), (torch.nn.Module, torch.optim.Optimizer)):
        items = vars(value).items()
        return ((name, hooks) for name, hooks in items if name.endswith(_ENDS) and isinstance(hooks, dict))
    return iter(())


def is_leaf(tensor: Any) -> bool:
    """Whether no graph stands behind it."""
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:  # a view of a tensor that was changed in place
        return False


def dict_of(value: Any, name: str) -> Any:
    """One of them, which a tensor gets with its first hook."""
    found = getattr(value, name, None)
    if found is None:
        found = OrderedDict()
        setattr(value, name, found)
    return found


class HooksKind:
    """Compares hooks one by one. Those of libraries are followed only until they are removed, as a worker has its own,
    but for those by which torch computes a weight."""

    named = ""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        """The user's own."""
        return ((("attribute", _label(key)), hook) for key, hook in _hooks(value).items() if _is_of_user(hook))

    def mark(self, value: Any) -> Any:
        return _hooks(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return self.content(value, mark) != NONE

    def content(self, value: Any, mark: Any) -> Changed:
        now = _hooks(value)
        added = {key: hook for key, hook in now.items() if key not in mark}
        own = {number for (_, number), hook in added.items() if _is_of_user(hook)}
        new = {key: hook for key, hook in added.items() if key[1] in own}
        gone = [key for key in mark if key not in now]
        return new, gone, [key for key in reversed(now) if key in new and _runs_before(key, now, mark)]

    def pieces(self, content: Changed) -> list[tuple[Label, Any]]:
        return [(("attribute", _label(key)), hook) for key, hook in content[0].items()]

    def without(self, content: Changed, mark: Any, labels: set[Any]) -> Any:  # noqa: ARG002
        return {key: hook for key, hook in content[0].items() if _label(key) not in labels}, *content[1:]

    def put(self, value: Any, content: Changed) -> Undo:
        new, gone, first = content
        old = _hooks(value)
        for name, number in gone:
            dict_of(value, name).pop(number, None)
        for (name, number), hook in new.items():
            dict_of(value, name)[number] = hook
            RemovableHandle.next_id = max(RemovableHandle.next_id, number + 1)
        for name, number in first:
            if (name, number) in new:
                dict_of(value, name).move_to_end(number, last=False)

        def back() -> None:
            for name, _ in (*new, *gone):
                hooks = dict_of(value, name)
                hooks.clear()
                hooks.update({number: hook for (known, number), hook in old.items() if known == name})

        return back


def _hooks(value: Any) -> dict[Key, Any]:
    return {(name, number): hook for name, hooks in dicts(value) for number, hook in hooks.items()}


def _runs_before(key: Key, now: dict[Key, Any], mark: dict[Key, Any]) -> bool:
    """Whether an old one of the same dict comes after it."""
    keys = list(now)
    return any(name == key[0] and (name, number) in mark for name, number in keys[keys.index(key) :])


def _label(key: Key) -> str:
    """How a hook is named."""
    return f"{key[0].lstrip('_')}[{key[1]}]"


def _is_of_user(hook: Any) -> bool:
    """Whether it is the user's code, in whatever calls it."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    hook = getattr(hook, "__func__", getattr(hook, "hook", hook))  # a method; torch's _WrappedHook
    code = inspect.unwrap(hook)
    if isinstance(code, (types.FunctionType, types.BuiltinFunctionType)):
        return is_user_function(code) or isinstance(code, types.BuiltinFunctionType)
    kind = type(code)
    return kind.__module__.startswith(_REPARAMETRIZES) or not is_library_type(kind)


HOOKS = HooksKind()


class WithHooks:
    """The kind of a tensor, with its hooks."""

    named = ""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        yield from self.kind.parts(value)
        yield from HOOKS.parts(value)

    def mark(self, value: Any) -> Any:
        return self.kind.mark(value), HOOKS.mark(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(self.kind.changed(value, mark[0])) or HOOKS.changed(value, mark[1])

    def content(self, value: Any, mark: Any) -> Any:
        own = self.kind.content(value, mark[0]) if self.kind.changed(value, mark[0]) else None
        return own, HOOKS.content(value, mark[1])

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        own = [] if content[0] is None else self.kind.pieces(content[0])
        return [*own, *HOOKS.pieces(content[1])]

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:
        own = None if content[0] is None else self.kind.without(content[0], mark[0], labels)
        hooks = HOOKS.without(content[1], mark[1], labels)
        return None if own is None and hooks == NONE else (own, hooks)

    def put(self, value: Any, content: Any) -> Undo:
        first = None if content[0] is None else self.kind.put(value, content[0])
        second = HOOKS.put(value, content[1])

        def back() -> None:
            second()
            if first is not None:
                first()

        return back
