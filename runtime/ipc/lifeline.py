"""The connection whose end tells the agent, at once, that this process is dead.

The kernel frees a dead process's memory before it closes its descriptors: hundreds of milliseconds for a training
process.  A thread with a descriptor table of its own gives up that table as the thread itself ends, which is at once.
So the lifeline is opened, and held, by a small thread that left the process's table: no other thread, and no child
that the process forks, ever holds a copy.

The thread must not run the garbage collector: a finalizer that closes a descriptor would close the wrong table's.  It
spends its life inside poll(), and collection is off for the moments in which it runs.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import select
import socket
import threading

_CLOSE_RANGE = 436  # the system call's number, the same on every architecture
_CLOSE_RANGE_UNSHARE = 2
_CLONE_FILES = 0x400
_ALL = 0xFFFFFFFF

_log = logging.getLogger(__name__)


class Lifeline:
    """Keeps one greeted connection to `path` open, from a thread of its own; opened anew whenever it ends."""

    def __init__(self, path: str, greeting: bytes, retry_seconds: float) -> None:
        self.greeting = greeting  # the owner may replace it; the next connection says the new one
        self.private = False  # whether the thread got a table of its own; a system may forbid it
        self._path = path
        self._retry = retry_seconds
        self._stop_reader, self._stop_writer = -1, -1
        self._shared_socket: socket.socket | None = None
        self._collecting = True
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="reknit-lifeline", daemon=True)

    def start(self) -> None:
        """Start the thread, which opens the connection; returns when it has left the process's descriptor table."""
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread.start()
        self._started.wait()
        if self.private:
            os.close(self._stop_reader)
        else:
            _log.warning(
                "this system forbids a thread its own descriptor table: the agent will learn of this worker's death "
                "only after its memory has been freed"
            )

    def stop(self) -> None:
        """End the connection and the thread."""
        if self._stop_writer >= 0:
            os.write(self._stop_writer, b"\0")
            self._thread.join(timeout=1.0)
            os.close(self._stop_writer)
            self._stop_writer = -1

    def forget_after_fork(self) -> None:
        """In a forked child, which lacks the thread: close what was inherited."""
        if self._stop_writer >= 0:
            os.close(self._stop_writer)
            self._stop_writer = -1
        if self._shared_socket is not None:
            self._shared_socket.close()

    def _hold(self) -> None:
        self._collecting = gc.isenabled()
        gc.disable()
        self.private = leave_descriptor_table(self._stop_reader)
        poll = select.poll()
        poll.register(self._stop_reader, select.POLLIN)
        self._started.set()
        while True:
            sock = self._connect()
            if sock is not None:
                self._shared_socket = None if self.private else sock
                poll.register(sock, select.POLLIN)
                stopped = self._sleep(poll, None)
                poll.unregister(sock)
                sock.close()
                if stopped:
                    break
            # Also after an end: a server that accepts and drops must not be asked in a tight loop.
            if self._sleep(poll, self._retry * 1000):
                break
        os.close(self._stop_reader)
        if self._collecting:
            gc.enable()

    def _sleep(self, poll: select.poll, milliseconds: float | None) -> bool:
        """Wait in the kernel, the only moment in which collection is left on; whether the thread shall stop."""
        if self._collecting:
            gc.enable()
        ready = poll.poll(milliseconds)
        self._collecting = gc.isenabled()
        gc.disable()
        return any(number == self._stop_reader for number, _ in ready)

    def _connect(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if sock.connect_ex(self._path) == 0:
            try:
                sock.sendall(self.greeting)
                return sock
            except OSError:
                pass
        sock.close()
        return None


def leave_descriptor_table(keep: int) -> bool:
    """Give the calling thread a table of its own that holds only 0, 1, 2 and `keep`; False if the system forbids it.

    0, 1 and 2 stay because a socket that took their numbers would receive what anybody prints.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # close_range first: container runtimes forbid unshare by default, but not this.
    others = (ctypes.c_uint(keep + 1), ctypes.c_uint(_ALL), ctypes.c_uint(_CLOSE_RANGE_UNSHARE))
    if libc.syscall(_CLOSE_RANGE, *others) != 0 and libc.unshare(_CLONE_FILES) != 0:
        return False
    for name in os.listdir(f"/proc/self/task/{threading.get_native_id()}/fd"):
        if int(name) > 2 and int(name) != keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor that listed the folder
    return True
