"""The largest batch that fits a TPU, found by bisection on real compiles."""

from __future__ import annotations

from tpu_magics.preflight.search.bisection import APART, HIGHEST, TargetLike, search
from tpu_magics.preflight.search.points import EXACT_BELOW, NICE, TOLERANCE, FitPoint
from tpu_magics.preflight.search.result import FitResult

__all__ = ["APART", "EXACT_BELOW", "HIGHEST", "NICE", "TOLERANCE", "FitPoint", "FitResult", "TargetLike", "search"]
