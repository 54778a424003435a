"""Event files of TensorBoard, read back record by record: length, checksum, event, checksum (TFRecord)."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def read_back(folder: Path) -> dict[str, list[tuple[int, float, float | str]]]:
    """Tag -> step, time and value of each point of the files in a folder."""
    found = defaultdict(list)
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in _events(path.read_bytes()):
            for value in event.summary.value:
                text = [each.decode() for each in value.tensor.string_val]
                found[value.tag].append((event.step, event.wall_time, text[0] if text else value.simple_value))
    return dict(found)


def _events(data: bytes) -> Iterator[Event]:
    """The events that are whole: a run that goes on is being written."""
    at = 0
    while at + 12 <= len(data):
        [length] = struct.unpack("<Q", data[at : at + 8])
        if at + 12 + length + 4 > len(data):
            return
        yield Event.FromString(data[at + 12 : at + 12 + length])
        at += 12 + length + 4
