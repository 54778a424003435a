"""Check of the metadata server: whether it describes this host's TPU to torch_xla.

torch_xla 2.9 reads it at import on a host with a TPU, without a timeout (_internal/tpu.py: version, get_tpu_env).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tpu_magics.host.chips import GOOGLE
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.facts import HostFacts
from tpu_magics.host.doctor.metadata_server import Answer
from tpu_magics.host.doctor.variables import ONE_HOST, SKIPS, describing
from tpu_magics.host.system_files import names, read

GROUP = "Metadata server"
NAME = "tpu-env"
SERVER = "metadata.google.internal"
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_PRODUCT = "sys/class/dmi/id/product_name"
_WITHOUT_LIMIT = "torch_xla queries it at import, and waits without a timeout."


def checks(facts: HostFacts) -> Iterator[Check]:
    """One request, if any; and whether torch_xla's own request would go to a proxy."""
    if facts.environ.get(SKIPS):
        yield _not_asked(f"{SKIPS}={facts.environ[SKIPS]} is set: torch_xla and libtpu do not query it either.")
        return
    if not in_google_cloud(facts):
        yield _not_asked("This host does not seem to be in Google Cloud.")
        return
    yield _answered(facts, facts.ask_metadata())
    yield from _proxy(facts)


def _not_asked(why: str) -> Check:
    return Check(GROUP, NAME, NOT_AVAILABLE, "It was not queried.", why)


def in_google_cloud(facts: HostFacts) -> bool:
    """A device of Google's vendor id (its network card has it, too), or the machine's own name."""
    pci = facts.root / "sys/bus/pci/devices"
    google = any(read(pci / address / "vendor") == GOOGLE for address in names(pci))
    return google or (read(facts.root / _PRODUCT) or "").startswith("Google")


def _answered(facts: HostFacts, answer: Answer) -> Check:
    if answer.accelerator:
        return Check(GROUP, NAME, OK, f"It describes this TPU: {answer.accelerator}")
    said = f"status {answer.status}" if answer.status else answer.text
    if not facts.host.chips:
        why = f"It has no {NAME} for this host ({said})." if answer.status else f"It did not answer ({said})."
        return Check(GROUP, NAME, NOT_AVAILABLE, "It describes no TPU, and this host has no TPU.", why)
    values: Mapping[str, str | None] = {SKIPS: "1", **describing(facts), "TPU_WORKER_HOSTNAMES": "localhost"}
    if answer.status:
        what = f"The metadata server does not describe this host's TPU ({said})."
        why = f'torch_xla stops with "Failed to get \'{NAME}\' from instance metadata" or "Failed to get TPU metadata".'
    else:
        what, why = f"The metadata server could not be reached ({said}).", _WITHOUT_LIMIT
    return Check(GROUP, NAME, BROKEN, what, why, change(values), ONE_HOST)


def _proxy(facts: HostFacts) -> Iterator[Check]:
    """torch_xla uses the library requests, which obeys these variables."""
    proxy = next((name for name in _PROXIES if facts.environ.get(name)), "")
    direct = ",".join(facts.environ.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    if not proxy or not facts.host.chips or _passes_by(direct):
        return
    both = f"{direct.strip(',')},{SERVER}".lstrip(",")
    yield Check(
        GROUP,
        "Proxy",
        WARNING,
        f"{proxy} is set, and no_proxy does not name {SERVER}.",
        f"torch_xla's request goes to the proxy, which cannot answer it. {_WITHOUT_LIMIT}",
        change({"no_proxy": both}),
    )


def _passes_by(direct: str) -> bool:
    hosts = [one.strip().lstrip("*.") for one in direct.split(",") if one.strip()]
    return "*" in direct.split(",") or any(f".{SERVER}".endswith(f".{one}") for one in hosts if one)
