"""What an agent does beside a job that has ended: see to it that this stays known."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.desk import head

from reknit.rendezvous.history import KEPT_SECONDS
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import encode_head
from reknit.rendezvous.records import FINISHED
from reknit.rendezvous.store.memory import MemoryStore
from reknit.runtime.aftermath import Aftermath, ended
from reknit.runtime.config import Config

KEYS = Keys("job")


def test_that_the_job_has_ended_is_known_as_long_as_an_agent_stands_beside_it(tmp_path: Path) -> None:
    now = [0.0]
    store, end = MemoryStore(clock=lambda: now[0]), head(7, state=FINISHED)
    store.put(KEYS.head, encode_head(end), lease=store.grant(KEPT_SECONDS))
    agent = Aftermath(Config(None, job="job", etcd="127.0.0.1:1"), end, store, tmp_path / "socket")
    for _ in range(3):
        now[0] += 0.9 * KEPT_SECONDS
        store.tick()
        agent.keep()
    assert ended(store, "job") == end
    now[0] += 1.1 * KEPT_SECONDS
    store.tick()
    assert ended(store, "job") is None
    agent.keep()


def test_a_job_that_runs_again_and_an_etcd_that_is_away_do_it_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    agent = Aftermath(Config(None, job="job", etcd="127.0.0.1:1"), head(7, state=FINISHED), store, tmp_path / "socket")
    store.put(KEYS.head, encode_head(head(8)))
    agent.keep()
    assert not caplog.records
    store.set_available(False)
    agent.keep()
    assert "may expire" in caplog.text
