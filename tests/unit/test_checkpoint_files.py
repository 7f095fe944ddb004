"""Checkpoints as files: complete or not there at all, whoever writes, dies, or damages them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from reknit.rendezvous.records import Axes
from reknit.runtime.checkpoint.files import (
    CheckpointError,
    Part,
    complete_steps,
    is_complete,
    problem,
    prune,
    read_part,
    write_part,
)
from reknit.runtime.checkpoint.writer import Writer, detached

AXES = Axes(pipe=2, model=1)


def write(folder: Path, step: int, token: str = "run-1", coordinates: tuple[int, ...] = (0, 1)) -> None:
    for coordinate in coordinates:
        content = {"step": step, "weight": torch.full((5,), float(10 * step + coordinate)), "token": token}
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
    assert read_part(tmp_path, Part(3, AXES, 1))["token"] == "run-1"


def test_parts_of_two_attempts_at_one_step_are_never_put_together(tmp_path: Path) -> None:
    write(tmp_path, 3, "run-1", (0,))
    write(tmp_path, 3, "run-2", (1,))
    assert complete_steps(tmp_path) == []
    write(tmp_path, 3, "run-2", (0,))
    assert {read_part(tmp_path, Part(3, AXES, c))["token"] for c in (0, 1)} == {"run-2"}


def test_a_later_attempt_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path, 3, "run-1")
    write(tmp_path, 3, "run-2")
    assert read_part(tmp_path, Part(3, AXES, 0))["token"] == "run-2"
    assert problem(tmp_path, Part(3, AXES, 0)) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    part = Part(3, AXES, 1)
    path = tmp_path / "step-000000003" / part.name
    write(tmp_path, 3)
    assert problem(tmp_path, part) is None
    whole = path.read_bytes()

    path.write_bytes(whole[:-1])
    assert "bytes" in (problem(tmp_path, part) or "")
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    path.write_bytes(flipped)
    assert "checksum" in (problem(tmp_path, part) or "")
    path.unlink()
    assert "cannot be read" in (problem(tmp_path, part) or "")
    with pytest.raises(CheckpointError, match=r"pipe-1\.model-0\.pt"):
        read_part(tmp_path, part)

    assert problem(tmp_path, Part(3, AXES, 0)) is None
    for damaged in ("", "[]", json.dumps({"parts": 5})):
        (path.parent / "manifest.json").write_text(damaged)
        assert problem(tmp_path, Part(3, AXES, 0)) is not None


def test_other_axes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, 3)
    assert "other axes" in (problem(tmp_path, Part(3, Axes(pipe=4), 0)) or "")


def test_the_last_few_are_kept_and_what_was_never_completed_goes(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    write(tmp_path, 2, "died", (0,))
    write(tmp_path, 5, "under-way", (0,))
    (tmp_path / "notes.txt").write_text("mine")
    prune(tmp_path, 2)
    assert complete_steps(tmp_path) == [4, 3]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"notes.txt", "step-000000003", "step-000000004", ".step-000000005.under-way.partial"}


def test_a_folder_that_cannot_be_written_leaves_the_old_ones(tmp_path: Path) -> None:
    write(tmp_path, 1)
    told: list[tuple[str, dict[str, object]]] = []
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    writer = Writer(blocked, 2, lambda event, **fields: told.append((event, fields)))
    writer.write(Part(2, AXES, 0), "run-1", {"step": 2})
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
    writer.write(Part(7, Axes(), 0), "run-1", {"weight": weight})
    writer.finish()
    assert told == ["checkpoint"]
    assert torch.equal(read_part(tmp_path, Part(7, Axes(), 0))["weight"], torch.ones(3))


def test_no_folder_no_checkpoints(tmp_path: Path) -> None:
    assert complete_steps(tmp_path / "nowhere") == []
