"""Runs a training script as `__main__`, as `python script.py` would: in a forked process or a fresh one.

The script must not notice the difference: its traceback has no frames of ours, its exit code and its atexit handlers
are the interpreter's, `sys.path[0]` is its folder.  One thing is better than Python's own: a worker whose agent is
gone trains on, so writing to the pipe that nobody reads any more is not an error but goes nowhere.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import random
import signal
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from reknit.runtime.title import entitle

running = False  # whether this process runs a script by `run_script`
at_end: list[Callable[[], None]] = []  # called when the script has ended well, while threads can still be started

# What batch systems and service managers may send to all processes of a job at once, for the agent and the workers.
TO_THE_AGENT = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPWR, signal.SIGXCPU)

# `python -c`, since `python -m` would put the working folder, with whatever modules lie in it, before the library.
COMMAND = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); from reknit.runtime.supervisor.{module} import main; main()"
)


def command(python: str, module: str, arguments: Sequence[str]) -> list[str]:
    """The command line that runs `main()` of one of our modules in a fresh interpreter."""
    return [python, "-c", COMMAND.format(module=module), *arguments]


def main() -> None:
    """Run the script named by the first argument; the others are its own."""
    if len(sys.argv) < 2:
        sys.exit("reknit: no script given")
    worker_id = os.environ.get("REKNIT_WORKER_ID")
    if worker_id is not None:
        entitle(f"reknit:{worker_id}", title_of(worker_id, sys.argv[1:]))
    use_line_buffered_streams()
    run_script(sys.argv[1:])


def title_of(worker_id: str, argv: Sequence[str]) -> str:
    """A worker's title: whose it is and what it runs.  Not with what arguments, as a secret may be among them."""
    return f"reknit:{worker_id} {argv[0]}"


def run_script(argv: Sequence[str]) -> None:
    """Run `argv[0]` as `__main__` with `sys.argv = argv`; returns when it ended well, raises SystemExit otherwise."""
    global running
    running, script = True, argv[0]
    try:
        source = Path(script).read_bytes()
    except OSError as error:
        print(f"reknit: cannot read the script {script!r}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    sys.argv = list(argv)
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(Path(script).resolve().parent))
    module = _become_main(script)
    try:
        exec(compile(source, script, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as ending:
        if ending.code in (None, 0):
            _end_well()
        raise
    except BaseException as error:
        _fail(error)
    _end_well()


def _end_well() -> None:
    """Not by an atexit handler: from Python 3.12 on none of them can start a thread."""
    for callback in at_end:
        callback()


def use_line_buffered_streams() -> None:
    """Make sys.stdout and sys.stderr send each line when it is complete, and survive the loss of their reader."""
    sys.stdout = sys.__stdout__ = _Stream(1, "strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _Stream(2, "backslashreplace")  # type: ignore[misc]


def become_fresh() -> None:
    """In a forked process: what a fresh interpreter would have that a copy of another process lacks."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in TO_THE_AGENT:
        signal.signal(number, signal.SIG_DFL)
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
        threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
        if threads.isdigit() and int(threads) > 0:
            # The OpenMP library read the variable when it was loaded, in the warm process.
            torch.set_num_threads(int(threads))


class _Stream(io.TextIOWrapper):
    """Standard output or error; once its reader is gone, its descriptor becomes /dev/null.

    The error is caught at this level, not in a raw stream: there, an exception from a signal handler would come between
    the write and the buffer's note of it, and the text would be written twice.
    """

    def __init__(self, descriptor: int, errors: str) -> None:
        raw = io.FileIO(descriptor, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors=errors, line_buffering=True)

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._discard_from_now_on()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._discard_from_now_on()
            super().flush()

    def _discard_from_now_on(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


def _become_main(script: str) -> types.ModuleType:
    """A new `__main__` that stays in sys.modules to the end (runpy's would be gone before atexit handlers run)."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=script,
        __builtins__=builtins,
        __loader__=importlib.machinery.SourceFileLoader("__main__", script),
        __annotations__={},
        __cached__=None,
        __spec__=None,
    )
    # Ours is kept alive: emptying its namespace would break the frames that are still running in it.
    _replaced.append(sys.modules["__main__"])
    sys.modules["__main__"] = module
    return module


_replaced: list[types.ModuleType] = []


def _fail(error: BaseException) -> NoReturn:
    """Show the script's exception as the interpreter would, without our frames, and exit."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    try:
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    except Exception:
        sys.__excepthook__(type(error), error, trace)
    sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
