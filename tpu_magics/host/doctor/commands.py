"""Commands that mend something, as they are typed in a notebook and in a shell.

What lives here: how the environment is changed in a notebook's cell, and the translation of a notebook's command into a
shell's. What does not: which command mends what.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping


def change(values: Mapping[str, str | None]) -> str:
    """The line of a cell that sets these variables; None unsets one."""
    if len(values) == 1 and None not in values.values():
        [(name, value)] = values.items()
        return f"%env {name}={value}"
    kept = ", ".join(f'{name}="{value}"' for name, value in values.items() if value is not None)
    parts = ["import os", *([f"os.environ.update({kept})"] if kept else [])]
    parts += [f'os.environ.pop("{name}", None)' for name, value in values.items() if value is None]
    return "; ".join(parts)


def to_shell(command: str) -> str:
    """The same for a shell: "%pip install x" -> "python -m pip install x"."""
    if command.startswith("import os; "):
        sets = (f"{name}={shlex.quote(value)}" for name, value in re.findall(r'(\w+)="([^"]*)"', command))
        drops = re.findall(r'environ\.pop\("(\w+)"', command)
        exported, unset = " ".join(sets), " ".join(drops)
        return " && ".join([*([f"export {exported}"] if exported else []), *([f"unset {unset}"] if unset else [])])
    for mark, shell in (("%pip ", "python -m pip "), ("%env ", "export "), ("!", "")):
        if command.startswith(mark):
            return shell + command[len(mark) :]
    return command
