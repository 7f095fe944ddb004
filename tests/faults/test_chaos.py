"""`reknit chaos` against a running job: it strikes, the job recovers, and the report says so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.harness import START_SECONDS
from tests.faults.hosts import JOB, Hosts, several

REPLICAS = 2
NEWS_SECONDS = 10.0  # until a busy machine's chaos has heard through etcd that the job trains again


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts of one replica each, at full strength."""
    with several(tmp_path, REPLICAS, replicas=f"1:{REPLICAS}") as hosts:
        hosts.wait_strength(REPLICAS, timeout=START_SECONDS)
        yield hosts


@contextmanager
def chaos(hosts: Hosts, options: Sequence[str], etcd: str | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "reknit.runtime.cli", "chaos", "--job", JOB, "--etcd", etcd or hosts.etcd]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def seen(process: subprocess.Popen[str], what: str, times: int = 1) -> str:
    """Read what it says until `what` was said so often; return all of it."""
    said = ""
    assert process.stdout is not None
    while said.count(what) < times:
        line = process.stdout.readline()
        assert line, said
        said += line
    return said


@pytest.mark.timeout(240)
def test_it_kills_workers_and_the_report_tells(hosts: Hosts, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with chaos(hosts, ["--kinds", "kill", "--every", "500ms", "--seed", "7", "--json", str(report)]) as process:
        said = seen(process, "recovered in", times=2)  # a busy machine needs its time for that
        process.send_signal(signal.SIGINT)
        code, rest = ended(process)
    said += rest
    assert code == 0, said
    strikes = json.loads(report.read_text())["strikes"]
    recovered = [strike for strike in strikes if strike["outcome"] == "recovered"]
    assert recovered == strikes[: len(recovered)]
    assert len(recovered) >= max(2, len(strikes) - 1)  # it may have struck once more
    for strike in recovered:
        (died,) = [e for name, pid in strike["workers"].items() for e in hosts.of("worker_died", worker=name, pid=pid)]
        assert died["cause"] == "SIGKILL"
        assert died["t"] >= strike["t"]
        assert 0 < strike["seconds"] <= hosts.gap(strike["t"]) + NEWS_SECONDS
    assert re.search(rf"^kill +{len(strikes)} +{len(recovered)} ", said, re.MULTILINE), said
    assert f"the job recovered from {len(recovered)} of {len(strikes)} faults" in said
    hosts.check(hosts.wait_strength(REPLICAS, strikes[-1]["t"], timeout=START_SECONDS))
    hosts.finish()


def test_a_node_falls_whole_but_never_the_last_one(hosts: Hosts) -> None:
    with chaos(hosts, ["--kinds", "node", "--every", "0s", "--for", "8s"]) as process:
        code, said = ended(process)
    assert code == 0, said
    assert len(re.findall(r"killed node host\d: host\d-0 \(process \d+\), host\d-1", said)) == 1, said
    assert "waiting: any fault would leave no whole set of coordinates" in said
    (left,) = hosts.living
    (fallen,) = [run for run in hosts.runs if run is not left]
    assert not fallen.processes()
    assert f"killed node {fallen.name}" in said


def test_a_strange_process_is_left_alone_and_ctrl_c_prints_the_report(hosts: Hosts) -> None:
    """Everything is "on another host" to a chaos that runs where the host has another name."""
    program = (
        "import socket, sys; socket.gethostname = lambda: 'elsewhere'; from reknit.runtime.cli import main; main()"
    )
    command = [sys.executable, "-u", "-c", program, "chaos", "--job", JOB, "--etcd", hosts.etcd, "--every", "0s"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = seen(process, "waiting: nothing of this job on this host can be struck")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    for number in range(REPLICAS):
        assert f"host{number}-0 is left alone: it is on host {os.uname().nodename}, and this is elsewhere" in said
        assert f"agent host{number} is left alone" in said
    assert "nothing was struck: nothing of this job on this host can be struck (kill, stop, node)" in rest
    assert not any(hosts.of("worker_died"))
    hosts.finish()


def test_what_it_stopped_goes_on_when_it_ends(hosts: Hosts) -> None:
    with chaos(hosts, ["--kinds", "stop", "--every", "0s"]) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = next(filter(None, (re.search(r"stopped (host\d-\d) \(process (\d+)\)", line) for line in lines)))
        pid = int(found[2])
        hosts.wait(lambda: state(pid) == "T", 5.0, "the stop")
        process.send_signal(signal.SIGINT)
        code, said = ended(process)
    assert code == 0, said
    assert "the job recovered from 0 of 1 faults; chaos ended before it was seen of 1" in said
    assert state(pid) != "T"
    hosts.living[0].wait_steps()
    assert not any(hosts.of("worker_died"))
    hosts.finish()


def state(pid: int) -> str:
    """R, S, D, T (stopped) and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_job_that_is_not_there_is_said(hosts: Hosts) -> None:
    with chaos(hosts, ["--job", "other"]) as process:
        code, said = ended(process)
    assert (code, said) == (
        1,
        f"reknit: etcd at {hosts.etcd} knows no job other: is it started, under this --job ID?\n",
    )
