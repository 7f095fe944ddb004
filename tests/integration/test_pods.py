"""The Kubernetes base, as a kubelet would run it: probes, a sidecar that crashes, scaling down and up, the end.

The tests of this module go through one job's life, one after the other.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.manifests import DEPLOY, build
from tests.faults.certificates import Pki
from tests.faults.etcd_cluster import EtcdCluster
from tests.integration.pods import Pod, can_part, free_port

pytestmark = pytest.mark.skipif(not can_part(), reason="this user may not make process namespaces (unshare --pid)")


class StatefulSet:
    """The job's pods, by their number."""

    def __init__(self, folder: Path, place: dict[str, str]) -> None:
        self._folder, self._place, self._made_from = folder, place, build(DEPLOY / "kubernetes" / "base")
        self.pods: list[Pod] = []
        self.all: list[Pod] = []

    def add(self) -> Pod:
        number = len(self.pods)
        folder = self._folder / f"{len(self.all)}"
        pod = Pod(self._made_from, f"train-{number}", f"127.0.0.{number + 2}", folder, self._place)
        self.pods.append(pod)
        self.all.append(pod)
        return pod

    def wait_steps(self, more: int) -> None:
        """Until each pod's worker has made so many more."""
        for pod in self.pods:
            at = pod.step()
            pod.wait(lambda: pod.step() >= at + more, f"{more} more steps")  # noqa: B023

    def generations(self) -> set[int]:
        return {event["generation"] for pod in self.all for event in pod.events("plan")}

    def close(self) -> None:
        for pod in self.all:
            pod.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatefulSet]:
    folder = tmp_path_factory.mktemp("k")
    pki = Pki(folder / "pki")
    with EtcdCluster(folder / "etcd", arguments=pki.arguments, tls=pki.tls) as etcd:
        place = {
            "etcd-client:2379": etcd.endpoint,
            "/etc/reknit/etcd/ca.crt": str(pki.tls.ca),
            "/etc/reknit/etcd/tls.crt": str(pki.client),
            "/etc/reknit/etcd/tls.key": str(pki.client_key),
            ":8080": f":{free_port()}",
            "1:8": "1:3",  # the script has no more micro-batches in a step
        }
        job = StatefulSet(folder, place)
        try:
            yield job
        finally:
            job.close()


def test_a_pod_is_started_when_its_agent_is_and_ready_when_its_worker_has_come(job: StatefulSet) -> None:
    first, second = job.add(), job.add()
    first.start_agent()
    first.wait(lambda: first.probe("startupProbe")[0] == 200, "the startup probe to pass")
    first.wait(lambda: "no worker" in first.probe("readinessProbe")[1], "the agent to lack only its worker")
    assert first.probe("readinessProbe")[0] == 503
    assert first.probe("livenessProbe")[0] == 200
    first.start_worker()
    second.start()
    for pod in job.pods:
        pod.wait(lambda: pod.probe("readinessProbe")[0] == 200, "the readiness probe to pass")  # noqa: B023
    job.wait_steps(5)
    # A worker is reached at its pod's address, and its process is not seen from the agent's container.
    placed = {event["replica"] for pod in job.pods for event in pod.events("placed")}
    assert placed == {0, 1}


def test_whoever_enters_an_agents_container_needs_no_options(job: StatefulSet) -> None:
    result = subprocess.run(
        ["reknit", "status", "--json"], env=job.pods[0].variables("agent"), capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["job"], told["state"], told["replicas"]["now"]) == ("train", "running", 2)
    assert {agent["http"] for agent in told["agents"]} == {pod.http for pod in job.pods}


def test_a_sidecar_that_crashes_is_back_within_its_lease_and_training_does_not_notice(job: StatefulSet) -> None:
    job.wait_steps(2)
    before, pod = job.generations(), job.pods[0]
    assert pod.agent is not None
    pod.agent.close()
    pod.start_agent()
    pod.wait(lambda: len(pod.events("attached")) == 2, "the worker to attach again")
    pod.wait(lambda: pod.probe("readinessProbe")[0] == 200, "the pod to be ready again")
    job.wait_steps(5)
    assert job.generations() == before


def test_a_pod_that_is_scaled_away_drains_first_and_one_that_comes_joins(job: StatefulSet) -> None:
    away = job.pods.pop()
    assert away.stop() == [0, 0, 0]
    assert [event["worker"] for event in away.events("drained")] == [away.name]
    job.wait_steps(5)
    back = job.add()
    assert back.name == away.name
    back.start()
    job.wait_steps(5)
    for kind in ("retried", "worker_died"):
        assert [event for pod in job.all for event in pod.events(kind)] == [], kind
    assert back.events("healed")


def test_the_job_ends_and_is_not_begun_again(job: StatefulSet) -> None:
    last = max(pod.step() for pod in job.pods) + 60
    for pod in job.pods:
        pod.stop_at(last)
    for pod in job.pods:
        assert [pod.ended(pod.worker), pod.ended(pod.agent)] == [0, 0]
        assert pod.step() == last
    first = job.pods[0]
    first.start()  # both containers are started again
    assert first.ended(first.worker) == 0
    assert first.probe("readinessProbe") == (200, "the job has finished\n")
    assert first.agent is not None
    first.agent.signal(signal.SIGTERM)
    assert first.ended(first.agent) == 0
    assert first.step() == last
