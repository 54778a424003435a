"""Compares the precision of the compiled graphs with the requested one, and records both.

torch_xla 2.9.0 reads XLA_USE_BF16 and XLA_DOWNCAST_BF16 once, when the process creates its first floating-point XLA
tensor (csrc/dtype.cpp). From then on its tensors are bf16 on the device, while `tensor.dtype` shows float32.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.measurements import Facts, PrecisionWatch, precision_facts
from tpu_magics.backends.torch import precision_request
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch.precision_request import PrecisionRequest, variables
from tpu_magics.runs import events

__all__ = ["PrecisionRequest", "TorchPrecisionWatch", "judge", "variables"]

# What torch_xla 2.9.0 prints about its variables (csrc/dtype.cpp).
DEPRECATION = re.compile(rb"^XLA_(?:USE|DOWNCAST)_BF16 will be deprecated after [^\n]*\n", re.MULTILINE)

_VARIABLE = {"bf16": precision_request.USE, "bf16-downcast": precision_request.DOWNCAST}
_FLOATS = frozenset({"float32", "float64"})
_XLA_FLOATS = frozenset({"f32", "f64", "bf16"})
P = ParamSpec("P")


def judge(
    request: PrecisionRequest,
    graph: hlo.Graph,
    digest: str,
    in_use: str = "",
    late: str = "",
    logged: frozenset[str] = frozenset(),
) -> Facts:
    """The fields of the record for a graph.

    Args:
        digest: the graph's name in the compile record.
        in_use: the precision that torch_xla's variables set now ("" for none).
        late: why they may have been set too late; "" if they were not.
        logged: names of the torch dtypes of logged device tensors.
    """
    total, bf16 = hlo.multiplications(graph)
    agrees = total == 0 or _agrees(request.precision, bf16, hlo.multiplied_types(graph))
    reason = "" if agrees else _reason(request, in_use, late)
    notes = *request.notes, *_notes(request, graph, in_use, bf16, logged)
    return precision_facts((request.precision, request.source), graph, digest, agrees, reason, notes)


def _agrees(precision: str, bf16: int, types: Mapping[str, int]) -> bool:
    others = {dtype for dtype in types if dtype != "bf16"}
    if precision == "bf16":
        return not others
    if precision == "bf16-downcast":  # torch.double is f32 then
        return bf16 > 0 and others <= {"f32"}
    return precision != "fp32" or bf16 == 0


def _reason(request: PrecisionRequest, in_use: str, late: str) -> str:
    """A further sentence: why the request and the graph may differ."""
    if late:
        return f" {late}"
    if request.precision == "fp32" and in_use:
        return f" {_VARIABLE[in_use]} is set in the worker."
    if request.precision == "fp32":
        return " The program itself uses bf16: autocast, or a torch.bfloat16 model or tensors."
    if request.precision in _VARIABLE and in_use != request.precision:
        return f" {_VARIABLE[request.precision]} is not set any more: the program or a library changed it."
    if request.precision in _VARIABLE:
        return (
            " torch_xla reads the variable once, when the process creates its first floating-point tensor. Either a "
            "tensor was created before, or the program selects another dtype (half(), autocast)."
        )
    return ""


def _notes(
    request: PrecisionRequest, graph: hlo.Graph, in_use: str, bf16: int, logged: frozenset[str]
) -> Iterator[str]:
    if in_use and (bf16 or not graph.multiplied):
        advice = "model.to(torch.bfloat16)" if in_use == "bf16" else "converting the model itself"
        yield (
            f"{_VARIABLE[in_use]}, which sets {in_use}, is deprecated since torch_xla 2.6. It still works in 2.9, but "
            f"torch_xla recommends {advice}."
        )
        yield from _hidden(hlo.dtype_counts(graph))
    if bf16:
        yield from _logging_advice(request, in_use, logged)


def _hidden(parameters: Mapping[str, int]) -> Iterator[str]:
    count = parameters.get("bf16", 0)
    if count:
        inputs = "1 input of the compiled graph is" if count == 1 else f"{count} inputs of the compiled graph are"
        yield f"{inputs} bf16, although tensor.dtype shows float32 or float64."


def _logging_advice(request: PrecisionRequest, in_use: str, logged: frozenset[str]) -> Iterator[str]:
    """bf16 keeps 8 bits of a number, about three decimal digits: too few for a metric."""
    digits = "are bf16 (about three decimal digits)"
    if in_use == "bf16" and logged & _FLOATS:
        downcast = (
            "--precision bf16-downcast"
            if request.source == precision_request.OPTION
            else 'downcast (--precision bf16-downcast, or Accelerator(mixed_precision="bf16", downcast_bf16=True))'
        )
        yield f"Logged values {digits}. With {downcast}, values computed in torch.double stay float32."
    elif in_use == "bf16-downcast" and "float32" in logged:
        yield f"Logged torch.float values {digits}. Compute them in torch.double, which stays float32."
    elif "bfloat16" in logged:
        yield f"Logged values {digits}. Convert their inputs with .float()."


def _guarded(
    method: Callable[Concatenate[TorchPrecisionWatch, P], None],
) -> Callable[Concatenate[TorchPrecisionWatch, P], None]:
    """Training continues if monitoring fails; the failure is recorded once, and nothing after it."""

    def guarded(self: TorchPrecisionWatch, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.stopped:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.stopped = True
            text = f"Precision monitoring stopped: {type(error).__name__}: {error}"
            with suppress(Exception):
                self.write(events.Warned, code="precision-stopped", text=text[:500])

    update_wrapper(guarded, method)
    return guarded


class TorchPrecisionWatch(PrecisionWatch):
    """Records the requested and the actual precision, in a worker; one for each rank, created before the user's code
    runs.

    Args:
        spec_precision: the option's or the session's default, as in WorkerSpec; "" if there is none.
        write: called as `write(events.Precision, **fields)` (or `events.Warned`), without the fields `t` and `rank`.
    """

    def __init__(self, spec_precision: str, write: Callable[..., None]) -> None:
        super().__init__(spec_precision, write)
        self.request: PrecisionRequest | None = None  # by an Accelerator
        self.late = ""
        self.types_logged: frozenset[str] = frozenset()
        self.output = OutputFilter()
        self.stopped = False

    def install(self) -> None:
        """Install the patches. The worker's variables are already set (see `variables`)."""
        if self.option.startswith("bf16"):
            self.output.hold()
        PostImport().when_imported("accelerate.accelerator", self._patch)

    def _patch(self, module: Any) -> None:
        precision_request.patch_accelerator(module.Accelerator, self.option, self.accelerator_made)

    @_guarded
    def accelerator_made(self, request: PrecisionRequest, before: str) -> None:
        """An Accelerator that decides was created; `before`: the precision until then."""
        self.request = request
        now = precision_request.in_force(os.environ)
        self.late = _too_late(_made(request)) if now != before and _tensors_made() else ""
        if now and request.source not in _VARIABLE.values():
            self.output.hold()
        self.record()

    @_guarded
    def graph_compiled(self, graph: hlo.Graph, digest: str) -> None:
        """A graph was compiled."""
        if hlo.dtype_counts(graph).keys() & _XLA_FLOATS:  # torch_xla has printed its warning by now
            self.output.release(DEPRECATION)
        super().graph_compiled(graph, digest)

    @_guarded
    def logged(self, dtype_name: str) -> None:
        """A device tensor was logged; `dtype_name`: torch's name ("float32", "torch.float32")."""
        name = dtype_name.removeprefix("torch.")
        if name not in self.types_logged:
            self.types_logged |= {name}
            self.record()

    @_guarded
    def close(self) -> None:
        """The user's function has ended: print what is still held back, before C's buffers are flushed."""
        self.output.release(DEPRECATION)

    def facts(self, graph: hlo.Graph, digest: str) -> Facts:
        """The fields of the record for a graph."""
        in_use = precision_request.in_force(os.environ)
        return judge(self._current_request(), graph, digest, in_use, self.late, self.types_logged)

    def _current_request(self) -> PrecisionRequest:
        """The Accelerator's request; if it leaves the precision open, the current request of the others."""
        made = self.request or PrecisionRequest()
        if made.precision:
            return made
        others = precision_request.without_accelerate(self.option, os.environ)
        return replace(others, notes=(*made.notes, *others.notes))


def _too_late(made: str) -> str:
    return (
        f"Tensors were created on the device before {made}. torch_xla reads its precision variables only once, at the "
        f"first floating-point tensor. Create {made} first."
    )


def _made(request: PrecisionRequest) -> str:
    return "the Trainer" if request.source.startswith("TrainingArguments") else "the Accelerator"


def _tensors_made() -> bool:
    # torch_xla 2.9: the counter counts every tensor of the process, of any type.
    import torch_xla

    return bool(torch_xla._XLAC._xla_counter_value("CreateXlaTensor"))


# -- torch_xla's warnings ---------------------------------------------------------------------------------------------


# torch_xla 2.9.0 warns about its deprecated variables with std::cout (csrc/dtype.cpp) when the first floating-point
# tensor is created; Python's warning and logging filters do not see that. std::cout writes through the C library's
# stdout.

_FULLY, _NOT = 0, 2  # _IOFBF and _IONBF of setvbuf
_SIZE = 1 << 16
_UNBUFFERED = 0x2  # in FILE._flags of glibc
# Offsets in glibc's FILE of the start and end of the unwritten output (the layout is part of its ABI).
_WRITE_BASE, _WRITE_END = 32, 40


class OutputFilter:
    """Holds back output between `hold` and `release`. Does nothing if the C library is not glibc."""

    def __init__(self) -> None:
        self._libc: Any = _glibc()
        self._held = False
        self._was_unbuffered = False

    def hold(self) -> None:
        """From now on, keep output in the buffer, up to its size."""
        if self._libc is None or self._held:
            return
        stdout = self._stdout()
        self._was_unbuffered = bool(ctypes.c_int.from_address(stdout).value & _UNBUFFERED)
        if self._was_unbuffered:  # PYTHONUNBUFFERED affects C's stdout too
            # Memory of C, never freed: it is used until the process ends, after Python has ended.
            self._libc.setvbuf(stdout, self._libc.malloc(_SIZE), _FULLY, _SIZE)
        self._held = True

    def release(self, leave_out: re.Pattern[bytes]) -> None:
        """Write the buffered output without what matches `leave_out`, and restore the buffering."""
        if not self._held:
            return
        self._held = False
        stdout = self._stdout()
        self._libc.flockfile(stdout)
        try:
            held = self._pending(stdout)
            if leave_out.search(held):
                getattr(self._libc, "__fpurge")(stdout)
                _write(1, leave_out.sub(b"", held))
            if self._was_unbuffered:
                self._libc.fflush(stdout)
                self._libc.setvbuf(stdout, None, _NOT, 0)
        finally:
            self._libc.funlockfile(stdout)

    def _stdout(self) -> int:
        return ctypes.c_void_p.in_dll(self._libc, "stdout").value or 0

    def _pending(self, stdout: int) -> bytes:
        start = ctypes.c_void_p.from_address(stdout + _WRITE_BASE).value or 0
        size = (ctypes.c_void_p.from_address(stdout + _WRITE_END).value or 0) - start
        return ctypes.string_at(start, size) if size > 0 and size == getattr(self._libc, "__fpending")(stdout) else b""


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _glibc() -> Any:
    if platform.libc_ver()[0] != "glibc":
        return None
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    getattr(libc, "__fpending").restype = ctypes.c_size_t
    for name in ("__fpending", "__fpurge", "flockfile", "funlockfile", "fflush"):
        getattr(libc, name).argtypes = [ctypes.c_void_p]
    libc.setvbuf.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    return libc
