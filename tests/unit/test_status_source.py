"""What an agent's GET /status tells: read once a second at most, however many ask, and nothing without etcd."""

from __future__ import annotations

import threading

import pytest
from tests.unit.lookout import KEYS, Lookout

from reknit.health.http import Unavailable
from reknit.rendezvous.shows import TELLS
from reknit.rendezvous.store.protocol import Entry
from reknit.runtime import status_source
from reknit.runtime.status_source import FRESH, PATIENCE, StatusSource


class Asked:
    """A source whose clock is the test's."""

    def __init__(self) -> None:
        self.lookout = lookout = Lookout()
        lookout.publish()
        self.source = StatusSource(lookout.store, KEYS.job, "host-a", lambda: lookout.now, lookout.wait)

    def step_on(self) -> None:
        """The job comes to its next generation."""
        self.lookout.job.leave("a0")
        self.lookout.publish(self.lookout.job.next())


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_copy_is_good_for_a_second(asked: Asked) -> None:
    first = asked.source()
    asked.step_on()
    asked.lookout.pass_time(FRESH / 2)
    assert asked.source() is first
    asked.lookout.pass_time(FRESH / 2 + 0.01)
    assert (first["generation"], asked.source()["generation"]) == (1, 2)


def test_many_who_ask_at_once_cost_one_reading(asked: Asked) -> None:
    found: list[object] = []
    askers = [threading.Thread(target=lambda: found.append(asked.source())) for _ in range(20)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len(found) == 20
    assert all(one is found[0] for one in found)
    assert len(asked.lookout.looks) == 1


def test_who_asks_first_waits_a_moment_for_the_agents_and_who_goes_on_does_not(asked: Asked) -> None:
    asked.source()
    assert asked.lookout.waited == pytest.approx(PATIENCE, abs=0.1)
    asked.lookout.pass_time(1.0)
    asked.source()
    assert asked.lookout.waited == pytest.approx(PATIENCE, abs=0.1)
    asked.lookout.pass_time(TELLS + 1)
    asked.source()
    assert asked.lookout.waited == pytest.approx(2 * PATIENCE, abs=0.2)


def test_without_etcd_it_says_so_and_asks_no_more_often(asked: Asked) -> None:
    asked.source()
    asked.lookout.store.set_available(False)
    asked.lookout.pass_time(1.0)
    for _ in range(2):
        with pytest.raises(Unavailable, match="etcd does not answer"):
            asked.source()
    asked.lookout.store.set_available(True)
    with pytest.raises(Unavailable):
        asked.source()
    asked.lookout.pass_time(1.0)
    assert asked.source()["state"] == "running"


def test_who_comes_while_a_slow_etcd_is_read_does_not_wait_for_it(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_source, "LONGEST", 0.01)
    begun, answers = threading.Event(), threading.Event()

    def slowly(*_: object, **__: object) -> Entry | None:
        begun.set()
        assert answers.wait(10.0)
        return None

    monkeypatch.setattr(asked.lookout.store, "get", slowly)
    first = threading.Thread(target=asked.source)
    first.start()
    assert begun.wait(10.0)
    with pytest.raises(Unavailable, match="slowly"):
        asked.source()
    answers.set()
    first.join()
    assert asked.source()["job"] == KEYS.job


def test_it_looks_only_while_it_is_asked(asked: Asked) -> None:
    assert asked.lookout.store.get(KEYS.look) is None
    asked.source()
    assert asked.lookout.store.get(KEYS.look) is not None
    asked.source.close()
    assert asked.lookout.store.get(KEYS.look) is None
    asked.lookout.pass_time(100.0)
    asked.lookout.store.set_available(False)
    asked.source.close()
