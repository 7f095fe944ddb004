"""How long the others stand still when a worker joins, by the size of the state that it is given.

Three data-parallel replicas; one is SIGKILLed, and what is measured is not that loss but the generation in which the
fresh one comes in: each survivor's time from its last commit before to its first commit in it.  Beside it the time that
the bytes alone need through one loopback connection, with nothing done to them, measured right after.
"""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.bench.gap import Run, wait, worked_in
from tests.bench.processes import SCRIPTS, Processes
from tests.bench.table import Figure, Spread

from reknit.runtime.demo.story import Event

REPLICAS = 3
STEP_MS = 20
SIZES = (10, 100, 1000)  # MB
LIMIT_SECONDS = 60.0
_BLOCK = bytes(1 << 20)


def pauses(size: int, times: int) -> tuple[list[float], Spread]:
    """Seconds that the survivors stood still, one for each joiner; and the healings themselves."""
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as folder, Processes(Path(folder)) as processes:
        arguments = ["--state-mb", str(size), "--step-ms", str(STEP_MS)]
        processes.reknit("job", SCRIPTS / "ballast.py", *arguments, replicas=REPLICAS, events=True)
        run = Run(processes.events("job"))
        for _ in range(times):
            wait(run, lambda: run.settled() and bool(run.victims()), processes.check)
            run.strike(run.victims()[0], signal.SIGKILL)
        wait(run, run.settled, processes.check)
    events = sorted(run.events, key=lambda event: float(event["t"]))
    joins = [event for event in events if event["event"] == "healed" and event["step"] > 0]
    return [pause_of(join, events) for join in joins], Spread.of(join["seconds"] for join in joins)


def pause_of(join: Event, events: Sequence[Event]) -> float:
    """Of the worst survivor."""
    gaps: list[float] = []
    for worker in {event["worker"] for event in events if event["event"] == "committed"} - {join["worker"]}:
        mine = [event for event in events if event["worker"] == worker and event["event"] == "committed"]
        before = [event["t"] for event in mine if event["t"] < join["t"]]
        after = [event["t"] for event in mine if event["t"] > join["t"] and worked_in(join["generation"])(event)]
        if before and after:
            gaps.append(float(min(after) - max(before)))
    return max(gaps)


def bytes_alone(count: int) -> float:
    """Seconds that so many bytes take through a loopback connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            thread = threading.Thread(target=_send, args=(sender, count))
            begun, buffer, left = time.monotonic(), bytearray(1 << 20), count
            thread.start()
            while left > 0:
                left -= receiver.recv_into(buffer)
            thread.join()
            return time.monotonic() - begun


def _send(sender: socket.socket, count: int) -> None:
    for block in range(0, count, len(_BLOCK)):
        sender.sendall(_BLOCK[: count - block])


def _figures(quick: bool) -> Iterator[Figure]:
    taken = 0.0
    for size in SIZES[: 2 if quick else None]:
        if taken * 10 > LIMIT_SECONDS:  # the next size moves ten times the bytes
            return
        found, healing = pauses(size, 2 if quick else 4)
        pause, alone = Spread.of(found), Spread.of(bytes_alone(size * 10**6) for _ in range(3))
        taken = pause.worst / 1000 * len(found)
        note = f"worst {pause.worst:.0f} of {len(found)}; the healing itself {healing.median:.0f}"
        yield Figure(f"{size} MB, median", pause.median, "bytes alone", alone.median, note=note)


def run(quick: bool) -> list[Figure]:
    """For each size."""
    return list(_figures(quick))
