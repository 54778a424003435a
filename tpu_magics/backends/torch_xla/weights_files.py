"""The files in which weights travel: a safetensors file, one for what safetensors refuses, and a manifest.

What lives here: writing them complete or not at all, reading them back, recognising a torn one. What does not: models;
here are only names, records and CPU tensors.

The manifest is written last, so what has no manifest was never finished. It has the size and a checksum of the others:
mapping a file that is shorter than its header says would kill the process that reads it (SIGBUS).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tpu_magics.backends.torch_xla.weights_fetch import has_own_memory, tensor_bytes
from tpu_magics.errors import TpuMagicsError

MANIFEST = "result-weights.json"
PLAIN = "result-weights.safetensors"
ODD = "result-weights.pt"
FILES = (MANIFEST, PLAIN, ODD)
VERSION = 1
_BLOCK = 4 * 2**20

# What every release of safetensors can write; all else goes to the second file.
PLAIN_DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


@dataclass(frozen=True)
class Entry:
    """What the manifest says of one name in a model.

    `kind`: "parameter" or "buffer"; `state`: "data", "none" (registered, but None), "lazy" (never initialised) or
    "meta" (no values anywhere); `key`: under which the values stand in the files, the same for names that were one
    tensor; `layout`: torch's name of it, "quantized" where it is.
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
    """All entries by model and name, and {file: {"bytes", "sum"}} of the files with values."""

    models: Mapping[str, Mapping[str, Entry]]
    files: Mapping[str, Mapping[str, int]]


# -- writing -----------------------------------------------------------------------------------------------------------
def write_weights(folder: Path, models: Mapping[str, Mapping[str, Entry]], tensors: Mapping[str, Any]) -> None:
    """Write CPU tensors by key, and what the names of the models mean. Complete, or nothing is left.

    Raises:
        TpuMagicsError: the disk is full, or the folder cannot be written.
    """
    plain = {key: tensor for key, tensor in tensors.items() if is_plain(tensor)}
    odd = {key: tensor for key, tensor in tensors.items() if key not in plain}
    needed = sum(tensor_bytes(tensor) for tensor in tensors.values())
    try:
        _check_space(folder, needed)
        _write(folder, models, _separate(plain), odd)
    except Exception as error:  # safetensors and torch.save have errors of their own for a full disk
        _remove(folder)
        if isinstance(error, (MemoryError, TpuMagicsError)):
            raise
        raise _not_written(folder, needed, str(error)) from error
    except BaseException:
        _remove(folder)
        raise


def is_plain(tensor: Any) -> bool:
    """Whether safetensors can write `tensor` (once it is contiguous)."""
    strided = tensor.layout is torch.strided and not tensor.is_quantized
    return strided and tensor.dtype in PLAIN_DTYPES and has_own_memory(tensor)


def checksum(path: Path) -> int:
    """A number that tells a file's bytes from others: the 64-bit words of each block are added up, and the sums go
    through CRC-32. As quick as reading; a changed, missing or zeroed part shows, words that changed places in a block
    do not."""
    import numpy as np

    total = 0
    block = memoryview(bytearray(_BLOCK))
    words = np.frombuffer(block, dtype=np.uint64)
    with open(path, "rb") as file:
        while count := file.readinto(block):
            block[count:] = bytes(_BLOCK - count)
            total = zlib.crc32(int(words.sum(dtype=np.uint64)).to_bytes(8, "little"), total)
    return total


def _write(folder: Path, models: Mapping[str, Mapping[str, Entry]], plain: dict[str, Any], odd: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    written = []
    if plain:
        save_file(plain, _temporary(folder, PLAIN), metadata={"format": "pt"})
        written.append(PLAIN)
    if odd:
        torch.save(odd, _temporary(folder, ODD))
        written.append(ODD)
    files = {name: _stamp(_temporary(folder, name)) for name in written}
    record = {
        "version": VERSION,
        "files": files,
        "models": {
            model: {name: dataclasses.asdict(entry) for name, entry in entries.items()}
            for model, entries in models.items()
        },
    }
    _temporary(folder, MANIFEST).write_text(json.dumps(record), encoding="utf-8")
    for name in (*written, MANIFEST):
        _temporary(folder, name).replace(folder / name)


def _stamp(path: Path) -> dict[str, int]:
    return {"bytes": path.stat().st_size, "sum": checksum(path)}


def _separate(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Contiguous tensors of which no two overlap in memory, which safetensors refuses; copied only where need be."""
    result = {key: tensor.contiguous() for key, tensor in tensors.items()}
    end = 0
    for key in sorted(result, key=lambda key: int(result[key].data_ptr())):
        tensor = result[key]
        start = tensor.data_ptr()
        if tensor.numel() and start < end:
            result[key] = tensor.clone()
        end = max(end, start + tensor.numel() * tensor.element_size())
    return result


def _check_space(folder: Path, needed: int) -> None:
    if shutil.disk_usage(folder).free < needed:
        raise _not_written(folder, needed, "there is not enough space")


def _not_written(folder: Path, needed: int, reason: str) -> TpuMagicsError:
    try:
        free = f"{shutil.disk_usage(folder).free / 1e6:.1f} MB are free there"
    except OSError as error:
        free = f"its free space is not available ({error})"
    return TpuMagicsError(
        "The trained weights could not be written.",
        f"{reason}. They take {needed / 1e6:.1f} MB in {folder}; {free}. Nothing half-written was left.",
        "Free some space, or set TPU_MAGICS_RUNS to a folder on another disk, and train again.",
    )


def _remove(folder: Path) -> None:
    for name in FILES:
        for path in (folder / name, _temporary(folder, name)):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                pass  # what cannot be removed has no manifest, so nobody reads it


def _temporary(folder: Path, name: str) -> Path:
    return folder / f"{name}.tmp"


# -- reading -----------------------------------------------------------------------------------------------------------
def read_manifest(folder: Path) -> Manifest:
    """The manifest, after the files it names were found whole.

    Raises:
        TpuMagicsError: there is none, or a file is missing, shorter, longer or changed.
    """
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise ValueError(f"its version is {record['version']}, not {VERSION}")
        models = {
            model: {name: Entry(**{**entry, "shape": tuple(entry["shape"])}) for name, entry in entries.items()}
            for model, entries in record["models"].items()
        }
        files = {name: {"bytes": stamp["bytes"], "sum": stamp["sum"]} for name, stamp in record["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _torn(f"{folder / MANIFEST} could not be read: {error}") from error
    for name, stamp in files.items():
        _check_whole(folder / name, stamp)
    return Manifest(models, files)


def _check_whole(path: Path, stamp: Mapping[str, int]) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size != stamp["bytes"]:
        raise _torn(f"{path} has {size} bytes instead of {stamp['bytes']}.")
    if checksum(path) != stamp["sum"]:
        raise _torn(f"The bytes of {path} are not those that were written (the checksum differs).")


def _torn(why: str) -> TpuMagicsError:
    return TpuMagicsError(
        "The trained weights did not arrive whole, so the notebook's models are as they were.",
        why,
        "Train again. If it happens again, set TPU_MAGICS_RUNS to a folder on a local disk.",
    )


def map_tensors(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """The values by key. Those of the safetensors file are mapped, not read: their pages come in when they are copied.

    To be called after `read_manifest` found the files whole. The second file is a pickle by torch: only ever loaded
    from the folder of a run that this process itself started.
    """
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    if PLAIN in manifest.files:
        tensors.update(load_file(folder / PLAIN))
    if ODD in manifest.files:
        tensors.update(torch.load(folder / ODD, map_location="cpu", weights_only=False))
    return tensors


def recipe(folder: Path, models: Sequence[str], wanted: str | None = None) -> str:
    """How a person loads the kept files of `models` by hand (only those of the model `wanted`), as instructions."""
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
    """What the keys of `model` begin with in files that hold `models`: nothing, if it is the only one."""
    return f"{model}/" if len(models) > 1 else ""
