"""Settings of a process that a training function changes: environment variables, the working directory, the path of
imports, filters of warnings, and options of libraries."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.runs.origin import is_library_module

# Variables that frameworks and launchers set in a worker, and libraries as they are imported.
_OF_WORKER = (
    "CRC32C_SW_MODE",
    "ENABLE_RUNTIME_UPTIME_TELEMETRY",
    "TF2_BEHAVIOR",
    "XLA",
    "PJRT",
    "PT_XLA",
    "TPU",
    "LIBTPU",
    "TORCH",
    "PYTORCH",
    "ACCELERATE",
    "TF_",
    "CUDA",
    "OMP",
    "KMP",
)
_OF_RANKS = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "COLUMNS"})


Options = dict[str, dict[str, Any]]
"""Of each library, or part of one, by name."""


@dataclass
class Settings:
    """`environment`: variables that do not belong to a worker."""

    environment: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    filters: list[Any] = field(default_factory=list)
    options: Options = field(default_factory=dict)
    path: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PathChanges:
    """Changes of `sys.path`: new entries before and behind the old ones, and entries that were removed."""

    front: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass
class SettingChanges:
    """`environment`: None for a variable that was removed; `filters`: new filters of warnings, the first one first;
    `options`: those of libraries that changed, each pickled; `lost`: those that cannot be, with the reason; `path`:
    None if it is as it was."""

    environment: dict[str, str | None] = field(default_factory=dict)
    folder: str = ""
    filters: list[Any] = field(default_factory=list)
    options: dict[str, dict[str, bytes]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    path: PathChanges | None = None


# -- options of libraries: where they are imported, as a function gives them and another one takes some of them --------
def _pandas_options(pandas: Any) -> dict[str, Any]:
    def flat(options: Any, prefix: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in dir(options):
            item = getattr(options, name)
            found.update(flat(item, f"{prefix}{name}.") if type(item) is type(options) else {f"{prefix}{name}": item})
        return found

    return flat(pandas.options, "")


def _registered_pandas_options(pandas: Any) -> dict[str, Any]:
    """The options that pandas has after its import (pandas 2 and 3: `_config/config.py`)."""
    registered = sys.modules[f"{pandas.__name__}._config.config"]._registered_options
    return {name: option.defval for name, option in registered.items()}


def _set_pandas_options(pandas: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        pandas.set_option(name, value)


def _plot_options(matplotlib: Any) -> dict[str, Any]:
    """Without the backend: whoever reads it chooses one, and it belongs to the process."""
    return {name: value for name, value in matplotlib.rcParams.copy().items() if not name.startswith("backend")}


_OF_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal_options(decimal: Any) -> dict[str, Any]:
    context = decimal.getcontext()
    return {**{name: getattr(context, name) for name in _OF_DECIMAL}, "traps": dict(context.traps)}


def _set_decimal_options(decimal: Any, values: Mapping[str, Any]) -> None:
    context = decimal.getcontext()
    for name, value in values.items():
        context.traps.update(value) if name == "traps" else setattr(context, name, value)


def _deterministic(torch: Any) -> dict[str, Any]:
    return {
        "mode": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }


def _set_deterministic(torch: Any, values: Mapping[str, Any]) -> None:
    new = {**_deterministic(torch), **values}
    torch.use_deterministic_algorithms(new["mode"], warn_only=new["warn_only"])


_OF_CUDNN = ("benchmark", "deterministic")


def _set_each(owner: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(owner, name, value)


def _anomalies(torch: Any) -> dict[str, Any]:
    return {"mode": torch.is_anomaly_enabled(), "check_nan": torch.is_anomaly_check_nan_enabled()}


def _set_anomalies(torch: Any, values: Mapping[str, Any]) -> None:
    new = {**_anomalies(torch), **values}
    torch.autograd.set_detect_anomaly(new["mode"], new["check_nan"])


@dataclass(frozen=True)
class _Stays:
    """Stands for a value that cannot go to another process."""

    what: str
    number: Any

    def __reduce__(self) -> Any:
        raise pickle.PicklingError(self.what)


_NEVER_SET: Any = object()
_SENT = (int, float, str, bool, type(None), types.FunctionType)


def _builtins(builtins: Any) -> dict[str, Any]:
    own = {name: value for name, value in vars(builtins).items() if name != "_" and not name.startswith("__")}
    return {
        name: value if isinstance(value, _SENT) else _Stays(f"a {type(value).__name__}", id(value))
        for name, value in own.items()
    }


def _set_builtins(builtins: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is _NEVER_SET:
            vars(builtins).pop(name, None)
        else:
            setattr(builtins, name, value)


def _loggers(logging: Any) -> dict[str, Any]:
    """Levels; and the handlers of those that are not a library's, which sets its own as it is imported."""
    found: dict[str, Any] = {}
    for name, one in {"root": logging.root, **logging.root.manager.loggerDict}.items():
        if not isinstance(one, logging.Logger):  # the place of a parent that nobody asked for
            continue
        found[name] = (one.level, one.disabled, one.propagate)
        if one.handlers and one is not logging.root and not is_library_module(name):
            found[f"{name} handlers"] = _Stays("a handler belongs to its process", tuple(map(id, one.handlers)))
    return found


def _set_loggers(logging: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        logger = logging.root if name == "root" else logging.getLogger(name)
        level, logger.disabled, logger.propagate = (0, False, True) if value is _NEVER_SET else value
        logger.setLevel(level)


def _umask() -> int:
    """Without setting it, as os.umask() would for a moment."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


Get = Callable[[Any], Mapping[str, Any]]
Put = Callable[[Any, Mapping[str, Any]], object]
_OPTIONS: dict[str, tuple[str, Get, Put]] = {
    "pandas": ("pandas", _pandas_options, _set_pandas_options),
    "numpy": ("numpy", lambda numpy: numpy.get_printoptions(), lambda numpy, new: numpy.set_printoptions(**new)),
    "numpy errors": ("numpy", lambda numpy: numpy.geterr(), lambda numpy, new: numpy.seterr(**new)),
    "matplotlib": ("matplotlib", _plot_options, lambda matplotlib, new: matplotlib.rcParams.update(new)),
    "decimal": ("decimal", _decimal_options, _set_decimal_options),
    "recursion": (
        "sys",
        lambda system: {"limit": system.getrecursionlimit()},
        lambda system, new: system.setrecursionlimit(new["limit"]),
    ),
    "builtins": ("builtins", _builtins, _set_builtins),
    "logging": ("logging", _loggers, _set_loggers),
    "garbage collector": (
        "gc",
        lambda collector: {"enabled": collector.isenabled()},
        lambda collector, new: collector.enable() if new["enabled"] else collector.disable(),
    ),
    "garbage collector's thresholds": (
        "gc",
        lambda collector: {"counts": collector.get_threshold()},
        lambda collector, new: collector.set_threshold(*new["counts"]),
    ),
    "switches": (
        "sys",
        lambda system: {"interval": system.getswitchinterval()},
        lambda system, new: system.setswitchinterval(new["interval"]),
    ),
    "locale": (
        "locale",
        lambda locale: {"all": locale.setlocale(locale.LC_ALL)},
        lambda locale, new: locale.setlocale(locale.LC_ALL, new["all"]),
    ),
    "files": ("os", lambda _: {"umask": _umask()}, lambda system, new: system.umask(new["umask"])),
    "torch gradients": (
        "torch",
        lambda torch: {"enabled": torch.is_grad_enabled()},
        lambda torch, new: torch.set_grad_enabled(new["enabled"]),
    ),
    "torch printing": (
        "torch._tensor_str",
        lambda printing: printing.get_printoptions(),
        lambda printing, new: printing.set_printoptions(**new),
    ),
    "torch matmul": (
        "torch",
        lambda torch: {"precision": torch.get_float32_matmul_precision()},
        lambda torch, new: torch.set_float32_matmul_precision(new["precision"]),
    ),
    "torch cudnn": (
        "torch.backends.cudnn",
        lambda cudnn: {name: getattr(cudnn, name) for name in _OF_CUDNN},
        _set_each,
    ),
    "torch deterministic": ("torch", _deterministic, _set_deterministic),
    "torch anomaly": ("torch", _anomalies, _set_anomalies),
    "torch dtype": (
        "torch",
        lambda torch: {"default": torch.get_default_dtype()},
        lambda torch, new: torch.set_default_dtype(new["default"]),
    ),
}


# As they are after the import, where a run's function imports a library that the notebook has not: the others are
# imported in every notebook.
_AFTER_IMPORT: dict[str, Get] = {
    "pandas": _registered_pandas_options,
    "matplotlib": lambda matplotlib: matplotlib.rcParamsOrig,
}


def _options() -> dict[str, dict[str, Any]]:
    found = {}
    for name, (module, get, _) in _OPTIONS.items():
        if module in sys.modules:
            with suppress(Exception), warnings.catch_warnings():  # another version; deprecated options
                warnings.simplefilter("ignore")
                found[name] = dict(get(sys.modules[module]))
    return found


def _option(now: Options, name: str, key: str) -> Any:
    if name not in now:
        importlib.import_module(_OPTIONS[name][0])
        now.update(_options())
    return now[name].get(key, _NEVER_SET)


def _set_option(name: str, values: Mapping[str, Any]) -> None:
    module, _, put = _OPTIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        put(importlib.import_module(module), values)


def _differ(one: Any, other: Any) -> bool:
    try:
        return bool(one != other)
    except Exception:  # an array in it
        return repr(one) != repr(other)


def _changed_options(before: Options, now: Options) -> tuple[dict[str, dict[str, bytes]], dict[str, str]]:
    """The options that changed, each pickled by itself; those that cannot be, such as a lambda, with the reason."""
    found: dict[str, dict[str, bytes]] = {}
    lost = {}
    for name, values in now.items():
        old = before[name] if name in before else _after_import(name)
        for key, value in values.items():
            if old is not None and _differ(old.get(key), value):
                try:
                    found.setdefault(name, {})[key] = pickle.dumps(value)
                except Exception as error:
                    lost[f"{name}: {key}"] = str(error) or type(error).__name__
    return found, lost


def _after_import(name: str) -> Mapping[str, Any] | None:
    try:
        return _AFTER_IMPORT[name](sys.modules[_OPTIONS[name][0]])
    except Exception:  # another version
        return None


def current() -> Settings:
    """The settings of this process."""
    own = {name: text for name, text in os.environ.items() if not _is_of_worker(name)}
    try:
        folder = str(Path.cwd())
    except OSError:  # it was removed
        folder = ""
    return Settings(own, folder, list(warnings.filters), _options(), list(sys.path))


def _is_of_worker(name: str) -> bool:
    return name in _OF_RANKS or name.startswith(_OF_WORKER)


def changes(before: Settings) -> SettingChanges | None:
    """What has changed since; None for nothing."""
    now = current()
    new: dict[str, str | None] = {
        name: text for name, text in now.environment.items() if before.environment.get(name) != text
    }
    new.update(dict.fromkeys(before.environment.keys() - now.environment.keys()))
    filters = [one for one in now.filters if one not in before.filters and _is_of_user(one)]
    folder = now.folder if now.folder != before.folder else ""
    options, lost = _changed_options(before.options, now.options)
    found = SettingChanges(new, folder, filters, options, lost, _path_changes(before.path, now.path))
    return found if found != SettingChanges() else None


def _path_changes(before: list[str], now: list[str]) -> PathChanges | None:
    new = [entry for entry in dict.fromkeys(now) if entry not in before]
    first = next((at for at, entry in enumerate(now) if entry in before), 0)
    front = tuple(entry for entry in new if now.index(entry) < first)
    gone = tuple(entry for entry in dict.fromkeys(before) if entry not in now)
    back = tuple(entry for entry in new if entry not in front)
    return PathChanges(front, back, gone) if new or gone else None


def _is_of_user(entry: Any) -> bool:
    """Whether a filter is not one that a library sets when it is imported: those name their module."""
    return not entry[3] and getattr(entry[2], "__module__", "builtins") == "builtins"


def apply(changed: SettingChanges, left: dict[str, str]) -> Callable[[], None]:
    """Make the changes in this process; returns how to undo them. `left` gets the options that cannot be set here."""
    before = {name: os.environ.get(name) for name in changed.environment}
    folder, filters, path = current().folder, list(warnings.filters), list(sys.path)
    set_before: list[tuple[str, dict[str, Any]]] = []

    def undo() -> None:
        while set_before:
            _set_option(*set_before.pop())
        sys.path[:] = path
        _set_variables(before)
        if changed.folder and folder:
            os.chdir(folder)
        _set_filters(filters)

    left.update(changed.lost)
    try:
        _set_variables(changed.environment)
        if changed.folder:
            os.chdir(changed.folder)
        _set_filters([*(one for one in changed.filters if one not in filters), *filters])
        if changed.path is not None:
            _change_path(changed.path)
        now = _options()
        for name, values in changed.options.items():
            for key, written in values.items():
                try:
                    new, old = pickle.loads(written), _option(now, name, key)
                    if _differ(old, new):
                        _set_option(name, {key: new})
                        set_before.append((name, {key: old}))
                except Exception as error:  # a function of the cell in it, or another version's
                    left[f"{name}: {key}"] = f"{type(error).__name__}: {error}"
    except BaseException:
        undo()
        raise
    return undo


def _change_path(changed: PathChanges) -> None:
    new = {*changed.front, *changed.back} - {*sys.path}
    kept = [entry for entry in sys.path if entry not in changed.gone]
    front, back = ([entry for entry in entries if entry in new] for entries in (changed.front, changed.back))
    sys.path[:] = [*front, *kept, *back]


def _set_variables(values: dict[str, str | None]) -> None:
    for name, text in values.items():
        if text is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = text


def _set_filters(filters: list[Any]) -> None:
    if filters != list(warnings.filters):
        warnings.resetwarnings()  # also forgets what was shown
        warnings.filters[:] = filters  # type: ignore[index]
