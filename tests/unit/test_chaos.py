"""What chaos strikes and when is a pure function; nobody's process is struck by mistake; the report counts."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.rendezvous.accusation import AgentRecord
from reknit.rendezvous.records import LOST, Member, Name, Place, Plan, Replica
from reknit.runtime.chaos import runner
from reknit.runtime.chaos.choice import KILL, KINDS, NODE, STOP, Fault, Hold, Orders, Situation, choose
from reknit.runtime.chaos.command import parse_kinds, parse_time
from reknit.runtime.chaos.report import FAILED, OPEN, RECOVERED, Strike, describe, table, verdict
from reknit.runtime.chaos.situation import Job
from reknit.runtime.chaos.watch import JobWatch
from reknit.runtime.cli import main
from reknit.runtime.config import EXIT_USAGE, ConfigError
from reknit.runtime.identity import Seen, why_no_agent, why_no_worker

GENERATION, STAGES = 7, 2
NOW = 1000.0


def job(replicas: int = 3, **changes: Member) -> Job:
    """Each replica is a node of two stages; `changes` replaces records by worker id (with _ for -)."""
    members: dict[str, Member] = {}
    formed = []
    for replica in range(replicas):
        agent, places = f"node{replica}", []
        for stage in range(STAGES):
            worker = f"{agent}-{stage}"
            name, address = Name(worker, f"i{worker}"), f"127.0.0.1:{1000 + len(members)}"
            places.append(Place(name, "here", address, 1, agent))
            pid = 100 * replica + 10 + stage
            members[worker] = Member(*name, agent, "here", address, stage, built=True, ready=GENERATION, pid=pid)
        formed.append(Replica(replica, 1, tuple(places)))
    members.update({key.replace("_", "-"): member for key, member in changes.items()})
    agents = {f"node{replica}": AgentRecord(f"node{replica}", "here", 100 * replica) for replica in range(replicas)}
    return Job(Plan(GENERATION, "reason", replicas=tuple(formed), placed=GENERATION), members, agents)


def situation(of: Job, faults: dict[str, int] | None = None, last: float | None = None) -> Situation:
    """All of it within reach, running for a while."""
    names = [member.name for member in of.members.values()]
    return Situation(of, NOW - 50, names, list(of.agents), faults or {}, last)


@given(st.integers(), st.dictionaries(st.sampled_from(KINDS), st.integers(0, 50)), st.integers(1, 3))
def test_the_same_seed_situation_and_time_choose_the_same(seed: int, faults: dict[str, int], replicas: int) -> None:
    given_orders, where = Orders(seed=seed), situation(job(replicas), faults)
    chosen = choose(given_orders, where, NOW)
    assert chosen == choose(given_orders, where, NOW)
    if replicas == 1:
        assert isinstance(chosen, Hold)
        assert "no whole set" in chosen.reason
    else:
        assert isinstance(chosen, Fault)
        assert where.job.outlives(chosen.names)
        assert faults.get(chosen.kind, 0) == min(faults.get(kind, 0) for kind in KINDS)
        assert len(chosen.names) == (STAGES if chosen.kind == NODE else 1)


def test_every_worker_and_every_node_may_be_hit() -> None:
    for kind, count in ((KILL, 6), (STOP, 6), (NODE, 3)):
        chosen = {choose(Orders((kind,), seed=seed), situation(job()), NOW) for seed in range(200)}
        assert len(chosen) == count


def test_whoever_is_needed_or_is_leaving_or_out_of_reach_is_spared() -> None:
    whole = job(2)
    draining = replace(whole.members["node0-0"], draining=True)
    for seed in range(50):
        where = situation(job(2, node0_0=draining))
        chosen = choose(Orders((KILL, NODE), seed=seed), where, NOW)
        assert isinstance(chosen, Fault)
        assert Name("node1-0", "inode1-0") not in chosen.names
        near = replace(situation(whole), reach=[Name("node1-1", "inode1-1")], agents_in_reach=["node1"])
        assert choose(Orders(seed=seed), near, NOW) in [Fault(k, (whole.members["node1-1"],)) for k in (KILL, STOP)]
    assert choose(Orders(), replace(situation(whole), reach=[]), NOW) == Hold(
        "nothing of this job on this host can be struck (kill, stop, node)"
    )


def test_a_node_falls_with_its_spares() -> None:
    spare = Member("node0-9", "i9", "node0", "here", "127.0.0.1:9", pid=19)
    nodes = {choose(Orders((NODE,), seed=s), situation(job(2, node0_9=spare)), NOW) for s in range(20)}
    assert {(f.agent, len(f.workers)) for f in nodes if isinstance(f, Fault)} == {("node0", 3), ("node1", 2)}


def test_nothing_is_struck_before_its_time_or_before_all_are_ready() -> None:
    orders = Orders(every=30.0)
    for last, at, due in ((NOW - 29, NOW, False), (NOW - 31, NOW, True), (None, NOW - 50, False), (None, NOW, True)):
        chosen = choose(orders, situation(job(), {KILL: 1} if last else {}, last), at)
        assert isinstance(chosen, Fault) == due
        assert due or chosen == Hold("")
    late = replace(job().members["node1-1"], ready=GENERATION - 1)
    waiting = job(node1_1=late)
    assert waiting.why_not_running() == "generation 7 waits for node1-1"
    assert choose(orders, replace(situation(waiting), running_since=None), NOW) == Hold(
        "generation 7 waits for node1-1"
    )


def test_recovered_is_a_newer_generation_without_the_victims_in_which_all_are_ready() -> None:
    whole = job()
    victim = whole.members["node0-0"].name
    assert whole.recovered(GENERATION - 1, [Name("x", "y")])
    assert not whole.recovered(GENERATION, [])
    assert not whole.recovered(GENERATION - 1, [victim])
    assert not job(node0_0=replace(whole.members["node0-0"], ready=3)).recovered(GENERATION - 1, [])
    assert whole.plan is not None
    lost = replace(whole, plan=replace(whole.plan, state=LOST, replicas=()))
    assert not lost.recovered(GENERATION - 1, [])
    assert Job().why_not_running() == "there is no plan"


RUN = ("/usr/bin/python3", "/usr/bin/reknit", "run", "--etcd", "h:1", "--job", "j", "train.py")
MODULE = ("python", "-m", "reknit.runtime.cli", "agent")


def test_an_agent_is_known_by_what_it_runs() -> None:
    assert why_no_agent(Seen(5, 1, RUN), "j", "a", 1) == ""
    assert why_no_agent(Seen(5, 1, (*MODULE, "--job=j")), "j", "a", 1) == ""
    assert why_no_agent(None, "j", "a", 1) == "its process has ended"
    assert why_no_agent(Seen(5, 2, RUN), "j", "a", 1) == "process 5 belongs to another user"
    assert why_no_agent(Seen(5, 1, ("reknit", "run", "--standalone", "train.py")), "standalone-1", "a", 1) == ""
    for other in (("vim", "reknit", "--job", "j"), ("bash", "run", "--job", "j"), (*RUN[:-2], "k"), ()):
        assert "is no agent of job j" in why_no_agent(Seen(5, 1, other), "j", "a", 1)


def test_an_agent_is_known_by_variables_and_by_its_file_too() -> None:
    for seen in (Seen(5, 1, MODULE, {"REKNIT_JOB": "j", "REKNIT_AGENT": "a"}), Seen(5, 1, MODULE, file={"job": "j"})):
        assert why_no_agent(seen, "j", "a", 1) == ""
        assert "is no agent of job k" in why_no_agent(seen, "k", "a", 1)
    both = Seen(5, 1, (*MODULE, "--job", "j"), {"REKNIT_JOB": "k", "REKNIT_AGENT": "b"}, file={"agent": "c"})
    assert why_no_agent(both, "j", "a", 1) == "process 5 is agent b, not a", "a flag wins, then a variable"


def test_an_agent_of_another_name_is_another_agent() -> None:
    for given_name in (("--agent", "a"), ("--agent=a",)):
        seen = Seen(5, 1, (*MODULE, "--job", "j", *given_name))
        assert why_no_agent(seen, "j", "a", 1) == ""
        assert why_no_agent(seen, "j", "b", 1) == "process 5 is agent a, not b"


def test_a_worker_is_its_agents_descendant_or_was_started_for_its_socket() -> None:
    assert why_no_worker(Seen(5, 1, ancestors=(4, 3)), "w", 3, 1) == ""
    assert why_no_worker(Seen(5, 1, environment={"REKNIT_SOCKET": "s", "REKNIT_WORKER_ID": "w"}), "w", 3, 1) == ""
    assert why_no_worker(Seen(5, 1, environment={"REKNIT_SOCKET": "s"}), "worker-5", 3, 1) == ""
    assert why_no_worker(Seen(5, 2, ancestors=(4, 3)), "w", 3, 1) == "process 5 belongs to another user"
    for other in (
        Seen(5, 1, ("vim",), ancestors=(4, 2)),
        Seen(5, 1, ("vim",), ancestors=(4, 0)),
        Seen(5, 1, ("vim",), {"REKNIT_WORKER_ID": "w"}),
        Seen(5, 1, ("vim",), {"REKNIT_SOCKET": "s", "REKNIT_WORKER_ID": "v"}),
    ):
        assert why_no_worker(other, "w", 3, 1) == "process 5 is not w: it runs vim"
    assert why_no_worker(Seen(5, 1, ("vim",), ancestors=(4, 0)), "w", 0, 1) == "process 5 is not w: it runs vim"


def test_what_a_process_was_told_is_not_shown() -> None:
    for arguments, shown in (
        (("/usr/bin/mysql", "-psecret", "secret"), "mysql"),
        (("/usr/bin/python3", "/home/me/train.py", "secret"), "python3 train.py"),
        (("python3", "-c", "secret"), "python3"),
        ((), "nothing"),
    ):
        assert why_no_worker(Seen(5, 1, arguments), "w", 3, 1) == f"process 5 is not w: it runs {shown}"
        assert why_no_agent(Seen(5, 1, arguments), "j", "a", 1) == f"process 5 is no agent of job j: it runs {shown}"


class Watched:
    """A job that stands still."""

    def __init__(self, of: Job) -> None:
        self._job = of

    def wait(self, seen: int, timeout: float) -> int:
        return seen

    def read(self) -> Job:
        return self._job


@pytest.mark.parametrize("words", [("/lib/systemd/systemd", "--user"), ("reknit", "run", "--job", "j", "--agent", "x")])
def test_who_descends_from_anything_but_its_own_agent_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    whole = job()
    seen = {record.pid: Seen(record.pid, os.getuid(), words) for record in whole.agents.values()}
    for member in whole.members.values():
        ancestors = (whole.agents[member.agent].pid, 1)
        seen[member.pid] = Seen(member.pid, os.getuid(), ("vim",), ancestors=ancestors)
    monkeypatch.setattr(runner, "look", seen.get)
    monkeypatch.setattr(runner, "Grip", None)  # nothing is taken hold of
    striker = runner.Striker(runner.Chaos("j", "h:1", seconds=0.05), cast(JobWatch, Watched(whole)))
    striker._host = "here"
    striker.run(lambda: False)
    assert striker.strikes == []
    assert "node1-0 is left alone: process 110 is not node1-0: it runs vim" in capsys.readouterr().out


def test_times_and_kinds() -> None:
    for text, seconds in (("500ms", 0.5), ("30s", 30), ("10m", 600), ("1.5h", 5400), ("0s", 0)):
        assert parse_time("--for", text) == pytest.approx(seconds)
    for text in ("5", "s", "-1s", "1 s", "nan", "infs", "10min", "1e3s", ""):
        with pytest.raises(ConfigError, match="--for must be a time such as"):
            parse_time("--for", text)
    assert parse_kinds("node, kill,node") == (NODE, KILL)
    for text in ("", "kill,", "all"):
        with pytest.raises(ConfigError, match="--kinds must be some of kill,stop,node"):
            parse_kinds(text)


def test_the_report_counts_per_kind() -> None:
    members = job().members
    one, two = Fault(KILL, (members["node0-0"],)), Fault(NODE, (members["node1-0"], members["node1-1"]), "node1")
    strikes = [Strike(1.0, one, 7, RECOVERED, s) for s in (0.1, 0.3, 0.2)] + [Strike(9.0, two, 8, FAILED)]
    assert describe(one) == "killed node0-0 (process 10)"
    assert describe(two) == "killed node node1: node1-0 (process 110), node1-1 (process 111)"
    assert [line.split() for line in table(strikes, KINDS).splitlines()] == [
        ["kind", "faults", "recovered", "median", "worst"],
        ["kill", "3", "3", "0.20", "s", "0.30", "s"],
        ["stop", "0", "0", "-", "-"],
        ["node", "1", "0", "-", "-"],
    ]
    assert verdict(strikes, "") == (1, "the job did not recover from 1 of 4 faults")
    assert verdict(strikes[:3], "") == (0, "the job recovered from 3 of 3 faults")
    assert verdict([*strikes[:2], Strike(2.0, one, 7, OPEN)], "")[0] == 0
    assert verdict([], "why") == (1, "nothing was struck: why")


def test_what_cannot_be_is_said_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for options, sentence in (
        (["--every", "5"], "--every must be a time such as 500ms, 30s or 10m, not '5'"),
        (["--kinds", "burn"], "--kinds must be some of kill,stop,node, not 'burn'"),
        (["--etcd", ":x"], "--etcd: "),
        (["--json", "/nowhere/x"], "--json /nowhere/x: there is no folder /nowhere"),
        (["--etcd-user", "u"], "--etcd-user u needs a password"),
    ):
        assert main(["chaos", "--job", "j", "--etcd", "h:1", *options]) == EXIT_USAGE
        said = capsys.readouterr().err
        assert said.startswith(f"reknit: {sentence}")
        assert said.count("\n") == 1
