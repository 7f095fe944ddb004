"""The warm process: it has imported torch, and forks a worker whenever the supervisor asks.

Importing torch takes seconds, and far longer beside busy workers; a fork takes milliseconds.  So that a copy of this
process is as good as a fresh one, it starts no threads, touches no GPU, and opens no connection but the one to its
supervisor.  Whether the imported modules kept to that is checked, and said, before the first fork.

It says to the supervisor, as packets (see `packets`): `ready` {seconds, unforkable}, `failed` {reason}, `spawned`
{worker_id, pid; with a pidfd}, `exited` {worker_id, pid, returncode}.  The supervisor asks with {worker_id, argv,
environment, folder; with descriptors for stdout, stderr and go}.  A forked worker begins only when a byte arrives on
`go`: had this process died before it told of the fork, nobody would know of that worker.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

from reknit.runtime.supervisor.bootstrap import (
    TO_THE_AGENT,
    become_fresh,
    run_script,
    title_of,
    use_line_buffered_streams,
)
from reknit.runtime.supervisor.packets import receive_packet, send_packet
from reknit.runtime.title import entitle

# What a warm process must not do while it imports, as environment variables: start BLAS threads, and initialise CUDA
# only to count devices.
IMPORT_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_CUDA_ERROR_NOT_INITIALIZED = 3
NEVER_BEGAN = 128 + signal.SIGTERM


def main() -> None:
    """Serve the supervisor; in a forked worker, run the script instead, from this clean top of the stack."""
    parser = argparse.ArgumentParser(prog="reknit warm process")
    parser.add_argument("--channel", type=int, required=True)
    parser.add_argument("--preload", action="append", default=[])
    arguments = parser.parse_args()
    entitle("reknit-warm", "reknit-warm: workers are forked from this process")
    for number in TO_THE_AGENT:  # it ends when its channel does
        signal.signal(number, signal.SIG_IGN)
    channel = socket.socket(fileno=arguments.channel)
    _import_all(channel, arguments.preload)
    argv = _Forker(channel).serve()
    run_script(argv)


def _import_all(channel: socket.socket, modules: Sequence[str]) -> None:
    began = time.monotonic()
    name = ""
    try:
        for name in modules:
            importlib.import_module(name)
    except BaseException as error:
        traceback.print_exc()
        advice = "install reknit[worker] for it" if name.partition(".")[0] == "torch" else "check --preload"
        reason = f"the warm process cannot import {name} with {sys.executable}: {error}; {advice}, or use --no-warm"
        send_packet(channel, {"event": "failed", "reason": reason})
        sys.exit(1)
    # What is here now is never garbage; without this the first collection in each worker would copy all its pages.
    gc.collect()
    gc.freeze()
    seconds = time.monotonic() - began
    send_packet(channel, {"event": "ready", "seconds": seconds, "unforkable": unforkable()})


def unforkable() -> str:
    """Why a fork of this process would not be as good as a fresh one; empty if it would be."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"the imported modules started {threads - 1} threads"
    if _cuda_is_initialised():
        return "the imported modules initialised CUDA"
    for name in os.listdir("/proc/self/fd"):
        if os.path.realpath(f"/proc/self/fd/{name}") == "/dev/kfd":
            return "the imported modules initialised ROCm"
    return ""


def _cuda_is_initialised() -> bool:
    """Ask the driver, if it is loaded at all; open device files would say nothing, since merely counting opens them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _CUDA_ERROR_NOT_INITIALIZED)


class _Forker:
    """The warm process's loop: requests in, forks and exits out."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._workers: dict[int, tuple[str, int]] = {}  # pidfd → worker_id, pid

    def serve(self) -> list[str]:
        """Serve until the supervisor is gone.  Returns only in a forked worker: the script and its arguments."""
        while True:
            poll = select.poll()
            poll.register(self._channel, select.POLLIN)
            for pidfd in self._workers:
                poll.register(pidfd, select.POLLIN)
            for descriptor, _ in poll.poll():
                if descriptor in self._workers:
                    self._reap(descriptor)
                    continue
                packet = receive_packet(self._channel)
                if packet is None:
                    os._exit(0)
                request, descriptors = packet
                if self._fork(request, descriptors):
                    return list(request["argv"])

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> bool:
        """Fork; whether this is the worker."""
        pid = os.fork()
        if pid == 0:
            self._channel.close()
            for pidfd in self._workers:
                os.close(pidfd)
            _become_worker(request, *descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = (request["worker_id"], pid)
        self._say({"event": "spawned", "worker_id": request["worker_id"], "pid": pid}, [pidfd])
        return False

    def _reap(self, pidfd: int) -> None:
        worker_id, pid = self._workers.pop(pidfd)
        # Before the wait, while the dead worker still holds its number, which is that of its group.
        kill_group(pid)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        returncode = os.waitstatus_to_exitcode(status)
        self._say({"event": "exited", "worker_id": worker_id, "pid": pid, "returncode": returncode}, [])

    def _say(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            send_packet(self._channel, message, descriptors)
        except OSError:
            os._exit(0)  # the supervisor is gone


def kill_group(pid: int) -> None:
    """SIGKILL what is left of the process group that a worker led."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _become_worker(request: dict[str, Any], stdout: int, stderr: int, go: int) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    if not os.read(go, 1):
        os._exit(NEVER_BEGAN)
    os.close(go)
    use_line_buffered_streams()
    os.environ.clear()
    os.environ.update(request["environment"])
    entitle(f"reknit:{request['worker_id']}", title_of(request["worker_id"], request["argv"]))
    try:
        os.chdir(request["folder"])
    except OSError as error:
        print(f"reknit: cannot enter the working folder {request['folder']!r}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    become_fresh()
