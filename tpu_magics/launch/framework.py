"""Which framework a run uses: by --framework, the code, and the notebook's imports. Imports no framework itself."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import object_graph

AUTO, TORCH, TENSORFLOW = "auto", "torch", "tensorflow"
CHOICES = (AUTO, TORCH, TENSORFLOW)
# Packages that show which framework the code uses. (transformers and datasets work with both.)
_PACKAGES: Mapping[str, str] = {
    "torch": TORCH,
    "torch_xla": TORCH,
    "torch_tpu": TORCH,
    "accelerate": TORCH,
    "tensorflow": TENSORFLOW,
    "keras": TENSORFLOW,
}


# What %tpu_init imported ahead of the first run, before anything else had imported PyTorch.
prepared: set[str] = set()


def imported() -> set[str]:
    """The frameworks that this process has imported."""
    names = {TORCH} if {"torch", "torch_xla", "torch_tpu"} & sys.modules.keys() else set()
    return names | ({TENSORFLOW} if "tensorflow" in sys.modules else set())


def imported_by(cells: Iterable[str]) -> set[str]:
    """The same without what only %tpu_init imported: none of the notebook's cells names it."""
    found = imported()
    if TORCH in prepared and TENSORFLOW in found and not any(_NAMES_TORCH.search(text) for text in cells):
        return found - {TORCH}
    return found


def choose_framework(
    requested: str, models: Collection[str] = (), packages: Collection[str] = (), cells: Iterable[str] = ()
) -> str:
    """The framework of a run.

    Args:
        requested: the value of --framework.
        models: the frameworks of the models that the code uses.
        packages: the packages that the code names.
        cells: the notebook's code.

    Raises:
        TpuMagicsError: both are imported, and the run does not show which one it uses.
    """
    if requested != AUTO:
        return requested
    named = {_PACKAGES[name] for name in packages if name in _PACKAGES}
    for candidates in (set(models), named, imported_by(cells)):
        if len(candidates) == 1:
            return candidates.pop()
    if imported():
        raise _unclear_error(bool(models))
    torch = any(map(_installed, TORCH_PACKAGES)) or not _installed("tensorflow")
    return TORCH if torch else TENSORFLOW


TORCH_XLA, TORCH_TPU = TORCH_PACKAGES = ("torch_xla", "torch_tpu")
_NAMES_TORCH = re.compile(
    r"^\s*(?:import|from)\s.*\b(?:torch|torch_xla|torch_tpu|accelerate|transformers)\b", re.MULTILINE
)
_NAMES_XLA = re.compile(r"\b(?:torch_xla|xm|xr|xmp)\b")
_NAMES_TPU = re.compile(r"""\btorch_tpu\b|\btorch\.tpu\b|["']tpu(?::\d+)?["']""")


@dataclass(frozen=True)
class TorchChoice:
    """Which of PyTorch's frameworks trains, and why, in words. `certain`: later code does not change it."""

    package: str
    reason: str
    certain: bool = True


def choose_torch(cells: Iterable[str] = ()) -> TorchChoice:
    """torch_xla or TorchTPU: the one that is installed; of two, the one that this process has imported, or that the
    code names. `cells`: the notebook's code, the newest last."""
    there = [name for name in TORCH_PACKAGES if name in sys.modules or _installed(name)]
    if len(there) != 2:
        return TorchChoice(there[0], "it is installed") if there else TorchChoice(TORCH_XLA, "neither is installed")
    if TORCH_XLA in sys.modules:  # torch imports torch_tpu by itself, so that says nothing
        return TorchChoice(TORCH_XLA, "both are installed, and this notebook has imported torch_xla")
    for text in reversed(list(cells)):
        named = [bool(_NAMES_XLA.search(text)), bool(_NAMES_TPU.search(text))]
        if any(named) and not all(named):
            package = TORCH_XLA if named[0] else TORCH_TPU
            return TorchChoice(package, f"both are installed, and the notebook's code uses {package}")
    reason = "both are installed, and no code of this notebook shows which one it uses"
    return TorchChoice(TORCH_XLA, reason, certain=False)


def _unclear_error(mixed: bool) -> TpuMagicsError:
    why = (
        "The code uses models of both." if mixed else "The notebook imports both, and the code uses no model of either."
    )
    return TpuMagicsError(
        "It is unclear whether this cell trains with PyTorch or TensorFlow.",
        why,
        "Set the framework once: %tpu_init --framework tensorflow, or %tpu_init --framework torch.",
    )


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


# -- packages in code -------------------------------------------------------------------------------------------------


def packages_of_tree(tree: ast.AST) -> set[str]:
    """The packages that the code imports anywhere."""
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return packages


def calls_use_spmd(source: str) -> bool:
    """Whether the code calls torch_xla's `use_spmd()`."""
    if "use_spmd" not in source:
        return False
    try:
        calls = [node.func for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        return False
    return any("use_spmd" in (getattr(one, "attr", ""), getattr(one, "id", "")) for one in calls)


def packages_of_code(code: types.CodeType, namespace: Mapping[str, Any]) -> set[str]:
    """The packages that compiled code imports or uses a module, class or function of."""
    names = set(object_graph.names_in(code))
    read = (_package(namespace[name]) for name in names if name in namespace)
    return {name.partition(".")[0] for name in names if name not in namespace} | {name for name in read if name}


def packages_of_function(function: Callable[..., Any]) -> set[str]:
    """The same for a function, without its helpers."""
    plain = next((one for one in _unwrapped(function) if isinstance(one, types.FunctionType)), None)
    own = {_package(one) for one in _unwrapped(function)} - {""}
    return own if plain is None else own | packages_of_code(plain.__code__, plain.__globals__)


def _unwrapped(function: Any) -> Iterator[Any]:
    """A callable, and the callables that it wraps."""
    if isinstance(function, functools.partial):
        yield from _unwrapped(function.func)
        return
    yield function
    inner = getattr(function, "__func__", function)
    if inner is not function:
        yield getattr(function, "__self__", None)
    try:
        yield inspect.unwrap(inner)
    except ValueError:  # it wraps itself
        pass


def _package(value: Any) -> str:
    """The package of a module, a class, a function, or an object's class."""
    kind = value if issubclass(type(value), (types.ModuleType, type, types.FunctionType)) else type(value)
    name = kind.__name__ if isinstance(kind, types.ModuleType) else getattr(kind, "__module__", "")
    return name.partition(".")[0] if isinstance(name, str) else ""
