"""Checks of the versions of TensorFlow and Keras, by the packages' metadata."""

from __future__ import annotations

from tpu_magics.backends.version_checks import RESTART, TENSORFLOWS, VersionCheck, VersionFacts, too_old
from tpu_magics.errors import VERSIONS, HostProblem

# googlecolab/backend-info and Kaggle/docker-python, 2026-08; users' reports: issues of googlecolab/colabtools.
_HOSTED = {
    "colab": "Colab's TPU image has no TensorFlow since March 2025, and users report that installing it does not help.",
    "kaggle": "Kaggle's TPU image has tensorflow-cpu, which cannot use a TPU.",
}
_ELSEWHERE = (
    "use TensorFlow on a TPU VM (tensorflow-tpu), or use this TPU with PyTorch/XLA, or with Keras on JAX without these "
    "magics. To train on this host's CPU: %env PJRT_DEVICE=CPU before %tpu_init"
)


def _no_tpu_for_tensorflow(facts: VersionFacts) -> HostProblem | None:
    """Before any other problem, because installing a package does not help on these hosts."""
    if not facts.tpu or facts.environment not in _HOSTED or facts.versions.get("tensorflow-tpu"):
        return None
    return HostProblem(
        about=VERSIONS,
        what="TensorFlow does not find a TPU on this host.",
        why=_HOSTED[facts.environment],
        then=_ELSEWHERE,
    )


def _no_tensorflow(facts: VersionFacts) -> HostProblem | None:
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


def _tensorflow_without_tpu(facts: VersionFacts) -> HostProblem | None:
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


def _two_tensorflows(facts: VersionFacts) -> HostProblem | None:
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


def _plain(facts: VersionFacts) -> list[str]:
    return [name for name in TENSORFLOWS[:2] if facts.versions.get(name)]


def _old_tensorflow(facts: VersionFacts) -> HostProblem | None:
    name = next((name for name in TENSORFLOWS if facts.versions.get(name)), "tensorflow")
    return too_old(facts.versions, name, (2, 16), "TensorFlow comes with Keras 3 since 2.16.", "broken")


def _old_keras(facts: VersionFacts) -> HostProblem | None:
    return too_old(facts.versions, "keras", (3, 0), "Models of Keras 2 are not supported.", "broken")


CHECKS: tuple[VersionCheck, ...] = (
    *(_no_tpu_for_tensorflow, _no_tensorflow, _tensorflow_without_tpu, _two_tensorflows),
    *(_old_tensorflow, _old_keras),
)
