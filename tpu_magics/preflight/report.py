"""The result of a preflight: the object that `tpu_magics.preflight` returns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.preflight.compile_result import CompileResult
from tpu_magics.preflight.json_data import json_data
from tpu_magics.preflight.search import FitResult
from tpu_magics.preflight.target_result import Rate, TargetResult
from tpu_magics.preflight.targets import parse

__all__ = ["Preflight", "Rate", "TargetResult"]


@dataclass(frozen=True)
class Preflight:
    """The result of `tpu_magics.preflight(function, ..., target="v5e-8,v6e-8")`, without a TPU and without a step.

    `function`: its name; `results`: one for each target, in the given order; `fit`: one for each target with
    `fit=NAME`; `results` are then for the size that it recommends for each target, so `fits` says whether there is
    one. A notebook shows it as tables and drawings, `print` as text.

        found = tpu_magics.preflight(train, model, target="v5e-8,v6e-8")
        found.fits                            # on all targets
        found["v5e-8"].steady.memory.needed   # bytes of HBM of one device
        found["v5e-8"].roofline.seconds       # of a step at least: an estimate, a lower bound
        found["v5e-8"].verdict.suits          # True, False, or None where too little is known
    """

    function: str
    results: tuple[TargetResult, ...]
    fit: tuple[FitResult, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it compiles for every target and fits there."""
        return all(one.fits for one in self.results)

    def target(self, name: str) -> TargetResult:
        """The result of one target, by its name. Raises TpuMagicsError where there is none of that name."""
        names = {name, *_google(name)}
        found = next((one for one in self.results if one.name in names), None)
        if found is None:
            known = ", ".join(one.name for one in self.results)
            raise TpuMagicsError(
                f"There is no result for {name!r}.", f"This preflight was for {known}.", "Use one of these names."
            )
        return found

    def __getitem__(self, name: str) -> TargetResult:
        return self.target(name)

    def steady(self, name: str) -> CompileResult:
        """The compile result of the graph that all later steps run."""
        return self.target(name).steady

    def largest(self, name: str) -> FitResult:
        """The result of the search for the largest size on that target. Raises TpuMagicsError without a search."""
        wanted = self.target(name).name
        for one in self.fit:
            if one.target == wanted:
                return one
        raise TpuMagicsError(
            "There was no search for the largest size.",
            "This preflight compiled one size, because it ran without --fit.",
            'Run one: %tpu_preflight ... --fit NAME, or preflight(..., fit="NAME").',
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, as `python -m tpu_magics preflight --format json` prints it: sizes in bytes, times in
        seconds, shares from 0 to 1, null for what is not known."""
        return {
            "function": self.function,
            "fits": self.fits,
            "results": [one.to_dict() for one in self.results],
            "fit": [json_data(one) for one in self.fit],
        }

    def __repr__(self) -> str:
        found = ", ".join(f"{one.name} {one.status}" for one in self.results)
        return f"<{type(self).__name__} of {self.function}: {found}>"


def _google(name: str) -> Iterator[str]:
    """Google's name of that TPU."""
    with contextlib.suppress(TpuMagicsError):
        yield parse(name).name
