"""The demo from its command line: it tells the truth, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reknit.runtime.demo.story import Reader

WaitUntil = Callable[..., None]


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A running demo whose temporary files lie in `folder`; killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "reknit.runtime.cli", "demo", *arguments],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children_of_training(folder: Path, wait_until: WaitUntil) -> set[int]:
    """The process ids of the agent and of all workers, once the training makes steps."""
    (path,) = folder.glob("reknit-demo-*")
    reader, pids, committed = Reader(path / "events.jsonl"), set[int](), list[bool]()

    def makes_steps() -> bool:
        for event in reader.read():
            if "pid" in event:
                pids.add(event["pid"])
            committed.extend([True] * (event["event"] == "committed"))
        return bool(committed)

    wait_until(makes_steps, timeout=60, what="the first step")
    return pids


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_short_demo_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with demo(tmp_path, "--steps", "10", "--kills", "1", "--replicas", "2", "--json", str(path)) as process:
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    report = json.loads(path.read_text())
    assert report["steps"] >= 100  # enough to recover from a kill
    assert [fault["kind"] for fault in report["faults"]] == ["SIGKILL"]
    assert report["samples"]["committed"] == report["samples"]["expected"] == 24 * report["steps"]
    assert report["intact"]["checked"] > 0
    assert report["faults"][0]["worker"] in output
    assert not list(tmp_path.glob("reknit-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(number: signal.Signals, tmp_path: Path, wait_until: WaitUntil) -> None:
    with demo(tmp_path, "--replicas", "2", "--pipe", "1") as process:
        wait_until(lambda: list(tmp_path.glob("reknit-demo-*")), timeout=30)
        pids = children_of_training(tmp_path, wait_until)
        assert len(pids) == 3
        process.send_signal(number)
        process.wait(20)
        wait_until(lambda: not any(map(lives, pids)), timeout=20, what="the end of all processes")
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert not list(tmp_path.glob("reknit-*"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--steps", "0"], "--steps must be at least 1"),
        (["--kills", "-1"], "--kills must be at least 0"),
        (["--pipe", "0"], "--pipe must be at least 1"),
        (["--replicas", "3:2"], "--replicas"),
        (["--replicas", "1"], "--replicas must be at least 2"),
        (["--json", "/nowhere/report.json"], "/nowhere"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    with demo(tmp_path, *arguments) as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert sentence in output
    assert len(output.splitlines()) == 1
    assert not list(tmp_path.iterdir())
