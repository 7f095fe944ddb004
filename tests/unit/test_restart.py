"""Restart decisions: failures are counted, kills are not, quick deaths are slowed down."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.runtime.supervisor.restart import RestartPolicy, WorkerExit, describe_exit, is_failure, next_restart

POLICY = RestartPolicy()
KILLED = -int(signal.SIGKILL)
CRASHED = -int(signal.SIGSEGV)


def exits(*returncodes: int | None, lived: float = 60.0, every: float = 10.0) -> list[WorkerExit]:
    return [WorkerExit(every * (number + 1), lived, code) for number, code in enumerate(returncodes)]


def decide(history: list[WorkerExit], policy: RestartPolicy = POLICY) -> tuple[float | None, str]:
    decision = next_restart(history, history[-1].at, policy)
    return decision.delay_seconds, decision.reason


def test_a_clean_exit_is_not_restarted() -> None:
    assert decide(exits(1, KILLED, 0)) == (None, "it finished")


@pytest.mark.parametrize("code", [1, 3, CRASHED, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL])
def test_failures_are_restarted_max_restarts_times(code: int) -> None:
    assert decide(exits(code, code, code))[0] == 0.0
    delay, reason = decide(exits(code, code, code, code))
    assert delay is None
    assert "failed 4 times within 300 s" in reason
    assert describe_exit(code) in reason


@pytest.mark.parametrize("code", [KILLED, -signal.SIGTERM, -signal.SIGINT, 137, 143, None])
def test_kills_are_never_counted(code: int | None) -> None:
    assert decide(exits(*[code] * 50))[0] == 0.0
    assert decide(exits(*[code] * 50, 1, 1, 1))[0] == 0.0


def test_a_kill_after_too_many_failures_is_still_restarted() -> None:
    # The job was told to go on after them (say with a larger max_restarts): the kill is not one more failure.
    assert decide(exits(1, 1, 1, 1, KILLED))[0] == 0.0


def test_failures_outside_the_window_are_forgotten() -> None:
    assert decide(exits(1, 1, 1, 1, 1, every=101.0))[0] == 0.0
    assert decide(exits(1, 1, 1, 1, 1, every=99.0))[0] is None


def test_no_restarts_allowed() -> None:
    assert decide(exits(1), RestartPolicy(max_restarts=0))[0] is None
    assert decide(exits(KILLED), RestartPolicy(max_restarts=0))[0] == 0.0


def test_quick_deaths_back_off_after_the_first_and_are_capped() -> None:
    policy = RestartPolicy(max_restarts=100)
    delays = [decide(exits(*[1] * count, lived=0.2), policy)[0] for count in range(1, 10)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_kills_back_off_later_than_failures() -> None:
    delays = [decide(exits(*[KILLED] * count, lived=0.2))[0] for count in range(1, 7)]
    assert delays == [0.0, 0.0, 0.0, 0.5, 1.0, 2.0]
    assert decide(exits(*[KILLED] * 5000, lived=0.2))[0] == 30.0


def test_a_long_life_ends_the_backoff() -> None:
    history = [*exits(KILLED, KILLED, KILLED, KILLED, lived=0.1), WorkerExit(500.0, 400.0, KILLED)]
    assert decide(history)[0] == 0.0
    for count, delay in enumerate([0.0, 0.0, 0.0, 0.5]):
        history.append(WorkerExit(501.0 + count, 0.5, KILLED))
        assert decide(history)[0] == delay


def test_time_already_waited_counts() -> None:
    history = exits(*[KILLED] * 6, lived=0.1)
    assert next_restart(history, history[-1].at + 1.5, POLICY).delay_seconds == 0.5
    assert next_restart(history, history[-1].at + 9.0, POLICY).delay_seconds == 0.0


def test_an_empty_history_is_refused() -> None:
    with pytest.raises(ValueError, match="history is empty"):
        next_restart([], 0.0, POLICY)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (7, "exit code 7"), (-9, "SIGKILL"), (-64, "SIGRTMAX"), (-99, "signal 99"), (None, "unknown")],
)
def test_describe_exit(code: int | None, words: str) -> None:
    assert words in describe_exit(code)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 100), st.none() | st.integers(-64, 255)), min_size=1),
    st.floats(0, 500),
)
def test_delays_are_never_negative_nor_above_the_cap(rows: list[tuple[float, float, int | None]], later: float) -> None:
    history = [WorkerExit(*row) for row in sorted(rows, key=lambda row: row[0])]
    decision = next_restart(history, history[-1].at + later, POLICY)
    if decision.delay_seconds is None:
        assert history[-1].returncode == 0 or is_failure(history[-1].returncode)
    else:
        assert 0.0 <= decision.delay_seconds <= POLICY.backoff_cap


def test_who_asks_to_be_started_afresh_has_not_failed_but_is_slowed_down_if_it_goes_on_asking() -> None:
    assert not is_failure(75)
    delay, reason = decide(exits(*[75] * 50))
    assert delay == 0.0
    assert "asked" in reason
    delays = [decide(exits(*[75] * count, lived=0.2))[0] for count in (1, 3, 4, 5, 50)]
    assert delays == [0.0, 0.0, 0.5, 1.0, 30.0]
    assert decide(exits(*[75] * 9, 1, 1, 1))[0] == 0.0
