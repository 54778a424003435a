"""Stands for the host of a remote TPU: a TensorFlow server of another process, without this machine's Python and, as
its working directory is another, without the files that relative paths name. It has a CPU where that one has a TPU.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SERVER = """
import sys, tensorflow as tf
cluster = tf.train.ClusterSpec({"worker": ["localhost:" + sys.argv[1]]})
server = tf.distribute.Server(cluster, job_name="worker", task_index=0)
print("ready", flush=True)
sys.stdin.read()
"""
DEVICE = "/job:worker/replica:0/task:0/device:CPU:0"


@contextmanager
def remote_host(folder: Path) -> Iterator[str]:
    """Gives its address. Its working directory is `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _SERVER, str(port)]
    server = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stdout.readline().strip() == "ready"
        yield f"localhost:{port}"
    finally:
        server.kill()
        server.wait()
