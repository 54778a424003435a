"""The requested precision and the precision of the compiled programs."""

# Under Keras' policy mixed_bfloat16, variables are float32 and layers compute in bfloat16. A program is read before XLA
# optimises it, so the figures are those of the program as traced.

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tpu_magics.backends import hlo
from tpu_magics.backends.observe.precision import Facts, PrecisionWatch, precision_facts

_POLICIES = {"mixed_bfloat16": "bf16", "bfloat16": "bf16", "float32": "fp32"}
OPTION, POLICY = "--precision", "Keras' dtype policy"
_EARLIER = (
    " Layers keep the dtype that they were created with: build the model again under --precision bf16. Layers "
    'with dtype="float32" stay float32.'
)
_OWN = " The model itself uses bfloat16 (a dtype policy or a cast)."


class KerasPrecisionWatch(PrecisionWatch):
    """Of one rank. `variables`: how many trainable variables of each dtype the program has that is compiled next."""

    def __init__(self, option: str, write: Callable[..., None]) -> None:
        super().__init__(option, write)
        self.variables: Mapping[str, int] = {}

    def facts(self, graph: hlo.Graph, digest: str) -> Facts:
        """The fields of the record for a graph."""
        request = self._request()
        total, bf16 = hlo.multiplications(graph)
        agrees = not total or {"bf16": bf16 == total, "fp32": bf16 == 0}.get(request[0], True)
        reason = _EARLIER if request[0] == "bf16" else _OWN
        return precision_facts(request, graph, digest, agrees, reason, _notes(self.variables))

    def _request(self) -> tuple[str, str]:
        if self.option:
            return self.option, OPTION
        policy = _policy()
        return ("", "") if policy == "float32" else (_POLICIES.get(policy, policy), POLICY)


def _notes(variables: Mapping[str, int]) -> Iterator[str]:
    if variables:
        counts = ", ".join(f"{count} {dtype}" for dtype, count in sorted(variables.items()))
        yield f"Trainable variables of the program: {counts}."


def _policy() -> str:
    import keras

    return str(keras.config.dtype_policy().name)
