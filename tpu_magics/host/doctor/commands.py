"""Commands that fix something, as they are typed in a notebook and in a shell."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

PYTHON = "python"
# What %env takes as it is: it reads {x} and $x as names of the notebook.
_PLAIN = re.compile(r"[\w./,:+@-]*", re.ASCII)
_SET = r'(\w+)=("(?:[^"\\]|\\.)*")'
_PIP = re.compile(r"(^!|&& )pip ")


def change(values: Mapping[str, str | None]) -> str:
    """The line of a cell that sets these variables; None unsets one."""
    [(name, value), *others] = values.items()
    if not others and value is not None and _PLAIN.fullmatch(value):
        return f"%env {name}={value}"
    kept = ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items() if value is not None)
    parts = ["import os", *([f"os.environ.update({kept})"] if kept else [])]
    parts += [f'os.environ.pop("{name}", None)' for name, value in values.items() if value is None]
    return "; ".join(parts)


def by_python(command: str, python: str) -> str:
    """The command for a notebook whose shell has another environment's `pip`; `python`: this environment's
    interpreter."""
    return command if python == PYTHON else _PIP.sub(lambda found: f"{found[1]}{shlex.quote(python)} -m pip ", command)


def to_shell(command: str, python: str = PYTHON) -> str:
    """The command for a shell: "%pip install x" -> "python -m pip install x". `python`: this interpreter's name
    there."""
    python = shlex.quote(python)
    if command.startswith("%tpu_"):
        return f"# in a notebook: {command}"
    command = _PIP.sub(lambda found: f"{found[1]}{python} -m pip ", command)
    if command.startswith("import os; "):
        sets = (f"{name}={shlex.quote(json.loads(value))}" for name, value in re.findall(_SET, command))
        drops = re.findall(r'environ\.pop\("(\w+)"', command)
        exported, unset = " ".join(sets), " ".join(drops)
        return " && ".join([*([f"export {exported}"] if exported else []), *([f"unset {unset}"] if unset else [])])
    for mark, shell in (("%pip ", f"{python} -m pip "), ("%env ", "export "), ("!", "")):
        if command.startswith(mark):
            return shell + command[len(mark) :]
    return command
