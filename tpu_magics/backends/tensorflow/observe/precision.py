"""The requested precision and the precision of the compiled programs."""

# Under Keras' policy mixed_bfloat16, variables are float32 and layers compute in bfloat16. A program is read before XLA
# optimises it, so the figures are those of the program as traced.

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics.backends import hlo
from tpu_magics.backends.observing import precision_text as precision_text
from tpu_magics.runs import events

_POLICIES = {"mixed_bfloat16": "bf16", "bfloat16": "bf16", "float32": "fp32"}
OPTION, POLICY = "--precision", "Keras' dtype policy"
_EARLIER = (
    " Layers keep the dtype that they were created with: build the model again under --precision bf16. Layers "
    'with dtype="float32" stay float32.'
)
_OWN = " The model itself uses bfloat16 (a dtype policy or a cast)."


class ProgramPrecision:
    """Of one rank. `option`: as in Watching; `write` takes an event."""

    def __init__(self, option: str, write: Callable[[events.Event], object], rank: int) -> None:
        self.option = option
        self.write = write
        self.rank = rank
        self.most = -1
        self.last: dict[str, Any] | None = None

    def compiled(self, graph: hlo.Graph, digest: str, variables: Mapping[str, int]) -> None:
        """A program was compiled. The one with the most multiplications so far represents the run. `variables`: number
        of its trainable variables of each dtype."""
        total, _ = hlo.multiplications(graph)
        if total <= self.most:
            return
        self.most = total
        facts = judge(*self._request(), graph, digest, variables)
        if facts != self.last:
            self.last = facts
            self.write(events.Precision(round(time.time(), 3), self.rank, **facts))

    def _request(self) -> tuple[str, str]:
        if self.option:
            return self.option, OPTION
        policy = _policy()
        return ("", "") if policy == "float32" else (_POLICIES.get(policy, policy), POLICY)


def judge(asked: str, source: str, graph: hlo.Graph, digest: str, variables: Mapping[str, int]) -> dict[str, Any]:
    """The fields of events.Precision, without `t` and `rank`."""
    total, bf16 = hlo.multiplications(graph)
    types = hlo.multiplied_types(graph)
    agrees = not total or {"bf16": bf16 == total, "fp32": bf16 == 0}.get(asked, True)
    reason = "" if agrees else _EARLIER if asked == "bf16" else _OWN
    request = f"{asked} requested by {source}" if asked else "no precision requested"
    return {
        "asked": asked,
        "source": source,
        "ops": total,
        "share": bf16 / total if total else None,
        "parameters": hlo.dtype_counts(graph),
        "graph": digest,
        "agrees": agrees,
        "text": precision_text.describe_matmuls(request, total, bf16, types) + reason,
        "notes": _notes(variables),
    }


def _notes(variables: Mapping[str, int]) -> tuple[str, ...]:
    if not variables:
        return ()
    counts = ", ".join(f"{count} {dtype}" for dtype, count in sorted(variables.items()))
    return (f"Trainable variables of the program: {counts}.",)


def _policy() -> str:
    import keras

    return str(keras.config.dtype_policy().name)
