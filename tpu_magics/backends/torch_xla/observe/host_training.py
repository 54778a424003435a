"""Detects a run that trained on the host instead of its device."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeGuard

from tpu_magics.backends.observe.sites import Sites, outwards, parsed
from tpu_magics.backends.torch_xla.observe.snapshot import locals_of
from tpu_magics.runs.origin import package_of

_FRAMES = 16
_NAMES = 400
_GPU_CHECKS = ("cuda.is_available", "mps.is_available", "accelerator.is_available")
_SILENT = frozenset({"torch", "torch_xla", "Python", "tpu_magics"})  # their choice of a device is not the user's


@dataclass(frozen=True)
class HostTraining:
    """A backward pass on the CPU. `model`: the name of the model with gradients, or ""; `files`: those on the stack,
    the user's first."""

    model: str
    files: tuple[str, ...]

    def text(self, sites: Sites, cells: Mapping[str, str]) -> str:
        """The message for a run in which nothing ran on the device."""
        stayed = f"`{self.model}` stayed on the CPU" if self.model else "the model stayed on the CPU"
        chosen = _device_line((*self.files, *reversed(list(cells))))
        where = ""
        if chosen is not None:
            site = sites.of_line(*chosen)
            where = f" Line {site.line} of {site.path} selects the device: {site.code}."
        todo = "Move the model and the batches to torch_xla.device(), or use Accelerator().prepare()."
        return f"No step ran on the XLA device: {stayed} and was trained there.{where} {todo}"


def find(frame: FrameType, sites: Sites) -> HostTraining:
    """The evidence of a backward pass that has just run on the host."""
    stack = [one for one in outwards(frame) if package_of(one.f_code.co_filename) not in _SILENT]
    names = [name for one in stack[:_FRAMES] for name, model in _models(one) if _has_gradients(model)]
    files = [one.f_code.co_filename for one in stack]
    own = sorted(files, key=lambda path: not sites.is_user_code(path))
    return HostTraining(min(names, key=lambda name: name.count("."), default=""), tuple(own))


def _models(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The modules in a frame's variables, directly or as an attribute."""
    import torch

    used = frame.f_code.co_names
    names = {**{name: frame.f_globals[name] for name in used if name in frame.f_globals}, **locals_of(frame)}
    for name, value in list(names.items())[:_NAMES]:
        if isinstance(value, torch.nn.Module):
            yield name, value
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            inner = list(vars(value).items())[:_NAMES]
            yield from ((f"{name}.{key}", one) for key, one in inner if isinstance(one, torch.nn.Module))


def _has_gradients(model: Any) -> bool:
    return any(parameter.grad is not None for parameter in model.parameters())


# -- the line that selects the device ----------------------------------------------------------------------------------


def _device_line(paths: Iterable[str]) -> tuple[str, int] | None:
    """The first line in these files, in order, that checks for a GPU or names the CPU: (path, line)."""
    for path in dict.fromkeys(paths):
        tree = parsed(path)
        lines = sorted(_lines(tree)) if tree is not None else []
        if lines:
            return path, lines[0]
    return None


def _lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if _checks_gpu(node) or _names_cpu(node):
            yield node.lineno


def _checks_gpu(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    """`if torch.cuda.is_available():`, or the same in an expression."""
    return isinstance(node, (ast.If, ast.IfExp)) and any(check in ast.unparse(node.test) for check in _GPU_CHECKS)


def _names_cpu(node: ast.AST) -> TypeGuard[ast.stmt]:
    """`device = "cpu"`."""
    return isinstance(node, ast.Assign) and _is_cpu(node.value) and "device" in ast.unparse(node.targets[0]).lower()


def _is_cpu(value: ast.expr) -> bool:
    """`"cpu"`, or `torch.device("cpu")`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "device" and value.args:
        value = value.args[0]
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("cpu")
