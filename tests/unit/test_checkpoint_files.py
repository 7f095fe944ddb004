"""Checkpoints as files: complete or not there at all, whoever writes, dies, or damages them."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from reknit.rendezvous.records import Axes
from reknit.runtime.checkpoint.files import (
    CheckpointError,
    DamagedError,
    Part,
    check_part,
    complete_steps,
    is_complete,
    prune,
    read_part,
    set_aside,
    write_part,
)
from reknit.runtime.checkpoint.writer import Writer, detached

AXES = Axes(pipe=2, model=1)


def write(
    folder: Path,
    step: int,
    token: str = "run-1",
    coordinates: tuple[int, ...] = (0, 1),
    version: tuple[int, int] | None = None,
) -> None:
    for coordinate in coordinates:
        content = {"step": step, "weight": torch.full((5,), float(10 * step + coordinate)), "token": token}
        content["version"] = version
        write_part(folder, token, Part(step, AXES, coordinate), content)


def test_it_is_complete_with_its_last_part_whoever_writes_that(tmp_path: Path) -> None:
    for number, order in enumerate(itertools.permutations((0, 1)), 1):
        write(tmp_path, number, coordinates=order[:1])
        assert not is_complete(tmp_path, number)
        write(tmp_path, number, coordinates=order[1:])
        assert complete_steps(tmp_path) == list(range(number, 0, -1))
    assert sorted(path.name for path in (tmp_path / "step-000000001").iterdir()) == [
        "manifest.json",
        "pipe-0.model-0.pt",
        "pipe-1.model-0.pt",
    ]


def test_plain_torch_reads_it(tmp_path: Path) -> None:
    write(tmp_path, 3)
    found = torch.load(tmp_path / "step-000000003" / "pipe-1.model-0.pt")
    assert found["step"] == 3
    assert torch.equal(found["weight"], torch.full((5,), 31.0))
    assert read_part(tmp_path, Part(3, AXES, 1)).content["token"] == "run-1"


def test_parts_of_two_attempts_at_one_step_are_never_put_together(tmp_path: Path) -> None:
    write(tmp_path, 3, "run-1", (0,))
    write(tmp_path, 3, "run-2", (1,))
    assert complete_steps(tmp_path) == []
    write(tmp_path, 3, "run-2", (0,))
    assert {read_part(tmp_path, Part(3, AXES, c)).content["token"] for c in (0, 1)} == {"run-2"}


def test_a_later_attempt_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path, 3, "run-1")
    write(tmp_path, 3, "run-2")
    assert read_part(tmp_path, Part(3, AXES, 0)).content["token"] == "run-2"
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]


def test_a_later_attempt_with_the_same_state_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, 3, "run-1", version=(1, 3))
    write(tmp_path, 3, "run-2", version=(1, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]
    assert read_part(tmp_path, Part(3, AXES, 0)).content["token"] == "run-1"
    write(tmp_path, 3, "run-3", version=(2, 3))
    assert read_part(tmp_path, Part(3, AXES, 0)).content["token"] == "run-3"


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    part = Part(3, AXES, 1)
    path = tmp_path / "step-000000003" / part.name
    write(tmp_path, 3)
    check_part(tmp_path, part)
    whole = path.read_bytes()

    path.write_bytes(whole[:-1])
    with pytest.raises(DamagedError, match="bytes, not the"):
        check_part(tmp_path, part)
    for position in range(0, len(whole), max(1, len(whole) // 20)):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        with pytest.raises(DamagedError, match="checksum"):
            read_part(tmp_path, part)
    path.unlink()
    for look in (check_part, read_part):
        with pytest.raises(DamagedError, match=r"pipe-1\.model-0\.pt is missing"):
            look(tmp_path, part)

    check_part(tmp_path, Part(3, AXES, 0))
    for damaged in ("", "[]", json.dumps({"parts": 5}), json.dumps({"pipe": 2, "model": 1, "parts": {part.name: 3}})):
        (path.parent / "manifest.json").write_text(damaged)
        with pytest.raises(DamagedError, match="no manifest"):
            check_part(tmp_path, part)


def test_what_was_written_badly_is_found_too(tmp_path: Path) -> None:
    """The checksum is of what was meant to be written, not of what the disk gives back."""
    write(tmp_path, 3, coordinates=(0,))
    (path,) = tmp_path.glob(".step-*/pipe-0.model-0.pt")
    path.write_bytes(path.read_bytes()[:-7] + b"garbage")
    write(tmp_path, 3, coordinates=(1,))
    with pytest.raises(DamagedError):
        read_part(tmp_path, Part(3, AXES, 0))


def test_other_axes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 3)
    with pytest.raises(CheckpointError, match="other axes") as raised:
        check_part(tmp_path, Part(3, Axes(pipe=4), 0))
    assert not isinstance(raised.value, DamagedError)


def test_a_damaged_one_is_set_aside_until_newer_ones_are_gone(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path, step)
    set_aside(tmp_path, 2)
    set_aside(tmp_path, 9)
    assert complete_steps(tmp_path) == [1]
    for step in (2, 3):
        write(tmp_path, step)
        prune(tmp_path, 2, step)
    assert (tmp_path / "step-000000002.damaged").exists()
    write(tmp_path, 4)
    prune(tmp_path, 2, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000003", "step-000000004"]


def test_the_last_few_are_kept_and_what_was_never_completed_goes(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    write(tmp_path, 2, "died", (0,))
    write(tmp_path, 5, "under-way", (0,))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".step-000000001.77.deleted").mkdir()
    prune(tmp_path, 2, 4)
    assert complete_steps(tmp_path) == [4, 3]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"notes.txt", "step-000000003", "step-000000004", ".step-000000005.under-way.partial"}


def test_a_folder_that_cannot_be_written_leaves_the_old_ones(tmp_path: Path) -> None:
    write(tmp_path, 1)
    told: list[tuple[str, dict[str, object]]] = []
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    writer = Writer(blocked, 2, lambda event, **fields: told.append((event, fields)))
    writer.write(Part(2, AXES, 0), "run-1", lambda: {"step": 2})
    writer.finish()
    assert [event for event, _ in told] == ["checkpoint_failed"]
    assert complete_steps(tmp_path) == [1]


def test_what_is_written_is_the_state_of_that_moment(tmp_path: Path) -> None:
    weight = torch.zeros(3)
    copied = detached({"registered": {"model": {"weight": weight, "betas": [1, 2]}}})
    weight += 1
    assert torch.equal(copied["registered"]["model"]["weight"], torch.zeros(3))

    told: list[str] = []
    writer = Writer(tmp_path, 2, lambda event, **fields: told.append(event))
    writer.write(Part(7, Axes(), 0), "run-1", lambda: {"weight": weight})
    writer.finish()
    assert told == ["checkpoint"]
    assert torch.equal(read_part(tmp_path, Part(7, Axes(), 0)).content["weight"], torch.ones(3))


def test_no_folder_no_checkpoints(tmp_path: Path) -> None:
    assert complete_steps(tmp_path / "nowhere") == []


def test_what_cannot_be_copied_or_pickled_is_said_and_training_goes_on(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    writer = Writer(tmp_path, 2, lambda event, **fields: told.append((event, fields.get("reason", ""))))

    def no_memory() -> dict[str, object]:
        raise MemoryError("no room for a copy")

    writer.write(Part(1, Axes(), 0), "run-1", no_memory)
    writer.write(Part(2, Axes(), 0), "run-1", lambda: {"weight": (i for i in range(3))})
    writer.finish()
    assert [event for event, _ in told] == ["checkpoint_failed", "checkpoint_failed"]
    assert "no room for a copy" in told[0][1]
    assert complete_steps(tmp_path) == []


class Full(io.FileIO):
    """A file on a disk that is full after some bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch hides what a file's write has raised behind an error of its own."""
    write(tmp_path, 1)
    monkeypatch.setattr(Path, "open", lambda path, mode: Full(path, mode))
    with pytest.raises(CheckpointError, match=os.strerror(errno.ENOSPC)):
        write(tmp_path, 2)
    monkeypatch.undo()
    assert complete_steps(tmp_path) == [1]
    assert [path.name for path in tmp_path.glob(".step-*/*")] == []
