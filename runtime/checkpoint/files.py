"""Checkpoints as files, on a folder that all hosts share.

    <folder>/step-000000300/                        complete: it is only ever renamed into this place, whole
        pipe-0.model-0.pt                           one coordinate's part: plain `torch.load` reads it
        manifest.json                               every part's size and SHA-256, and what the checkpoint is of
    <folder>/.step-000000300.<token>.partial/       being written; each part beside its own `.json`
    <folder>/step-000000200.damaged/                found to be damaged: never read again, kept for who wants to know

Several processes write one checkpoint, each the part of its coordinate, and whoever finds all parts there completes it.
`token` tells this attempt from every other that came to the same step, in this run of the job or in an earlier one:
parts of two attempts are never put together.  Every file is forced to disk before it counts.  A part's size is compared
when it is looked for, its checksum when it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Axes, Coordinate

FORMAT = 1
MANIFEST = "manifest.json"
_COMPLETE = re.compile(r"step-(\d{9,})")
_PARTIAL = re.compile(r"\.step-(\d{9,})\.[0-9A-Za-z-]+\.partial")
_DAMAGED = re.compile(r"step-(\d{9,})\.damaged")
_DELETED = re.compile(r"\.step-(\d{9,})\.\d+\.deleted")


class CheckpointError(ReknitError):
    """A checkpoint, or a part of it, cannot be written or read.  Says which file and why."""


class DamagedError(CheckpointError):
    """A part is not what was written: its size or its checksum differs, or a file is missing.

    `manifest`: the manifest that says so, as it was read.
    """

    def __init__(self, message: str, manifest: bytes) -> None:
        super().__init__(message)
        self.manifest = manifest


class GoneError(CheckpointError):
    """There is no checkpoint of this step (any more): others delete and replace them."""


@dataclass(frozen=True)
class Found:
    """One part as it was read; `mark` (above 0) is the same for all parts of one checkpoint, and of no other."""

    content: Mapping[str, Any]
    bytes: int
    mark: int


@dataclass(frozen=True)
class Part:
    """Which part of which checkpoint: one coordinate of `axes` at `step`."""

    step: int
    axes: Axes
    coordinate: int

    @property
    def name(self) -> str:
        """The part's file."""
        place: Coordinate = self.axes.coordinate(self.coordinate)
        return f"pipe-{place.pipe}.model-{place.model}.pt"


def write_part(folder: Path, token: str, part: Part, content: Mapping[str, Any]) -> bool:
    """Write one part.  Returns whether it was the last one missing, so that the checkpoint is complete now.

    `content["version"]`, if there, says which attempt made the state: a complete checkpoint of the same one is kept.
    Raises CheckpointError.
    """
    partial = _partial(folder, token, part.step)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        path = partial / part.name
        with _replacing(path) as file:
            saved = _Saved(file)
            saved.save(content)
        _write_json(path.with_suffix(".json"), {"bytes": saved.bytes, "sha256": saved.sha256.hexdigest()})
        return _complete(folder, partial, part, content.get("version"))
    except FileNotFoundError as error:
        if is_complete(folder, part.step):  # another one has completed, and tidied up, meanwhile
            return False
        raise _not_written(folder, part, error) from error
    except OSError as error:
        raise _not_written(folder, part, error) from error


def _not_written(folder: Path, part: Part, error: OSError) -> CheckpointError:
    why = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error)
    return CheckpointError(f"the checkpoint of step {part.step} in {folder} is not written: {why}")


class _Saved(io.RawIOBase):
    """What torch.save writes into: counts and hashes on the way.

    torch hides a file's error behind one of its own, so the error is kept here and raised when torch has done.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._error: OSError | None = None
        self.bytes, self.sha256 = 0, hashlib.sha256()

    def save(self, content: Mapping[str, Any]) -> None:
        """Raises OSError, and whatever a script's own objects make of being pickled."""
        torch.save(dict(content), cast(IO[bytes], self))
        if self._error is not None:
            raise self._error

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        count = len(data)
        if self._error is None:
            try:
                self._file.write(data)
                self.sha256.update(data)
            except OSError as error:
                self._error = error
        self.bytes += count
        return count


def is_complete(folder: Path, step: int) -> bool:
    """Whether there is a checkpoint of this step, with all its parts."""
    with suppress(OSError):
        return (folder / _name(step) / MANIFEST).exists()
    return False


def is_of(folder: Path, step: int, version: Sequence[int]) -> bool:
    """Whether there is a complete checkpoint of this step, and of the attempt that made this very state."""
    return bool(_version(folder / _name(step)) == list(version))


def complete_steps(folder: Path) -> list[int]:
    """The steps of all complete checkpoints, newest first; empty if the folder is not there, or cannot be read."""
    try:
        found = (_COMPLETE.fullmatch(path.name) for path in folder.iterdir())
        return sorted((int(m[1]) for m in found if m and is_complete(folder, int(m[1]))), reverse=True)
    except OSError:
        return []


def check_part(folder: Path, part: Part) -> None:
    """Whether a complete checkpoint's part looks usable, by its manifest and its size.

    Raises DamagedError, GoneError, or CheckpointError if it is not of this job, or cannot be read just now.
    """
    _expected(folder, part, _manifest(folder, part.step))


def read_part(folder: Path, part: Part) -> Found:
    """One part, after its checksum was compared.

    Raises DamagedError, GoneError, or CheckpointError if it is not of this job, or cannot be read just now.
    """
    manifest, path = _manifest(folder, part.step), folder / _name(part.step) / part.name
    expected = _expected(folder, part, manifest)
    try:
        if _sha256(path) != expected["sha256"]:
            raise DamagedError(f"{path} has changed since it was written: its checksum differs", manifest)
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    except CheckpointError:
        raise
    except Exception as error:  # whatever becomes of the file meanwhile, or the script's own classes raise
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    mark = int.from_bytes(hashlib.sha256(manifest).digest()[:7], "big") + 1
    return Found(content, int(expected["bytes"]), mark)


def _manifest(folder: Path, step: int) -> bytes:
    path = folder / _name(step)
    try:
        return (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise GoneError(f"{path} is not there any more") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _expected(folder: Path, part: Part, raw: bytes) -> dict[str, Any]:
    """What the manifest `raw` says of a part: `bytes` and `sha256`."""
    path = folder / _name(part.step) / part.name
    try:
        manifest = json.loads(raw)
        axes = Axes(manifest["pipe"], manifest["model"])
        expected: dict[str, Any] = {"bytes": None, "sha256": None, **manifest["parts"].get(part.name, {})}
    except Exception as error:  # whatever damage makes of it
        why = f"{path.parent / MANIFEST} is no manifest: {type(error).__name__}: {error}"
        raise DamagedError(why, raw) from error
    if axes != part.axes:
        raise CheckpointError(f"{path.parent} is of a job with other axes (pipe {axes.pipe}, model {axes.model})")
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing", raw) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if found != expected["bytes"]:
        raise DamagedError(f"{path} has {found} bytes, not the {expected['bytes']} that were written", raw)
    return expected


def still_stands(folder: Path, step: int, manifest: bytes) -> bool:
    """Whether the checkpoint of this step is the one with this manifest, and has not been replaced or deleted."""
    with suppress(CheckpointError):
        return _manifest(folder, step) == manifest
    return False


def set_aside(folder: Path, step: int) -> None:
    """A damaged checkpoint is never read again; it keeps its files under another name until newer ones are gone."""
    aside = folder / f"{_name(step)}.damaged"
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        os.rename(folder / _name(step), aside)


def prune(folder: Path, keep: int, step: int) -> None:
    """Delete all but the newest `keep` complete checkpoints up to `step`, and what is older and of no use.

    Those above `step` are of a life of the job that went back behind them: they are replaced when it comes there again.
    """
    steps = [found for found in complete_steps(folder) if found <= step]
    for old in steps[keep:]:
        _remove(folder, folder / _name(old))
    if not steps:
        return
    oldest = steps[:keep][-1]
    with suppress(OSError):
        for path in list(folder.iterdir()):
            partial, damaged = _PARTIAL.fullmatch(path.name), _DAMAGED.fullmatch(path.name)
            useless = partial is not None and int(partial[1]) <= steps[0]
            useless |= damaged is not None and int(damaged[1]) < oldest
            if useless or _DELETED.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _complete(folder: Path, partial: Path, part: Part, version: Any) -> bool:
    names = [Part(part.step, part.axes, index).name for index in range(part.axes.size)]
    if not all((partial / name).with_suffix(".json").exists() for name in names):
        return False
    mark = partial / ".completing"
    try:  # one of those who see that nothing is missing; should it die just now, there is one checkpoint less
        mark.open("x").close()
    except FileExistsError:
        return False
    try:
        return _put_in_place(folder, partial, part, version, names)
    except OSError:
        with suppress(OSError):
            mark.unlink(missing_ok=True)  # whoever tries again, can
        raise


def _put_in_place(folder: Path, partial: Path, part: Part, version: Any, names: Sequence[str]) -> bool:
    proofs = {name: json.loads((partial / name).with_suffix(".json").read_text()) for name in names}
    axes = {"pipe": part.axes.pipe, "model": part.axes.model}
    manifest = {"format": FORMAT, "step": part.step, "version": version, **axes, "parts": proofs}
    _write_json(partial / MANIFEST, manifest)
    final = folder / _name(part.step)
    if final.exists():
        if version is not None and _version(final) == list(version):  # the same state, bit by bit
            shutil.rmtree(partial, ignore_errors=True)
            return False
        _remove(folder, final)  # of a life of the job that went back behind it: this one is the newer
    for path in (*((partial / name).with_suffix(".json") for name in names), partial / ".completing"):
        path.unlink(missing_ok=True)
    os.rename(partial, final)
    _sync(folder)
    return True


def _version(path: Path) -> Any:
    try:
        return json.loads((path / MANIFEST).read_text())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remove(folder: Path, path: Path) -> None:
    """Take a complete checkpoint out of sight in one step, then delete it."""
    doomed = folder / f".{path.name}.{os.getpid()}.deleted"
    with suppress(OSError):
        os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _partial(folder: Path, token: str, step: int) -> Path:
    return folder / f".{_name(step)}.{token}.partial"


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file under a passing name, which takes its place, forced to disk, when the block has succeeded."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with _replacing(path) as new:
        new.write(json.dumps(value, sort_keys=True).encode())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            hashed.update(chunk)
    return hashed.hexdigest()
