"""Two hundred reinits in one process: what it holds afterwards is what it held before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.communicator.meeting import MeetingPoint
from reknit.runtime.errors import Interrupted

SIZE = 2
WARM_UP = 40
REINITS = 200
# torch's caches settle within this; the buffers of 200 leaked groups would be 160 MB, the groups some 30 MB.
GROWTH_LIMIT_BYTES = 12 << 20
# A message that gloo was writing when its connection ended holds the group until this has passed: once in some
# hundreds of interrupts.  Short here, so that the test can see that it does go.
OPERATION_TIMEOUT_S = 4.0
SETTLE_S = 3 * OPERATION_TIMEOUT_S


def reinit(address: tuple[str, int], rank: int, generation: int) -> None:
    """One generation's life: built, used, and ended in one of the ways in which generations end."""
    if generation % 4 == 3:
        # A build that never completes: rank 2 of it does not exist.
        cancelled = threading.Event()
        threading.Timer(0.01, cancelled.set).start()
        try:
            Communicator.connect(
                address, f"absent {generation}", rank, 3, timeout_s=20, hostname="127.0.0.1", cancelled=cancelled
            )
            raise AssertionError("a group with a missing member was built")
        except Interrupted:
            pass
    group = Communicator.connect(
        address,
        f"{generation}",
        rank,
        SIZE,
        timeout_s=20,
        hostname="127.0.0.1",
        operation_timeout_s=OPERATION_TIMEOUT_S,
    )
    tensor = torch.ones(200_000)
    group.all_reduce(tensor)
    assert tensor[0] == SIZE
    if generation % 2 and rank == 0:
        group.interrupt()
    try:
        # Under way when the other rank interrupts or closes; the handle and the exception are kept until the next one.
        kept.append(group.all_reduce(tensor, asynchronous=True))
        if generation % 2:
            kept[-1].wait()
    except Interrupted as error:
        kept.append(error)
    group.close()
    kept[:-2] = []


kept: list[Any] = []


def settled(baseline: dict[str, int]) -> dict[str, int]:
    """Descriptors, threads and resident bytes, once what was dropped on other threads has gone, or should have."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        with open("/proc/self/statm", encoding="ascii") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        now = {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "resident": resident,
        }
        if all(now[what] <= baseline[what] for what in ("descriptors", "threads")) or time.monotonic() > deadline:
            return now
        time.sleep(0.05)


def main(host: str, port: int, rank: int) -> None:
    torch.set_num_threads(1)
    fresh = {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}
    for generation in range(WARM_UP):
        reinit((host, port), rank, generation)
    before = settled(fresh)
    for generation in range(WARM_UP, WARM_UP + REINITS):
        reinit((host, port), rank, generation)
    print(json.dumps([{**before, **fresh}, settled(fresh)]))


def test_two_hundred_reinits_leave_nothing_behind() -> None:
    meeting = MeetingPoint()
    host, port = meeting.address
    # One heap: with one a thread, what the short-lived threads leave unused in theirs would look like a leak.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__)), host, str(port), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(SIZE)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0
            before, after = json.loads(output)
            assert after["descriptors"] == before["descriptors"]
            assert after["threads"] == before["threads"]
            assert after["resident"] - before["resident"] < GROWTH_LIMIT_BYTES
        assert meeting.keys("0") == []
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        meeting.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
