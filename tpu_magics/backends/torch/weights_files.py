"""The files with trained weights: a safetensors file, a second file for tensors that safetensors does not support, and
a manifest.

The manifest is written last, so files without one are incomplete. It has the sizes and checksums of the others: mapping
a file that is shorter than its header says would kill the reading process (SIGBUS).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tpu_magics.backends.threads import begin_thread
from tpu_magics.backends.torch.tensor_transfer import has_own_memory, memory_of, one_by_one, tensor_bytes, to_cpu
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.files import open_record, read_record

MANIFEST = "result-weights.json"
PLAIN = "result-weights.safetensors"
ODD = "result-weights.pt"
FILES = (MANIFEST, PLAIN, ODD)
VERSION = 1


@dataclass(frozen=True)
class ManifestEntry:
    """The manifest's entry for one name in a model.

    `kind`: "parameter" or "buffer"; `state`: "data", "none" (registered, but None), "lazy" (not initialized) or "meta"
    (no values); `key`: of the values in the files, the same for names that were one tensor; `layout`: torch's name of
    it, or "quantized".
    """

    kind: str
    state: str
    persistent: bool = True
    requires_grad: bool = False
    shape: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    key: str = ""


@dataclass(frozen=True)
class Manifest:
    """All entries by model and name; the size of each file with values; checksums: of every tensor in the safetensors
    file by key, of the whole second file by its name. `not_finite`: "NaN" or "Inf", by the key of a tensor that
    contains one."""

    models: Mapping[str, Mapping[str, ManifestEntry]]
    files: Mapping[str, int]
    sums: Mapping[str, int]
    not_finite: Mapping[str, str] = field(default_factory=dict)


# -- writing -----------------------------------------------------------------------------------------------------------
def write_weights(folder: Path, models: Mapping[str, Mapping[str, ManifestEntry]], tensors: Mapping[str, Any]) -> None:
    """Write tensors by key, from any device, and the entries of the models: everything, or nothing is left.

    Raises:
        TpuMagicsError: the disk is full, or the folder cannot be written.
    """
    needed = sum(tensor_bytes(tensor) for tensor in tensors.values())
    try:
        _check_space(folder, needed)
        _write(folder, models, tensors)
    except BaseException as error:
        _remove(folder)
        if isinstance(error, OSError):
            raise _not_written(folder, needed, str(error)) from error
        raise


def is_plain(tensor: Any) -> bool:
    """Whether safetensors can hold `tensor`."""
    strided = tensor.layout is torch.strided and not tensor.is_quantized
    return strided and tensor.dtype in DTYPES and has_own_memory(tensor)


def _write(folder: Path, models: Mapping[str, Mapping[str, ManifestEntry]], tensors: Mapping[str, Any]) -> None:
    plain = {key: tensor for key, tensor in tensors.items() if is_plain(tensor)}
    odd = {key: tensor for key, tensor in tensors.items() if key not in plain}
    sums: dict[str, int] = {}
    not_finite: dict[str, str] = {}
    written = []
    if plain:
        order = in_order(plain)
        values = zip(order, one_by_one([plain[key] for key in order]), strict=True)
        sums.update(write(_temporary(folder, PLAIN), plain, _looked_at(values, not_finite)))
        written.append(PLAIN)
    if odd:
        save(dict(zip(odd, to_cpu(list(odd.values())), strict=True)), _temporary(folder, ODD))
        sums[ODD] = _whole_sum(_temporary(folder, ODD))
        written.append(ODD)
    files = {name: _temporary(folder, name).stat().st_size for name in written}
    records = {
        model: {name: dataclasses.asdict(entry) for name, entry in entries.items()} for model, entries in models.items()
    }
    content = {"version": VERSION, "files": files, "sums": sums, "models": records, "not_finite": not_finite}
    text = json.dumps(content)
    _temporary(folder, MANIFEST).write_text(text, encoding="utf-8")
    for name in (*written, MANIFEST):
        _temporary(folder, name).replace(folder / name)


def _looked_at(values: Iterable[tuple[str, Any]], found: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """The values, passed on; `found`: those that are not finite."""
    for key, value in values:
        if what := not_finite(value):
            found[key] = what
        yield key, value


def not_finite(tensor: Any) -> str:
    """ "NaN" or "Inf" if a CPU tensor contains one, else "". The sum is faster than checking each value, but may be
    infinite although no value is."""
    if not tensor.is_floating_point() or math.isfinite(float(tensor.sum())):
        return ""
    counts = {"NaN": int(tensor.isnan().sum()), "Inf": int(tensor.isinf().sum())}
    return next((name for name, count in counts.items() if count), "")


def save(tensors: Mapping[str, Any], path: Path) -> None:
    try:
        torch.save(tensors, path)
    except RuntimeError as error:  # torch 2.9.0 raises no OSError for a full disk
        raise OSError(str(error)) from error


def _whole_sum(path: Path) -> int:
    with open(path, "rb") as file:
        return checksum(file.fileno(), Region(0, path.stat().st_size))


def _check_space(folder: Path, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed:
        raise _not_written(folder, needed, "there is not enough space")


def _not_written(folder: Path, needed: int, reason: str) -> TpuMagicsError:
    try:
        free = f"{shutil.disk_usage(folder).free / 1e6:.1f} MB are free there"
    except OSError as error:
        free = f"the free space there is unknown ({error})"
    return TpuMagicsError(
        "The trained weights could not be written.",
        f"{reason}. They need {needed / 1e6:.1f} MB in {folder}; {free}. No incomplete files were left.",
        "Free some space, or set TPU_MAGICS_RUNS to a folder on another disk, and train again.",
    )


def _remove(folder: Path) -> None:
    for name in FILES:
        for path in (folder / name, _temporary(folder, name)):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # without a manifest, nothing reads it


def _temporary(folder: Path, name: str) -> Path:
    return folder / f"{name}.tmp"


# -- reading -----------------------------------------------------------------------------------------------------------
def read_manifest(folder: Path) -> Manifest:
    """The manifest, after checking that the files it names are complete.

    Raises:
        TpuMagicsError: there is none, or a file is missing, shorter, longer or changed.
    """
    try:
        record = json.loads(read_record(folder / MANIFEST))
        if record["version"] != VERSION:
            raise ValueError(f"its version is {record['version']}, not {VERSION}")
        models = {
            model: {name: ManifestEntry(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in entries.items()}
            for model, entries in record["models"].items()
        }
        manifest = Manifest(models, dict(record["files"]), dict(record["sums"]), dict(record["not_finite"]))
        for name, size in manifest.files.items():
            _check_whole(folder / name, size, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _torn(f"{folder / MANIFEST} and its files could not be read: {error}") from error
    return manifest


def _check_whole(path: Path, size: int, manifest: Manifest) -> None:
    found = path.stat().st_size if path.exists() else 0
    if found != size:
        raise _torn(f"{path} has {found} bytes instead of {size}.")
    with open_record(path) as file:
        regions = {ODD: Region(0, size)} if path.name == ODD else read_regions(file.fileno())
        for key, region in regions.items():
            if checksum(file.fileno(), region) != manifest.sums[key]:
                raise _torn(f"{path} changed after it was written (the checksum of {key} differs).")


def _torn(why: str) -> TpuMagicsError:
    return TpuMagicsError(
        "The trained weights are incomplete, so the notebook's models were not changed.",
        why,
        "Train again. If it happens again, set TPU_MAGICS_RUNS to a folder on a local disk.",
    )


def map_tensors(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """The values by key. Those of the safetensors file are memory-mapped.

    Call it after `read_manifest`, which checks the files. The second file is a torch pickle: only ever loaded from the
    folder of a run that this process itself started.
    """
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    if PLAIN in manifest.files:
        tensors.update(load_file(folder / PLAIN))
    if ODD in manifest.files:
        tensors.update(torch.load(folder / ODD, map_location="cpu", weights_only=False))
    return tensors


def recipe(folder: Path, models: Sequence[str], wanted: str | None = None) -> str:
    """Code with which the user can load the kept files of `models` (only those of the model `wanted`)."""
    readers = {PLAIN: "safetensors.torch.load_file({!r})", ODD: "torch.load({!r})"}
    reads = [text.format(str(folder / name)) for name, text in readers.items() if (folder / name).exists()]
    names = models if wanted is None else [wanted]
    return "; ".join(
        f"{name}.load_state_dict({_part(read, name, models)}, strict=False)" for name in names for read in reads
    )


def _part(read: str, model: str, models: Sequence[str]) -> str:
    prefix = key_prefix(model, models)
    return f"{{k[{len(prefix)}:]: v for k, v in {read}.items() if k.startswith({prefix!r})}}" if prefix else read


def key_prefix(model: str, models: Sequence[str]) -> str:
    """The start of the keys of `model` in files that hold `models`: nothing if it is the only one."""
    return f"{model}/" if len(models) > 1 else ""


# -- the safetensors format -------------------------------------------------------------------------------------------


# `safetensors.torch.save_file` needs all tensors on the CPU at once. Written as they come off the device, a model needs
# no second copy in host memory. The format (safetensors 0.8.0): 8 bytes with the length of the header, a JSON header,
# the tensors' bytes without gaps; wide types first, so that all are aligned.

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
    with open(path, "wb", buffering=0) as file, _summing() as checksum_of:
        _write_all(file.fileno(), _header(tensors))
        for key, value in values:
            memory = memory_of(value.contiguous())
            total = checksum_of(memory)  # neither this nor the write holds the interpreter's lock
            _write_all(file.fileno(), memory)
            sums[key] = total()
    return sums


@contextmanager
def _summing() -> Iterator[Callable[[memoryview], Callable[[], int]]]:
    """A function that starts a checksum in another thread, where one can be started, and returns what waits for it."""
    if not begin_thread(lambda: None):
        yield lambda memory: lambda: _checksum(_blocks(memory))
        return
    with ThreadPoolExecutor(1) as beside:
        yield lambda memory: beside.submit(_checksum, _blocks(memory)).result


def read_regions(file: int) -> dict[str, Region]:
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
