"""`reknit events`: why each generation of a job came about, one line each, and what happens from now on."""

from __future__ import annotations

import argparse
import json
import logging
import queue
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.history import HistoryRecord, as_json, read_all
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import FINISHED, LOST
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Entry, Event, Snapshot, Store
from reknit.runtime.config import EtcdAccess
from reknit.runtime.operating.opening import add_job, connected, which_job
from reknit.runtime.operating.status_table import clean, moment, seconds

log = logging.getLogger("reknit.events")

WIDTH = 80
COLUMNS = "{:<8}  {:>5}  {:<8}  {:>8}  {:>7}  "
HEADER = COLUMNS.format("when", "gen", "what", "replicas", "gap") + "why"
MARGIN = len(HEADER) - len("why")


class EventsError(ReknitError):
    """There is no history to show."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for those of the access to etcd."""
    parser.description = (
        "Shows why each of a job's newest generations came about: when (on this host's clock, as its leader's says), "
        "its number, what happened, how many replicas it has, the gap from the last step before it to the first in "
        "it, and the reason."
    )
    add_job(parser)
    parser.add_argument("--follow", action="store_true", help="go on until the job ends, or until Ctrl-C")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line; with --follow again when its gap is known"
    )


def run(arguments: argparse.Namespace, access: EtcdAccess) -> int:
    """Check the options, show.  Returns the exit code; raises ReknitError, ConfigError among them."""
    with connected(arguments, access) as store:
        keys = Keys(which_job(store, arguments.job))
        printer = Printer(arguments.json, shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH)
        if arguments.follow:
            follow(store, keys, printer)
        else:
            show(store, keys, printer)
    return 0


def show(store: Store, keys: Keys, printer: Printer) -> None:
    """What there is now.  Raises EventsError if there is nothing."""
    records = list(read_all(store.list(keys.histories).entries, Rejected(log)))
    if not records:
        raise EventsError(f"there is no history of a job {keys.job} in this etcd")
    printer.show(records)


def follow(store: Store, keys: Keys, printer: Printer) -> None:
    """What there is, and what comes, until the job has ended."""
    news: queue.SimpleQueue[Sequence[Entry]] = queue.SimpleQueue()

    def reset(snapshot: Snapshot) -> None:
        news.put(snapshot.entries)

    def happened(events: Sequence[Event]) -> None:
        news.put([event.entry for event in events if event.entry is not None])

    watch, rejected = store.watch(keys.histories, reset, happened, prefix=True), Rejected(log)
    try:
        while not printer.ended:
            printer.show(read_all(news.get(), rejected))
    finally:
        watch.close()


class Printer:
    """Prints each record once, as a line of text (again, briefly, when its gap is known) or as JSON.

    `ended`: whether the newest one that it has seen ends the job.
    """

    def __init__(self, as_json: bool, width: int = WIDTH) -> None:
        self._as_json, self._width = as_json, width
        self._shown: dict[int, HistoryRecord] = {}
        self._day = ""
        self.ended = False

    def show(self, records: Iterable[HistoryRecord]) -> None:
        """Print what is new of these."""
        for record in records:
            before = self._shown.get(record.generation)
            self._shown[record.generation] = record
            if before == record:
                continue
            for line in self._lines(record, before):
                print(line, flush=True)
        newest = max(self._shown, default=0)
        self.ended = newest > 0 and self._shown[newest].state in (FINISHED, LOST)

    def _lines(self, record: HistoryRecord, before: HistoryRecord | None) -> Iterator[str]:
        if self._as_json:
            yield json.dumps(as_json(record), allow_nan=False)
            return
        if before is not None and before == _without_gap(record):
            yield gap_line(record)
            return
        day = moment(record.at, True)[:6]
        if day != self._day:
            yield from ([HEADER] if not self._day else [])
            yield from ([day] if self._day or day != moment(time.time(), True)[:6] else [])
            self._day = day
        yield from lines(record, self._width)


def lines(record: HistoryRecord, width: int = WIDTH) -> list[str]:
    """A record at `width` columns: what fits into no column goes on in the next lines."""
    columns = COLUMNS.format(
        moment(record.at, False), record.generation, record.kind, record.replicas, seconds(record.gap)
    )
    reason = textwrap.wrap(clean(record.reason), max(20, width - MARGIN)) or [""]
    return [columns + reason[0], *(" " * MARGIN + more for more in reason[1:])]


def gap_line(record: HistoryRecord) -> str:
    """What is known later of a generation that was shown already."""
    return COLUMNS.format("", record.generation, "", "", seconds(record.gap)).rstrip()


def _without_gap(record: HistoryRecord) -> HistoryRecord:
    return replace(record, gap=None)
