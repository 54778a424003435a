"""The largest batch that fits a TPU, found by bisection on real compiles.

What lives here: the names that others use. What does not: tracing and compiling, and how the result looks (panel/).
"""

from __future__ import annotations

from tpu_magics.preflight.fit.points import EXACT_BELOW, NICE, TOLERANCE, FitPoint
from tpu_magics.preflight.fit.result import FitResult
from tpu_magics.preflight.fit.search import APART, HIGHEST, TargetLike, search

__all__ = ["APART", "EXACT_BELOW", "HIGHEST", "NICE", "TOLERANCE", "FitPoint", "FitResult", "TargetLike", "search"]
