"""Where checkpoints are: each is whole or not there, and verified when it is read.

A checkpoint is a folder, `step-000001200-17f1c2`, with its files and a manifest that has their checksums. On a disk it
is written beside, flushed and renamed. An object store has no rename: its manifest is written last, and a folder
without one is no checkpoint. The second part of the name numbers the saves of the place: the highest is the newest,
whatever its step and the time of day.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from tpu_magics.checkpoints import lock
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.files import open_regular, read_regular

MANIFEST = "manifest.json"
FORMAT = 2
"""Of a checkpoint's files. Before 2, the place of a call in its function was known by bytecode."""
_PREFIX, _UNFINISHED, _EXCHANGE = "step-", ".unfinished-", ".exchange-"
_CHUNK = 4 << 20  # bytes
_MOST_MANIFEST = 64 << 20  # bytes
_ANSWER = 60.0  # seconds in which a place must have been written to and read from
_CHECKSUM = re.compile("[0-9a-f]{64}")
_NOT_A_FILE = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EINVAL, errno.ENXIO, errno.ENAMETOOLONG)


class Damaged(Exception):
    """A checkpoint that is not as it was written; the sentence says what is wrong."""


class OtherFormat(Exception):
    """A whole checkpoint of another version of this package; the sentence says which."""


@dataclass(frozen=True)
class SavedFile:
    """`sha256`: of its content, in hexadecimal digits; `size`: bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint has. `step`: optimizer steps before it; `saved`: seconds since the epoch; `about`: JSON data of
    the run; `format`: FORMAT of who wrote it."""

    step: int
    saved: float
    files: Mapping[str, SavedFile] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """With a checksum of itself."""
        body = json.dumps(asdict(self), sort_keys=True)
        return json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> CheckpointManifest:
        """Raises Damaged, OtherFormat."""
        try:
            outer = json.loads(data)
            body = outer["manifest"]
            if hashlib.sha256(body.encode()).hexdigest() != outer["sha256"]:
                raise Damaged(f"the checksum of {MANIFEST} is wrong")
            fields = json.loads(body)
            _check_format(fields)
            files = {name: SavedFile(**one) for name, one in fields.pop("files").items()}
            found = cls(files=files, **fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Damaged(f"{MANIFEST} cannot be read ({type(error).__name__})") from error
        if problem := found._problem():
            raise Damaged(f"{MANIFEST} {problem}")
        return found

    def _problem(self) -> str:
        """What in it is not as `to_bytes` writes it, or ""."""
        if not all(map(_is_inside, self.files)):
            return "has names of files outside of it"
        files_good = all(
            type(one.size) is int and one.size >= 0 and isinstance(one.sha256, str) and _CHECKSUM.fullmatch(one.sha256)
            for one in self.files.values()
        )
        is_time = type(self.saved) in (int, float) and math.isfinite(self.saved)
        good = files_good and is_time and type(self.step) is int and self.step >= 0 and isinstance(self.about, dict)
        return "" if good else "has fields of other types"


def _check_format(fields: Mapping[str, Any]) -> None:
    """Raise OtherFormat for one that is not FORMAT. The first version had it among `about`."""
    found = fields.get("format", fields["about"].get("format", 1))
    if type(found) is not int:
        raise TypeError("format")
    if found != FORMAT:
        age = "a newer" if found > FORMAT else "an older"
        raise OtherFormat(f"{age} version of tpu-magics saved it, in format {found}; this one reads format {FORMAT}")


class CheckpointPlace(lock.Notes, Protocol):
    """A folder, on a disk or in an object store."""

    def names(self) -> list[str]:
        """The names of its checkpoints, in any order. Raises OSError."""

    def put(self, name: str, files: Mapping[str, Path], manifest: bytes) -> None:
        """Write a checkpoint, which is there when this returns. The files may be moved. Raises OSError, and then
        nothing of it is."""

    def open(self, name: str, file: str) -> BinaryIO:
        """A file of a checkpoint, to read. Raises OSError, and Damaged for what is no file."""

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
            return read_regular(self.folder / name).decode()
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
    """The checkpoints of one run. Not for several writers at a time: rank 0 saves. `token`: of the run's lock, without
    which nothing is written."""

    def __init__(self, place: CheckpointPlace, token: str = "") -> None:
        self.place = place
        self.token = token

    def save(self, step: int, files: Mapping[str, Path], about: Mapping[str, Any]) -> SavedCheckpoint:
        """Write a checkpoint of these files, which may be moved. Raises OSError; older checkpoints stay as they are."""
        manifest = CheckpointManifest(step, time.time(), {name: _saved(path) for name, path in files.items()}, about)
        name = f"{_PREFIX}{step:09d}-{self._next():x}"
        self._require_lock()
        self.place.put(name, files, manifest.to_bytes())
        return SavedCheckpoint(self.place, name, manifest)

    def _next(self) -> int:
        """Higher than all numbers of the place. Its last part is random: no two saves ever write to one name."""
        highest = max(map(_number, self.place.names()), default=0)
        return ((highest >> _RANDOM) + 1 << _RANDOM) + secrets.randbits(_RANDOM)

    def _require_lock(self) -> None:
        if self.token:
            lock.require(self.place, self.token)

    def look(self) -> SavedCheckpoint | None:
        """The newest with a whole manifest; its files are not read. Raises OSError if the place cannot be read."""
        for name in self._in_order():
            with contextlib.suppress(FileNotFoundError, Damaged, OtherFormat):
                return self.opened(name)
        return None

    def newest(self, folder: Path, tell: Callable[[str], None]) -> tuple[SavedCheckpoint, dict[str, Path]] | None:
        """The newest whole checkpoint and its files, which are copied into a folder; None if there is none. `tell`: is
        called with a sentence for each that is passed over. Raises OSError if the place cannot be read, and OtherFormat
        where a newer version's checkpoint is the newest."""
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
        self._require_lock()
        for name in self._in_order()[number:]:
            self.place.remove(name)
        self.place.remove_unfinished()

    def opened(self, name: str) -> SavedCheckpoint:
        """One of them; its files are not read. Raises Damaged, OtherFormat, OSError."""
        with self.place.open(name, MANIFEST) as file:
            data = file.read(_MOST_MANIFEST + 1)
        if len(data) > _MOST_MANIFEST:
            raise Damaged(f"{MANIFEST} has more than {_MOST_MANIFEST:,} bytes")
        return SavedCheckpoint(self.place, name, CheckpointManifest.from_bytes(data))

    def _in_order(self) -> list[str]:
        """The newest first."""
        return sorted(self.place.names(), key=_number, reverse=True)


_RANDOM = 16  # bits


def _number(name: str) -> int:
    return int(name.rpartition("-")[2], 16)


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
            why = f"{error.strerror or type(error).__name__}: {error.filename or folder}"
            raise _not_writable(self.name, why) from error
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
        try:
            return open_regular(self.folder / name / file)
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise Damaged(f"{file} cannot be read: {error.strerror}") from error
            raise

    def remove(self, name: str) -> None:
        gone = self.folder / f"{_UNFINISHED}{name}"
        (self.folder / name).rename(gone)  # at once: it is not there any more
        _discard(gone)

    def remove_unfinished(self) -> None:
        self._remove_all(_UNFINISHED)

    def remove_boards(self) -> None:
        self._remove_all(_EXCHANGE)

    def _remove_all(self, prefix: str) -> None:
        for one in self.folder.glob(f"{prefix}*"):
            _discard(one)

    # -- notes ----------------------------------------------------------------------------------------------------
    def notes(self, prefix: str) -> list[str]:
        return [one.name for one in self.folder.iterdir() if one.name.startswith(prefix)]

    def read_note(self, name: str) -> str | None:
        try:
            with self.open("", name) as file:
                return file.read(_MOST_MANIFEST).decode(errors="replace")
        except FileNotFoundError:
            return None
        except Damaged as error:
            raise OSError(errno.EINVAL, str(error), str(self.folder / name)) from error

    def write_note(self, name: str, text: str, new: bool = False) -> bool:
        path, temporary = self.folder / name, self.folder / f"{_UNFINISHED}note-{secrets.token_hex(4)}"
        try:
            temporary.write_text(text)
            if not new:
                temporary.replace(path)
                return True
            return _link(temporary, path, text)
        finally:
            temporary.unlink(missing_ok=True)

    def remove_note(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)


def _link(whole: Path, path: Path, text: str) -> bool:
    """A file's name, if there is none of it; False if there is."""
    try:
        path.hardlink_to(whole)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: not as a whole, but by one writer only
        try:
            with path.open("x") as file:
                file.write(text)
        except FileExistsError:
            return False
    return True


def _discard(path: Path) -> None:
    """Remove a folder or a file, as far as possible."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


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

    # -- notes ----------------------------------------------------------------------------------------------------
    def notes(self, prefix: str) -> list[str]:
        return [name for name in self._folders() if name.startswith(prefix)]

    def read_note(self, name: str) -> str | None:
        try:
            return bytes(self.system.cat_file(f"{self.root}/{name}")).decode(errors="replace")
        except FileNotFoundError:
            return None

    def write_note(self, name: str, text: str, new: bool = False) -> bool:
        """`new`: gcsfs has the store refuse it (ifGenerationMatch=0), s3fs too."""
        try:
            self.system.pipe_file(f"{self.root}/{name}", text.encode(), **({"mode": "create"} if new else {}))
        except FileExistsError:
            return False
        return True

    def remove_note(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.rm_file(f"{self.root}/{name}")

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


def tried_place(where: str) -> CheckpointPlace:
    """The place that `--checkpoints` names, which was written to and read from. Raises TpuMagicsError."""
    place = open_place(where)
    problems: list[str] = []
    thread = threading.Thread(target=lambda: problems.append(_tried(place)), name="tpu_magics-place", daemon=True)
    thread.start()
    thread.join(_ANSWER)
    problem = problems[0] if problems else f"It has not answered within {_ANSWER:.0f} s."
    if problem:
        raise _not_writable(place.name, problem)
    return place


def _tried(place: CheckpointPlace) -> str:
    """Why a place is of no use, or ""."""
    name, text = f"{_UNFINISHED}note-{secrets.token_hex(4)}", secrets.token_hex(512)
    try:
        place.write_note(name, text)
        found = place.read_note(name)
        place.remove_note(name)
    except Exception as error:  # the network's, of any type
        return f"{type(error).__name__}: {error}"
    return "" if found == text else "What was written there is not what is read."


def _not_writable(where: str, why: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"Checkpoints cannot be written to {where}.",
        why,
        "Choose a place that you can write to: %tpu_init --checkpoints FOLDER, or gs://BUCKET/RUN after signing in.",
    )
