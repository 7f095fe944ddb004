"""The accessors in a static world of two real processes: groups that carry data, a data communicator made anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("static_world_worker.py")
PATIENCE_S = 110


def test_two_processes_of_plain_torch(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        printed = [worker.communicate(timeout=PATIENCE_S) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0], printed
    for rank, (out, _) in enumerate(printed):
        own = rank + 1.0
        assert json.loads(out) == {
            "first": 3.0,
            "again": [3.0, False],
            "pipeline": [own, True],
            "topology": [own, 3.0, 3.0, own],
            "source": 0.0,
        }
