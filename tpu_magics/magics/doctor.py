"""`%tpu_doctor`, `tpu_magics.doctor` and `python -m tpu_magics doctor`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from tpu_magics.host.doctor import apply_fixes, collect_facts, examine
from tpu_magics.host.doctor.commands import PYTHON
from tpu_magics.magics.display import show
from tpu_magics.panel.doctor import Diagnosis, to_json


def doctor(fix: bool = False) -> Diagnosis:
    """What `%tpu_doctor` does: find the problems of this environment, each with the command that fixes it.

    It starts no runtime and imports no framework; it queries the metadata server of Google Cloud at most once, for less
    than 2 s.

    Args:
        fix: apply the safe fixes (variables of this session, an unused lock file), and check again.

    Returns:
        The diagnosis: a notebook displays it, `print` gives it as text; `.checks`, `.broken`, `.done`, `.left`.
    """
    return _examined(fix, shell=False)


def _examined(fix: bool, shell: bool) -> Diagnosis:
    from tpu_magics.launch import session

    if fix:
        session.current.refuse_in_worker("%tpu_doctor --fix")
    framework = _framework(session.current.framework)
    runtime = None if shell else bool(session.current.backend.runtime_initialized())
    checks = examine(collect_facts(framework=framework, runtime=runtime))
    if not fix:
        return Diagnosis(checks, shell=shell, python=_python(shell))
    mended = apply_fixes(checks, os.environ, in_session=not shell)
    again = examine(collect_facts(framework=framework, runtime=runtime)) if mended.done else checks
    return Diagnosis(again, mended.done, mended.left, fixed=True, shell=shell, python=_python(shell))


def _python(shell: bool) -> str:
    """How a shell calls this interpreter's `python` (`shell`) or `pip`: by its path where it would find another one."""
    found = shutil.which(PYTHON if shell else "pip")
    same = found is not None and Path(found).parent == Path(sys.executable).parent
    return PYTHON if same else sys.executable


def _framework(asked: str) -> str:
    """The framework of the cells; torch where that is unknown."""
    from tpu_magics.backends.frameworks import AUTO, DEFAULT, choose_framework, imported

    if asked == AUTO and len(imported()) > 1:
        return DEFAULT.name
    return choose_framework(asked)


def run(found: argparse.Namespace) -> None:
    """The magic: display the diagnosis, or print it where there is no front end."""
    diagnosis = _examined(found.fix, shell=False)
    if found.json:
        print(to_json(diagnosis), flush=True)
        return
    show(diagnosis._repr_mimebundle_())


# -- the command line ----------------------------------------------------------------------------------------------


def run_command(found: argparse.Namespace) -> int:
    """The command; gives the exit code: 1 where something is broken."""
    diagnosis = _examined(found.fix, shell=True)
    print(to_json(diagnosis) if found.json else diagnosis)
    return 1 if diagnosis.broken else 0
