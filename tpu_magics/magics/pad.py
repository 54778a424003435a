"""`%tpu_pad` and `tpu_magics.pad`: lengths -> advice about padding."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.cell import evaluate
from tpu_magics.magics.display import show
from tpu_magics.padding.report import MULTIPLES, PaddingReport, PadOptions, advise
from tpu_magics.panel.padding import to_html, to_text

if TYPE_CHECKING:
    from tpu_magics.magics.notebook import ShellNotebook


class Advice(PaddingReport):
    """A report that a notebook shows as table and drawings, and `print` as text."""

    def __str__(self) -> str:
        return to_text(self)

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return {"text/plain": to_text(self), "text/html": to_html(self)}


def pad(
    lengths: Any,
    *,
    multiples: Sequence[int] = MULTIPLES,
    batch: int | None = None,
    max_length: int | None = None,
    buckets: int | None = None,
    align: int = 1,
    epochs: int = 1,
    processes: int | None = None,
    run: str | None = None,
    compile_seconds: float | None = None,
    tokens_per_second: float | None = None,
    plain: bool = False,
    expression: str = "lengths",
) -> Advice:
    """What `%tpu_pad` does: the cost of several paddings, and the best of them.

    Args:
        lengths: lengths, lists of token ids, an array or tensor, a tokenised dataset or its column, or a DataLoader.
        multiples: to round each batch's longest sample up to.
        batch: samples of a batch on one rank (default: the DataLoader's, else 32).
        max_length: truncate longer samples to it (default: the longest).
        buckets: how many (default: the best of 2 to 8).
        align: bounds of buckets are multiples of it.
        epochs: that are predicted.
        processes: ranks that take a step together (default: those of `%tpu_init`).
        run: take the measured seconds of the runs of this name.
        compile_seconds: of one compile, instead of measured ones.
        tokens_per_second: of one rank, instead of measured ones.
        plain: without measured seconds, so that it is the same in every run.
        expression: how the code calls what was given.

    Returns:
        The advice: a notebook displays it, `print` gives it as text; `.choice.lengths`, `.choice.code`, `.ways`.
    """
    asked = PadOptions(
        multiples=multiples,
        batch=batch,
        max_length=max_length,
        buckets=buckets,
        align=align,
        epochs=epochs,
        ranks=_ranks() if processes is None else processes,
        run=run,
        compile_seconds=compile_seconds,
        tokens_per_second=tokens_per_second,
        plain=plain,
        tf_data=_is_tensorflow(),
    )
    found = advise(lengths, asked, expression)
    return Advice(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


def run(notebook: ShellNotebook, found: argparse.Namespace) -> None:
    """Evaluate LENGTHS, and display the advice: as text with --plain or without a front end."""
    __tracebackhide__ = True
    if found.lengths is None:
        raise TpuMagicsError(
            "%tpu_pad needs LENGTHS.",
            "It needs the lengths of the samples that you train on.",
            "Name a tokenised dataset, a list of lengths or a DataLoader: %tpu_pad dataset",
        )
    given = evaluate(found.lengths, notebook.namespace)
    options = {name: value for name, value in vars(found).items() if name not in ("lengths", "help")}
    advice = pad(given, expression=found.lengths, **options)
    if found.plain:
        print(advice, flush=True)
    else:
        show(advice._repr_mimebundle_())


def _is_tensorflow() -> bool:
    """Whether the session trains with TensorFlow, as far as it is known: the line of code is for tf.data then."""
    session = sys.modules.get("tpu_magics.launch.session")
    return session is not None and session.current.placed is not None


def _ranks() -> int:
    """The ranks of the session's runs, as `%tpu_init` has set or detected them."""
    session = sys.modules.get("tpu_magics.launch.session")
    current = session.current if session is not None else None
    if current is None or current.spmd is not None:
        return 1
    if current.processes is not None:
        return int(current.processes)
    host = current.host
    return host.workers * host.replicas if host is not None and host.device != "CPU" else 1
