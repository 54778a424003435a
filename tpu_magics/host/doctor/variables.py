"""Checks of what describes this host's TPU to libtpu and torch_xla: environment variables that are wrong for it, and
the metadata server.

torch_xla 2.9 reads the server at import on a host with a TPU, without a timeout (_internal/tpu.py: version,
get_tpu_env).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from tpu_magics.errors import plural
from tpu_magics.host.chips import GOOGLE, V2, V3
from tpu_magics.host.doctor.check import BROKEN, NOT_AVAILABLE, OK, WARNING, Check, VariableFix, from_problem
from tpu_magics.host.doctor.commands import change
from tpu_magics.host.doctor.facts import Answer, HostFacts
from tpu_magics.host.environments import ACCELERATOR_TYPE as TYPE
from tpu_magics.host.environments import PJRT, judge_pjrt
from tpu_magics.host.memory import names, read

VARIABLES = "Environment variables"
SKIPS = "TPU_SKIP_MDS_QUERY"
ONE_HOST = "check the values: they are for a slice of one host, and torch_xla reads them when it is imported"
_CHOOSING = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_PROCESS_BOUNDS")
_ADDRESSES, _NUMBER = "TPU_PROCESS_ADDRESSES", "CLOUD_TPU_TASK_ID"
# torch_xla 2.9 reads the right one first (_internal/tpu.py: build_tpu_env_from_vars).
_INSTEAD = {
    "TPU_WORKER_ID": _NUMBER,
    "TPU_HOST_BOUNDS": "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_HOST_BOUNDS": "TPU_CHIPS_PER_PROCESS_BOUNDS",
}
_TYPE_FORM = re.compile(r"(?:v|tpu)\d[A-Za-z]{0,7}-\d+")  # as torch_xla 2.9 reads it (_internal/tpu.py: version)
_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}  # the chips of a host as a grid


def variable_checks(facts: HostFacts) -> Iterator[Check]:
    """The problems, or one line with the variables that are set."""
    found = [check for judge in _JUDGES for check in judge(facts)]
    if found:
        yield from found
        return
    known = [name for name in sorted(facts.environ) if name == PJRT or name.startswith(("TPU_", "XLA_", "CLOUD_TPU_"))]
    yield Check(VARIABLES, "TPU and XLA", OK, f"No problems ({', '.join(known) or 'none is set'})")


def _pjrt(facts: HostFacts) -> Iterator[Check]:
    for problem in judge_pjrt(facts.host.pjrt_device, len(facts.host.chips), facts.host.framework == "torch"):
        # CPU on a TPU host can be a rehearsal on purpose; a value with which nothing can start cannot.
        fitting = VariableFix({PJRT: "TPU" if facts.host.chips else "CPU"})
        yield from_problem(VARIABLES, PJRT, problem, fitting if problem.state == BROKEN else None)


def _kaggle(facts: HostFacts) -> Iterator[Check]:
    changes = facts.host.variable_changes
    if not changes:
        return
    names: Mapping[str, str | None] = {one.name: one.value for one in changes}
    values = ", ".join(f"{one.name}={one.before}" for one in changes)
    yield Check(
        VARIABLES,
        "Worker addresses",
        WARNING,
        f"{values} {'is' if len(changes) == 1 else 'are'} set.",
        f"{changes[0].reason}. Workers of %%tpu_train do not get them; those of notebook_launcher and xmp.spawn do.",
        change(names),
        fix=VariableFix(names),
    )


def _addresses(facts: HostFacts) -> Iterator[Check]:
    """Wrong addresses of processes on any other host, set by a shell's profile or a copied cell."""
    workers = facts.host.workers
    if facts.host.variable_changes or workers == 1:
        return
    expected = workers * max(1, len(facts.host.environment.hosts))
    given = facts.environ.get(_ADDRESSES)
    wrong = [_ADDRESSES] if given is not None and len(given.split(",")) != expected else []
    wrong += [_NUMBER] if _NUMBER in facts.environ else []
    if not wrong:
        return
    stops = f'libtpu stops with "Expected {expected} worker addresses, got {len((given or "").split(","))}".'
    yield Check(
        VARIABLES,
        "Worker addresses",
        BROKEN,
        f"{', '.join(f'{name}={facts.environ[name]}' for name in wrong)} {'is' if len(wrong) == 1 else 'are'} set.",
        f"torch_xla uses these values for all {workers} workers: "
        f"{stops if _ADDRESSES in wrong else 'each worker would get the same number.'}",
        change(dict.fromkeys(wrong)),
    )


def _virtual_devices(facts: HostFacts) -> Iterator[Check]:
    devices = facts.environ.get("CPU_NUM_DEVICES", "")
    if facts.host.device != "CPU" or devices in ("", "1"):
        return
    values: Mapping[str, str | None] = {"CPU_NUM_DEVICES": None}
    yield Check(
        VARIABLES,
        "CPU_NUM_DEVICES",
        WARNING,
        f"CPU_NUM_DEVICES={devices} is set.",
        "Several CPU devices in one process deadlock in their first collective and abort after 10 s. --spmd and -n of "
        "%%tpu_train set what they need.",
        change(values),
        fix=VariableFix(values),
    )


def _precision(facts: HostFacts) -> Iterator[Check]:
    for name in ("XLA_USE_BF16", "XLA_DOWNCAST_BF16"):
        if facts.environ.get(name, "0") not in ("", "0"):
            yield Check(
                VARIABLES,
                name,
                WARNING,
                f"{name}={facts.environ[name]} is set.",
                "It turns float32 into bfloat16 in every run, but tensor.dtype still says float32.",
                change({name: None}),
                "use --precision bf16 where you want it",
            )


def _dumps(facts: HostFacts) -> Iterator[Check]:
    if "--xla_dump_to" in facts.environ.get("XLA_FLAGS", ""):
        yield Check(
            VARIABLES,
            "XLA_FLAGS",
            WARNING,
            f"XLA_FLAGS={facts.environ['XLA_FLAGS']} writes every compiled program to disk.",
            "Each compile writes many files, which takes time and disk space.",
            change({"XLA_FLAGS": None}),
        )


def _old_runtime(facts: HostFacts) -> Iterator[Check]:
    for name in ("XRT_TPU_CONFIG", "COLAB_TPU_ADDR"):
        if facts.environ.get(name) and facts.host.framework == "torch":
            yield Check(
                VARIABLES,
                name,
                WARNING,
                f"{name} is set.",
                "It is for TPU nodes and the XRT runtime, which torch_xla removed in 2.1. Nothing reads it.",
                change({name: None}),
            )


def _chosen_chips(facts: HostFacts) -> Iterator[Check]:
    """Chips that a shell or an earlier cell selected: all workers would use the same ones."""
    if not facts.host.chips or facts.host.framework != "torch" or facts.host.device != "TPU":
        return
    names = [name for name in _CHOOSING if name in facts.environ]
    if not names or facts.host.workers == 1:
        return
    values: Mapping[str, str | None] = dict.fromkeys(names)
    yield Check(
        VARIABLES,
        "Selected chips",
        WARNING,
        f"{', '.join(f'{name}={facts.environ[name]}' for name in names)} {'is' if len(names) == 1 else 'are'} set.",
        f"torch_xla uses these values, so all {facts.host.workers} workers would open the same chips: "
        '"The TPU is already in use by process with pid ...".',
        change(values),
    )


def _described(facts: HostFacts) -> Iterator[Check]:
    """With TPU_SKIP_MDS_QUERY torch_xla reads variables instead of the metadata server (torch_xla 2.9,
    _internal/tpu.py: get_tpu_env)."""
    if not facts.host.chips or not facts.environ.get(SKIPS) or facts.host.framework != "torch":
        return
    missing = _missing(facts)
    if TYPE not in missing and (facts.host.workers == 1 or not missing):
        yield from _type(facts)
        return
    values = {name: value for name, value in describing(facts).items() if name in missing}
    yield Check(
        VARIABLES,
        "TPU description",
        BROKEN,
        f"{SKIPS} is set, and {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not.",
        "torch_xla then reads these variables instead of the metadata server, when it is imported.",
        change(values),
        ONE_HOST,
    )


def _missing(facts: HostFacts) -> list[str]:
    """The variables that torch_xla needs and that are not set."""
    kept = {one.name for one in facts.host.variable_changes}  # the workers do not get these
    given = {name for name, value in facts.environ.items() if value and name not in kept}
    known = {name for name, other in _INSTEAD.items() if other in given}
    if facts.host.generation in (V2, V3):  # it knows the bounds of their types itself
        known |= {"TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"}
    return [name for name in describing(facts) if name not in given | known]


def _type(facts: HostFacts) -> Iterator[Check]:
    if _TYPE_FORM.fullmatch(facts.environ[TYPE]):
        return
    yield Check(
        VARIABLES,
        "Type of the TPU",
        BROKEN,
        f"{TYPE}={facts.environ[TYPE]} is not a type that torch_xla can read.",
        'It stops with "Failed to parse TPU version from metadata".',
        change({TYPE: describing(facts)[TYPE]}),
        ONE_HOST,
    )


def describing(facts: HostFacts) -> dict[str, str]:
    """The variables that describe this host's TPU where the metadata server does not, as for a slice of one host."""
    chips, generation = len(facts.host.chips), facts.host.generation
    names = {TYPE: generation.type_string(chips) if generation else "v5litepod-8", "TPU_WORKER_ID": "0"}
    if chips > 1:
        names |= {"TPU_HOST_BOUNDS": "1,1,1", "TPU_CHIPS_PER_HOST_BOUNDS": _BOUNDS.get(chips, f"1,{chips},1")}
    return names


def _several_hosts(facts: HostFacts) -> Iterator[Check]:
    hosts = facts.host.environment.hosts
    if len(hosts) > 1:
        yield Check(
            VARIABLES,
            "Hosts of the slice",
            WARNING,
            f"TPU_WORKER_HOSTNAMES names {plural(len(hosts), 'host')}: {', '.join(hosts)}.",
            "A TPU slice works only when all of its hosts take part. %%tpu_train alone starts workers on this host "
            "and would wait for the others.",
            "%tpu_init --hosts ray",
            "%tpu_pod shows what would run where",
        )


_JUDGES: tuple[Callable[[HostFacts], Iterator[Check]], ...] = (
    _pjrt,
    _kaggle,
    _addresses,
    _described,
    _chosen_chips,
    _virtual_devices,
    _several_hosts,
    _precision,
    _dumps,
    _old_runtime,
)


# -- the metadata server ----------------------------------------------------------------------------------------------


METADATA = "Metadata server"
NAME = "tpu-env"
SERVER = "metadata.google.internal"
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_PRODUCT = "sys/class/dmi/id/product_name"
_WITHOUT_LIMIT = "torch_xla queries it at import, and waits without a timeout."


def metadata_checks(facts: HostFacts) -> Iterator[Check]:
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
    return Check(METADATA, NAME, NOT_AVAILABLE, "It was not queried.", why)


def in_google_cloud(facts: HostFacts) -> bool:
    """A device of Google's vendor id (its network card has it, too), or the machine's own name."""
    pci = facts.root / "sys/bus/pci/devices"
    google = any(read(pci / address / "vendor") == GOOGLE for address in names(pci))
    return google or (read(facts.root / _PRODUCT) or "").startswith("Google")


def _answered(facts: HostFacts, answer: Answer) -> Check:
    if answer.accelerator:
        return Check(METADATA, NAME, OK, f"It describes this TPU: {answer.accelerator}")
    said = f"status {answer.status}" if answer.status else answer.text
    if not facts.host.chips:
        why = f"It has no {NAME} for this host ({said})." if answer.status else f"It did not answer ({said})."
        return Check(METADATA, NAME, NOT_AVAILABLE, "It describes no TPU, and this host has no TPU.", why)
    values: Mapping[str, str | None] = {SKIPS: "1", **describing(facts), "TPU_WORKER_HOSTNAMES": "localhost"}
    if answer.status:
        what = f"The metadata server does not describe this host's TPU ({said})."
        why = f'torch_xla stops with "Failed to get \'{NAME}\' from instance metadata" or "Failed to get TPU metadata".'
    else:
        what, why = f"The metadata server could not be reached ({said}).", _WITHOUT_LIMIT
    return Check(METADATA, NAME, BROKEN, what, why, change(values), ONE_HOST)


def _proxy(facts: HostFacts) -> Iterator[Check]:
    """torch_xla uses the library requests, which obeys these variables."""
    proxy = next((name for name in _PROXIES if facts.environ.get(name)), "")
    direct = ",".join(facts.environ.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    if not proxy or not facts.host.chips or _passes_by(direct):
        return
    both = f"{direct.strip(',')},{SERVER}".lstrip(",")
    yield Check(
        METADATA,
        "Proxy",
        WARNING,
        f"{proxy} is set, and no_proxy does not name {SERVER}.",
        f"torch_xla's request goes to the proxy, which cannot answer it. {_WITHOUT_LIMIT}",
        change({"no_proxy": both}),
    )


def _passes_by(direct: str) -> bool:
    hosts = [one.strip().lstrip("*.") for one in direct.split(",") if one.strip()]
    return "*" in direct.split(",") or any(f".{SERVER}".endswith(f".{one}") for one in hosts if one)
