"""What of TensorFlow's C++ log is shown, and how it comes through a kernel's stream. The lines are those of 2.21."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.launch import tee

PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
INFO = (
    "I0000 00:00:1795315768.365482    3201 cpu_feature_guard.cc:227] This binary is optimized.\n"
    "To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.\n"
)
RAISED = (
    "W0000 00:00:1795316175.614070   11626 op_kernel.cc:1858] OP_REQUIRES failed at xla_ops.cc:602 : INVALID: x\n"
    "The op is created at: \n"
    'File "<frozen runpy>", line 198, in _run_module_as_main\n'
    'File "/tmp/ipykernel_1/2.py", line 2, in <module>\n'
    "\ttf2xla conversion failed while converting __inference_step_2985[].\n"
    "W0000 00:00:1795316175.614621   11626 local_rendezvous.cc:412] Local rendezvous is aborting with status: x\n"
    "\t [[StatefulPartitionedCall]]\n"
)
WARNING = "W0000 00:00:1795315802.821255    3201 assert_op.cc:39] Ignoring Assert operator assert_less/Assert\n"
ERROR = "E0000 00:00:1795315802.821255    3201 cuda_dnn.cc:1] Cannot load.\n"
OLDER = "2026-01-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This binary is optimized.\n"
OWN = "tf print 0.3\n\tindented\nIt is 5 o'clock\n12 files\n"


def shown(*pieces: str) -> str:
    seen = tee.LogFilter()
    return "".join(map(seen.feed, pieces)) + seen.flush()


@pytest.mark.parametrize("text", [PREAMBLE, INFO, OLDER, RAISED, PREAMBLE + INFO + INFO])
def test_info_and_what_is_raised_as_well_is_left_out(text: str) -> None:
    assert shown(text) == ""


@pytest.mark.parametrize("text", [WARNING, ERROR, OWN, "begun, and no end of the line", "Warning: 3"])
def test_all_else_is_shown(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize("size", [1, 7, 40, 1000])
def test_pieces_may_end_anywhere(size: int) -> None:
    text = PREAMBLE + INFO + OWN + RAISED + OWN + WARNING + INFO + OWN
    assert shown(*(text[at : at + size] for at in range(0, len(text), size))) == OWN + OWN + WARNING + OWN


def test_what_cannot_be_one_of_the_log_is_shown_at_once() -> None:
    seen = tee.LogFilter()
    assert seen.feed("loss: ") == "loss: " and seen.feed("I 3\nI0000 ") == "I 3\n" and seen.flush() == "I0000 "


class Stream:
    """As ipykernel's: a thread of its own gives it what C++ has written."""

    def __init__(self) -> None:
        self.text = ""
        self.watch_fd_thread: Any = None

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


def test_only_what_c_has_written_is_left_out_and_the_log_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, log = Stream(), tee.Log(tmp_path / "log")
    stream.watch_fd_thread = threading.Thread()
    monkeypatch.setattr(sys, "stderr", stream)
    reader = stream.watch_fd_thread
    reader.run = lambda: stream.write(INFO + OWN)
    with tee.record(log):
        stream.write(INFO)  # Python's own
        reader.start()
        reader.join()
    assert stream.text == INFO + OWN and "write" not in vars(stream)
    assert (tmp_path / "log").read_text() == INFO + INFO + OWN
    log.close()
