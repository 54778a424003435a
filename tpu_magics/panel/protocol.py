"""The comm `tpu_magics`: its names and versions, and its first message.

`%load_ext` sends it, so this module imports next to nothing. Each message is an object with `protocol`, `v`, `type` and
its fields. A request of a front end has an id in `request`, which its answer repeats; other messages have None there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

PROTOCOL = "tpu_magics"
TARGET = "tpu_magics"
VERSION = 1
RECORD_VERSION = 1
MIME_TYPE = "application/vnd.tpu-magics.run+json"


@dataclass(frozen=True)
class KernelHost:
    """Where this kernel trains, in words. `chips`: None where they are not known."""

    title: str
    rehearsal: bool
    chips: int | None
    detail: str


@dataclass(frozen=True)
class HelloMessage:
    """`version`: of the package; `python_v`: of these messages. `run`: the newest run of this kernel, which goes on
    where `live`. `answers`: whether a kernel that runs a cell answers."""

    type: ClassVar[str] = "hello"
    version: str
    python_v: int
    host: KernelHost | None
    run: str | None
    live: bool
    answers: bool
