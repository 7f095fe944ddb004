"""What an agent exports of itself and of what passes its loop; nobody has started it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.desk import Desk, head, peer
from tests.unit.test_metrics import Series
from tests.unit.test_metrics import series as all_series

from reknit.rendezvous.errors import StoreUnavailable
from reknit.rendezvous.leader.witness import Witnessing
from reknit.rendezvous.records import Axes, Member, Plan, Spec
from reknit.rendezvous.session.events import Assigned, HeadSeen
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.protocol import Compare, Put
from reknit.runtime.agent import _Signal
from reknit.runtime.ipc.server import PeerEvent


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, job="gpt")
    yield desk
    desk.log.close()


def series(desk: Desk) -> Series:
    return all_series(desk.agent.station.metrics)


def get(desk: Desk, name: str, /, **labels: str) -> float | None:
    return series(desk).get((name, frozenset(labels.items())))


def test_of_itself(desk: Desk) -> None:
    found = series(desk)
    assert found["reknit_leader", frozenset()] == 0
    assert found["reknit_etcd_connected", frozenset()] == 0
    assert found["reknit_lease_left_seconds", frozenset()] == 0
    assert found["reknit_rejected_records_total", frozenset()] == 0
    assert [labels for name, labels in found if name == "reknit_build_info"]
    operations = {dict(labels)["operation"] for name, labels in found if name == "reknit_etcd_errors_total"}
    assert operations == {"read", "write", "transaction", "lease", "watch"}
    assert not [name for name, _ in found if name.startswith(("reknit_job_", "reknit_group_"))]


def test_what_was_turned_away_on_the_socket(desk: Desk) -> None:
    desk.agent.station.server.counters.update(refused=1, malformed=2, overflow=3, unnamed=4, accept_failed=5)
    causes = {"user": 1, "malformed": 2, "overflow": 3, "unnamed": 4}
    for cause, count in causes.items():
        assert get(desk, "reknit_refused_messages_total", cause=cause) == count
    assert len([name for name, _ in series(desk) if name == "reknit_refused_messages_total"]) == len(causes)


def test_a_workers_way_through_the_loop(desk: Desk) -> None:
    worker = desk.attach(peer("w0", 1))
    assert get(desk, "reknit_worker_up", worker="w0") == 1
    assert get(desk, "reknit_worker_placed", worker="w0") == 0
    desk.agent.take(Assigned("w0", "a", 0))
    desk.say(worker, type="built")
    desk.agent.take(HeadSeen(head(1)))
    plan = next(message for _, message in desk.sent if message["type"] == "plan")
    assert 0 < time.monotonic() - plan["seen"] < 10
    now = time.monotonic()
    for step in (1, 2):
        desk.say(worker, type="event", event="committed", t=now, generation=1, step=step, version=[1, step])
    assert get(desk, "reknit_worker_step", worker="w0") == 2
    assert get(desk, "reknit_steps_committed_total", worker="w0") == 2
    desk.say(worker, type="event", event="drained", t=now, generation=1, seconds=1.0)
    assert get(desk, "reknit_drains_total", result="done") == 0, "only its agent can say so"
    desk.agent.take(PeerEvent("closed", worker))
    assert get(desk, "reknit_worker_up", worker="w0") == 0


def test_how_slow_a_worker_is_is_known_to_those_who_look(desk: Desk) -> None:
    worker = desk.attach(peer("w0", 1))
    for step, timing in ((4, {"slowdown": 1.7}), (5, {"own": 0.1})):
        desk.say(worker, type="event", event="committed", t=time.monotonic(), generation=1, step=step, timing=timing)
        assert desk.agent.station.workers["w0"].known.slowdown == 1.7
    assert get(desk, "reknit_worker_slowdown_ratio", worker="w0") == 1.7


def test_signals_that_ask_workers_to_leave_are_counted(desk: Desk) -> None:
    worker = desk.attach(peer("w0", 1))
    desk.say(worker, type="drain", signal="SIGUSR1")
    desk.agent.take(_Signal(signal.SIGTERM))
    desk.agent.take(_Signal(signal.SIGTERM))  # stops at once, and is no notice any more
    assert get(desk, "reknit_preemption_notices_total", signal="SIGUSR1") == 1
    assert get(desk, "reknit_preemption_notices_total", signal="SIGTERM") == 1


def test_an_etcd_that_is_not_there_is_counted_by_operation() -> None:
    store = EtcdStore("127.0.0.1:1", timeout=0.3)
    try:
        with pytest.raises(StoreUnavailable):
            store.get("key")
        with pytest.raises(StoreUnavailable):
            store.transaction([Compare.absent("key")], [Put("key", b"")])
        assert store.errors["read"] >= 2, "that of the transaction, which looks first, too"
        assert store.errors.keys() <= {"read", "transaction"}
    finally:
        store.close()


def test_a_witness_that_fails_keeps_no_leader_from_leading(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[Plan, int]] = []

    def witness(plan: Plan, spec: Spec, members: object, revision: int) -> None:
        seen.append((plan, revision))
        raise RuntimeError("no")

    witnessing, plan = Witnessing(witness, 7), Plan(1, "why")
    for _ in range(2):
        witnessing.show(plan, Spec(Axes()), [replace(Member("w", "a", "agent", "host", ""))])
    witnessing.show(None, Spec(Axes()), [])
    assert seen == [(plan, 7)] * 2
    assert len(caplog.records) == 1
