"""A wall clock for a job alone, which a test lets jump: in all of its processes, and not on the machine."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("wall_clock.c")
VARIABLE = "WALL_CLOCK_FILE"


class WallClock:
    """What the processes started with `prefix` take for the time of day.  Skips the test without a C compiler."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler to build the test's clock with")
        self._library, self._file = folder / "wall_clock.so", folder / "wall_clock"
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE), "-ldl"], check=True)
        self._file.write_bytes(struct.pack("=q", 0))

    @property
    def prefix(self) -> tuple[str, ...]:
        """What comes before a command; its children inherit the clock."""
        return ("env", f"LD_PRELOAD={self._library}", f"{VARIABLE}={self._file}")

    def set(self, ahead: int) -> None:
        """Let it show so many seconds more than the machine's, from this moment on."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", ahead))

    def is_in(self, pid: int) -> bool:
        """Whether a process goes by this clock."""
        return str(self._library) in Path(f"/proc/{pid}/maps").read_text()
