"""Checks of the versions of torch, torch_xla, TorchTPU and libtpu, by the packages' metadata."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

from tpu_magics.backends.version_checks import RESTART, VersionCheck, VersionFacts, release
from tpu_magics.errors import VERSIONS, HostProblem


def has_other_libtpu(environ: Mapping[str, str]) -> bool:
    """Whether torch_xla finds a libtpu that is not the package: $TPU_LIBRARY_PATH, or one inside its own folder."""
    if "TPU_LIBRARY_PATH" in environ:
        return True
    try:
        inside = importlib.metadata.distribution("torch_xla").locate_file("torch_xla/lib/libtpu.so")
    except importlib.metadata.PackageNotFoundError:
        return False
    return bool(getattr(inside, "is_file", lambda: False)())


def _no_framework(facts: VersionFacts) -> HostProblem | None:
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


def _different_pair(facts: VersionFacts) -> HostProblem | None:
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


def _torch_tpu_pair(facts: VersionFacts) -> HostProblem | None:
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


def no_libtpu(facts: VersionFacts) -> HostProblem | None:
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


def _plain_tensorflow(facts: VersionFacts) -> HostProblem | None:
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


CHECKS: tuple[VersionCheck, ...] = (_no_framework, _different_pair, _torch_tpu_pair, no_libtpu, _plain_tensorflow)
