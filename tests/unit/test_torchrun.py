"""The parts of the torchrun rendezvous, on a store in memory and with clocks that the tests move."""

from __future__ import annotations

import os
import pickle
from collections.abc import MutableMapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch.distributed as dist
import torch.distributed.elastic.rendezvous.dynamic_rendezvous as dynamic_rendezvous
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    RendezvousTimeout,
    _NodeDesc,
    _RendezvousContext,
    _RendezvousState,
    _should_keep_alive,
)
from torch.distributed.elastic.utils import store as agents_meet

from reknit.rendezvous import torchrun
from reknit.rendezvous.errors import StoreUnavailable
from reknit.rendezvous.jobs import jobs_in
from reknit.rendezvous.keys import ROOT
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Compare, Operation, TransactionResult
from reknit.rendezvous.torchrun.agent_store import KEEP_SECONDS, AgentStore
from reknit.rendezvous.torchrun.backend import StateBackend
from reknit.rendezvous.torchrun.handler import POLL_SECONDS, Handler, _StateHolder, is_state
from reknit.rendezvous.torchrun.making import PREFIX, access_of, make, reachable_address
from reknit.rendezvous.torchrun.meeting import NotMetError, meet
from reknit.rendezvous.torchrun.observing import Observed
from reknit.rendezvous.torchrun.ranks import steady_ranks

KEY = "/reknit/.torchrun/run/state"
TTL = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class DoubtfulStore(MemoryStore):
    """Its next transactions fail with nothing known of them: `carried_out` says of each whether it was applied."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.carried_out: list[bool] = []

    def transaction(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout: float | None = None
    ) -> TransactionResult:
        if not self.carried_out:
            return super().transaction(compares, operations, timeout=timeout)
        if self.carried_out.pop(0):
            super().transaction(compares, operations, timeout=timeout)
        raise StoreUnavailable("nobody knows")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> DoubtfulStore:
    return DoubtfulStore(clock)


def backend(store: MemoryStore, clock: Clock) -> StateBackend:
    return StateBackend(store, KEY, TTL, 10.0, clock)


class TestState:
    def test_the_first_write_needs_that_there_is_none(self, store: DoubtfulStore, clock: Clock) -> None:
        one, two = backend(store, clock), backend(store, clock)
        assert one.get_state() is None
        written = one.set_state(b"mine")
        assert written is not None
        assert (written[0], written[2]) == (b"mine", True)
        assert two.set_state(b"yours") == (b"mine", written[1], False)
        assert two.get_state() == (b"mine", written[1])

    def test_the_token_is_the_revision_and_an_old_one_writes_nothing(self, store: DoubtfulStore, clock: Clock) -> None:
        one, two = backend(store, clock), backend(store, clock)
        first = one.set_state(b"a")
        assert first is not None
        entry = store.get(KEY)
        assert entry is not None
        assert first[1] == entry.mod_revision
        second = two.set_state(b"b", first[1])
        assert second is not None
        assert second[1] > first[1]
        assert one.set_state(b"c", first[1]) == (b"b", second[1], False)

    def test_a_write_whose_answer_was_lost_counts(self, store: DoubtfulStore, clock: Clock) -> None:
        one = backend(store, clock)
        store.carried_out = [True]
        written = one.set_state(b"a")
        assert written is not None
        assert written == (b"a", written[1], True)
        assert one.get_state() == (b"a", written[1])

    def test_a_write_that_was_lost_is_made_again(self, store: DoubtfulStore, clock: Clock) -> None:
        store.carried_out = [False, False]
        written = backend(store, clock).set_state(b"a")
        assert written is not None
        assert written[2]

    def test_no_write_is_tried_for_longer_than_the_patience(self, store: DoubtfulStore, clock: Clock) -> None:
        one = backend(store, clock)
        one.patience = 0.0
        store.carried_out = [False]
        with pytest.raises(RendezvousConnectionError, match="nobody knows"):
            one.set_state(b"a")

    def test_a_store_that_is_away_is_an_error_of_the_connection(self, store: DoubtfulStore, clock: Clock) -> None:
        one = backend(store, clock)
        store.set_available(False)
        with pytest.raises(RendezvousConnectionError):
            one.get_state()
        with pytest.raises(RendezvousConnectionError):
            one.set_state(b"a")

    def test_a_wiped_store_gets_the_state_back(self, store: DoubtfulStore, clock: Clock) -> None:
        one, two = backend(store, clock), backend(store, clock)
        one.set_state(b"a")
        store.wipe()
        assert two.get_state() is None  # it never knew of any
        found = one.get_state()
        assert found is not None
        assert found[0] == b"a"
        assert two.get_state() == found

    def test_a_stale_token_on_a_wiped_store_brings_the_state_back_and_fails(
        self, store: DoubtfulStore, clock: Clock
    ) -> None:
        one = backend(store, clock)
        one.set_state(b"a")
        written = one.set_state(b"b", one.get_state()[1])  # type: ignore[index]
        assert written is not None
        store.wipe()
        after = one.set_state(b"c", written[1] + 40)
        assert after is not None
        assert (after[0], after[2]) == (b"b", False)

    def test_a_malformed_state_is_replaced_by_who_knows_it(self, store: DoubtfulStore, clock: Clock) -> None:
        one = backend(store, clock)
        one.set_state(b"a")
        store.put(KEY, b"\x80garbage")
        found = one.get_state()
        assert found is not None
        assert found[0] == b"a"

    def test_a_malformed_state_that_nobody_knew_is_refused(self, store: DoubtfulStore, clock: Clock) -> None:
        store.put(KEY, b"\x80garbage")
        for act in (backend(store, clock).get_state, lambda: backend(store, clock).set_state(b"a")):
            with pytest.raises(RendezvousStateError, match=f"{KEY}.*delete that key"):
                act()

    def test_it_stays_while_it_is_written_and_vanishes_when_nobody_does(
        self, store: DoubtfulStore, clock: Clock
    ) -> None:
        one = backend(store, clock)
        written = one.set_state(b"0")
        for number in range(40):
            assert written is not None
            clock.now += 5.0
            written = one.set_state(b"%d" % number, written[1])
            assert written is not None
            assert written[2]
        clock.now += TTL / 2 - 5.0
        assert store.get(KEY) is not None
        clock.now += TTL
        assert store.list("").entries == ()

    def test_a_lease_that_was_lost_is_replaced(self, store: DoubtfulStore, clock: Clock) -> None:
        one = backend(store, clock)
        one.set_state(b"a")
        store.wipe()
        assert one.get_state() is not None


class Agents(NamedTuple):
    """The store as an agent has it: torch puts a prefix before it, and does not keep what is below alive."""

    torchs: dist.Store
    store: DoubtfulStore
    below: AgentStore


@pytest.fixture
def agents(store: DoubtfulStore, clock: Clock) -> Agents:
    base = AgentStore(store, "/run/", clock, clock.sleep)
    prefixed = dist.PrefixStore("round", base)
    prefixed.set_timeout(timedelta(seconds=20))
    return Agents(prefixed, store, base)


class TestAgentStore:
    def test_values(self, agents: Agents) -> None:
        torchs = agents.torchs
        torchs.set("a", "1")
        assert torchs.get("a") == b"1"
        assert torchs.multi_get(["a", "a"]) == [b"1", b"1"]
        assert torchs.check(["a"])
        assert not torchs.check(["a", "b"])
        torchs.wait(["a"])

    def test_what_torchs_agents_do_with_it(self, agents: Agents) -> None:
        torchs = agents.torchs
        torchs.set("data1", "theirs")
        torchs.add("data/finished/num_members", 1)
        assert agents_meet.synchronize(torchs, b"ours", 0, 2, "data", timeout=1.0) == [b"ours", b"theirs"]
        assert torchs.timeout == timedelta(seconds=20)  # type: ignore[attr-defined]

    def test_a_key_that_does_not_come(self, agents: Agents, clock: Clock) -> None:
        torchs = agents.torchs
        with pytest.raises(dist.DistStoreError, match="round/b"):
            torchs.get("b")
        assert clock.now == pytest.approx(20.0)
        with pytest.raises(dist.DistStoreError):
            torchs.wait(["b"], timedelta(seconds=5))
        assert clock.now == pytest.approx(25.0)

    def test_a_wait_ends_in_time_though_the_store_is_away(
        self, agents: Agents, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(_key: str, *, timeout: float) -> None:  # as etcd's client: it waits for all the time that it is given
            if clock.now < 3.0:
                return
            clock.sleep(timeout)
            raise StoreUnavailable("away")

        monkeypatch.setattr(agents.store, "get", away)
        with pytest.raises(dist.DistNetworkError, match="away"):
            agents.below.wait(["b"], timedelta(seconds=5))
        assert clock.now == pytest.approx(5.0, abs=0.01)

    def test_compare_set(self, agents: Agents) -> None:
        torchs = agents.torchs
        assert torchs.compare_set("a", "x", "1") == b"x"
        assert torchs.compare_set("a", "", "1") == b"1"
        assert torchs.compare_set("a", "2", "3") == b"1"
        assert torchs.compare_set("a", "1", "3") == b"3"

    @given(doubts=st.lists(st.booleans(), max_size=6))
    def test_a_counter_counts_each_once(self, doubts: list[bool]) -> None:
        clock = Clock()
        store = DoubtfulStore(clock)
        torchs = AgentStore(store, "/run/", clock, clock.sleep)
        torchs.add("n", 3)
        store.carried_out = list(doubts)
        assert torchs.add("n", 2) == 5
        store.carried_out = []
        assert torchs.get("n") == b"5"

    def test_a_store_that_is_away(self, agents: Agents) -> None:
        torchs, store = agents.torchs, agents.store
        store.set_available(False)
        with pytest.raises(dist.DistNetworkError):
            torchs.set("a", "1")

    def test_what_is_left_vanishes(self, agents: Agents, clock: Clock) -> None:
        torchs, store = agents.torchs, agents.store
        torchs.set("a", "1")
        torchs.add("n", 1)
        clock.now += KEEP_SECONDS / 2 - 1
        torchs.set("b", "1")
        assert torchs.check(["a", "b"])
        clock.now += KEEP_SECONDS + 1
        assert store.list("").entries == ()


class Host(NamedTuple):
    addr: str
    pid: int


class TestRanks:
    def test_hosts_that_stay_keep_their_ranks(self) -> None:
        a, b, c, d = (Host(name, 1) for name in "abcd")
        first = steady_ranks([a, b, c], {})
        assert first == {a: 0, b: 1, c: 2}
        second = steady_ranks([b, c], first)
        assert second == {b: 1, c: 0}  # there are but two ranks now: c takes the one that is free
        assert steady_ranks([a, b, c], second) == {b: 1, c: 0, a: 2}
        assert steady_ranks([a, b, d], first) == {a: 0, b: 1, d: 2}

    def test_an_agent_that_was_started_again_takes_its_hosts_rank(self) -> None:
        before = {Host("a", 1): 0, Host("b", 1): 1, Host("c", 1): 2}
        fresh = Host("b", 2)
        assert steady_ranks([Host("a", 0), Host("a", 1), fresh], before)[fresh] == 1

    def test_agents_of_one_host(self) -> None:
        before = {Host("a", 5): 0, Host("a", 6): 1, Host("a", 7): 2}
        after = steady_ranks([Host("a", 6), Host("a", 7), Host("a", 9)], before)
        assert after == {Host("a", 6): 1, Host("a", 7): 2, Host("a", 9): 0}

    hosts = st.lists(st.builds(Host, st.sampled_from("abc"), st.integers(1, 4)), unique=True, max_size=8)

    @given(hosts, hosts)
    def test_ranks_are_complete_and_nobody_moves_without_need(self, before: list[Host], now: list[Host]) -> None:
        old = steady_ranks(sorted(before), {})
        new = steady_ranks(sorted(now), old)
        assert sorted(new.values()) == list(range(len(now)))
        for host in set(before) & set(now):
            assert new[host] == old[host] or old[host] >= len(now)


class TestObserved:
    def test_a_heartbeat_ages_until_it_changes(self) -> None:
        observed: Observed[str] = Observed(away=10.0)
        assert observed.ages({"a": 1}, 0.0) == {"a": 0.0}
        assert observed.ages({"a": 1, "b": 7}, 4.0) == {"a": 4.0, "b": 0.0}
        assert observed.ages({"a": 2, "b": 7}, 8.0) == {"a": 0.0, "b": 4.0}
        assert observed.ages({"b": 7}, 9.0) == {"b": 5.0}

    def test_time_without_the_store_does_not_count(self) -> None:
        observed: Observed[str] = Observed(away=10.0)
        observed.ages({"a": 1}, 0.0)
        observed.ages({"a": 1}, 4.0)
        assert observed.ages({"a": 1}, 1000.0) == {"a": 4.0}
        assert observed.ages({"a": 1}, 1005.0) == {"a": 9.0}


SETTINGS = RendezvousSettings("run", 1, 3, RendezvousTimeout(), timedelta(seconds=5), 3)


def state_of(*nodes: _NodeDesc, heartbeat: datetime) -> _RendezvousState:
    state = _RendezvousState()
    state.participants = dict.fromkeys(nodes, 0)
    state.last_heartbeats = dict.fromkeys(nodes, heartbeat)
    return state


class TestHandler:
    def handler(self, store: MemoryStore, clock: Clock) -> Handler:
        agent_store = AgentStore(store, "/run/", clock, clock.sleep)
        return Handler(_NodeDesc("here", 1, 0), SETTINGS, backend(store, clock), agent_store, store, 60.0)

    def test_clocks_that_differ_kill_nobody(
        self, store: DoubtfulStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there = _NodeDesc("there", 1, 0)
        an_hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
        held = backend(store, clock)
        held.set_state(pickle.dumps(state_of(there, heartbeat=an_hour_ago)))
        holder = _StateHolder(backend(store, clock), SETTINGS, _NodeDesc("here", 1, 0))
        holder._cache_duration = 0
        monkeypatch.setattr("time.monotonic", clock)
        for seconds in (0, 5, 10, 14):
            clock.now = float(seconds)
            holder.sync()
            assert list(holder.state.participants) == [there]
            assert holder.state.last_heartbeats == {there: an_hour_ago}  # as it was written: for the others to see
        clock.now = 16.0
        holder.sync()
        assert holder.state.participants == {}

    def test_a_clock_that_is_set_back_stops_no_heartbeat(
        self, store: DoubtfulStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here = _NodeDesc("here", 1, 0)
        in_an_hour = datetime.now(timezone.utc) + timedelta(hours=1)  # it was written before the clock was set back
        backend(store, clock).set_state(pickle.dumps(state_of(here, heartbeat=in_an_hour)))
        holder = _StateHolder(backend(store, clock), SETTINGS, here)
        holder._cache_duration = 0
        monkeypatch.setattr("time.monotonic", clock)
        due = []
        for seconds in (0, 4, 6):
            clock.now = float(seconds)
            holder.sync()
            due.append(_should_keep_alive(_RendezvousContext(here, holder.state, SETTINGS)))
        assert due == [False, False, True]

    def test_an_outage_is_no_reason_to_end(
        self, store: DoubtfulStore, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        handler = self.handler(store, clock)
        state = state_of(_NodeDesc("here", 1, 0), heartbeat=datetime.now(timezone.utc))
        state.wait_list = {_NodeDesc("there", 1, 0)}
        backend(store, clock).set_state(pickle.dumps(state))
        handler._state_holder._cache_duration = 0  # type: ignore[attr-defined]
        assert handler.num_nodes_waiting() == 1
        store.set_available(False)
        assert [handler.num_nodes_waiting() for _ in range(3)] == [0, 0, 0]
        store.set_available(True)
        assert handler.num_nodes_waiting() == 1
        said = [record.message for record in caplog.records if "rendezvous" in record.message]
        assert len(said) == 2
        assert "workers go on" in said[0]
        assert "goes on" in said[1]

    @pytest.mark.parametrize(
        "damage",
        [b"", b"cos\nnothing_at_all\n.", b"cno_such_module\nx\n.", b"\x80\x04]\x94", pickle.dumps({})],
    )
    def test_a_state_that_cannot_be_read_ends_no_agent(
        self, damage: bytes, store: DoubtfulStore, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        state = state_of(_NodeDesc("here", 1, 0), heartbeat=datetime.now(timezone.utc))
        state.wait_list = {_NodeDesc("there", 1, 0)}
        written = pickle.dumps(state)
        held = StateBackend(store, KEY, TTL, 10.0, clock, readable=is_state)
        handler = Handler(_NodeDesc("here", 1, 0), SETTINGS, held, AgentStore(store, "/run/"), store, 60.0)
        handler._state_holder._cache_duration = 0  # type: ignore[attr-defined]
        backend(store, clock).set_state(written)
        assert handler.num_nodes_waiting() == 1
        entry = store.get(KEY)
        assert entry is not None
        store.put(KEY, entry.value.removesuffix(written) + damage)
        assert handler.num_nodes_waiting() == 1
        assert "something else in the place of" in caplog.text
        found = store.get(KEY)
        assert found is not None
        assert found.value == entry.value
        store.put(KEY, entry.value.removesuffix(written) + damage)
        with pytest.raises(RendezvousStateError, match="delete that key"):
            StateBackend(store, KEY, TTL, 10.0, clock, readable=is_state).get_state()

    def test_each_round_has_a_store_of_its_own(
        self, store: DoubtfulStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", raising=False)
        node = _NodeDesc("127.0.0.1", 1, 0)
        settings = RendezvousSettings("run", 1, 1, RendezvousTimeout(), timedelta(seconds=5), 3)
        handler = Handler(node, settings, backend(store, clock), AgentStore(store, "/run/"), store, 60.0)
        ports = []
        for _ in range(3):
            found = handler.next_rendezvous()
            assert (found.rank, found.world_size) == (0, 1)
            assert found.bootstrap_store_info is not None
            ports.append(found.bootstrap_store_info.master_port)
            assert handler._backend.patience == POLL_SECONDS
        handler._stop_heartbeats()
        assert len(set(ports)) == 3
        assert handler.use_agent_store

    def test_a_job_reads_nothing_of_an_earlier_one_of_its_id(
        self, store: DoubtfulStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dynamic_rendezvous, "_delay", lambda seconds: None)
        settings = RendezvousSettings("run", 1, 1, RendezvousTimeout(), timedelta(seconds=5), 3)
        below = AgentStore(store, "/run/", clock, clock.sleep)  # torch does not keep what is below its prefix alive
        monkeypatch.setattr(RendezvousStoreInfo, "build", lambda rank, store, **_: store.check(["MASTER_ADDR"]))
        monkeypatch.setattr(Handler, "_create_tcp_store_server", lambda *_: SimpleNamespace(port=1))
        for process in (1, 2):
            node = _NodeDesc("127.0.0.1", process, 0)
            handler = Handler(node, settings, backend(store, clock), below, store, 60.0)
            found = handler.next_rendezvous()
            handler._stop_heartbeats()
            assert handler._state_holder.state.round == 0
            assert not found.bootstrap_store_info  # nobody has written it before rank 0 does
            assert not found.store.check(["MASTER_ADDR"])
            found.store.set("MASTER_ADDR", "here")
            assert found.store.check(["MASTER_ADDR"])
            clock.now += TTL + 10.0
            assert store.get(KEY) is None  # while what the agents wrote is still there

    def test_a_round_with_a_dead_agent_is_left_for_the_next(
        self, store: DoubtfulStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dynamic_rendezvous, "_delay", lambda seconds: None)
        monkeypatch.setattr(RendezvousStoreInfo, "build", lambda rank, store, **_: rank)
        monkeypatch.setattr(Handler, "_create_tcp_store_server", lambda *_: SimpleNamespace(port=1))
        dead = _NodeDesc("a", 1, 0)  # it would be rank 0
        backend(store, clock).set_state(pickle.dumps(state_of(dead, heartbeat=datetime.now(timezone.utc))))
        timeout = RendezvousTimeout(last_call=timedelta(microseconds=1))
        settings = RendezvousSettings("run", 1, 2, timeout, timedelta(seconds=0.2), 2)
        below = AgentStore(store, "/run/", clock, clock.sleep)
        handler = Handler(_NodeDesc("b", 1, 0), settings, backend(store, clock), below, store, 60.0)
        handler._state_holder._cache_duration = 0  # type: ignore[attr-defined]
        found = handler.next_rendezvous()
        handler._stop_heartbeats()
        assert (found.rank, found.world_size) == (0, 1)
        assert handler._state_holder.state.round == 1


class TestMeeting:
    def test_all_are_there(self, agents: Agents, clock: Clock) -> None:
        agents.torchs.set("here/1", "1")
        meet(agents.torchs, 0, 2, lambda: True, 60.0, clock, clock.sleep)
        meet(agents.torchs, 1, 2, lambda: True, 60.0, clock, clock.sleep)  # a loss after that changes nothing
        assert clock.now == 0.0

    @pytest.mark.parametrize("rank", [0, 1])
    def test_one_is_lost(self, rank: int, agents: Agents, clock: Clock) -> None:
        with pytest.raises(NotMetError, match=f"rank {rank} leaves"):
            meet(agents.torchs, rank, 3, lambda: clock.now >= 15.0, 60.0, clock, clock.sleep)
        assert clock.now == pytest.approx(15.0, abs=0.2)
        for late in {0, 1, 2} - {rank}:  # they have come after all, but one has gone
            with pytest.raises(NotMetError):
                meet(agents.torchs, late, 3, lambda: False, 60.0, clock, clock.sleep)

    def test_one_who_lives_but_does_not_come(self, agents: Agents, clock: Clock) -> None:
        with pytest.raises(NotMetError):
            meet(agents.torchs, 0, 2, lambda: False, 60.0, clock, clock.sleep)
        assert clock.now == pytest.approx(60.0, abs=0.2)


class TestMaking:
    def files(self, folder: Path) -> dict[str, str]:
        names = ("ca", "cert", "key", "password_file")
        for name in names:
            (folder / name).write_text("secret\nmore\n")
        return {f"etcd_{name}": str(folder / name) for name in names}

    def test_access_from_the_conf(self, tmp_path: Path) -> None:
        access = access_of({**self.files(tmp_path), "etcd_user": "me"}, {})
        assert access.tls is not None
        assert (access.tls.ca.name, access.user, access.password) == ("ca", "me", "secret")
        assert "secret" not in repr(access)

    def test_access_from_the_environment_which_loses_the_password(self, tmp_path: Path) -> None:
        environment: MutableMapping[str, str] = {
            "REKNIT_ETCD_CA": self.files(tmp_path)["etcd_ca"],
            "REKNIT_ETCD_USER": "me",
            "REKNIT_ETCD_PASSWORD": "hidden",
        }
        access = access_of({}, environment)
        assert access.tls is not None
        assert access.password == "hidden"
        assert "REKNIT_ETCD_PASSWORD" not in environment

    @pytest.mark.parametrize(
        ("conf", "words"),
        [
            ({"etcd_password": "x"}, "etcd_password, which is unknown"),
            ({"etcd_user": "me"}, "etcd_user me needs a password"),
            ({"etcd_password_file": "/f"}, "needs etcd_user"),
            ({"etcd_user": "me", "etcd_password_file": "/nowhere/at-all"}, "cannot be read"),
            ({"etcd_cert": "/c", "etcd_key": "/k"}, "need etcd_ca"),
        ],
    )
    def test_access_that_cannot_be(self, conf: dict[str, str], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            access_of(conf, {})

    @pytest.mark.parametrize(
        ("endpoint", "conf", "words"),
        [
            ("h:0", {}, "not host:port"),
            ("", {}, "no address of etcd"),
            ("h:1", {"last_call_timeout": "0"}, "last_call_timeout must be a whole number above 0"),
            ("h:1", {"keep_alive_interval": "x"}, "keep_alive_interval"),
            ("h:1", {"etcd_ca": "/nowhere/at-all"}, "cannot read the CA file"),
        ],
    )
    def test_settings_that_cannot_be(self, endpoint: str, conf: dict[str, str], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            make(RendezvousParameters(torchrun.BACKEND, endpoint, "run", 1, 2, **conf))

    def test_no_job_has_its_keys(self, store: DoubtfulStore, clock: Clock) -> None:
        StateBackend(store, f"{PREFIX}run/state", TTL, 10.0, clock).set_state(b"a")
        assert PREFIX.startswith(ROOT)  # where a user who trains may write
        assert jobs_in(store) == []

    def test_a_name_that_leads_nowhere_is_replaced_by_the_address_on_the_way_to_etcd(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("socket.getfqdn", lambda: "127.0.0.1")
        assert reachable_address("127.0.0.1:2379", tls=False) is None  # torch takes the name then
        monkeypatch.setattr("socket.getfqdn", lambda: "a" * 64)  # longer than a part of a name may be
        assert reachable_address("127.0.0.1:2379,127.0.0.2:2379", tls=False) == "127.0.0.1"
        assert reachable_address(f"{'b' * 64}:2379", tls=False) is None

    def test_torch_finds_it(self) -> None:
        rendezvous_handler_registry.register(torchrun.BACKEND, torchrun.register())
        with pytest.raises(ValueError, match="not host:port"):
            rendezvous_handler_registry.create_handler(RendezvousParameters(torchrun.BACKEND, "h:0", "run", 1, 2))
        assert "REKNIT_ETCD_PASSWORD" not in os.environ
