"""Writes the safetensors format tensor by tensor, with checksums.

`safetensors.torch.save_file` needs all tensors on the CPU at once. Written as they come off the device, a model needs
no second copy in host memory. The format (safetensors 0.8.0): 8 bytes with the length of the header, a JSON header, the
tensors' bytes without gaps; wide types first, so that all are aligned.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

# What every release of safetensors can read.
DTYPES: Mapping[Any, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_BLOCK = 4 * 2**20


@dataclass(frozen=True)
class Region:
    """Where a tensor's bytes are in a file."""

    offset: int
    size: int


def in_order(tensors: Mapping[str, Any]) -> list[str]:
    """The keys in file order."""
    return sorted(tensors, key=lambda key: (-tensors[key].element_size(), key))


def write(path: Path, tensors: Mapping[str, Any], values: Iterable[tuple[str, Any]]) -> dict[str, int]:
    """Write a file and return the checksum of each tensor's bytes.

    Args:
        path: the file.
        tensors: by key; only their dtypes and shapes are used.
        values: (key, CPU tensor) in the order of `in_order`.
    """
    sums: dict[str, int] = {}
    with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(1) as beside:
        _write_all(file.fileno(), _header(tensors))
        for key, value in values:
            memory = memory_of(value.contiguous())
            total = beside.submit(_checksum, _blocks(memory))  # neither this nor the write holds the interpreter's lock
            _write_all(file.fileno(), memory)
            sums[key] = total.result()
    return sums


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor, readable and writable."""
    return memoryview(tensor.detach().view(-1).view(torch.uint8).numpy())


def regions(file: int) -> dict[str, Region]:
    """The regions of an open file, by key. Raises ValueError if its header is invalid."""
    length = int.from_bytes(os.pread(file, 8, 0), "little")
    header = json.loads(os.pread(file, length, 8))
    header.pop("__metadata__", None)
    spans = {key: entry["data_offsets"] for key, entry in header.items()}
    return {key: Region(8 + length + start, end - start) for key, (start, end) in spans.items()}


def checksum(file: int, region: Region) -> int:
    """A checksum of a region: the 64-bit words of each block are summed, and the sums go through CRC-32. As fast as
    reading; it detects a changed, missing or zeroed part, but not words that swapped places within a block."""
    return _checksum(_read(file, region))


def _checksum(blocks: Iterable[memoryview]) -> int:
    total = 0
    for block in blocks:
        whole = len(block) // 8 * 8
        words = int(np.frombuffer(block[:whole], dtype=np.uint64).sum(dtype=np.uint64))
        total = zlib.crc32(block[whole:], zlib.crc32(words.to_bytes(8, "little"), total))
    return total


def _read(file: int, region: Region) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(_BLOCK, region.size)))
    for start in range(0, region.size, _BLOCK):
        block = buffer[: min(_BLOCK, region.size - start)]
        if os.preadv(file, [block], region.offset + start) != len(block):
            raise OSError("the file ended too early")
        yield block


def _blocks(memory: memoryview) -> Iterator[memoryview]:
    return (memory[start : start + _BLOCK] for start in range(0, len(memory), _BLOCK))


def _write_all(file: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _header(tensors: Mapping[str, Any]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key in in_order(tensors):
        tensor = tensors[key]
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[key] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
