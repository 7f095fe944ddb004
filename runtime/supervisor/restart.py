"""Whether, and how soon, a worker that exited is started again.

Kept pure so that the agent, the tests and the simulator decide alike.  The one distinction that matters: a worker that
*fails* (an exception, a crash) will likely fail again, so its failures are counted; a worker that was *killed* (spot
preemption, the OOM killer, an operator) did nothing wrong, so it may come back as often as it is killed.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
EXIT_RESTART = 75  # a worker cannot go on as it is, a fresh one can (sysexits' EX_TEMPFAIL)
FREE_KILLS = 3  # quick deaths in a row by a kill that are answered at once
# What a process that handles a termination signal itself exits with, by the shells' convention.
_KILLED_EXIT_CODES = frozenset(
    128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
)


@dataclass(frozen=True)
class WorkerExit:
    """One exit of one worker: `at` in monotonic seconds, `lived_seconds` since its start.

    `returncode` is as in `subprocess`: negative is the signal's number, None is unknown.
    """

    at: float
    lived_seconds: float
    returncode: int | None


@dataclass(frozen=True)
class RestartPolicy:
    """How often a worker may fail, and how repeated quick deaths are slowed down (all times in seconds)."""

    max_restarts: int = 3
    window: float = 300.0
    quick: float = 10.0
    backoff: float = 0.5
    backoff_cap: float = 30.0


@dataclass(frozen=True)
class Restart:
    """The decision: start again `delay_seconds` from now, or never (None); and why, as a sentence."""

    delay_seconds: float | None
    reason: str


def next_restart(history: Sequence[WorkerExit], now: float, policy: RestartPolicy) -> Restart:
    """Decide about one worker from all its exits so far, oldest first; the last one is the one to answer.

    Each worker is judged by its own history only.  Raises ValueError if there is no exit to decide about.
    """
    if not history:
        raise ValueError("next_restart needs at least the exit that it decides about; the history is empty")
    last = history[-1]
    if last.returncode == 0:
        return Restart(None, "it finished")
    failures = [past for past in history if is_failure(past.returncode) and now - past.at <= policy.window]
    if is_failure(last.returncode) and len(failures) > policy.max_restarts:
        kinds = ", ".join(sorted({describe_exit(past.returncode) for past in failures}))
        return Restart(
            None,
            f"it failed {len(failures)} times within {policy.window:g} s ({kinds}); "
            f"no more than {policy.max_restarts} restarts are allowed",
        )
    delay = max(0.0, last.at + _backoff(history, policy) - now)
    when = "at once" if delay == 0 else f"in {delay:.1f} s"
    if last.returncode == EXIT_RESTART:
        return Restart(delay, f"it asked after {last.lived_seconds:.1f} s to be started afresh; restart {when}")
    return Restart(
        delay, f"it died ({describe_exit(last.returncode)}) after {last.lived_seconds:.1f} s; restart {when}"
    )


def is_failure(returncode: int | None) -> bool:
    """Whether an exit is the worker's own fault: an exception or a crash, not a kill, success or a wish to restart."""
    if returncode is None or returncode in (0, EXIT_RESTART) or returncode in _KILLED_EXIT_CODES:
        return False
    return returncode > 0 or -returncode in CRASH_SIGNALS


def describe_exit(returncode: int | None) -> str:
    """Name an exit for people: "exit code 1", "SIGKILL", "unknown exit status"."""
    if returncode is None:
        return "unknown exit status"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _backoff(history: Sequence[WorkerExit], policy: RestartPolicy) -> float:
    """Seconds from the last exit to the restart: none after the first few quick deaths in a row, then doubling.

    A worker that was killed is given more of them than one that failed: whoever kills may have reasons that pass.
    """
    quick_deaths = 0
    for past in reversed(history):
        if past.lived_seconds >= policy.quick:
            break
        quick_deaths += 1
    free = 1 if is_failure(history[-1].returncode) else FREE_KILLS
    if quick_deaths <= free:
        return 0.0
    # The exponent is bounded because a worker may be killed without limit, and 2.0 ** 1100 overflows.
    return min(policy.backoff_cap, policy.backoff * 2.0 ** min(quick_deaths - free - 1, 60))
