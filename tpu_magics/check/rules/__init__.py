"""The rules, each in a file of its own.

What lives here: the list. A rule that is not in it does not exist.
"""

from __future__ import annotations

import importlib
import pkgutil

RULES = []
for _one in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):  # while they are being written
    if _one.name.startswith("tpu"):
        try:
            RULES.append(importlib.import_module(f"{__name__}.{_one.name}"))
        except Exception as error:
            print("not loaded", _one.name, error)
