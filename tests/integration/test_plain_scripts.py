"""`reknit run` with scripts that know nothing of it: they run, are started again upon a loss, and end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.faults.harness import Event, JobRun
from tests.faults.hosts import Hosts
from tests.torchrun_agents import SCRIPT

from reknit.rendezvous.store.embedded import EmbeddedEtcd

SECONDS = 100.0  # each process imports torch, perhaps on a busy host
AGAIN = "is started again on all 2 workers, as torchrun would do; to keep the processes that live"


SAVES = """
import os, signal, sys, time
from pathlib import Path

def save(number, frame):
    time.sleep(0.5)
    Path("saved-" + os.environ["RANK"]).touch()
    sys.exit()

signal.signal(signal.SIGTERM, save)
print("it is up", flush=True)
time.sleep(600)
"""


class Plain:
    """Where the script notes its steps, and how it is told to end."""

    def __init__(self, folder: Path) -> None:
        self.notes, self.stop = folder / "notes", folder / "stop"

    def steps(self) -> list[dict[str, Any]]:
        text = self.notes.read_text() if self.notes.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def trains(self, run: JobRun, world: int, port: int) -> None:
        """Wait until all processes of the world that was given this port have made a step together."""

        def ranks() -> set[int]:
            mine = [step for step in self.steps() if step["master_port"] == str(port) and step["world"] == world]
            return {step["rank"] for step in mine}

        run.wait(lambda: ranks() == set(range(world)), SECONDS, f"steps of a world of {world} at port {port}")


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plain:
    plain = Plain(tmp_path)
    monkeypatch.setenv("TORCHRUN_NOTES", str(plain.notes))
    monkeypatch.setenv("TORCHRUN_STOP", str(plain.stop))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return plain


def scripts(run: JobRun, since: int, **fields: Any) -> list[Event]:
    return list(run.of("script_started", since, **fields))


def started(run: JobRun, count: int, since: int = 0, **fields: Any) -> list[Event]:
    """The first `count` scripts that were started with these fields."""
    run.wait(lambda: len(scripts(run, since, **fields)) >= count, SECONDS, f"{count} scripts with {fields}")
    return scripts(run, since, **fields)


@pytest.mark.timeout(600)
def test_losses_on_one_host(plain: Plain, tmp_path: Path) -> None:
    with JobRun(tmp_path, SCRIPT, replicas="2", options=("--standalone", "--backoff", "0")) as run:
        first = started(run, 2, world=2)
        port = first[0]["port"]
        assert {event["port"] for event in first} == {port}
        assert sorted(event["rank"] for event in first) == [0, 1]
        plain.trains(run, 2, port)

        # The script is killed, its worker lives: all start again in the same generation.
        os.kill(next(event["pid"] for event in first if event["rank"] == 1), signal.SIGKILL)
        second = started(run, 2, world=2, restarts=1)
        assert second[0]["generation"] == first[0]["generation"]
        assert second[0]["port"] != port
        plain.trains(run, 2, second[0]["port"])
        assert f"the script of rank 1 was killed: {SCRIPT} {AGAIN}" in run.output()

        # The worker is killed, and its script with it: another generation.
        since = len(run.events)
        victim = next(run.of("worker_started", worker="worker-0"))["pid"]
        orphan = next(event["pid"] for event in second if event["worker"] == "worker-0")
        os.kill(victim, signal.SIGKILL)
        third = started(run, 2, since, world=2)
        assert third[0]["generation"] > second[0]["generation"]
        assert orphan not in run.processes()
        plain.trains(run, 2, third[-1]["port"])
        assert run.output().count(AGAIN) == 2

        plain.stop.touch()
        assert run.wait_end(SECONDS) == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_hosts_come_and_go(plain: Plain, tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path / "etcd") as etcd:
        hosts = Hosts(tmp_path, etcd.endpoint, script=SCRIPT, replicas="1:2", pipe=1, workers=1)
        try:
            one, two = hosts.add(), hosts.add()
            world = [*started(one, 1, world=2), *started(two, 1, world=2)]
            assert sorted(event["rank"] for event in world) == [0, 1]
            plain.trains(one, 2, world[0]["port"])

            since = len(one.events)
            two.end()  # the agent and all that it has started
            alone = started(one, 1, since, world=1)[0]
            plain.trains(one, 1, alone["port"])

            since = len(one.events)
            three = hosts.add()
            again = started(one, 1, since, world=2)[0]
            plain.trains(one, 2, again["port"])
            assert "the membership changes" in one.output() + three.output()

            since = len(one.events)
            os.kill(three.pid, signal.SIGTERM)  # it drains
            assert three.wait_end(SECONDS) == 0
            plain.trains(one, 1, started(one, 1, since, world=1)[0]["port"])

            plain.stop.touch()
            assert one.wait_end(SECONDS) == 0
        finally:
            hosts.close()


@pytest.mark.timeout(300)
def test_a_script_that_fails_each_time_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise KeyError('no such setting: width')\n")
    options = ("--standalone", "--backoff", "0", "--max-restarts", "1")
    with JobRun(tmp_path, script, replicas="2", options=options) as run:
        assert run.wait_end(SECONDS) == 1
        run.poll()
        assert {event["restarts"] for event in scripts(run, 0)} == {0, 1}
        assert len(scripts(run, 0)) == 4
    last = run.output().strip().splitlines()[-1]
    assert last.startswith("reknit: ")
    assert f"{script} has failed too often" in run.output()
    assert "no such setting: width" in run.output()


@pytest.mark.timeout(300)
def test_one_worker_alone_and_a_script_that_just_ends(tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text("import os, sys\nprint('it ran', os.environ['WORLD_SIZE'], sys.argv[1:], __name__)\n")
    with JobRun(tmp_path, script, ["--lr", "1"], options=("--standalone",)) as run:
        assert run.wait_end(SECONDS) == 0
        assert "it ran 1 ['--lr', '1'] __main__" in run.output()


@pytest.mark.timeout(300)
def test_a_script_is_asked_to_end_and_has_time_for_it(tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES)
    with JobRun(tmp_path, script, replicas="2", options=("--standalone", "--no-warm")) as run:
        run.wait(lambda: run.output().count("it is up") == 2, SECONDS, "both scripts")
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait_end(SECONDS) == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
