"""What a real Prometheus reads from the agents of a real job: a worker is killed, and the job is scaled 2 -> 3 -> 1.

The truth to compare with is in the agents' events files and in the job's history.
"""

from __future__ import annotations

import logging
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.faults.harness import START_SECONDS
from tests.faults.hosts import JOB, Hosts, scalable
from tests.integration.prometheus import PROMETHEUS, PROMTOOL, Prometheus, check_metrics

from reknit.health.families import FAMILIES
from reknit.rendezvous.history import read_all
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.runtime.operating.scale import scale

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None, reason="needs Prometheus and promtool (Debian: apt-get install prometheus)"
)

KEYS = Keys(JOB)
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "reknit.rules.yaml"
SOON = 15.0  # seconds for a number to come through
MOMENT = 1.0  # seconds by which a clock and the newest scrape may differ


class Scene:
    """The job, its store, and the Prometheus that scrapes it."""

    def __init__(self, hosts: Hosts, store: EtcdStore, prometheus: Prometheus) -> None:
        self.hosts, self.store, self.prometheus = hosts, store, prometheus

    def wait_value(self, expression: str, expected: float) -> None:
        """Wait until an expression has this value."""
        self.prometheus.wait(
            lambda: self.prometheus.value(expression) == expected, SOON, f"{expression} to be {expected}"
        )

    def catch_up(self) -> None:
        """Wait until Prometheus has scraped every agent once more."""
        now = time.time()
        self.prometheus.wait(
            lambda: (self.prometheus.value("min(timestamp(reknit_build_info))") or 0.0) > now, SOON, "the next scrapes"
        )

    def resize(self, replicas: int) -> None:
        """Scale, and wait until the job trains so, and Prometheus knows."""
        at = time.monotonic()
        scale(self.store, KEYS, replicas)
        self.hosts.wait(lambda: self.trains(replicas, at), SOON, f"steps with {replicas} replicas")
        self.wait_value("reknit_job_replicas", replicas)

    def trains(self, replicas: int, since: float) -> bool:
        """Whether some steps have been made in a generation of so many replicas."""
        full = {e["generation"] for e in self.hosts.of("plan", since) if e["replicas"] == replicas}
        steps = {e["step"] for e in self.hosts.of("committed", since) if e["version"][0] in full}
        return len(steps) > 3

    def kinds(self) -> Counter[str]:
        """How each generation came about, by the history in the store."""
        records = read_all(self.store.list(KEYS.histories).entries, Rejected(logging.getLogger("test")))
        return Counter(record.kind for record in records)

    def told(self, kind: str, run: str | None = None) -> list[dict[str, object]]:
        """The events of one kind, of all hosts or of one."""
        return [event for event in self.hosts.of(kind) if run is None or event["run"] == run]


@contextmanager
def scraped(folder: Path) -> Iterator[Scene]:
    """A job that shall have 2 of at most 4 replicas, all its workers there, and a Prometheus that scrapes it."""
    with scalable(folder) as (hosts, store):
        hosts.wait(lambda: len(list(hosts.of("attached"))) == 4, START_SECONDS, "all workers")
        targets = [str(event["http"]) for event in hosts.of("agent_started")]
        with Prometheus(folder / "prometheus", targets, [RULES]) as prometheus:
            yield Scene(hosts, store, prometheus)


def kill_one(scene: Scene) -> str:
    """SIGKILL a worker that has a place; it is back when Prometheus has seen that it was gone."""
    hosts = scene.hosts
    placed = {event["worker"] for event in hosts.of("committed")}
    run = next(run for run in hosts.runs if placed & run.pids().keys())
    worker = sorted(placed & run.pids().keys())[0]
    with run.hold():
        at = time.monotonic()
        run.kill(worker)
        hosts.gap(at)
        scene.wait_value("sum(reknit_worker_up)", 3)
    hosts.wait(lambda: list(hosts.of("attached", at, worker=worker)), START_SECONDS, "its next process")
    return str(worker)


def test_a_kill_and_changes_of_size_can_be_read_back_from_prometheus(tmp_path: Path) -> None:
    with scraped(tmp_path) as scene:
        victim = kill_one(scene)
        scene.wait_value("sum(reknit_worker_up)", 4)
        scene.resize(3)
        check_exposition(scene)
        check_goodput(scene, placed=3)
        scene.resize(1)
        scene.catch_up()
        check_job(scene)
        check_reinits(scene)
        check_workers(scene, victim)
        check_time(scene)
        scene.hosts.finish()


def check_exposition(scene: Scene) -> None:
    """Nothing is wrong with any agent's /metrics, and all is there; by now each host has a worker that trains."""
    for event in scene.told("agent_started"):
        with urllib.request.urlopen(f"http://{event['http']}/metrics", timeout=10) as response:
            exposition = response.read()
        assert check_metrics(exposition) == ""
        leads = b"reknit_leader{training_job" in exposition and b"reknit_job_generation{" in exposition
        for family in FAMILIES:
            of_the_job = family.name.startswith(("job_", "group_", "reinits", "membership_"))
            here = f"# TYPE reknit_{family.name}".encode() in exposition
            assert here or (of_the_job and not leads) or family.name == "worker_slowdown_ratio", family


def check_goodput(scene: Scene, placed: int) -> None:
    """While nothing happens, each placed worker's time is productive, and only spares lose any."""
    prometheus, hosts = scene.prometheus, scene.hosts
    quiet = "sum(reknit_productive_seconds_total)", "sum(reknit_lost_seconds_total{cause!='spare'})"
    scene.catch_up()
    values = [prometheus.query(expression)[0].samples[0] for expression in quiet]
    since = time.monotonic()
    hosts.wait(lambda: time.monotonic() > since + 2.0, 10.0, "two quiet seconds")
    hosts.living[0].wait_steps(2)
    later = [prometheus.query(expression)[0].samples[0] for expression in quiet]
    seconds = later[0][0] - values[0][0]
    assert later[0][1] - values[0][1] == pytest.approx(placed * seconds, abs=placed * MOMENT)
    assert later[1][1] - values[1][1] == pytest.approx(0.0, abs=0.01)


def check_job(scene: Scene) -> None:
    """The job's series come from its leader alone, and show each size in turn."""
    prometheus = scene.prometheus
    assert prometheus.value("count(reknit_job_generation)") == 1
    (job,) = prometheus.query("reknit_job_generation")
    leader = next(e for e in scene.told("agent_started") if e["run"] == scene.hosts.leader.name)
    assert job.labels["instance"] == leader["http"]
    assert job.labels["training_job"] == JOB
    scene.wait_value("reknit_job_generation", max(event["generation"] for event in scene.hosts.of("plan")))
    assert prometheus.by("instance", "reknit_leader == 1") == {leader["http"]: 1}
    (sizes,) = prometheus.query("reknit_job_replicas[10m]")
    seen = [value for _, value in sizes.samples]
    turns = [value for before, value in zip([0.0, *seen], seen, strict=False) if value != before]
    assert turns[-3:] == [2, 3, 1], turns
    (wanted,) = prometheus.query("reknit_job_replicas_wanted[10m]")
    assert {value for _, value in wanted.samples} == {2, 3, 1}
    assert prometheus.by("state", "reknit_job_state == 1") == {"running": 1}
    assert prometheus.value("reknit_group_members{kind='data',coordinate='0.0'}") == 1
    assert prometheus.value("reknit_job_members") == 4


def check_reinits(scene: Scene) -> None:
    """Reinits by reason are the history's; their phases are what the workers told."""
    prometheus, kinds = scene.prometheus, scene.kinds()
    assert kinds["begin"] == 1
    assert kinds["scale"] == 2
    assert kinds["loss"] == 1
    total = sum(kinds.values())
    scene.wait_value("sum(reknit_reinits_total)", total)
    assert prometheus.by("reason", "sum by (reason) (reknit_reinits_total)") == kinds
    assert prometheus.value("sum(reknit_reinits_total{reason='scale',result='running'})") == 2
    assert prometheus.value("sum(reknit_membership_changes_total{type='lost'})") == 1
    joined = prometheus.value("sum(reknit_membership_changes_total{type='joined'})")
    gone = prometheus.value("sum(reknit_membership_changes_total{type!='joined'})")
    assert joined is not None
    assert gone is not None
    assert joined - gone == 1, "of all who got a place one has it yet"

    told: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for event in scene.told("reinit_done"):
        for phase, took in event["phases"].items():  # type: ignore[attr-defined]
            told[phase] += 1
            seconds[phase] += took
    assert {"plan", "interrupt", "connect", "sync"} <= told.keys()
    counted = prometheus.by("phase", "sum by (phase) (reknit_reinit_seconds_count) > 0")
    assert counted == told
    measured = prometheus.by("phase", "sum by (phase) (reknit_reinit_seconds_sum)")
    for phase in told:
        assert measured[phase] == pytest.approx(seconds[phase], abs=1e-4), phase
    assert prometheus.value("sum(reknit_gap_seconds_count)") != 0


def check_workers(scene: Scene, victim: str) -> None:
    """Steps, retries and restarts are what the events say; the killed one was down and is up again."""
    prometheus, hosts = scene.prometheus, scene.hosts
    assert prometheus.by("worker", "min_over_time(reknit_worker_up[10m]) < 1") == {victim: 0}
    assert set(prometheus.by("worker", "reknit_worker_up").values()) == {1}
    assert prometheus.by("worker", "reknit_worker_restarts_total > 0") == {victim: 1}
    assert prometheus.value("sum(reknit_worker_placed)") == 1
    (placed,) = prometheus.by("worker", "reknit_worker_placed == 1")
    committed = Counter(str(event["worker"]) for event in hosts.of("committed"))
    counted = prometheus.by("worker", "reknit_steps_committed_total")
    now = Counter(str(event["worker"]) for event in hosts.of("committed"))
    assert counted.keys() == {worker for run in hosts.runs for worker in run.pids()}
    for worker, count in counted.items():
        if worker != placed:
            assert count == committed[worker], worker
    assert counted[placed] <= now[placed]
    retried = Counter(str(event["worker"]) for event in hosts.of("retried"))
    assert prometheus.by("worker", "reknit_steps_retried_total > 0") == retried
    healed = sum(int(event["bytes"]) for event in hosts.of("healed"))
    assert prometheus.value("sum(reknit_heal_bytes_total)") == healed > 0
    assert prometheus.value("sum(reknit_etcd_connected)") == 2
    assert prometheus.value("count(reknit_build_info)") == 2


def check_time(scene: Scene) -> None:
    """Productive and lost seconds are all of each worker's life; the kill has cost some work and a restart."""
    prometheus = scene.prometheus
    begun: dict[str, float] = {}
    for event in scene.hosts.of("worker_started"):
        begun.setdefault(str(event["worker"]), float(event["t"]))
    total = "sum by (worker) (reknit_productive_seconds_total) + sum by (worker) (reknit_lost_seconds_total)"
    lives = prometheus.query(total)
    assert len(lives) == 4
    offset = time.time() - time.monotonic()
    for life in lives:
        at, seconds = life.samples[-1]
        assert seconds == pytest.approx(at - offset - begun[life.labels["worker"]], abs=MOMENT), life
    lost = prometheus.by("cause", "sum by (cause) (reknit_lost_seconds_total) > 0")
    assert lost.keys() >= {"start", "wait", "spare", "reinit", "heal", "retry"}
    (goodput,) = prometheus.query("training_job:reknit_goodput:ratio_rate5m")
    assert goodput.labels["training_job"] == JOB
    assert 0 < goodput.value < 1
