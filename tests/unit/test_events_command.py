"""`reknit events` and `reknit jobs` on a store in memory: what they show, at 80 columns and as JSON."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.leaders_desk import ALL, KEYS, Desk, member

from reknit.rendezvous.accusation import AgentRecord, encode_agent
from reknit.rendezvous.history import HistoryRecord, encode_record
from reknit.rendezvous.jobs import jobs_in
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import Axes, Spec
from reknit.rendezvous.store.memory import MemoryStore
from reknit.runtime.operating.events import HEADER, EventsError, Printer, follow, lines, show
from reknit.runtime.operating.jobs import JobLine, JobsError, forget, look, render

AT = 1764540000.0
FIRST = HistoryRecord(1, AT, "w0, w1, w2 joined", "running", "begin", 3, 3, 0)
LONG = "lost host0-1, host1-1, host2-1, host3-1 and 12 more: their host was lost; somebody\x1b[31m else hangs"
SECOND = HistoryRecord(2, AT + 60, LONG, "running", "loss", 2, 2, 0, 0.0921)
LAST = HistoryRecord(3, AT + 120, "all 2 members have finished", "finished", "finished", 0, 0, 2)


def put(store: MemoryStore, *records: HistoryRecord) -> None:
    for record in records:
        store.put(KEYS.history(record.generation), encode_record(record))


def test_each_generation_is_a_line_and_no_line_is_longer_than_80_columns(capsys: Any) -> None:
    store = MemoryStore()
    put(store, FIRST, SECOND, LAST)
    show(store, KEYS, Printer(False))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == HEADER
    assert all(len(line) <= 80 for line in said)
    assert "\x1b" not in "".join(said)
    second = next(line for line in said if " 2  loss" in line)
    assert second.split()[1:6] == ["2", "loss", "2", "92", "ms"]
    assert " ".join(" ".join(line[len(HEADER) - 3 :] for line in said[1:]).split()).count("and 12 more") == 1


def test_a_wider_terminal_is_used() -> None:
    assert len(lines(SECOND, 80)) > len(lines(SECOND, 200)) == 1


def test_as_json_each_is_an_object_with_stable_keys(capsys: Any) -> None:
    store = MemoryStore()
    put(store, FIRST, SECOND)
    show(store, KEYS, Printer(True))
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {
        "generation": 1,
        "at": AT,
        "kind": "begin",
        "reason": "w0, w1, w2 joined",
        "state": "running",
        "replicas": 3,
        "members": 3,
        "spares": 0,
        "gap": None,
    }
    assert second["gap"] == 0.0921


def test_without_a_history_it_fails() -> None:
    with pytest.raises(EventsError, match="no history of a job job"):
        show(MemoryStore(), KEYS, Printer(False))


def test_what_does_not_fit_is_left_out(capsys: Any) -> None:
    store = MemoryStore()
    put(store, FIRST)
    store.put(KEYS.history(2), b"{")
    store.put(f"{KEYS.histories}x", encode_record(SECOND))
    show(store, KEYS, Printer(True))
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_what_comes_is_shown_when_it_comes_and_its_gap_when_it_is_known(as_json: bool, capsys: Any) -> None:
    store = MemoryStore()
    put(store, FIRST)
    thread = threading.Thread(target=follow, args=(store, KEYS, Printer(as_json)), daemon=True)
    thread.start()
    put(store, replace(SECOND, gap=None))
    put(store, SECOND)
    put(store, SECOND)  # nothing new
    put(store, LAST)
    thread.join(5.0)
    assert not thread.is_alive(), "it ends with the job"
    said = capsys.readouterr().out
    if as_json:
        assert [(r["generation"], r["gap"]) for r in map(json.loads, said.splitlines())][-2:] == [
            (2, 0.0921),
            (3, None),
        ]
    else:
        assert said.count("92 ms") == 1
        assert said.count("all 2 members") == 1
        assert all(len(line) <= 80 for line in said.splitlines())


# ---------------------------------------------------------------- jobs


def test_jobs_are_shown_as_they_are_running_ended_or_left_behind() -> None:
    desk = Desk(Spec(Axes(), 1, 4, desired=3))
    desk.look(1.0, *ALL)
    assert [(line.job, line.state, line.agents) for line in look(desk.store)] == [("job", "absent", 0)]
    desk.store.put(KEYS.agent("agent"), encode_agent(AgentRecord("agent", "host", 1)), lease=desk.lease)
    (line,) = look(desk.store)
    assert (line.state, line.replicas, line.wanted, line.generation, line.agents) == ("running", 3, 3, 1, 1)
    assert line.at is not None
    desk.look(2.0, *(member(number, ready=1) for number in range(3)))
    desk.look(3.0, *(member(number, ready=1, finished=True) for number in range(3)))
    desk.store.revoke(desk.lease)
    desk.store.put(Keys("a.new-one").spec, b"{")
    new, old = look(desk.store)
    assert (new.job, new.state, new.wanted, new.at) == ("a.new-one", "absent", None, None)
    assert (old.job, old.state, old.replicas, old.generation) == ("job", "finished", 0, 2)


def test_the_lines_have_80_columns() -> None:
    found = [
        JobLine("gpt", "running", 12345, 1000, 1000, 1000, AT),
        JobLine("a" * 20, "finished", 7, 0, None, 0, AT - 86_400 * 40),
        JobLine("b" * 200, "waiting", 0, 0, 4, 2, None),
    ]
    head, first, second, third = render(found, AT)
    assert head.split() == ["job", "state", "replicas", "wanted", "gen", "agents", "since"]
    assert max(len(line) for line in (head, first, second)) <= 80
    assert third.startswith("b" * 200 + "  waiting")


# ---------------------------------------------------------------- two jobs in one store


def test_two_jobs_in_one_store_do_not_see_each_other() -> None:
    """Not even if the name of one begins with the other's, and both have members and agents of the same names."""
    store = MemoryStore()
    one = Desk(Spec(Axes(), 1, 3), store=store)
    one.look(1.0, *ALL)
    other = Keys("job2")
    for entry in store.list(KEYS.prefix).entries:
        store.put(other.prefix + entry.key.removeprefix(KEYS.prefix), entry.value)
    store.put(other.member("w7"), b"{}")
    store.delete(other.member("w0"))
    before = store.list(other.prefix).entries
    assert one.look(2.0, *(member(number, ready=1) for number in range(3))) == 1
    one.look(3.0, *(member(number, ready=1, finished=True) for number in range(3)))
    assert one.plan.state == "finished"
    assert store.list(other.prefix).entries == before, "its end is not the other's"
    assert {line.job: line.state for line in look(store)} == {"job": "finished", "job2": "absent"}
    assert {KEYS.spec, KEYS.head} <= {entry.key for entry in store.list(KEYS.prefix).entries}


def test_what_is_left_of_a_job_is_deleted_and_nothing_of_another_or_of_one_whose_agents_are_there() -> None:
    store = MemoryStore()
    for keys in (KEYS, Keys("job2")):
        store.put(keys.history(1), encode_record(FIRST))
        store.put(keys.head, b"whatever")
    record = encode_agent(AgentRecord("its-agent", "its-host", 1, "127.0.0.1:1", "node"))
    store.put(KEYS.agent("its-agent"), record)
    with pytest.raises(JobsError, match=r"job is not forgotten, as agents of it are there \(its-agent\)"):
        forget(store, KEYS)
    store.delete(KEYS.agent("its-agent"))
    store.put(KEYS.leader, b"one that has just come")
    with pytest.raises(JobsError, match="has just come"):
        forget(store, KEYS)
    store.delete(KEYS.leader)
    assert forget(store, KEYS).startswith("all that was left of job job is deleted")
    assert jobs_in(store) == ["job2"]
    assert len(store.list(Keys("job2").prefix).entries) == 2
    with pytest.raises(JobsError, match="there is no job job"):
        forget(store, KEYS)
