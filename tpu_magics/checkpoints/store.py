"""Where checkpoints are: each is whole or not there, and verified when it is read.

A checkpoint is a folder, `step-000001200-17f1c2`, with its files and a manifest that has their checksums. On a disk it
is written beside, flushed and renamed. An object store has no rename: its manifest is written last, and a folder
without one is no checkpoint. The second part of the name is the time of the save: the newest counts, whatever its step.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from tpu_magics.errors import TpuMagicsError

MANIFEST = "manifest.json"
_PREFIX, _UNFINISHED, _EXCHANGE = "step-", ".unfinished-", ".exchange-"
_CHUNK = 4 << 20  # bytes


class Damaged(Exception):
    """A checkpoint that is not as it was written; the sentence says what is wrong."""


@dataclass(frozen=True)
class SavedFile:
    """`sha256`: of its content, in hexadecimal digits; `size`: bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint has. `step`: optimizer steps before it; `saved`: seconds since the epoch; `about`: JSON data of
    the run."""

    step: int
    saved: float
    files: Mapping[str, SavedFile] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """With a checksum of itself."""
        body = json.dumps(asdict(self), sort_keys=True)
        return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CheckpointManifest:
        """Raises Damaged."""
        try:
            outer = json.loads(data)
            body = outer["manifest"]
            if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
                raise Damaged(f"the checksum of {MANIFEST} is wrong")
            fields = json.loads(body)
            files = {name: SavedFile(**one) for name, one in fields.pop("files").items()}
            if not all(map(_is_inside, files)):
                raise Damaged(f"{MANIFEST} has names of files outside of it")
            return cls(files=files, **fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Damaged(f"{MANIFEST} cannot be read ({type(error).__name__})") from error


class CheckpointPlace(Protocol):
    """A folder, on a disk or in an object store."""

    name: str

    def names(self) -> list[str]:
        """Of its checkpoints, in any order. Raises OSError."""

    def put(self, name: str, files: Mapping[str, Path], manifest: bytes) -> None:
        """Write a checkpoint, which is there when this returns. The files may be moved. Raises OSError, and then
        nothing of it is."""

    def open(self, name: str, file: str) -> BinaryIO:
        """A file of a checkpoint, to read. Raises OSError."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint: its manifest first. Raises OSError."""

    def remove_unfinished(self) -> None:
        """Remove what broken saves have left."""

    def remove_boards(self) -> None:
        """Remove those of earlier runs."""

    def board(self, name: str) -> Board:
        """Where the hosts of a run leave notes and files for each other, below this place."""


class Board(Protocol):
    """Notes and files that the ranks of a run leave for each other. All methods raise OSError."""

    def write(self, name: str, text: str) -> None:
        """A note, which is there as a whole or not."""

    def read(self, name: str) -> str | None:
        """A note; None if there is none."""

    def put(self, name: str, path: Path) -> None:
        """A file for another host."""

    def take(self, name: str, path: Path) -> None:
        """A file from another host, which is gone then."""


class FolderBoard:
    """In a folder that all of them see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, text: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.folder / f"{name}.{os.getpid()}.tmp"
        temporary.write_text(text)
        temporary.replace(self.folder / name)

    def read(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return None

    def put(self, name: str, path: Path) -> None:
        shutil.copyfile(path, self.folder / name)

    def take(self, name: str, path: Path) -> None:
        shutil.copyfile(self.folder / name, path)
        (self.folder / name).unlink()


class RemoteBoard:
    """In an object store. `system`: fsspec's."""

    def __init__(self, system: Any, root: str) -> None:
        self.system = system
        self.root = root

    def write(self, name: str, text: str) -> None:
        self.system.pipe_file(f"{self.root}/{name}", text.encode())

    def read(self, name: str) -> str | None:
        self.system.invalidate_cache()
        try:
            return bytes(self.system.cat_file(f"{self.root}/{name}")).decode()
        except FileNotFoundError:
            return None

    def put(self, name: str, path: Path) -> None:
        self.system.put_file(str(path), f"{self.root}/{name}")

    def take(self, name: str, path: Path) -> None:
        self.system.get_file(f"{self.root}/{name}", str(path))
        self.system.rm_file(f"{self.root}/{name}")


@dataclass(frozen=True)
class SavedCheckpoint:
    """One that is whole, as far as its manifest tells."""

    place: CheckpointPlace
    name: str
    manifest: CheckpointManifest

    def fetch(self, folder: Path) -> dict[str, Path]:
        """Copy its files into a folder, and check them. Returns where they are. Raises Damaged, OSError."""
        found = {}
        for name, wanted in self.manifest.files.items():
            found[name] = path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = hashlib.sha256()
            with self._open(name) as source, path.open("wb") as copy:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    copy.write(chunk)
            if path.stat().st_size != wanted.size:
                raise Damaged(f"{name} has {path.stat().st_size:,} bytes instead of {wanted.size:,}")
            if digest.hexdigest() != wanted.sha256:
                raise Damaged(f"the checksum of {name} is wrong")
        return found

    def _open(self, name: str) -> BinaryIO:
        try:
            return self.place.open(self.name, name)
        except FileNotFoundError as error:
            raise Damaged(f"{name} is missing") from error


class CheckpointStore:
    """The checkpoints of one run. Not for several writers at a time: rank 0 saves."""

    def __init__(self, place: CheckpointPlace) -> None:
        self.place = place

    def save(self, step: int, files: Mapping[str, Path], about: Mapping[str, Any]) -> SavedCheckpoint:
        """Write a checkpoint of these files, which may be moved. Raises OSError; older checkpoints stay as they are."""
        now = time.time()
        manifest = CheckpointManifest(step, now, {name: _saved(path) for name, path in files.items()}, about)
        name = f"{_PREFIX}{step:09d}-{time.time_ns():x}"
        self.place.put(name, files, manifest.to_bytes())
        return SavedCheckpoint(self.place, name, manifest)

    def look(self) -> SavedCheckpoint | None:
        """The newest with a whole manifest; its files are not read. Raises OSError if the place cannot be read."""
        for name in self._in_order():
            with contextlib.suppress(FileNotFoundError, Damaged):
                return self.opened(name)
        return None

    def newest(self, folder: Path, tell: Callable[[str], None]) -> tuple[SavedCheckpoint, dict[str, Path]] | None:
        """The newest whole checkpoint and its files, which are copied into a folder; None if there is none. `tell`: is
        called with a sentence for each that is passed over. Raises OSError if the place cannot be read."""
        for name in self._in_order():
            try:
                found = self.opened(name)
                return found, found.fetch(folder)
            except FileNotFoundError:
                continue  # its save was broken, or it is being removed
            except Damaged as error:
                tell(f"The checkpoint {name} is damaged and was passed over: {error}.")
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
        return None

    def keep(self, number: int) -> None:
        """Remove all but the newest ones; call it when the newest is whole. Raises OSError."""
        for name in self._in_order()[number:]:
            self.place.remove(name)
        self.place.remove_unfinished()

    def opened(self, name: str) -> SavedCheckpoint:
        """One of them; its files are not read. Raises Damaged, OSError."""
        with self.place.open(name, MANIFEST) as file:
            return SavedCheckpoint(self.place, name, CheckpointManifest.from_bytes(file.read()))

    def _in_order(self) -> list[str]:
        """The newest first."""
        return sorted(self.place.names(), key=lambda name: int(name.rpartition("-")[2], 16), reverse=True)


def _saved(path: Path) -> SavedFile:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return SavedFile(digest.hexdigest(), size)


def _is_name(name: str) -> bool:
    prefix, _, stamp = name.rpartition("-")
    return prefix.startswith(_PREFIX) and prefix[len(_PREFIX) :].isdecimal() and _is_hexadecimal(stamp)


def _is_inside(name: str) -> bool:
    """Whether a file's name stays below the folder that it is joined to."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _is_hexadecimal(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return int(text, 16) > 0
    return False


# -- places -----------------------------------------------------------------------------------------------------------


class DiskPlace:
    """A folder on a disk of this machine, or one that is mounted (Google Drive, NFS).

    Raises TpuMagicsError where it cannot be made, belongs to another account, or another account can write to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe = folder / f"{_UNFINISHED}probe-{os.getpid()}"
            probe.mkdir()
            probe.rmdir()
            found = folder.stat()
        except OSError as error:
            raise TpuMagicsError(
                f"Checkpoints cannot be written to {folder}.",
                f"{error.strerror or type(error).__name__}: {error.filename or folder}",
                "Choose a folder that you can write to: %tpu_init --checkpoints FOLDER.",
            ) from error
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise TpuMagicsError(
                f"Checkpoints are not kept in {folder}.",
                "It belongs to another account, or another account can write to it: what is loaded from there would be "
                "trusted.",
                f"Choose a folder of your own, or take the others' rights away: !chmod go-w {folder}",
            )

    def names(self) -> list[str]:
        return [one.name for one in self.folder.iterdir() if _is_name(one.name)]

    def put(self, name: str, files: Mapping[str, Path], manifest: bytes) -> None:
        unfinished = self.folder / f"{_UNFINISHED}{name}"
        try:
            unfinished.mkdir(mode=0o700)
            for file, path in files.items():
                (unfinished / file).parent.mkdir(parents=True, exist_ok=True)
                _move(path, unfinished / file)
            with (unfinished / MANIFEST).open("xb") as copy:
                copy.write(manifest)
                _flush(copy)
            for folder in (*(one for one in unfinished.rglob("*") if one.is_dir()), unfinished):
                _flush_folder(folder)
            unfinished.rename(self.folder / name)
            _flush_folder(self.folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def board(self, name: str) -> Board:
        return FolderBoard(self.folder / f"{_EXCHANGE}{name}")

    def open(self, name: str, file: str) -> BinaryIO:
        return (self.folder / name / file).open("rb")

    def remove(self, name: str) -> None:
        gone = self.folder / f"{_UNFINISHED}{name}"
        (self.folder / name).rename(gone)  # at once: it is not there any more
        shutil.rmtree(gone, ignore_errors=True)

    def remove_unfinished(self) -> None:
        self._remove_all(_UNFINISHED)

    def remove_boards(self) -> None:
        self._remove_all(_EXCHANGE)

    def _remove_all(self, prefix: str) -> None:
        for one in self.folder.glob(f"{prefix}*"):
            shutil.rmtree(one, ignore_errors=True)


def _move(path: Path, target: Path) -> None:
    """A file to this place, and to the disk."""
    try:
        path.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with path.open("rb") as source, target.open("xb") as copy:  # another file system
            shutil.copyfileobj(source, copy, _CHUNK)
            _flush(copy)
        return
    with target.open("rb") as moved:
        os.fsync(moved.fileno())


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Some mounted file systems cannot."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RemotePlace:
    """A folder in an object store, through fsspec. `url`: "gs://bucket/run1"; `system`: fsspec's file system."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        self.name = url
        self.system = system
        self.root = root.rstrip("/")

    def names(self) -> list[str]:
        return [name for name in self._folders() if _is_name(name)]

    def _folders(self) -> list[str]:
        self.system.invalidate_cache()
        try:
            found = self.system.ls(self.root, detail=False)
        except FileNotFoundError:
            return []
        return [str(one).rstrip("/").rpartition("/")[2] for one in found]

    def put(self, name: str, files: Mapping[str, Path], manifest: bytes) -> None:
        try:
            for file, path in files.items():
                self.system.put_file(str(path), self._path(name, file))
            self.system.pipe_file(self._path(name, MANIFEST), manifest)
        except BaseException:
            with contextlib.suppress(Exception):
                self.remove(name)
            raise

    def board(self, name: str) -> Board:
        return RemoteBoard(self.system, f"{self.root}/{_EXCHANGE}{name}")

    def open(self, name: str, file: str) -> BinaryIO:
        found: BinaryIO = self.system.open(self._path(name, file), "rb")
        return found

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.rm_file(self._path(name, MANIFEST))
        with contextlib.suppress(FileNotFoundError):
            self.system.rm(f"{self.root}/{name}", recursive=True)

    def remove_unfinished(self) -> None:
        for name in self.names():
            if not self.system.exists(self._path(name, MANIFEST)):
                self.remove(name)

    def remove_boards(self) -> None:
        for name in self._folders():
            if name.startswith(_EXCHANGE):
                self.system.rm(f"{self.root}/{name}", recursive=True)

    def _path(self, name: str, file: str) -> str:
        return f"{self.root}/{name}/{file}"


def open_place(where: str) -> CheckpointPlace:
    """The place that `--checkpoints` names: a folder, or an address of fsspec's ("gs://bucket/run1").

    Raises TpuMagicsError where it cannot be used.
    """
    if "://" not in where or where.startswith("file://"):
        return DiskPlace(Path(where.removeprefix("file://")).expanduser().absolute())
    try:
        fsspec: Any = import_module("fsspec")
        system, root = fsspec.core.url_to_fs(where)
        return RemotePlace(where, system, root)
    except (ImportError, ValueError) as error:
        raise TpuMagicsError(
            f"Checkpoints cannot be written to {where}.",
            f"{type(error).__name__}: {error}",
            'For gs:// addresses: %pip install "tpu-magics[gcs]", and restart the kernel.',
        ) from error
