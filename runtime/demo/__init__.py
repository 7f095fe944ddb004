"""`reknit demo`: a pipeline-parallel GPT trains while its workers are killed, and then the books are audited.

`child` runs the training, `story` reads its events, `situation` folds them into where the job stands, `killer` decides
whom to kill and when, `view` shows it all, `report` (with `chronicle` and `audit`) says what it came to.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from reknit.runtime.config import ConfigError
from reknit.runtime.demo import killer
from reknit.runtime.demo.child import Training
from reknit.runtime.demo.report import Report, find_problems, make_report
from reknit.runtime.demo.situation import Situation
from reknit.runtime.demo.story import Event, Reader
from reknit.runtime.demo.view import View, make_view, print_report

_POLL_SECONDS = 0.01
_INSPECT_SECONDS = 0.25
_PLAIN_WIDTH = 120


def run(steps: int, low: int, high: int, pipe: int, kills: int, seed: int, json_path: Path | None) -> int:
    """Run the demo to its end.  Returns 0 if nothing was lost, else 1.  Raises ConfigError.

    Args:
        steps: to train at least; raised if they are too few to recover from all kills.
        low, high: the least and the most replicas.
        pipe: stages of each replica.
        kills: how many workers to kill.
        seed: of the kills and of the data's order.
        json_path: where to write the report; None for nowhere.
    """
    _check(steps, high, pipe, kills, json_path)
    console = Console() if Console().is_terminal else Console(width=_PLAIN_WIDTH)
    enough = killer.enough_steps(kills, steps)
    console.print(f"{high} replicas of {pipe} stages train for {enough} steps; {kills} kills.", highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="reknit-demo-"))
    keep = True
    try:
        with _terminable():
            training = Training(folder, enough, low, high, pipe, seed)
            story = _watch(training, make_view(console, enough, kills), killer.make_orders(kills, enough, seed), enough)
            report = make_report(story, enough, training.expected())
        problems = find_problems(report, enough, kills, high, high * pipe)
        if training.returncode:
            problems.insert(0, f"the training ended with exit code {training.returncode}")
        print_report(console, report, problems)
        if json_path is not None:
            _write(json_path, report)
        keep = bool(problems)
        if problems:
            _show_log(console, training, story)
        return int(bool(problems))
    except KeyboardInterrupt:
        keep = False
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _check(steps: int, high: int, pipe: int, kills: int, json_path: Path | None) -> None:
    for name, value, least in (("steps", steps, 1), ("pipe", pipe, 1), ("kills", kills, 0)):
        if value < least:
            raise ConfigError(f"--{name} must be at least {least}, not {value}")
    if kills and high < 2:
        raise ConfigError("--replicas must be at least 2 for workers to be killed: nobody else would hold their state")
    if json_path is not None and not json_path.absolute().parent.is_dir():
        raise ConfigError(f"--json {json_path}: there is no folder {json_path.absolute().parent}")


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that it can end the training."""

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(training: Training, view: View, orders: tuple[killer.Order, ...], steps: int) -> list[Event]:
    """Run the training to its end and kill as ordered.  Returns all events, with those of kills and inspections."""
    situation, story, reader = Situation(), list[Event](), Reader(training.events)
    last_kill, inspect_at = 0, 0.0

    def add(events: list[Event]) -> None:
        for event in events:
            story.append(event)
            situation.see(event)
            view.see(event, situation)

    try:
        with view:
            training.start()
            ended = False
            while not ended:
                ended = training.returncode is not None  # asked first: what was written before the end is still read
                add(reader.read())
                victim = None
                if situation.kills < len(orders):
                    victim = killer.decide(orders[situation.kills], situation, last_kill, steps, time.monotonic())
                if situation.is_full and (victim is not None or time.monotonic() >= inspect_at):
                    inspect_at = time.monotonic() + _INSPECT_SECONDS
                    add(killer.inspect(situation))
                if victim is not None and (killed := killer.kill(victim, situation)) is not None:
                    last_kill = situation.generation
                    add([killed])
                view.refresh(situation)
                time.sleep(_POLL_SECONDS)
    finally:
        training.stop(situation)
    return story


def _write(path: Path, report: Report) -> None:
    try:
        path.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written: {error.strerror}") from None


def _show_log(console: Console, training: Training, story: list[Event]) -> None:
    """What a reader needs to find out why: the end of the log, and where the rest is."""
    path = training.events.with_name("story.jsonl")
    path.write_text("".join(json.dumps(event) + "\n" for event in story))
    if training.returncode:
        for line in training.tail():
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"All that it printed: {training.log}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"All events: {path}", highlight=False, markup=False, soft_wrap=True)
