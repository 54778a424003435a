"""The requests of front ends: dataclasses, and their parsing, which checks every field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tpu_magics.errors import TpuMagicsError
from tpu_magics.panel.protocol import VERSION

FASTEST, SLOWEST = 0.1, 10.0  # seconds between updates that a front end may ask for
MOST_CELLS, MOST_SOURCE = 5_000, 2_000_000  # cells of a notebook, and the characters of all of them
LONGEST = 200  # characters of a name or an id: answers repeat them


@dataclass(frozen=True)
class CheckedCell:
    """A code cell of the notebook. `id`: the front end's; `number`: n of its `In [n]`, None where it did not run."""

    id: str
    number: int | None
    source: str


@dataclass(frozen=True)
class HelloRequest:
    type: ClassVar[str] = "hello"


@dataclass(frozen=True)
class OpenRequest:
    """`run`: an id, "current" (the newest of this kernel) or "last" (the newest in the folder)."""

    type: ClassVar[str] = "open"
    run: str


@dataclass(frozen=True)
class RunsRequest:
    type: ClassVar[str] = "runs"


@dataclass(frozen=True)
class CompareRequest:
    type: ClassVar[str] = "compare"
    runs: tuple[str, str]


@dataclass(frozen=True)
class StopRequest:
    type: ClassVar[str] = "stop"
    run: str


@dataclass(frozen=True)
class CheckRequest:
    """All code cells of the notebook, in their order."""

    type: ClassVar[str] = "check"
    cells: tuple[CheckedCell, ...]


@dataclass(frozen=True)
class RateRequest:
    """Seconds between updates."""

    type: ClassVar[str] = "rate"
    seconds: float


FrontEndRequest = HelloRequest | OpenRequest | RunsRequest | CompareRequest | StopRequest | CheckRequest | RateRequest


def request_id(data: Mapping[str, Any]) -> str | None:
    """The request's id, where there is one."""
    found = data.get("request")
    return found[:LONGEST] if isinstance(found, str) else None


def read_request(data: Mapping[str, Any]) -> FrontEndRequest:
    """The request of a front end. Raises TpuMagicsError where it cannot be read."""
    if data.get("v") != VERSION:
        raise _of_another_version(data.get("v"))
    kind = data.get("type")
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise _bad("type", kind, f"one of {', '.join(_READERS)}")
    if request_id(data) is None:
        raise _bad("request", data.get("request"), "a text")
    return read(data)


def _of_another_version(found: object) -> TpuMagicsError:
    return TpuMagicsError(
        f"The kernel and the extension have different versions of tpu_magics (kernel {VERSION}, extension "
        f"{_shown(found)}).",
        "Their messages differ.",
        "pip install -U tpu-magics, restart the kernel, then reload the page.",
    )


def _bad(name: str, found: object, wanted: str) -> TpuMagicsError:
    return TpuMagicsError(
        "The kernel could not read the extension's request.",
        f"`{name}` is {_shown(found)}; it should be {wanted}.",
        "Reload the page. If it happens again, please report it.",
    )


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= 60 else text[:59] + "…"


def _text(data: Mapping[str, Any], name: str) -> str:
    found = data.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= LONGEST:
        raise _bad(name, found, f"a text of at most {LONGEST} characters")
    return found


def _open(data: Mapping[str, Any]) -> OpenRequest:
    return OpenRequest(_text(data, "run"))


def _stop(data: Mapping[str, Any]) -> StopRequest:
    return StopRequest(_text(data, "run"))


def _compare(data: Mapping[str, Any]) -> CompareRequest:
    found = data.get("runs")
    if not isinstance(found, (list, tuple)) or len(found) != 2 or not all(map(_short, found)):
        raise _bad("runs", found, "the ids of two runs")
    return CompareRequest((found[0], found[1]))


def _short(found: object) -> bool:
    return isinstance(found, str) and len(found) <= LONGEST


def _rate(data: Mapping[str, Any]) -> RateRequest:
    found = data.get("seconds")
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not FASTEST <= found <= SLOWEST:
        raise _bad("seconds", found, f"a number from {FASTEST:g} to {SLOWEST:g}")
    return RateRequest(float(found))


def _check(data: Mapping[str, Any]) -> CheckRequest:
    found = data.get("cells")
    if not isinstance(found, (list, tuple)) or len(found) > MOST_CELLS:
        raise _bad("cells", found, f"a list of at most {MOST_CELLS:,} cells")
    cells = tuple(map(_cell, found))
    if sum(len(cell.source) for cell in cells) > MOST_SOURCE:
        raise _bad("cells", "longer", f"at most {MOST_SOURCE:,} characters")
    return CheckRequest(cells)


def _cell(found: Any) -> CheckedCell:
    if not isinstance(found, Mapping):
        raise _bad("cells", found, "a list of objects")
    if not _short(found.get("id")):
        raise _bad("cells.id", found.get("id"), f"a text of at most {LONGEST} characters")
    if not isinstance(found.get("source"), str):
        raise _bad("cells.source", found.get("source"), "a text")
    number = found.get("number")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise _bad("cells.number", number, "a whole number, or null")
    return CheckedCell(found["id"], number, found["source"])


_READERS: dict[str, Callable[[Mapping[str, Any]], FrontEndRequest]] = {
    "hello": lambda _data: HelloRequest(),
    "open": _open,
    "runs": lambda _data: RunsRequest(),
    "compare": _compare,
    "stop": _stop,
    "check": _check,
    "rate": _rate,
}
