"""Checkpoints as files, on a folder that all hosts share.

    <folder>/step-000000300/                        complete: it is only ever renamed into this place, whole
        pipe-0.model-0.pt                           one coordinate's part: plain `torch.load` reads it
        manifest.json                               every part's size and SHA-256, and what the checkpoint is of
    <folder>/.step-000000300.<token>.partial/       being written; each part beside its own `.json`

Several processes write one checkpoint, each the part of its coordinate, and whoever finds all parts there completes it.
`token` tells this attempt from every other that came to the same step, in this run of the job or in an earlier one:
parts of two attempts are never put together.  Every file is forced to disk before it counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Axes, Coordinate

FORMAT = 1
MANIFEST = "manifest.json"
_COMPLETE = re.compile(r"step-(\d{9,})")
_PARTIAL = re.compile(r"\.step-(\d{9,})\.([0-9A-Za-z-]+)\.partial")


class CheckpointError(ReknitError):
    """A checkpoint, or a part of it, cannot be written or read.  Says which file and why."""


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


def write_part(folder: Path, token: str, part: Part, content: Mapping[str, Any]) -> None:
    """Write one part, and complete the checkpoint if it was the last one missing.  Raises CheckpointError."""
    partial = _partial(folder, token, part.step)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        path = partial / part.name
        with _replacing(path) as new:
            torch.save(dict(content), new)
        proof = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        _write_json(path.with_suffix(".json"), proof)
        _complete(folder, partial, part)
    except FileNotFoundError as error:
        if not is_complete(folder, part.step):  # else another one has completed, and tidied up, meanwhile
            raise CheckpointError(f"the checkpoint of step {part.step} in {folder} is not written: {error}") from error
    except (OSError, RuntimeError) as error:  # torch's writer says RuntimeError when the disk is full
        raise CheckpointError(f"the checkpoint of step {part.step} in {folder} is not written: {error}") from error


def is_complete(folder: Path, step: int) -> bool:
    """Whether there is a checkpoint of this step, with all its parts."""
    return (folder / _name(step) / MANIFEST).exists()


def complete_steps(folder: Path) -> list[int]:
    """The steps of all complete checkpoints, newest first; empty if the folder is not there."""
    try:
        found = (_COMPLETE.fullmatch(path.name) for path in folder.iterdir())
        return sorted((int(m[1]) for m in found if m and is_complete(folder, int(m[1]))), reverse=True)
    except OSError:
        return []


def problem(folder: Path, part: Part) -> str | None:
    """Why this part of a complete checkpoint cannot be used, in a sentence; None if it can.  Reads the whole file."""
    path = folder / _name(part.step) / part.name
    try:
        manifest = json.loads((path.parent / MANIFEST).read_text())
        expected = manifest["parts"][part.name]
        if (manifest["pipe"], manifest["model"]) != (part.axes.pipe, part.axes.model):
            return f"{path.parent} is of a job with other axes (pipe {manifest['pipe']}, model {manifest['model']})"
        if path.stat().st_size != expected["bytes"]:
            return f"{path} has {path.stat().st_size} bytes, not the {expected['bytes']} that were written"
        if _sha256(path) != expected["sha256"]:
            return f"{path} has changed since it was written: its checksum differs"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{path} cannot be read: {type(error).__name__}: {error}"
    return None


def read_part(folder: Path, part: Part) -> dict[str, Any]:
    """One part's content.  Raises CheckpointError."""
    path = folder / _name(part.step) / part.name
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # whatever a damaged file makes of the unpickler
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return content


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` complete checkpoints, and what is older than these and was never completed."""
    steps = complete_steps(folder)
    for step in steps[keep:]:
        _remove(folder, folder / _name(step))
    if steps:
        with suppress(OSError):
            for path in list(folder.iterdir()):
                match = _PARTIAL.fullmatch(path.name)
                if match and int(match[1]) <= steps[0]:
                    shutil.rmtree(path, ignore_errors=True)


def _complete(folder: Path, partial: Path, part: Part) -> None:
    names = [Part(part.step, part.axes, index).name for index in range(part.axes.size)]
    if not all((partial / name).with_suffix(".json").exists() for name in names):
        return
    try:  # one of those who see that nothing is missing; should it die just now, there is one checkpoint less
        (partial / ".completing").open("x").close()
    except FileExistsError:
        return
    proofs = {name: json.loads((partial / name).with_suffix(".json").read_text()) for name in names}
    axes = {"pipe": part.axes.pipe, "model": part.axes.model}
    _write_json(partial / MANIFEST, {"format": FORMAT, "step": part.step, **axes, "parts": proofs})
    final = folder / _name(part.step)
    if final.exists():  # of an earlier life of the job, which went back behind it: this one is the newer
        _remove(folder, final)
    for path in (*((partial / name).with_suffix(".json") for name in names), partial / ".completing"):
        path.unlink(missing_ok=True)
    os.rename(partial, final)
    _sync(folder)


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
