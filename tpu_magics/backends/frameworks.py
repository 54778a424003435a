"""The frameworks that cells train with, a row for each, and which of them a run uses. Imports none of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from tpu_magics.backends.protocols import Backend, LocalBackend
from tpu_magics.backends.version_checks import TENSORFLOWS, VersionCheck
from tpu_magics.errors import TpuMagicsError

AUTO = "auto"


# -- how they are made, and what is checked of them: imported where it is asked for -----------------------------------


def _torch_xla() -> Backend:
    from tpu_magics.backends.torch_xla import TorchXla

    return TorchXla()


def _torch_tpu() -> Backend:
    from tpu_magics.backends.torch_tpu import TorchTpu

    return TorchTpu()


def _tensorflow() -> LocalBackend:
    from tpu_magics.backends.tensorflow import TensorFlow

    return TensorFlow()


def _torch_versions() -> Sequence[VersionCheck]:
    from tpu_magics.backends.torch.versions import CHECKS

    return CHECKS


def _tensorflow_versions() -> Sequence[VersionCheck]:
    from tpu_magics.backends.tensorflow.versions import CHECKS

    return CHECKS


# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Framework:
    """`name`: of its module, and of its backend; `packages`: those that bring it; `written`: finds it in a cell's text.

    Where it trains: `make`: its backend, which forks workers, or `make_local`: one for the notebook's process.
    Where several of a family are installed: `comes_along`: torch imports it by itself, so that an import says nothing;
    `at_load`: its backend is made ready before the first cell.
    `libtpu`: whether the libtpu that is installed decides whether it finds its TPU.
    Of its lowering: `one_program`: the same for any number of ranks; `flags`: the compiler gets torch_xla's flags;
    `changes_models`: models can be changed while they are traced.
    """

    name: str
    packages: tuple[str, ...]
    written: re.Pattern[str]
    make: Callable[[], Backend] | None = None
    make_local: Callable[[], LocalBackend] | None = None
    comes_along: bool = False
    at_load: bool = False
    libtpu: bool = False
    one_program: bool = False
    flags: bool = False
    changes_models: bool = False


@dataclass(frozen=True)
class Family:
    """What --framework takes: a framework, or those that share a package. The first of `members` trains where nothing
    shows which one does.

    `imports`: modules whose import shows it; `used`: packages whose use in code shows it (transformers and datasets
    work with both); `written`: finds it in a cell's text; `versions`: the checks of its packages; `packages`: theirs;
    `shown`: those that %tpu_init shows.
    """

    name: str
    members: tuple[Framework, ...]
    imports: frozenset[str]
    used: frozenset[str]
    written: re.Pattern[str]
    versions: Callable[[], Sequence[VersionCheck]]
    packages: tuple[str, ...]
    shown: tuple[str, ...]

    @property
    def in_process(self) -> bool:
        """Whether it trains in the notebook's process."""
        return any(one.make_local for one in self.members)

    @property
    def is_imported(self) -> bool:
        """Whether this process has imported it."""
        return any(name in sys.modules for name in self.imports)

    @property
    def is_installed(self) -> bool:
        return any(_installed(one.name) for one in self.members)


_TORCHES = ("torch", "torch_xla", "torch_tpu")
FAMILIES: Mapping[str, Family] = {
    one.name: one
    for one in (
        Family(
            name="torch",
            members=(
                Framework(
                    name="torch_xla",
                    packages=("torch_xla",),
                    written=re.compile(r"\b(?:torch_xla|xm|xr|xmp)\b"),
                    make=_torch_xla,
                    libtpu=True,
                    flags=True,
                    changes_models=True,
                ),
                Framework(
                    name="torch_tpu",
                    packages=("torch_tpu",),
                    written=re.compile(r"""\btorch_tpu\b|\btorch\.tpu\b|["']tpu(?::\d+)?["']"""),
                    make=_torch_tpu,
                    comes_along=True,
                    at_load=True,  # else the next backward() on the CPU may start its runtime, or hang
                ),
            ),
            imports=frozenset(_TORCHES),
            used=frozenset({*_TORCHES, "accelerate"}),
            written=re.compile(
                r"^\s*(?:import|from)\s.*\b(?:torch|torch_xla|torch_tpu|accelerate|transformers)\b", re.MULTILINE
            ),
            versions=_torch_versions,
            packages=_TORCHES,
            shown=(*_TORCHES, "libtpu", "accelerate", "transformers", "jax", *TENSORFLOWS),
        ),
        Family(
            name="tensorflow",
            members=(
                Framework(
                    name="tensorflow",
                    packages=TENSORFLOWS,
                    written=re.compile(r"\b(?:tensorflow|keras)\b"),
                    make_local=_tensorflow,
                    one_program=True,
                ),
            ),
            imports=frozenset({"tensorflow"}),
            used=frozenset({"tensorflow", "keras"}),
            written=re.compile(r"^\s*(?:import|from)\s.*\b(?:tensorflow|keras)\b", re.MULTILINE),
            versions=_tensorflow_versions,
            packages=(*TENSORFLOWS, "keras"),
            shown=(*TENSORFLOWS, "keras", "libtpu", "transformers"),
        ),
    )
}
CHOICES = (AUTO, *FAMILIES)
DEFAULT = next(iter(FAMILIES.values()))  # where nothing shows which one code uses
LOCAL = next(one for one in FAMILIES.values() if one.in_process)
FRAMEWORKS: Mapping[str, Framework] = {one.name: one for family in FAMILIES.values() for one in family.members}
# Methods that train, by module and path in it; read in transformers 5.23 and Keras 3.
TRAINING_METHODS: Mapping[str, tuple[str, ...]] = {
    "transformers.trainer": ("Trainer.train",),
    "keras": ("Model.fit", "Model.evaluate", "Model.predict"),
}
# Packages that start threads or use the accelerator when imported or used.
STARTS_THREADS = frozenset(["tensorflow", "tensorflow_datasets", "keras", "jax", "jaxlib", "flax", "ray"])
# Packages whose objects are of the session or of devices.
OPAQUE = ("accelerate", "torch_xla", "jax", "jaxlib", "tensorflow", "keras", "ray")


def new_backend(name: str) -> Backend:
    """A backend that forks workers."""
    make = FRAMEWORKS[name].make
    assert make is not None
    return make()


def new_local_backend() -> LocalBackend:
    """The backend that trains in this process."""
    make = LOCAL.members[0].make_local
    assert make is not None
    return make()


# -- which one a run uses ---------------------------------------------------------------------------------------------

# What %tpu_init imported ahead of the first run, before anything else had imported it.
prepared: set[str] = set()


def imported() -> set[str]:
    """The families that this process has imported."""
    return {name for name, family in FAMILIES.items() if family.is_imported}


def imported_by(cells: Iterable[str]) -> set[str]:
    """Imported families, without what only %tpu_init imported: none of the notebook's cells names it."""
    found = imported()
    unnamed = {name for name in prepared & found if not any(FAMILIES[name].written.search(text) for text in cells)}
    return found - unnamed if found - prepared else found


def choose_framework(
    requested: str, models: Collection[str] = (), packages: Collection[str] = (), cells: Iterable[str] = ()
) -> str:
    """The family of a run.

    Args:
        requested: the value of --framework.
        models: the families of the models that the code uses.
        packages: the packages that the code names.
        cells: the notebook's code.

    Raises:
        TpuMagicsError: several are imported, and the run does not show which one it uses.
    """
    if requested != AUTO:
        return requested
    named = {name for name, family in FAMILIES.items() if not family.used.isdisjoint(packages)}
    for candidates in (set(models), named, imported_by(cells)):
        if len(candidates) == 1:
            return candidates.pop()
    if imported():
        raise _unclear_error(bool(models))
    return next((name for name, family in FAMILIES.items() if family.is_installed), DEFAULT.name)


@dataclass(frozen=True)
class TorchChoice:
    """Which of PyTorch's frameworks trains, and why, in words. `certain`: later code does not change it."""

    package: str
    reason: str
    certain: bool = True


def choose_torch(cells: Iterable[str] = ()) -> TorchChoice:
    """torch_xla or TorchTPU: the one that is installed; of two, the one that this process has imported, or that the
    code names. `cells`: the notebook's code, the newest last."""
    usual = DEFAULT.members[0].name
    there = [one for one in DEFAULT.members if one.name in sys.modules or _installed(one.name)]
    if len(there) < len(DEFAULT.members):
        return TorchChoice(there[0].name, "it is installed") if there else TorchChoice(usual, "neither is installed")
    for one in there:
        if one.name in sys.modules and not one.comes_along:
            return TorchChoice(one.name, f"both are installed, and this notebook has imported {one.name}")
    for text in reversed(list(cells)):
        named = [one.name for one in there if one.written.search(text)]
        if len(named) == 1:
            return TorchChoice(named[0], f"both are installed, and the notebook's code uses {named[0]}")
    reason = "both are installed, and no code of this notebook shows which one it uses"
    return TorchChoice(usual, reason, certain=False)


def _unclear_error(mixed: bool) -> TpuMagicsError:
    why = (
        "The code uses models of both." if mixed else "The notebook imports both, and the code uses no model of either."
    )
    return TpuMagicsError(
        "It is unclear whether this cell trains with PyTorch or TensorFlow.",
        why,
        "Set the framework once: %tpu_init --framework tensorflow, or %tpu_init --framework torch.",
    )


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
