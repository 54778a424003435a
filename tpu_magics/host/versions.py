"""Installed versions, read from package metadata, and whether they are compatible."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tpu_magics.host.problem import VERSIONS, HostProblem

Versions = Mapping[str, str | None]

TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")
PACKAGES = (
    "ipython",
    "ipykernel",
    "ipywidgets",
    "torch",
    "torch_xla",
    "torch_tpu",
    "accelerate",
    "transformers",
    "libtpu",
    "jax",
    *TENSORFLOWS,
    "keras",
)

RESTART = "restart the kernel"


def installed() -> dict[str, str | None]:
    """Version of Python and of each of PACKAGES; None where it is not installed."""
    return {"python": platform.python_version(), **{name: version_of(name) for name in PACKAGES}}


def version_of(name: str) -> str | None:
    """Version of a package; None where it is not installed, or not whole."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, KeyError, ValueError):  # or metadata that is broken
        return None


def has_other_libtpu(environ: Mapping[str, str]) -> bool:
    """Whether torch_xla finds a libtpu that is not the package: $TPU_LIBRARY_PATH, or one inside its own folder."""
    if "TPU_LIBRARY_PATH" in environ:
        return True
    try:
        inside = importlib.metadata.distribution("torch_xla").locate_file("torch_xla/lib/libtpu.so")
    except importlib.metadata.PackageNotFoundError:
        return False
    return bool(getattr(inside, "is_file", lambda: False)())


def judge(
    versions: Versions, tpu: bool = False, other_libtpu: bool = False, framework: str = "torch", environment: str = ""
) -> list[HostProblem]:
    """Problems of the versions.

    Args:
        versions: as `installed()` gives them.
        tpu: whether the host has a TPU.
        other_libtpu: whether torch_xla finds a libtpu other than the package (see `has_other_libtpu`).
        framework: what cells are trained with, "torch" or "tensorflow".
        environment: the key of the host's environment (environments.py).
    """
    return _judged((*_CHECKS[framework], *_NOTEBOOK), _Facts(versions, tpu, other_libtpu, environment))


def judge_framework(
    versions: Versions, tpu: bool = False, framework: str = "torch", environment: str = ""
) -> list[HostProblem]:
    """The part of `judge` that is about the frameworks, without libtpu."""
    return _judged(
        [one for one in _CHECKS[framework] if one is not _no_libtpu], _Facts(versions, tpu, False, environment)
    )


def judge_libtpu(versions: Versions, tpu: bool = False, other_libtpu: bool = False) -> list[HostProblem]:
    """The part of `judge` that is about libtpu."""
    return _judged((_no_libtpu,), _Facts(versions, tpu, other_libtpu))


def judge_ipython(versions: Versions) -> list[HostProblem]:
    """The part of `judge` that is about IPython."""
    return _judged((_old_ipython,), _Facts(versions, False, False))


def judge_ipywidgets(versions: Versions) -> list[HostProblem]:
    """The part of `judge` that is about ipywidgets."""
    return _judged((_old_ipywidgets, _no_ipywidgets), _Facts(versions, False, False))


def _judged(checks: Iterable[Callable[[_Facts], HostProblem | None]], facts: _Facts) -> list[HostProblem]:
    return [problem for problem in (check(facts) for check in checks) if problem is not None]


@dataclass(frozen=True)
class _Facts:
    versions: Versions
    tpu: bool
    other_libtpu: bool
    environment: str = ""


def _no_framework(facts: _Facts) -> HostProblem | None:
    missing = [name for name in ("torch", "torch_xla") if not facts.versions.get(name)]
    if not missing or (facts.versions.get("torch") and facts.versions.get("torch_tpu")):
        return None
    return HostProblem(
        about=VERSIONS,
        what=f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
        why="Cells train with torch on XLA devices, on a TPU and in a rehearsal on the CPU.",
        command=_install(facts.versions.get("torch"), facts.tpu),
        then=RESTART,
    )


def _install(torch: str | None, tpu: bool) -> str:
    # 2.8 is kept where it is, as on Kaggle's image; otherwise the last release of torch_xla.
    pair = "2.8.0" if release(torch)[:2] == (2, 8) else "2.9.0"
    return f'%pip install "torch=={pair}" "torch_xla{"[tpu]" if tpu else ""}=={pair}" "accelerate>=1.10"'


def _different_pair(facts: _Facts) -> HostProblem | None:
    torch, xla = release(facts.versions.get("torch")), release(facts.versions.get("torch_xla"))
    # torch_xla 2.9.0 needs exactly torch 2.9.0; for the others the first two numbers decide.
    needed = 3 if xla == (2, 9, 0) else 2
    if not torch or not xla or torch[:needed] == xla[:needed]:
        return None
    return HostProblem(
        about=VERSIONS,
        what=f"torch {facts.versions['torch']} and torch_xla {facts.versions['torch_xla']} are not compatible.",
        why="Each torch_xla is built for one version of torch. With another one its import fails, often with "
        '"undefined symbol" in _XLAC.',
        command=f'%pip install "torch=={xla[0]}.{xla[1]}.0"',
        then=RESTART,
    )


# torch_tpu 0.2.0's own builds (_loader.py, *_2_11_0.so to *_2_15_0.so).
_TORCH_TPU = (range(11, 16), "torch 2.11 to 2.15")


def _torch_tpu_pair(facts: _Facts) -> HostProblem | None:
    """torch_xla 2.9 needs torch 2.9, which TorchTPU does not support."""
    torch = release(facts.versions.get("torch"))
    if not facts.versions.get("torch_tpu") or not torch or (torch[0] == 2 and torch[1] in _TORCH_TPU[0]):
        return None
    beside = bool(facts.versions.get("torch_xla"))
    return HostProblem(
        about=VERSIONS,
        what=f"torch {facts.versions['torch']} and torch_tpu {facts.versions['torch_tpu']} are not compatible.",
        why=f"torch_tpu 0.2 is built for {_TORCH_TPU[1]}."
        + (" torch_xla 2.9 needs torch 2.9: both frameworks cannot be in one environment." if beside else ""),
        command="%pip uninstall -y torch_tpu" if beside else '%pip install "torch==2.15.0"',
        then=f"{RESTART}, or use TorchTPU in an environment of its own" if beside else RESTART,
        state="warning" if beside else "broken",
    )


def _no_libtpu(facts: _Facts) -> HostProblem | None:
    if not facts.tpu or facts.other_libtpu or facts.versions.get("libtpu") or not facts.versions.get("torch_xla"):
        return None
    xla = ".".join(map(str, release(facts.versions["torch_xla"])))
    return HostProblem(
        about=VERSIONS,
        what="libtpu is not installed.",
        why="This host has a TPU, and torch_xla needs libtpu to use it.",
        command=f'%pip install "torch_xla[tpu]=={xla}"',
        then=RESTART,
    )


def _plain_tensorflow(facts: _Facts) -> HostProblem | None:
    if not facts.versions.get("tensorflow") or not facts.versions.get("torch_xla"):
        return None
    same = ".".join(map(str, release(facts.versions["tensorflow"])))
    return HostProblem(
        about=VERSIONS,
        what=f"tensorflow {facts.versions['tensorflow']} is installed together with torch_xla.",
        why="They conflict in one process (torch_xla warns about it at import); tensorflow-cpu does not.",
        # Both packages own the same files, so what uninstalling one removes is put back, at the same version.
        command=f"!pip uninstall -y tensorflow && pip install --force-reinstall --no-deps tensorflow-cpu=={same}",
        then=RESTART,
        state="warning",
    )


# -- TensorFlow ----------------------------------------------------------------------------------------------------


# googlecolab/backend-info and Kaggle/docker-python, 2026-08; users' reports: issues of googlecolab/colabtools.
_HOSTED = {
    "colab": "Colab's TPU image has no TensorFlow since March 2025, and users report that installing it does not help.",
    "kaggle": "Kaggle's TPU image has tensorflow-cpu, which cannot use a TPU.",
}
_ELSEWHERE = (
    "use TensorFlow on a TPU VM (tensorflow-tpu), or use this TPU with PyTorch/XLA, or with Keras on JAX without these "
    "magics. To train on this host's CPU: %env PJRT_DEVICE=CPU before %tpu_init"
)


def _no_tpu_for_tensorflow(facts: _Facts) -> HostProblem | None:
    """Before any other problem, because installing a package does not help on these hosts."""
    if not facts.tpu or facts.environment not in _HOSTED or facts.versions.get("tensorflow-tpu"):
        return None
    return HostProblem(
        about=VERSIONS,
        what="TensorFlow does not find a TPU on this host.",
        why=_HOSTED[facts.environment],
        then=_ELSEWHERE,
    )


def _no_tensorflow(facts: _Facts) -> HostProblem | None:
    if any(facts.versions.get(name) for name in TENSORFLOWS) or _no_tpu_for_tensorflow(facts):
        return None
    extra = "tf-tpu" if facts.tpu else "tf"
    return HostProblem(
        about=VERSIONS,
        what="TensorFlow is not installed.",
        why=f"Cells train with TensorFlow here{', on a TPU with tensorflow-tpu' if facts.tpu else ''}.",
        command=f'%pip install "tpu-magics[{extra}]"',
        then=RESTART,
    )


def _tensorflow_without_tpu(facts: _Facts) -> HostProblem | None:
    plain = _plain(facts)
    if not facts.tpu or not plain or facts.versions.get("tensorflow-tpu") or _no_tpu_for_tensorflow(facts):
        return None
    return HostProblem(
        about=VERSIONS,
        what=f"{' and '.join(f'{name} {facts.versions[name]}' for name in plain)} cannot use this host's TPU.",
        # tensorflow/tensorflow#96203; the versions: the package index.
        why="Only the package tensorflow-tpu (2.16.1 to 2.20.0) has TensorFlow's TPU kernels. Any other one "
        "stops with \"No OpKernel was registered to support Op 'ConfigureDistributedTPU'\".",
        command=f'!pip uninstall -y {" ".join(plain)} && pip install "tpu-magics[tf-tpu]"',
        then=RESTART,
    )


def _two_tensorflows(facts: _Facts) -> HostProblem | None:
    plain = _plain(facts)
    if not facts.tpu or not plain or not facts.versions.get("tensorflow-tpu"):
        return None
    return HostProblem(
        about=VERSIONS,
        what=f"{' and '.join(plain)} and tensorflow-tpu are both installed.",
        why="They own the same files, so Python imports the one that was installed last. That may not be the one with "
        "TPU support.",
        command=f"!pip uninstall -y {' '.join(plain)} && "
        f"pip install --force-reinstall --no-deps tensorflow-tpu=={facts.versions['tensorflow-tpu']}",
        then=RESTART,
        state="warning",
    )


def _plain(facts: _Facts) -> list[str]:
    return [name for name in TENSORFLOWS[:2] if facts.versions.get(name)]


def _old_tensorflow(facts: _Facts) -> HostProblem | None:
    name = next((name for name in TENSORFLOWS if facts.versions.get(name)), "tensorflow")
    return _too_old(facts.versions, name, (2, 16), "TensorFlow comes with Keras 3 since 2.16.", "broken")


def _old_keras(facts: _Facts) -> HostProblem | None:
    return _too_old(facts.versions, "keras", (3, 0), "Models of Keras 2 are not supported.", "broken")


def _old_ipython(facts: _Facts) -> HostProblem | None:
    return _too_old(facts.versions, "ipython", (7, 34), "The magics need IPython 7.34 or newer.", "broken")


def _old_ipywidgets(facts: _Facts) -> HostProblem | None:
    return _too_old(facts.versions, "ipywidgets", (7, 7), "The live panel needs ipywidgets 7.7 or newer.", "warning")


def _no_ipywidgets(facts: _Facts) -> HostProblem | None:
    if facts.versions.get("ipywidgets"):
        return None
    return HostProblem(
        about=VERSIONS,
        what="ipywidgets is not installed.",
        why="The live panel needs its widgets.",
        command='%pip install "ipywidgets>=7.7"',
        then=f"{RESTART} and reload the page",
        state="warning",
    )


def _too_old(versions: Versions, name: str, floor: tuple[int, int], why: str, state: str) -> HostProblem | None:
    have = release(versions.get(name))
    if not have or have >= floor:
        return None
    least = f"{floor[0]}.{floor[1]}"
    return HostProblem(
        about=VERSIONS,
        what=f"{name} {versions[name]} is older than {least}.",
        why=why,
        command=f'%pip install "{name}>={least}"',
        then=RESTART,
        state=state,
    )


def release(version: str | None) -> tuple[int, ...]:
    """The numbers of a version: "2.9.0+cu128" -> (2, 9, 0), "2.9.0a1" -> (2, 9, 0); () where there are none."""
    match = re.match(r"\d+(?:\.\d+)*", version or "")
    return tuple(int(part) for part in match[0].split(".")) if match else ()


_CHECKS: Mapping[str, tuple[Callable[[_Facts], HostProblem | None], ...]] = {
    "torch": (_no_framework, _different_pair, _torch_tpu_pair, _no_libtpu, _plain_tensorflow),
    "tensorflow": (
        *(_no_tpu_for_tensorflow, _no_tensorflow, _tensorflow_without_tpu, _two_tensorflows),
        *(_old_tensorflow, _old_keras),
    ),
}
_NOTEBOOK: tuple[Callable[[_Facts], HostProblem | None], ...] = (_old_ipython, _old_ipywidgets, _no_ipywidgets)
