"""The versions and free memory of a cluster's hosts, and whether a run is possible with these versions."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics import __version__
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host.versions import installed
from tpu_magics.launch.pods.cluster import ClusterNode

NOTEBOOK = "this notebook"
PACKAGES = ("tpu_magics", "ray", "torch", "torch_xla", "libtpu")
QUERY_TIMEOUT = 60.0  # seconds, in which each host starts a process and answers


class HostsSilentError(TpuMagicsError):
    """Some hosts do not answer. `nodes`: these hosts."""

    def __init__(self, what: str, why: str, todo: str, nodes: Sequence[ClusterNode]) -> None:
        super().__init__(what, why, todo)
        self.nodes = tuple(nodes)


@dataclass(frozen=True)
class HostReport:
    """A host's answer. `versions`: of "python" and of the installed PACKAGES; `memory`: free bytes (None: not
    available)."""

    versions: Mapping[str, str]
    memory: int | None = None


def own_versions() -> dict[str, str]:
    """The versions of this process."""
    import ray

    versions = installed()
    known = {"python": platform.python_version(), "tpu_magics": __version__, "ray": str(ray.__version__)}
    return {**known, **{name: version for name in PACKAGES if (version := versions.get(name))}}


def query_hosts(nodes: Sequence[ClusterNode]) -> list[HostReport]:
    """Each node's answer. Raises HostsSilentError if some do not answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(_query_function())
    pending = [
        task.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)
        ).remote(PACKAGES)
        for node in nodes
    ]
    ray.wait(pending, num_returns=len(pending), timeout=QUERY_TIMEOUT)
    answers, silent = [], []
    for node, reference in zip(nodes, pending, strict=True):
        try:
            answers.append(HostReport(*ray.get(reference, timeout=0.5)))
        except Exception as error:
            silent.append((node, error))
            ray.cancel(reference, force=True)
    if silent:
        raise _no_answer_error(silent)
    return answers


def _query_function() -> Callable[[Sequence[str]], tuple[dict[str, str], int | None]]:
    """A nested function, which Ray sends by value: the host may not have this package."""

    def report(packages: Sequence[str]) -> tuple[dict[str, str], int | None]:
        import importlib.metadata
        import platform
        from pathlib import Path

        versions = {"python": platform.python_version()}
        for name in packages:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                pass
        try:
            import tpu_magics
            from tpu_magics.host.memory import host_memory
        except ImportError:
            return versions, None
        versions["tpu_magics"] = tpu_magics.__version__
        return versions, host_memory(Path("/")).available

    return report


def _no_answer_error(silent: Sequence[tuple[ClusterNode, Exception]]) -> HostsSilentError:
    names = ", ".join(node.name for node, _ in silent)
    message = " ".join(str(silent[0][1]).split())[:300] or type(silent[0][1]).__name__
    return HostsSilentError(
        f"Ray could not start a process on {names}.",
        f"Each host has {QUERY_TIMEOUT:.0f} s to answer. For the first of these hosts Ray reports: {message}",
        "Check `ray status`, and the logs on that host (/tmp/ray/session_latest/logs).",
        [node for node, _ in silent],
    )


# -- comparing -------------------------------------------------------------------------------------------------------


def require_same_versions(names: Sequence[str], reports: Sequence[HostReport], own: Mapping[str, str]) -> list[str]:
    """Sentences about differences that are accepted. Raises TpuMagicsError, with a line for each host, for differences
    that are not: another Python (3.x) or release of tpu_magics, torch or torch_xla."""
    named = {NOTEBOOK: own, **{name: report.versions for name, report in zip(names, reports, strict=True)}}
    wrong = [
        name for name in _MUST_MATCH if len({_MUST_MATCH[name](seen.get(name, "")) for seen in named.values()}) > 1
    ]
    if wrong:
        raise _mismatch_error(wrong, named)
    differ = [name for name in ("python", *PACKAGES) if len({seen.get(name, "") for seen in named.values()}) > 1]
    return [
        f"{_display_name(name)} differs between the hosts: {_hosts_by_version(name, named)}."
        for name in differ
        if name != "libtpu"
    ]


def _major_minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


# The part of each version that must be the same: functions are sent as Python's bytecode and with this package's own
# types; compiled programs and weights are read by the same release of torch and torch_xla.
_MUST_MATCH: Mapping[str, Callable[[str], str]] = {
    "python": _major_minor,
    "tpu_magics": str,
    "torch": _major_minor,
    "torch_xla": _major_minor,
}


def _display_name(name: str) -> str:
    return "Python" if name == "python" else name


def _hosts_by_version(name: str, named: Mapping[str, Mapping[str, str]]) -> str:
    """Hosts by version: "3.11.7 on a and b, 3.11.8 on c"."""
    by_version: dict[str, list[str]] = {}
    for host, seen in named.items():
        by_version.setdefault(seen.get(name, "") or "not installed", []).append(host)
    return ", ".join(f"{version} on {_joined(hosts)}" for version, hosts in by_version.items())


def _joined(hosts: Sequence[str], most: int = 4) -> str:
    shown = list(hosts) if len(hosts) <= most else [*hosts[: most - 1], f"{len(hosts) - most + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def _mismatch_error(wrong: Sequence[str], named: Mapping[str, Mapping[str, str]]) -> TpuMagicsError:
    what = " and ".join(_display_name(name) for name in wrong)
    first = {name: named[NOTEBOOK].get(name, "") for name in wrong}
    distributions = {name.replace("tpu_magics", "tpu-magics"): first[name] for name in wrong if name != "python"}
    packages = " ".join(f'"{name}=={version}"' for name, version in distributions.items() if version)
    todo = f"Install the notebook's versions on every host: pip install {packages}" if packages else ""
    if "python" in wrong:
        todo = f"Start the cluster and the notebook with the same Python, e.g. {first['python']}. {todo}".strip()
    return TpuMagicsError(
        f"The hosts do not have the same {what} as this notebook.",
        "The hosts must run the notebook's Python code, and exchange data with this release of tpu_magics.",
        todo,
        [_line(host, wrong, seen) for host, seen in named.items()],
    )


def _line(host: str, names: Sequence[str], seen: Mapping[str, str]) -> str:
    return f"  {host}: {', '.join(f'{_display_name(name)} {seen.get(name) or chr(45) * 2}' for name in names)}"


def versions_text(versions: Mapping[str, Any]) -> str:
    """For example "Python 3.11.7, torch 2.9.0"."""
    return ", ".join(f"{_display_name(name)} {versions[name]}" for name in ("python", *PACKAGES) if versions.get(name))
