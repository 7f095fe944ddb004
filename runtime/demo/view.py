"""What a spectator sees: a live picture on a terminal, plain lines when the output goes elsewhere."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reknit.runtime.demo.report import Report
from reknit.runtime.demo.situation import DEAD, FINISHED, REBUILDING, STARTING, TRAINING, WAITING, Situation
from reknit.runtime.demo.story import Event
from reknit.runtime.demo.telling import fault_table, summary_table, tell

_STEPS_PER_LINE = 25
_FRAMES_PER_SECOND = 8
_LAST_EVENTS = 10
_COLOURS = {
    STARTING: "yellow",
    WAITING: "yellow",
    TRAINING: "green",
    REBUILDING: "cyan",
    DEAD: "bold red",
    FINISHED: "blue",
}


class View(Protocol):
    """Told of every event, after the situation was; `refresh` is called often."""

    def __enter__(self) -> View: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def see(self, event: Event, situation: Situation) -> None:
        """One event."""

    def refresh(self, situation: Situation) -> None:
        """Time has passed."""


def make_view(console: Console, steps: int, kills: int) -> View:
    """The view that suits where the console writes to."""
    return _LiveView(console, steps, kills) if console.is_terminal else _PlainView(console, steps)


class _Lines:
    """Events as sentences with the time since the start; what all workers say alike is told once."""

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=_LAST_EVENTS)

    def of(self, event: Event, situation: Situation) -> str | None:
        sentence = tell(event)
        if sentence is None or sentence in self._recent:
            return None
        self._recent.append(sentence)
        return self.with_time(event, situation, sentence)

    @staticmethod
    def with_time(event: Event, situation: Situation, sentence: str) -> str:
        began = situation.began if situation.began is not None else event["t"]
        return f"{event['t'] - began:7.2f} s  {sentence}"


class _PlainView:
    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps = console, steps
        self._lines = _Lines()
        self._told_step = 0

    def __enter__(self) -> _PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def see(self, event: Event, situation: Situation) -> None:
        line = self._lines.of(event, situation)
        due = situation.loss_step >= min(self._told_step + _STEPS_PER_LINE, self._steps) > self._told_step
        if line is None and due and situation.loss is not None:
            self._told_step = situation.loss_step
            sentence = (
                f"step {situation.loss_step}/{self._steps}, loss {situation.loss:.3f}, "
                f"generation {situation.generation}, replicas: {situation.replicas} of {situation.max_replicas}"
            )
            line = self._lines.with_time(event, situation, sentence)
        if line is not None:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def refresh(self, situation: Situation) -> None:
        return None


class _LiveView:
    def __init__(self, console: Console, steps: int, kills: int) -> None:
        self._steps, self._kills = steps, kills
        self._lines = _Lines()
        self._last: deque[str] = deque(maxlen=_LAST_EVENTS)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> _LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def see(self, event: Event, situation: Situation) -> None:
        line = self._lines.of(event, situation)
        if line is not None:
            self._last.append(line)

    def refresh(self, situation: Situation) -> None:
        now = time.monotonic()
        if now - self._drawn >= 1 / _FRAMES_PER_SECOND:
            self._drawn = now
            self._live.update(self._draw(situation), refresh=True)

    def _draw(self, situation: Situation) -> RenderableType:
        loss = "-" if situation.loss is None else f"{situation.loss:.3f}"
        numbers = Text.assemble(
            ("step ", "dim"),
            f"{situation.step}/{self._steps}   ",
            ("loss ", "dim"),
            f"{loss}   ",
            ("generation ", "dim"),
            f"{situation.generation}   ",
            ("replicas ", "dim"),
            (
                f"{situation.replicas} of {situation.max_replicas}   ",
                "green" if situation.replicas == situation.max_replicas else "bold red",
            ),
            ("kills ", "dim"),
            f"{situation.kills} of {self._kills}",
        )
        lines = [*self._last, *[""] * (_LAST_EVENTS - len(self._last))]
        events = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(total=self._steps, completed=min(situation.step, self._steps))
        return Panel(Group(numbers, bar, _grid(situation), events), title="reknit demo", box=box.ROUNDED)


def _grid(situation: Situation) -> Table:
    """Replicas down, places within a replica (stages) across."""
    table = Table(box=box.SIMPLE)
    table.add_column("")
    for stage in range(situation.size):
        table.add_column(f"stage {stage}", min_width=26)
    rows = max([situation.max_replicas, *(replica + 1 for replica, _ in situation.seats)])
    for replica in range(rows):
        table.add_row(f"replica {replica}", *(_cell(situation, replica, stage) for stage in range(situation.size)))
    return table


def _cell(situation: Situation, replica: int, stage: int) -> Text:
    name = situation.seats.get((replica, stage))
    worker = situation.workers.get(name) if name is not None else None
    if worker is None:
        return Text("-", style="dim")
    step = f" step {worker.step}" if worker.step else ""
    return Text(f"{name} {worker.status}{step}", style=_COLOURS[worker.status])


def print_report(console: Console, report: Report, problems: list[str]) -> None:
    """The tables, and the verdict."""
    if report["faults"]:
        console.print(fault_table(report, console.is_terminal))
    console.print(summary_table(report, console.is_terminal))
    for problem in problems:
        console.print(f"WRONG: {problem}", style="bold red", highlight=False, soft_wrap=True)
    if not problems:
        console.print("Nothing lost, nothing repeated, all replicas identical.", style="bold green")
