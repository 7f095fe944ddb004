"""What `ps` and `top` show of a process of ours: a name, and for what we start ourselves a command line that says who.

The workers of a host are forks of one process, so that by themselves they would all look like that one.
"""

from __future__ import annotations

import os
from pathlib import Path

_ARG_START, _ARG_END = 45, 46  # in /proc/self/stat, counted behind the name


def name_process(name: str) -> None:
    """Set the name that ps -e and top show (the kernel keeps 15 bytes)."""
    try:
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(name.encode(errors="replace")[:15])
    except OSError:
        pass


def entitle(name: str, command: str) -> None:
    """Name this process, and let ps -ef and its like show `command` instead of how it was started.

    Not for an agent, which is known by its command line (see `identity`).  The kernel shows what lies in this process's
    memory where its arguments were put, of which Python made copies: so that is overwritten, through a file that turns
    a wrong address into an error.  What is longer than the arguments were is cut off.
    """
    name_process(name)
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        shown = Path("/proc/self/cmdline").read_bytes()
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            if shown and os.pread(memory.fileno(), end - start, start) == shown:
                text = command.encode(errors="replace")[: len(shown) - 1]
                os.pwrite(memory.fileno(), text.ljust(len(shown), b"\0"), start)
    except (OSError, ValueError, IndexError, OverflowError):
        pass
