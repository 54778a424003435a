"""Callbacks that run when a module has been imported, now or later."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class PostImport(MetaPathFinder):
    """Calls back once for each named module: now if it is imported already, else after its import."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callback] = {}
        self.asking: set[str] = set()

    def when_imported(self, name: str, callback: Callback) -> None:
        """Call `callback(module)` when the module `name` is imported."""
        module = sys.modules.get(name)
        if module is not None and not _is_initializing(module):
            callback(module)
            return
        self.waiting[name] = callback
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def look_again(self) -> None:
        """Call back for modules that another finder has imported, before this one."""
        for name in [name for name in self.waiting if name in sys.modules]:
            self.when_imported(name, self.waiting.pop(name))

    def remove(self) -> None:
        """Stop waiting."""
        self.waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  (the protocol's)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of the other finders, with a loader that calls back."""
        if fullname not in self.waiting or fullname in self.asking:
            return None
        self.asking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        """A module was imported."""
        callback = self.waiting.pop(module.__name__, None)
        if not self.waiting:
            self.remove()
        if callback is not None:
            callback(module)


class _CallbackLoader(Loader):
    """The loader of one module, which restores the original loader when it is done."""

    def __init__(self, loader: Loader, hook: PostImport) -> None:
        self.loader = loader
        self.hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module by its own loader."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, then call back. Code that only looks for the module does not get here."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.hook.imported(module)


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
