"""`python -m tests.fork_server MODULE...`: imports them once, and forks for each program that forks.py asks for.

Each line of its input is a request, each line of its output the exit status of that program, or the pid of one that is
not waited for. A fork is made before what was imported has begun anything: no device, no thread, no flag of XLA's read.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from typing import Any

BEFORE = dict(os.environ)  # imports set variables, too


def next_program() -> dict[str, Any] | None:
    """In a fork: what is to be run there. In the process itself: None, when nothing more will be asked for."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return request
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if request["wait"] else session_of(pid), flush=True)
    return None


def session_of(pid: int) -> int:
    """The session of a program, once it leads one: who ends its process group must not end this process's."""
    while os.getsid(pid) != pid:
        time.sleep(0.001)
    return pid


def become(request: dict[str, Any]) -> dict[str, Any]:
    """All that a fresh Python has of its own; the namespace of its program."""
    if not request["wait"]:
        os.setsid()
    environment = request["environment"]
    for name in {**BEFORE, **environment}:
        if name not in environment:
            os.environ.pop(name, None)
        elif environment[name] != BEFORE.get(name):
            os.environ[name] = environment[name]
    os.chdir(request["cwd"])
    for number, path in enumerate((os.devnull, request["output"], request["errors"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
    file = request["file"]
    sys.argv[:] = [file or "-c", *request["words"]]
    # PYTHONPATH is the program's own: the server's may be another, and its folder is the entry that is replaced here.
    sys.path[:1] = [os.path.dirname(file), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    main = type(sys)("__main__")
    if file:
        main.__file__ = file
    sys.modules["__main__"] = main
    return vars(main)


for module in sys.argv[1:]:
    importlib.import_module(module)
gc.freeze()
asked = next_program()
if asked:
    names = become(asked)
    exec(compile(asked["code"], asked["file"] or "<string>", "exec"), names)
