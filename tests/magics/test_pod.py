"""`%tpu_pod`, and `%tpu_init --hosts` where it is refused, in a real kernel. On clusters: tests/launch/pods."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from .kernel import Kernel

pytestmark = pytest.mark.process

FUNCTION = """
import torch
model = torch.nn.Linear(1000, 1000)
def training_function(model, lr=0.1):
    return lr
"""


def test_without_hosts_it_says_how_to_name_them_and_how_to_get_them(kernel: Kernel) -> None:
    [table] = kernel.run("%tpu_pod").good().displays
    assert "for a Ray cluster: %tpu_init --hosts ADDRESS" in table["text/plain"]
    assert "TPU VMs: https://cloud.google.com/tpu/docs/" in table["text/plain"]
    assert '<a href="https://cloud.google.com/tpu/docs/' in table["text/html"]


def test_what_a_function_takes_along(kernel: Kernel) -> None:
    kernel.run(FUNCTION).good()
    [table] = kernel.run("%tpu_pod training_function model lr=0.5 --target v4-16").good().displays
    text = " ".join(table["text/plain"].split())
    assert "dry run of training training_function on 2 hosts" in text
    assert "4 MB: models and large arrays, through Ray's object store, once for each host" in text
    sent = re.search(r"Sent in all (\S+) MB to 2 hosts", text)
    assert sent is not None and 8.008 < float(sent[1]) < 9, "the model twice, and two bundles"
    assert "4 MB: the trained weights of rank 0" in text
    assert kernel.value("'ray' in __import__('sys').modules") is False
    assert kernel.value("__import__('tpu_magics').pod(training_function, model).load.models") == 4_004_000


def test_what_cannot_be_sent_is_said_by_its_name(kernel: Kernel) -> None:
    kernel.run("import threading\nlock = threading.Lock()\ndef locked():\n    return lock.locked()").good()
    error = kernel.run("%tpu_pod locked").error
    assert error.startswith("TpuMagicsError: ") and "lock" in error


def test_wrong_words(kernel: Kernel) -> None:
    assert "There is no TPU named" in kernel.run("%tpu_pod --target v99").error


def test_hosts_that_cannot_be_had_change_nothing(kernel: Kernel) -> None:
    kernel.run("%tpu_init -n 2").good()
    refused = kernel.run("%tpu_init --hosts 127.0.0.1:1 -n 4").error
    if find_spec("ray") is None:  # it comes with the extra `pods`; no image for TPUs ships it
        assert refused.startswith("TpuMagicsError: Ray is not installed in this notebook's environment.")
    else:
        assert refused.startswith("TpuMagicsError: No Ray cluster answers at 127.0.0.1:1.")
        assert "Connection refused" in refused
    assert "is not the address of a Ray cluster" in kernel.run("%tpu_init --hosts head").error
    assert "--target needs --hosts" in kernel.run("%tpu_init --target v5e-16").error
    kernel.run("import tpu_magics.launch.session as s").good()
    assert kernel.value("(s.current.processes, s.current.pod)") == (2, None)
