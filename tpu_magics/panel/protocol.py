"""The comm `tpu_magics`: what all its messages have, and the first one.

What lives here: names, versions and the greeting, which `%load_ext` sends: so this module imports next to nothing. What
does not: the other messages (messages.py), and what front ends ask (requests.py).

Each message is an object with `protocol`, `v`, `type` and its fields. What a front end asks has a `request`, a text of
its own, which comes back with the answer; `request` is None in what was not asked for.
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
