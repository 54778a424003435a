"""The facts that the checks read, collected once from this process or from a recorded root folder.

Google Cloud's metadata server is asked by address and without a proxy: a name lookup can hang longer than the limit of
the request's total time, and no proxy has the answer."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.backends.version_checks import Versions
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host, inspect_host
from tpu_magics.host.versions import PACKAGES, version_of

METADATA_SERVER = ("169.254.169.254", 80)  # the same in all of Google's cloud; link-local: it leaves no network
METADATA_SECONDS = 1.5  # for everything: connecting, asking, reading
_TPU_ENV = "attributes/tpu-env"
_REQUEST = (
    "GET /computeMetadata/v1/instance/{} HTTP/1.0\r\nHost: metadata.google.internal\r\n"
    "Metadata-Flavor: Google\r\nConnection: close\r\n\r\n"
)
_LONGEST_ANSWER = 65_536  # bytes; a tpu-env has about one thousand


@dataclass(frozen=True)
class Answer:
    """An answer. `status`: of HTTP, 0 without an answer; `text`: the body, or why there is none."""

    status: int
    text: str

    @property
    def accelerator(self) -> str:
        """ACCELERATOR_TYPE of a tpu-env, e.g. "v5litepod-8"; "" where it names none."""
        found = re.search(r"^\s*ACCELERATOR_TYPE:\s*['\"]?([\w-]+)", self.text, re.MULTILINE)
        return found[1] if found and self.status == 200 else ""


def ask_metadata_server(
    address: tuple[str, int] = METADATA_SERVER, seconds: float = METADATA_SECONDS, path: str = _TPU_ENV
) -> Answer:
    """Request an entry of this instance once. Never raises, and never takes much longer than `seconds`."""
    try:
        reply = _exchange(address, _REQUEST.format(path), time.monotonic() + seconds)
    except OSError as error:
        slow = isinstance(error, TimeoutError)
        return Answer(0, "no answer" if slow else error.strerror or str(error))
    found = re.match(rb"HTTP/1\.[01] (\d{3})", reply)
    head, _, body = reply.partition(b"\r\n\r\n")
    if found is None or b"metadata-flavor: google" not in head.lower():
        return Answer(0, "another server answered")
    return Answer(int(found[1]), body.decode("utf-8", "replace"))


def _exchange(address: tuple[str, int], request: str, until: float) -> bytes:
    with socket.create_connection(address, timeout=_left(until)) as connection:
        connection.sendall(request.encode())
        reply = b""
        while len(reply) < _LONGEST_ANSWER:
            connection.settimeout(_left(until))  # one limit for all parts: a server may send a byte now and then
            part = connection.recv(4096)
            if not part:
                break
            reply += part
    return reply


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


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
    ask_metadata: Callable[[], Answer] = ask_metadata_server,
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
