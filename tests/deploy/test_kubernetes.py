"""The kustomize base and its overlay: right by Kubernetes' own schemas, fit for what they run, and no typo passes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.manifests import (
    DEPLOY,
    VERSIONS,
    Manifest,
    build,
    container,
    environment,
    only,
    overlay,
    pod_of,
    rule_problems,
    schema_problems,
)

BASE = DEPLOY / "kubernetes" / "base"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_field_is_one_of_kubernetes(version: str) -> None:
    assert schema_problems(overlay(), version) == []


def test_the_base_by_itself_is_a_job_of_one_stage() -> None:
    base = build(BASE)
    assert schema_problems(base, VERSIONS[0]) == []
    assert rule_problems(base) == []
    assert environment(base, "agent")["REKNIT_PIPE"] == "1"


def test_the_overlay_is_two_replicas_of_two_stages_and_fits_together() -> None:
    manifests = overlay()
    assert rule_problems(manifests) == []
    told = environment(manifests, "agent")
    assert (told["REKNIT_PIPE"], told["REKNIT_REPLICAS"], told["REKNIT_DETECT"]) == ("2", "1:2", "15")
    assert only(manifests, "StatefulSet")["spec"]["replicas"] == 4
    assert {m["kind"] for m in manifests} == {
        "ConfigMap",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PodMonitor",
        "Service",
        "StatefulSet",
    }


def test_the_example_that_the_image_runs_has_a_micro_batch_for_each_replica() -> None:
    text = (DEPLOY / "examples" / "train_ddp.py").read_text()
    batch, micro = (int(re.findall(rf"{name}=(\d+)", text)[0]) for name in ("global_batch", "micro_batch"))
    assert int(environment(build(BASE), "agent")["REKNIT_REPLICAS"].split(":")[1]) <= batch // micro


def test_agent_and_worker_meet_at_one_socket() -> None:
    agent, worker = environment(overlay(), "agent"), environment(overlay(), "worker")
    assert agent["REKNIT_SOCKET"] == worker["REKNIT_SOCKET"]
    assert agent["REKNIT_ADDRESS"] == worker["REKNIT_ADDRESS"] == "10.0.0.7"
    assert agent["REKNIT_AGENT"] == worker["REKNIT_WORKER_ID"] == "train-0"
    folders = [
        {mount["mountPath"] for mount in container(overlay(), name)["volumeMounts"] if mount["name"] == "socket"}
        for name in ("agent", "worker")
    ]
    assert folders[0] == folders[1]
    (folder,) = folders[0]
    # Kubernetes opens a volume to the pod's group, and the agent insists on a folder that is its own.
    assert Path(agent["REKNIT_SOCKET"]).parent.parent == Path(folder)


# ---------------------------------------------------------------- what must not pass


def mistype(text: str, old: str, new: str) -> Callable[[Path], None]:
    """Replaces the first `old` in the file named `text`."""

    def change(folder: Path) -> None:
        path = folder / text
        before = path.read_text()
        assert old in before
        path.write_text(before.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    "change",
    [
        mistype("statefulset.yaml", "readinessProbe", "readynessProbe"),
        mistype("statefulset.yaml", "preStop", "prestop"),
        mistype("service.yaml", "publishNotReadyAddresses", "publishNotReadyAdresses"),
        mistype("poddisruptionbudget.yaml", "minAvailable", "minAvailible"),
        mistype("networkpolicy.yaml", "namespaceSelector", "nameSpaceSelector"),
        mistype("podmonitor.yaml", "podMetricsEndpoints", "podMetricEndpoints"),
        mistype("podmonitor.yaml", "interval: 15s", "interval: 15"),
    ],
)
def test_a_typo_in_a_manifest_is_found(tmp_path: Path, change: Callable[[Path], None]) -> None:
    shutil.copytree(BASE, tmp_path / "base")
    change(tmp_path / "base")
    assert schema_problems(build(tmp_path / "base"), VERSIONS[-1])


@pytest.mark.parametrize("old", ["statefulset.yaml", "configMapGenerator", "includeSelectors"])
def test_a_typo_in_the_kustomization_is_found(tmp_path: Path, old: str) -> None:
    shutil.copytree(BASE, tmp_path / "base")
    mistype("kustomization.yaml", old, old[:-1])(tmp_path / "base")
    with pytest.raises(ValueError, match=old[:-1]):
        build(tmp_path / "base")


def _set(path: str, value: Any) -> Callable[[list[Manifest]], None]:
    def change(manifests: list[Manifest]) -> None:
        target: Any = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
        *steps, last = path.split(".")
        for step in steps:
            target = target[int(step) if step.isdigit() else step]
        target[last] = value

    return change


def _budget(manifests: list[Manifest]) -> None:
    only(manifests, "PodDisruptionBudget")["spec"]["minAvailable"] = 1


def _everybody(manifests: list[Manifest]) -> None:
    only(manifests, "NetworkPolicy")["spec"]["podSelector"] = {}


def _no_selector(manifests: list[Manifest]) -> None:
    only(manifests, "PodMonitor")["spec"]["selector"] = {"matchLabels": {"app.kubernetes.io/instance": "other"}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("terminationGracePeriodSeconds", 120), "a pod has 120 s to end"),
        (_set("initContainers.0.startupProbe.httpGet.path", "/readyz"), "waits for the worker"),
        (_set("initContainers.0.readinessProbe.httpGet.port", "htp"), "no container has a port htp"),
        (_set("initContainers.0.restartPolicy", "always"), "no native sidecar"),
        (_set("initContainers.0.image", "reknit-agent"), "is not pinned"),
        (_set("containers.0.image", "reknit-worker:latest"), "is not pinned"),
        (_set("containers.0.securityContext.runAsUser", 0), "a user of its own"),
        (_set("securityContext.runAsNonRoot", False), "may run as root"),
        (_set("containers.0.volumeMounts", [{"name": "etcd-tls", "mountPath": "/x"}]), "can read the secret of etcd"),
        (_set("containers.0.volumeMounts", [{"name": "sockets", "mountPath": "/x"}]), "sockets is mounted, and does"),
        (_budget, "keeps 1 pods, but 2 train"),
        (_everybody, "NetworkPolicy selects {}"),
        (_no_selector, "PodMonitor selects"),
    ],
)
def test_what_would_not_work_is_found(change: Callable[[list[Manifest]], None], problem: str) -> None:
    manifests = deepcopy(overlay())
    change(manifests)
    assert [found for found in rule_problems(manifests) if problem in found], rule_problems(manifests)
    assert pod_of(manifests)
