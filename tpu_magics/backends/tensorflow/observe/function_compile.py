"""One compile of a TensorFlow function, with the facts that causes are found from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tpu_magics.backends.observing import compile_evidence
from tpu_magics.backends.tensorflow.observe.traced_functions import Literal

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"


@dataclass(frozen=True)
class FunctionFacts:
    """What a program was compiled for.

    `function`: its name; `made`: number of the tf.function, in the order of first sight; `code`: where the Python
    function is defined; `keras`: Keras made it; `mode`: of the Keras call that runs it ("" for none); `trains`: it
    assigns trainable variables; `literals`: Python values it was traced for; `short`: (full, last) batch sizes, if the
    last batch of a pass is short; `arrays`: Keras cuts the batches from arrays.
    """

    function: str = ""
    made: int = 0
    code: tuple[str, int] = ("", 0)
    keras: bool = False
    mode: str = ""
    trains: bool | None = None
    literals: Mapping[str, Literal] = field(default_factory=dict)
    short: frozenset[tuple[int, int]] = frozenset()
    arrays: bool = False


@dataclass(frozen=True)
class FunctionCompile(compile_evidence.CompileEvidence):
    """One compile at a site."""

    facts: FunctionFacts = field(default_factory=FunctionFacts)
