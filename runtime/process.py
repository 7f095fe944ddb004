"""What the kernel says of this process, to show that nothing leaks."""

from __future__ import annotations

import os


def footprint() -> dict[str, int]:
    """Open descriptors and threads of this process."""
    return {"fds": len(os.listdir("/proc/self/fd")) - 1, "threads": len(os.listdir("/proc/self/task"))}
