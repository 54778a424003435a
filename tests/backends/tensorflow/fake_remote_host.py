"""Stands for the host of a remote TPU: a TensorFlow server of another process, without this machine's Python and, as
its working directory is another, without the files that relative paths name. It has a CPU where that one has a TPU.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def remote_host(folder: Path) -> Iterator[str]:
    """Gives its address. Its working directory is `folder`. A fork, so TensorFlow may not have begun anything yet."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        _serve(folder, address, told)
    os.close(told)
    try:
        assert os.read(ready, 5) == b"ready"
        yield address
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _serve(folder: Path, address: str, told: int) -> None:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir(folder)
        server = tf.distribute.Server(tf.train.ClusterSpec({"worker": [address]}), job_name="worker", task_index=0)
        os.write(told, b"ready")
        server.join()
    finally:
        os._exit(1)
