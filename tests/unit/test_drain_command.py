"""`reknit drain` on a store in memory: whom it asks, and what it says of those who left, were lost, or stayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.planning import running

from reknit.rendezvous import parts
from reknit.rendezvous.accusation import AgentRecord, encode_agent
from reknit.rendezvous.codec import encode_member
from reknit.rendezvous.draining import decode_order
from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import Name
from reknit.rendezvous.store.memory import MemoryStore
from reknit.runtime import drain_command
from reknit.runtime.cli import main
from reknit.runtime.drain_command import DrainError, drain

KEYS = Keys("job")


class Lively(MemoryStore):
    """A store in which, after the first orders, something happens to those who were asked."""

    def __init__(self, fate: str) -> None:
        super().__init__()
        self._fate, self.asked = fate, dict[str, float]()

    def put(self, key: str, value: bytes, **more: Any) -> int:
        revision = super().put(key, value, **more)
        if key.startswith(KEYS.drains):
            order = decode_order(value, key)
            assert more["lease"].ttl > order.seconds, "an order outlives its deadline, and not for ever"
            self.asked[order.name.worker_id] = order.seconds
            if self._fate == "leave":
                self.delete(key)
            if self._fate in ("leave", "vanish"):
                self.delete(KEYS.member(order.name.worker_id))
            elif self._fate == "die":
                record = next(o.member for o in JOB.seen.values() if o.member.name == order.name)
                super().put(
                    KEYS.member(record.worker_id), encode_member(replace(record, address="127.0.0.1:1", dead=True))
                )
        return revision


JOB = running(2, pipe=2)


def store(fate: str) -> Lively:
    """A store with a running job of two replicas (slots 0 and 1) of two stages."""
    store = Lively(fate)
    assert JOB.plan is not None
    head, found = parts.encode(JOB.plan)
    for key, value in found.items():
        store.put(KEYS.prefix + key, value.replace(b'"address":""', b'"address":"127.0.0.1:1"'))
    store.put(KEYS.head, head)
    for o in JOB.seen.values():
        member = replace(o.member, address="127.0.0.1:1")
        store.put(KEYS.member(member.worker_id), encode_member(member))
    return store


def test_a_replica_is_asked_and_has_left(capsys: Any) -> None:
    there = store("leave")
    assert drain(there, KEYS, "replica/1", 7.0) == 0
    assert there.asked == {"b0": 7.0, "b1": 7.0}
    said = capsys.readouterr().out
    assert "asked b0, b1 to leave within 7 s" in said
    assert "b1 has left" in said


def test_who_dies_was_lost_and_the_command_fails(capsys: Any) -> None:
    assert drain(store("die"), KEYS, "a0", 7.0) == 1
    assert "a0 was lost before it could leave" in capsys.readouterr().out


def test_who_dies_with_its_agent_was_lost_too(capsys: Any) -> None:
    assert drain(store("vanish"), KEYS, "a0", 7.0) == 1
    assert "a0 was lost before it could leave" in capsys.readouterr().out


def test_who_ends_with_its_job_has_left(capsys: Any) -> None:
    there = store("vanish")
    assert JOB.plan is not None
    head, found = parts.encode(replace(JOB.plan, state="finished", replicas=()))
    for key, value in found.items():
        there.put(KEYS.prefix + key, value)
    there.put(KEYS.head, head)
    assert drain(there, KEYS, "a0", 7.0) == 0
    assert "a0 has left" in capsys.readouterr().out


def test_who_stays_beyond_the_deadline_makes_the_command_fail(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(drain_command, "GRACE", 0.0)
    assert drain(store("stay"), KEYS, "a0", 0.01) == 1
    assert "a0 did not leave within 0.01 s" in capsys.readouterr().out


def test_who_is_not_there_is_said_with_who_is() -> None:
    with pytest.raises(
        DrainError, match=r"has no b7: its workers are a0, a1, b0, b1, its hosts and agents agent, host"
    ):
        drain(store("stay"), KEYS, "b7", 1.0)
    with pytest.raises(DrainError, match=r"has no replica/7: its replicas are replica/0, replica/1"):
        drain(store("stay"), KEYS, "replica/7", 1.0)
    with pytest.raises(ReknitError, match="no worker of it is there"):
        drain(MemoryStore(), KEYS, "b7", 1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["w0", "--job", "no/name", "--etcd", "127.0.0.1:1"], "--job"),
        (["replica/x", "--job", "j", "--etcd", "127.0.0.1:1"], "slot"),
        (["w0", "--job", "j", "--etcd", "127.0.0.1:1", "--deadline", "soon"], "--deadline"),
        (["w0", "--job", "j", "--etcd", "127.0.0.1:x"], "--etcd"),
    ],
)
def test_a_wrong_order_is_refused_before_anybody_is_asked(arguments: list[str], words: str, capsys: Any) -> None:
    assert main(["drain", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_names_are_asked_for_one_process() -> None:
    there = store("die")
    drain(there, KEYS, "a1", 1.0)
    entry = there.get(KEYS.drain("a1"))
    assert entry is not None
    assert decode_order(entry.value, entry.key).name == Name("a1", "1")


def test_a_host_whose_workers_have_left_already_is_drained(capsys: pytest.CaptureFixture[str]) -> None:
    some = store("leave")
    some.put(KEYS.agent("left"), encode_agent(AgentRecord("left", "its-host", 1, "127.0.0.1:1", "node")))
    for target in ("left", "its-host"):
        assert drain(some, KEYS, target, 9.0) == 0
        assert f"{target} has no workers" in capsys.readouterr().out
    assert not some.asked
