"""The facts that the checks read, collected once from this process or from a recorded root folder."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, inspect_host
from tpu_magics.host.doctor.metadata_server import Answer, ask
from tpu_magics.host.versions import PACKAGES, Versions, version_of

# Beyond what the table of %tpu_init shows.
OTHERS = ("psutil", "safetensors", "numpy", "jupyterlab", "notebook", "jupyterlab_widgets", "libtpu-nightly")
_MODULES = {"ipython": "IPython"}  # package -> module, where they differ

Disk = Callable[[Path], "tuple[int, int] | None"]


@dataclass(frozen=True)
class Jupyter:
    """Jupyter's folders, those that count first: `data` (labextensions are in them) and `config` (labconfig is)."""

    data: Sequence[Path]
    config: Sequence[Path]


@dataclass(frozen=True)
class HostFacts:
    """The facts that the checks read.

    `loaded`: versions of the packages that this process has imported; `runs`: where run folders are made, or why that
    is unknown; `disk`: (total, free) bytes of a folder, None where unknown; `ask_metadata`: queries the metadata server
    once; `runtime`: whether an accelerator's runtime is initialised in this process (None: unknown).
    """

    host: Host
    environ: Mapping[str, str]
    root: Path
    loaded: Mapping[str, str]
    runs: Path | TpuMagicsError
    jupyter: Jupyter
    disk: Disk
    ask_metadata: Callable[[], Answer]
    prefix: Path
    runtime: bool | None

    @property
    def versions(self) -> Versions:
        return self.host.versions


def collect_facts(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    modules: Mapping[str, object] = sys.modules,
    versions: Versions | None = None,
    framework: str = "torch",
    *,
    runs: Path | None = None,
    jupyter: Jupyter | None = None,
    disk: Disk | None = None,
    ask_metadata: Callable[[], Answer] = ask,
    prefix: Path = Path(sys.prefix),
    runtime: bool | None = None,
) -> HostFacts:
    """The facts of this host, or of one that is recorded under `root`. Arguments: see `inspect_host` and
    `HostFacts`."""
    versions = found_versions() if versions is None else versions
    return HostFacts(
        host=inspect_host(environ, root, modules, versions, framework),
        environ=environ,
        root=root,
        loaded=_loaded(modules),
        runs=_runs() if runs is None else runs,
        jupyter=_jupyter() if jupyter is None else jupyter,
        disk=_disk if disk is None else disk,
        ask_metadata=ask_metadata,
        prefix=prefix,
        runtime=runtime,
    )


def _runs() -> Path | TpuMagicsError:
    from tpu_magics.runs.files import runs_root

    try:
        return runs_root()
    except TpuMagicsError as error:
        return error


def found_versions() -> dict[str, str | None]:
    """Versions of Python and of all packages that a check reads; None where one is not installed."""
    return {"python": sys.version.split()[0], **{name: version_of(name) for name in (*PACKAGES, *OTHERS)}}


def _loaded(modules: Mapping[str, object]) -> dict[str, str]:
    # `__version__` of a module that is there; nothing is imported to look.
    found = {name: getattr(modules.get(_MODULES.get(name, name)), "__version__", None) for name in (*PACKAGES, *OTHERS)}
    return {name: version for name, version in found.items() if isinstance(version, str)}


def _jupyter() -> Jupyter:
    try:
        from jupyter_core.paths import jupyter_config_path, jupyter_path
    except ImportError:
        return Jupyter((Path(sysconfig.get_path("data")) / "share/jupyter",), ())
    return Jupyter(tuple(map(Path, jupyter_path())), tuple(map(Path, jupyter_config_path())))


def _disk(folder: Path) -> tuple[int, int] | None:
    for each in (folder, *folder.absolute().parents):
        try:
            usage = shutil.disk_usage(each)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        return usage.total, usage.free
    return None
