"""Run by the doctor in processes of their own: what torch is here, and whether two of them can meet over gloo and part.

The first one tells what it found as one JSON object on standard output.  It starts the second, which imports torch
meanwhile, and tells it on standard input where they meet.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import threading
import time
from typing import Any

SECOND = "second"
BUILD_SECONDS = 30.0
BLOCKED_SECONDS = 0.1  # for the wait to be in gloo when it is interrupted
PATIENCE = 10.0


def main() -> None:
    """Either of the two."""
    if sys.argv[1:] == [SECOND]:
        _second()
        return
    # `-m` would put the working folder before the library; the doctor starts this as the supervisor starts its own.
    other = subprocess.Popen(
        [sys.executable, "-c", sys.argv[1], SECOND], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    found: dict[str, Any] = {}
    try:
        _first(other, found)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    finally:
        other.kill()
        other.wait()
    print(json.dumps(found), flush=True)


def _first(other: subprocess.Popen[str], found: dict[str, Any]) -> None:
    import torch
    import torch.distributed as dist

    found["torch"] = torch.__version__
    found["numpy"] = _version("numpy")
    found["gpus"] = torch.cuda.device_count()
    found["gloo"] = dist.is_available() and dist.is_gloo_available()
    if found["gloo"]:
        _meet(other, found)


def _meet(other: subprocess.Popen[str], found: dict[str, Any]) -> None:
    import torch

    from reknit.runtime.communicator.communicator import Communicator
    from reknit.runtime.communicator.meeting import MeetingPoint
    from reknit.runtime.errors import Interrupted

    point = MeetingPoint("127.0.0.1")
    assert other.stdin is not None
    other.stdin.write(json.dumps(point.address) + "\n")
    other.stdin.flush()
    group = Communicator.connect(
        point.address, "doctor", 0, 2, timeout_s=BUILD_SECONDS, hostname="127.0.0.1", operation_timeout_s=BUILD_SECONDS
    )
    numbers = torch.ones(1000)
    group.all_reduce(numbers)
    found["reduced"] = bool((numbers == 3.0).all())
    blocked = group.all_reduce(torch.ones(1000), asynchronous=True)  # the other one takes no part in this
    ended: list[float] = []

    def wait() -> None:
        try:
            blocked.wait()
        except Interrupted:
            ended.append(time.monotonic())

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    time.sleep(BLOCKED_SECONDS)
    cut = time.monotonic()
    group.interrupt("the doctor looks whether it can")
    waiter.join(PATIENCE)
    found["interrupted"] = ended[0] - cut if ended else None
    group.close()
    point.close()


def _second() -> None:
    import torch

    from reknit.runtime.communicator.communicator import Communicator

    host, port = json.loads(sys.stdin.readline())
    group = Communicator.connect(
        (host, port), "doctor", 1, 2, timeout_s=BUILD_SECONDS, hostname="127.0.0.1", operation_timeout_s=BUILD_SECONDS
    )
    group.all_reduce(2 * torch.ones(1000))
    sys.stdin.read()  # until it is killed


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
