"""What Trainer and accelerate need only with torch_xla: metrics reports, and the loaders in checkpoints."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from tpu_magics.backends.torch import fastai, trainer
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.runs import events
from tpu_magics.runs.files import RunFiles

REPORTS_KEPT = 16  # the newest; each includes the counts of the earlier ones
REPORT_BYTES = 256 << 10
_SUMMED = (
    ("CompileTime", "compiles", "compile_seconds"),
    ("ExecuteTime", "executions", "execute_seconds"),
    ("ExecuteReplicatedTime", "executions", "execute_seconds"),  # under SPMD, instead of the one before
)


def arrange() -> None:
    """Patch transformers and accelerate in this process as they are imported. Only for workers."""
    trainer.arrange()
    fastai.arrange()
    hook = PostImport()
    hook.when_imported("accelerate.accelerator", _save_loaders)
    hook.when_imported("accelerate.data_loader", _know_last_batches)
    hook.when_imported("accelerate.accelerator", _cut_what_is_longer)
    hook.when_imported("transformers.trainer", _keep_any_reports)


def _save_loaders(module: Any) -> None:
    """`Accelerator.save_state` and `load_state` use the dataset and sampler of prepared loaders, which accelerate's own
    wrapper for XLA does not pass on (1.15.0: "'MpDeviceLoaderWrapper' object has no attribute 'dataset'")."""
    for name in ("save_accelerator_state", "load_accelerator_state"):
        with suppress(AttributeError):
            setattr(module, name, _with_inner_loaders(getattr(module, name)))


def _with_inner_loaders(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*map(_inner, args), **{name: _inner(value) for name, value in kwargs.items()})

    return call


def _inner(value: Any) -> Any:
    """The loaders inside, if `value` is a list of loaders."""
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    if not isinstance(value, list):
        return value
    return [one._loader if isinstance(one, MpDeviceLoader) else one for one in value]


def _know_last_batches(module: Any) -> None:
    """accelerate's state of a loader (is this its last batch, and how many samples has that?) is, on XLA, that of the
    thread that loads ahead (1.15.0): the training finds the end at another batch, or not at all, and ranks at
    different ones. So the last micro-steps of an epoch were not accumulated as on the CPU, and `gather_for_metrics`,
    and with it Trainer's eval_loss, counted a short last batch as a whole one."""
    wrapper = getattr(module, "MpDeviceLoaderWrapper", None)
    if wrapper is None:
        return
    original = wrapper.__iter__

    @functools.wraps(original)
    def batches(self: Any) -> _Pass:
        inner = self._loader
        state = getattr(inner.gradient_state, "used", inner.gradient_state)
        inner.gradient_state = _Unused(state)
        self._loader = ahead = Ahead(inner)
        try:
            return _Pass(self, original(self), ahead.ends, state)
        finally:
            self._loader = inner

    wrapper.__iter__ = batches
    if not hasattr(wrapper, "dataset"):
        wrapper.dataset = property(lambda self: self._loader.dataset)  # whose length Trainer asks for


def _cut_what_is_longer(module: Any) -> None:
    """`gather_for_metrics` cuts the last batch to its number of samples: where it has no more of them, that would only
    be another graph."""
    original = getattr(module, "recursively_apply", None)
    if original is None:
        return

    @functools.wraps(original)
    def apply(function: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(function, "__name__", "") != "_adjust_samples":
            return original(function, data, *args, **kwargs)
        samples = module.GradientState().remainder
        return original(lambda one: function(one) if len(one) > samples else one, data, *args, **kwargs)

    module.recursively_apply = apply


class _Unused:
    """For the thread that loads ahead: a GradientState that takes no loader."""

    def __init__(self, used: Any) -> None:
        self.used = used

    def _add_dataloader(self, _loader: Any) -> None:
        pass

    _remove_dataloader = _add_dataloader


class AroundLoader:
    """Another loader, as the thread that loads ahead sees it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Ahead(AroundLoader):
    """`ends`: of each batch, whether it is the last, and the remainder."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.ends: deque[tuple[bool, int]] = deque()

    def __iter__(self) -> Iterator[Any]:
        for batch in self.inner:
            self.ends.append((self.inner.end_of_dataloader, self.inner.remainder))
            yield batch


class _Pass:
    """A pass over the batches of a loader, in the training's thread."""

    def __init__(self, loader: Any, batches: Iterator[Any], ends: deque[tuple[bool, int]], state: Any) -> None:
        self._loader, self._batches, self._ends, self._state = loader, batches, ends, state
        loader.end_of_dataloader, loader.remainder = False, -1
        state._add_dataloader(loader)

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._state._remove_dataloader(self._loader)
            raise
        self._loader.end_of_dataloader, self._loader.remainder = self._ends.popleft()
        return batch


# -- metrics reports (debug="tpu_metrics_debug") ----------------------------------------------------------------------
class MetricsReport(str):
    """A metrics report, between where the Trainer creates it and where it prints it."""


def _keep_any_reports(module: Any) -> None:
    with suppress(AttributeError):  # another version without them
        _keep_reports(module)


def _keep_reports(module: Any) -> None:
    """The Trainer's `xm.master_print(met.metrics_report())` writes a file of the run; other calls print."""
    xm, met = module.xm, module.met
    original = xm.master_print
    reported = functools.partial(_report, met.metrics_report)
    module.met = SimpleNamespace(**{**vars(met), "metrics_report": reported})

    @functools.wraps(original)
    def master_print(*args: Any, **kwargs: Any) -> None:
        if not (trainer.writer() is not None and args and isinstance(args[0], MetricsReport)):
            original(*args, **kwargs)
        elif xm.is_master_ordinal(local=bool(kwargs.get("local", False))):
            keep_report(args[0])

    xm.master_print = master_print


def _report(original: Callable[[], str]) -> MetricsReport:
    return MetricsReport(original())


def keep_report(text: str) -> None:
    """Write a metrics report next to this rank's records, and a record with its name."""
    writer = trainer.writer()
    assert writer is not None
    number = _reports.get(writer.path, 0)
    _reports[writer.path] = number + 1
    files = RunFiles(writer.path.parent)
    path = files.metrics_path(writer.rank, number)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "replace")[:REPORT_BYTES])
        files.metrics_path(writer.rank, number - REPORTS_KEPT).unlink(missing_ok=True)
        name = path.name
    except OSError:  # a full disk must not end the training
        name = ""
    trainer.write(events.Metrics, file=name, number=number, **_summary())


_reports: dict[Any, int] = {}  # the record file of a rank -> reports so far


def _summary() -> dict[str, Any]:
    import torch_xla.debug.metrics as met

    found: dict[str, Any] = {}
    for metric, count, seconds in _SUMMED:
        data = met.metric_data(metric)  # (samples, their sum in nanoseconds, the last of them), or None
        found.update({count: data[0], seconds: data[1] / 1e9} if data else {})
    return found
