"""Checkpoints: what a job goes on from when everything died, or everybody who held a part of its state."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.faults import invariants, problem
from tests.faults.following import STOP
from tests.faults.harness import START_SECONDS, TRAIN_DATA, TRAIN_PIPE, JobRun

from reknit.rendezvous.records import Axes
from reknit.runtime.checkpoint.files import Part, complete_steps

pytestmark = pytest.mark.timeout(600)

EVERY = 4


def job(folder: Path, name: str, replicas: int, *more: str, script: Path = TRAIN_DATA, pipe: int = 1) -> JobRun:
    """A run of the job whose checkpoints are in `folder`."""
    arguments = ("--checkpoint", str(folder / "checkpoints"), "--every", str(EVERY), *more)
    return JobRun(folder, script, arguments, replicas=str(replicas), pipe=pipe, name=name)


def complete(folder: Path) -> list[int]:
    return complete_steps(folder / "checkpoints")


def kill_everything(run: JobRun) -> None:
    """Agent, etcd, workers: everything stops at one moment, and nothing can say good-bye."""
    pids = run.processes()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    run.end()


def begun(run: JobRun, replicas: int, step: int, timeout: float = 2 * START_SECONDS) -> None:
    """Wait until a run trains, and see that it went on from `step` with everything that belongs to it."""
    run.wait(lambda: run.step > step, timeout, f"step {step + 1}")
    first = min(event["step"] for event in run.of("committed"))
    assert first == step + 1, f"it began with step {first}"
    if step:
        back = list(run.of("restored"))
        assert {event["step"] for event in back} == {step}
        assert f"starts from the checkpoint of step {step}" in run.output()
    run.wait_strength(replicas, timeout=timeout)


def another(run: JobRun, folder: Path, step: int) -> None:
    """Wait for a checkpoint of a later step."""
    run.wait(lambda: max(complete(folder), default=0) > step, START_SECONDS, f"a checkpoint after step {step}")


def near(losses: dict[int, float]) -> None:
    """Each step's loss is what one process of plain torch has at that step: the state and the samples are right."""
    expected = dict(zip(range(1, max(losses) + 1), problem.reference_losses(), strict=False))
    assert losses == pytest.approx({step: expected[step] for step in losses}, rel=1e-3)


# ---------------------------------------------------------------- everything dies


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.timeout(3000)
def test_everything_dies_at_random_moments_and_the_job_goes_on_from_the_newest_one(tmp_path: Path, rounds: int) -> None:
    chosen = random.Random(rounds)
    losses: dict[int, float] = {}
    states: dict[tuple[int, int], float] = {}
    for number in range(rounds + 1):
        step = max(complete(tmp_path), default=0)
        replicas = 2 + number % 2
        with job(tmp_path, f"life-{number}", replicas) as run:
            begun(run, replicas, step)
            said = {(e["step"], run.coordinates()[e["worker"]]): e["state"] for e in run.of("committed", step=step + 1)}
            assert all(states.get(key, state) == state for key, state in said.items()), "bit by bit what it was"
            if number < rounds:
                another(run, tmp_path, step)
                time.sleep(chosen.uniform(0, 0.5))  # any moment, which nothing that could be waited for marks
                before = complete(tmp_path)[0]
                kill_everything(run)
                assert complete(tmp_path)[0] >= before
            else:
                last = run.stop_soon()
                assert run.wait_end() == 0
                invariants.finished_alike(run.events, last, replicas)
            events = run.poll()
            newest = max(event["step"] for event in run.of("committed"))
            invariants.check(events, problem.samples_of, newest - 1, after=step)
            losses.update({s: loss for s, loss in invariants.losses(events).items() if s < newest})
            states = {(e["step"], run.coordinates()[e["worker"]]): e["state"] for e in run.of("committed")}
    assert len(complete(tmp_path)) <= 3, "older ones are deleted"
    near(losses)


def test_a_worker_dies_as_it_restores_and_the_job_begins_from_the_same_one(tmp_path: Path) -> None:
    def life(name: str) -> JobRun:
        return job(tmp_path, name, 1, script=TRAIN_PIPE, pipe=2)

    with life("first") as run:
        run.wait(lambda: complete(tmp_path), 2 * START_SECONDS, "a checkpoint")
        kill_everything(run)
    step = complete(tmp_path)[0]
    with life("second") as run:
        fault = run.fail_at("worker-1", "restore", step=0)
        begun(run, 1, step)
        assert not fault.exists()
        assert len(list(run.of("worker_died"))) == 1
        assert len(list(run.of("restored"))) == 2, "nobody before both could"
        assert f"the job goes on from the checkpoint of step {step}" in run.output()
        run.stop_soon()
        assert run.wait_end() == 0
        invariants.check(run.events, problem.samples_of, after=step, waits=START_SECONDS)


# ---------------------------------------------------------------- damage


def damage(folder: Path, step: int, how: str) -> None:
    path = folder / "checkpoints" / f"step-{step:09d}" / Part(step, Axes(), 0).name
    content = bytearray(path.read_bytes())
    if how == "cut":
        del content[-100:]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damaged_ones_are_passed_over_and_named_and_another_number_of_replicas_reads_them(tmp_path: Path) -> None:
    with job(tmp_path, "first", 2) as run:
        run.wait(lambda: len(complete(tmp_path)) >= 3, 2 * START_SECONDS, "three checkpoints")
        kill_everything(run)
    newest, second, third = complete(tmp_path)[:3]
    damage(tmp_path, newest, "cut")
    damage(tmp_path, second, "flip")
    with job(tmp_path, "second", 3) as run:
        run.wait(lambda: run.step > third, 2 * START_SECONDS, "the first step")
        assert min(event["step"] for event in run.of("committed")) == third + 1
        assert {event["step"] for event in run.of("restored")} == {third}
        assert {event["step"] for event in run.of("checkpoint_failed")} == {newest, second}
        assert f"the checkpoint of step {newest} is left out" in run.output()
        assert "its checksum differs" in run.output()
        run.wait_strength(3)
        run.wait(lambda: newest in complete(tmp_path), START_SECONDS, "new ones in the place of the damaged ones")
        last = run.stop_soon()
        assert run.wait_end() == 0
        invariants.check(run.events, problem.samples_of, after=third)
        invariants.finished_alike(run.events, last, 3)
    path = tmp_path / "checkpoints" / f"step-{complete(tmp_path)[0]:09d}" / Part(0, Axes(), 0).name
    found = torch.load(path)  # with torch's own restrictions on what may be in it
    assert found["step"] == complete(tmp_path)[0]
    assert {"model", "optimizer", "scheduler"} == found["registered"].keys()


# ---------------------------------------------------------------- a stage dies


def test_every_worker_of_a_stage_dies_and_the_job_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    with job(tmp_path, "run", 2, script=TRAIN_PIPE, pipe=2) as run:
        run.wait_strength(2, timeout=2 * START_SECONDS)
        run.wait(lambda: len(complete(tmp_path)) >= 2, START_SECONDS, "two checkpoints")
        victims = [pid for worker, pid in run.pids().items() if run.coordinates()[worker] == 1]
        stay = {worker: pid for worker, pid in run.pids().items() if run.coordinates()[worker] == 0}
        since = len(run.poll())
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in victims:
                os.kill(pid, number)
        back = run.wait_event("restored", START_SECONDS, since)
        run.wait_strength(2, since, timeout=START_SECONDS)
        last = run.stop_soon()
        assert run.wait_end() == 0
        generation, step = back["generation"], back["step"]
        assert f"1.0 is lost: the job goes on from the checkpoint of step {step}" in run.output()
        assert "no checkpoint can be gone back to" not in run.output()
        assert stay.items() <= run.pids().items(), "the other stage's processes live on"
        before = [event for event in run.events if event["generation"] < generation]
        newest = max(event["step"] for event in before if event["event"] == "committed")
        assert newest - 2 * EVERY < step <= newest, f"step {newest} was committed, and it went back to {step}"
        after = invariants.since_generation(run.events, generation)
        invariants.check(before, problem.samples_of, newest - 1)
        invariants.check(after, problem.samples_of, after=step)
        invariants.finished_alike(run.events, last, 4)
        near(invariants.losses(after))


# ---------------------------------------------------------------- no room, no folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    command: Sequence[str] = ("mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder))
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk takes more permission")
    yield folder
    subprocess.run(("umount", str(folder)), check=False)


def test_on_a_full_disk_training_goes_on_and_what_is_there_stays(tmp_path: Path, small_disk: Path) -> None:
    with job(tmp_path, "run", 2, "--keep", "100") as run:
        failed = run.wait_event("checkpoint_failed", 2 * START_SECONDS)
        there = complete(tmp_path)
        run.wait_steps(3 * EVERY)
        assert there
        assert set(there) <= set(complete(tmp_path))
        assert os.strerror(28) in failed["reason"]
        assert f"no checkpoint of step {failed['step']}" in run.output()
        (small_disk / f"step-{there[-1]:09d}" / "manifest.json").unlink()  # make room
        for path in itertools.chain(small_disk.glob(f"step-{there[-1]:09d}/*"), small_disk.glob(".step-*/*")):
            path.unlink(missing_ok=True)
        another(run, tmp_path, max(complete(tmp_path)))
        run.stop_soon()
        assert run.wait_end() == 0
        invariants.check(run.events, problem.samples_of)


def test_a_folder_that_cannot_be_written_costs_no_training(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with job(tmp_path, "run", 2) as run:
        failed = run.wait_event("checkpoint_failed", 2 * START_SECONDS)
        run.wait_steps(2 * EVERY)
        assert os.strerror(20) in failed["reason"] or os.strerror(17) in failed["reason"]
        (tmp_path / "orders" / STOP).unlink(missing_ok=True)
        run.stop_soon()
        assert run.wait_end() == 0
        assert list(run.of("retried")) == []
