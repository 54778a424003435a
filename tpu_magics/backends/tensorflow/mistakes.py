"""TensorFlow's and XLA's errors, explained: the person's line, the rule, and the rewrite.

What lives here: which explanation an error gets, and ops that XLA has not. What does not: the texts of the rules
(mistakes_rules.py), of devices, memory and scopes (mistakes_devices.py), finding the line (mistakes_seen.py). What
TensorFlow says clearly itself, shapes that do not fit foremost, is left to it.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tpu_magics.backends.tensorflow import mistakes_devices, mistakes_rules, refusals
from tpu_magics.backends.tensorflow.checkpoint_names import name_refused
from tpu_magics.backends.tensorflow.mistakes_seen import Seen
from tpu_magics.backends.tensorflow.places import Places
from tpu_magics.errors import TpuMagicsError

_UNSUPPORTED = re.compile(r"Detected unsupported operations when trying to compile graph|OpKernel for XLA_\w+_JIT")
_FUNCTION = re.compile(r"__inference_\w+")
_NAME = re.compile(r"__inference_(?:one_step_on_data|train_function|multi_step_on_iterator)_\d+")
_INFERENCE = re.compile(r"^__inference_+(.+)_\d+$")
_OTHER_LIST = (
    "Each device has a list of ops of its own: what XLA compiles for a CPU proves little for a TPU, see %tpu_check and "
    "%tpu_preflight."
)


def explained(error: BaseException, cells: Mapping[str, str]) -> TpuMagicsError | None:
    """The error in words; None for what is not of XLA, of the TPU or of the strategy.

    Args:
        error: what the person's code raised, with its traceback.
        cells: file names of cells -> "In [n]".
    """
    places = Places(cells)
    for one in _chain(error):
        seen = Seen(one, places)
        for explain in (_named, _unsupported, mistakes_devices.explained, mistakes_rules.explained):
            if (found := explain(seen)) is not None:
                return found
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from, the nearest first."""
    known: set[int] = set()
    while error is not None and id(error) not in known and not isinstance(error, TpuMagicsError):
        yield error
        known.add(id(error))
        error = error.__cause__


def _named(seen: Seen) -> TpuMagicsError | None:
    return name_refused(seen.error)


# -- ops that XLA has not ---------------------------------------------------------------------------------------------


def _unsupported(seen: Seen) -> TpuMagicsError | None:
    if not _UNSUPPORTED.search(seen.text) or not isinstance(seen.error, Exception):
        return None
    functions = list(dict.fromkeys(_FUNCTION.findall(seen.text)))
    found = refusals.unlowered(_step_name(functions), seen.error, _graph(functions), seen.places)
    lines = found.details or seen.details()  # the text has the line of one op, where the graph is gone
    what = found.what if found.details else f"{found.what.removesuffix('.')}{seen.at()}."
    return TpuMagicsError(what, f"{found.why} {_OTHER_LIST}", found.todo, lines)


def _step_name(functions: list[str]) -> str:
    """As the person knows the function; those of Keras' trainer are called the step."""
    own = [one for one in functions if not _NAME.match(one)]
    found = _INFERENCE.match(own[0]) if own else None
    return found[1].strip("_") if found else "The training step"


def _graph(functions: list[str]) -> Any:
    """The graph of the first of these functions that is still there; an empty one for none. TensorFlow 2.21 keeps no
    list of them (AtomicFunction.graph in python/eager/polymorphic_function/atomic_function.py), so all objects are
    looked at: an error happens once."""
    try:
        from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

        made = {one.name.decode(): one.graph for one in gc.get_objects() if type(one) is AtomicFunction}
    except (ImportError, AttributeError):
        made = {}
    return next((made[name] for name in functions if name in made), tf.Graph())
