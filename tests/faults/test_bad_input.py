"""Whatever a user gets wrong: a clear sentence that says what to do, no traceback of ours, no process left behind."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults import invariants, problem
from tests.faults.harness import SCRIPTS, START_SECONDS, TRAIN_DATA, JobRun

from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore

TRAIN_BADLY = SCRIPTS / "train_badly.py"
STANDALONE = ("--standalone",)
OURS = re.compile(r'File "[^"]*reknit/(runtime|rendezvous|health)/')
GARBAGE = (b"", b"\xff\xfe\x00", b"{", b"null", b"[1, 2]", b'{"format": 99}', b'{"format": "one", "generation": -1}')


def last_sentence(run: JobRun) -> str:
    """The last line, which must be ours; nothing that was printed shows the inside of the product."""
    output = run.output()
    assert not OURS.search(output), output
    lines = output.strip().splitlines()
    assert lines, "nothing was printed"
    return next(line for line in reversed(lines) if line.startswith("reknit: "))


@pytest.mark.parametrize(
    ("options", "script", "sentence"),
    [
        (("--pipe", "0"), TRAIN_DATA, r"--pipe must be at least 1, not 0"),
        (("--replicas", "3:2"), TRAIN_DATA, r"--replicas 3:2: .*MIN <= MAX"),
        (("--pipe", "4", "--workers", "3"), TRAIN_DATA, r"--workers 3 can't form 1 replica.* at least 4"),
        ((), Path("no_such_script.py"), r"no_such_script.py does not exist"),
    ],
)
def test_bad_usage(options: tuple[str, ...], script: Path, sentence: str, tmp_path: Path) -> None:
    with JobRun(tmp_path, script, options=(*STANDALONE, *options), replicas=None, pipe=None) as run:
        assert run.wait_end() == 2
        assert re.search(sentence, last_sentence(run))
        assert len(run.output().strip().splitlines()) == 1
        assert not run.events


def test_an_etcd_that_does_not_answer(tmp_path: Path) -> None:
    """Nobody listens; or somebody does, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and never listens
        ports = {"refused": unused.getsockname()[1], "mute": mute.getsockname()[1]}
        runs = {
            name: JobRun(tmp_path, TRAIN_DATA, options=("--etcd", f"127.0.0.1:{port}", "--job", "x"), name=name)
            for name, port in ports.items()
        }
        with runs["refused"] as refused, runs["mute"] as silent:
            for run, name in ((refused, "refused"), (silent, "mute")):
                assert run.wait_end() == 1
                assert f"127.0.0.1:{ports[name]}" in last_sentence(run)
                assert not list(run.of("worker_started"))


@pytest.mark.parametrize(
    ("mistake", "theirs", "sentence"),
    [
        ("before join", "KeyError: 'no such setting: width'", "worker-0 is given up|worker-1 is given up"),
        ("no join", "trained alone", r"without ever calling reknit\.join\(\)"),
    ],
)
def test_a_script_that_never_joins(mistake: str, theirs: str, sentence: str, tmp_path: Path) -> None:
    # Without torch, so without the warm process that imports it.
    options = (*STANDALONE, "--no-warm", "--max-restarts", "1", "--backoff", "0")
    with JobRun(tmp_path, TRAIN_BADLY, [mistake], replicas="2", options=options) as run:
        assert run.wait_end() == 1
        assert re.search(sentence, last_sentence(run))
        assert theirs in run.output()


def test_a_script_that_raises_at_step_5_on_every_worker(tmp_path: Path) -> None:
    options = (*STANDALONE, "--max-restarts", "1", "--backoff", "0")
    with JobRun(tmp_path, TRAIN_BADLY, ["in every attempt"], replicas="2", options=options) as run:
        assert run.wait_end(START_SECONDS) in (1, 3)  # given up; or the state is lost with its last holder
        assert re.search("is given up|is lost.*TheirOwn: loss is not a number", last_sentence(run))
        assert "TheirOwn: loss is not a number" in run.output()
        assert run.step == 5


def test_a_script_that_exits_well_in_the_middle_of_an_attempt_has_not_finished(tmp_path: Path) -> None:
    with JobRun(tmp_path, TRAIN_BADLY, ["leaves"], replicas="2", options=STANDALONE) as run:
        assert run.wait_end(START_SECONDS) == 1
        assert "exited with code 0 before its training loop was done" in last_sentence(run)
        assert run.step >= 5
        assert not OURS.search(run.output())


def test_a_mistake_at_one_worker_passes_through_and_costs_that_worker(tmp_path: Path) -> None:
    with JobRun(tmp_path, TRAIN_BADLY, ["once"], replicas="2", options=STANDALONE) as run:
        died = run.wait_event("worker_died", timeout=START_SECONDS)
        assert died["cause"] == "exit code 1"
        run.wait_strength(2, run.events.index(died))
        last = run.stop_soon()
        assert run.wait_end() == 0
        assert "it is unchanged" in run.output()
        assert "TheirOwn: loss is not a number" in run.output()
        assert not OURS.search(run.output())
        assert len(list(run.of("worker_died"))) == 1
        invariants.check(run.events, problem.samples_of)
        invariants.finished_alike(run.events, last, 2)


@pytest.fixture
def etcd() -> Iterator[EmbeddedEtcd]:
    with EmbeddedEtcd() as server:
        yield server


def test_garbage_in_etcd(etcd: EmbeddedEtcd, tmp_path: Path) -> None:
    """Under every key of the job and beside them, before the job is there and while it runs."""
    store = EtcdStore(etcd.endpoint)
    prefix = "/reknit/garbled/"
    keys = ["spec", "plan", "leader", "members/worker-9", "members/", "assignments/worker-9", "plans/1/1/data/0"]
    keys += ["accusations/worker", "accusations/", "agents/worker-9", "agents/"]

    def litter(*more: str) -> None:
        for number, key in enumerate((*keys, *more)):
            store.put(prefix + key, GARBAGE[number % len(GARBAGE)])

    options = ("--etcd", etcd.endpoint, "--job", "garbled", "--workers", "3", "--agent", "worker", "--backoff", "0")
    litter()
    with JobRun(tmp_path, TRAIN_DATA, replicas="3", options=options) as run:
        run.wait_strength(3, timeout=START_SECONDS)
        for garbled in ((), ("members/worker-1", "assignments/worker-1"), ("members/worker-2",)):
            since = len(run.poll())
            litter(*garbled)
            run.wait_steps(3)
            run.kill("worker-0")
            run.wait_event("worker_died", since=since, worker="worker-0")
            run.wait_strength(3, since)
        last = run.stop_soon()
        assert run.wait_end() == 0
        invariants.check(run.events, problem.samples_of)
        invariants.finished_alike(run.events, last, 3)
        assert not OURS.search(run.output())
    store.close()
