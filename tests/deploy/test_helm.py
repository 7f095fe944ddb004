"""The chart: linted and rendered by helm itself, judged as the kustomize base is, and no key of its values mistyped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.manifests import (
    DEPLOY,
    VERSIONS,
    Manifest,
    container,
    environment,
    only,
    overlay,
    parse,
    pod_of,
    rule_problems,
    schema_problems,
)
from tests.deploy.metrics import RULES

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")

CHART = DEPLOY / "helm" / "reknit"
ALL = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
TWO_BY_TWO = {"job": {"pipe": 2, "maxReplicas": 2}, "pods": 4, **ALL}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "two by two": TWO_BY_TWO,
    "eight workers a pod": {"worker": {"perPod": 8}, "job": {"pipe": 4, "minReplicas": 3}, "pods": 4, **ALL},
    "password, no TLS, a registry": {
        "etcd": {"tls": {"enabled": False}, "user": "reknit", "passwordSecret": {"name": "etcd-user"}},
        "images": {"registry": "mine/own", "pullSecrets": [{"name": "pull"}]},
        "worker": {
            "args": ["train.py"],
            "env": [{"name": "OMP_NUM_THREADS", "value": "8"}],
            "resources": {"limits": {"memory": "64Gi", "nvidia.com/gpu": 1}},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "podAnnotations": {"a": "b"},
    },
}


def render(values: dict[str, Any], chart: Path = CHART) -> list[Manifest]:
    with helm.Chart.load(chart) as loaded:
        rendered = loaded.render(values, name="train", namespace="training")
    return [document for path, text in rendered.items() if path.endswith(".yaml") for document in parse(text)]


def lint(values: dict[str, Any], chart: Path = CHART) -> list[str]:
    """What helm warns of, or calls an error."""
    report = helm.lint(chart, values, strict=True, kube_version="v1.29.0")
    errors = [*(message["error"] for message in report["messages"] if message["severity"] > 1), *report["errors"]]
    return list(map(str, errors))


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_the_chart_is_linted_and_renders_what_kubernetes_takes_and_what_works(values: dict[str, Any]) -> None:
    assert lint(values) == []
    manifests = render(values)
    assert schema_problems(manifests, VERSIONS[0]) == []
    assert rule_problems(manifests) == []


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_every_field_is_one_of_kubernetes(version: str) -> None:
    assert schema_problems(render(TWO_BY_TWO), version) == []


def test_the_chart_and_the_kustomize_base_agree() -> None:
    chart, base = render(TWO_BY_TWO), overlay()
    assert {m["kind"] for m in chart} == {m["kind"] for m in base} | {"PrometheusRule"}
    assert environment(base, "agent").items() <= environment(chart, "agent").items()
    assert environment(base, "worker").items() <= environment(chart, "worker").items()
    for part in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "securityContext", "volumeMounts"):
        assert container(chart, "agent")[part] == container(base, "agent")[part], part
    for part in ("securityContext", "terminationGracePeriodSeconds", "volumes", "automountServiceAccountToken"):
        assert pod_of(chart)[part] == pod_of(base)[part], part


def test_each_worker_of_a_pod_has_a_name_of_its_own() -> None:
    manifests = render(VARIANTS["eight workers a pod"])
    names = {environment(manifests, f"worker-{index}")["REKNIT_WORKER_ID"] for index in range(8)}
    assert names == {f"train-0-{index}" for index in range(8)}
    assert only(manifests, "PodDisruptionBudget")["spec"]["minAvailable"] == 2  # 3 replicas of 4 stages


def test_the_password_is_a_secret_and_the_registry_stands_before_the_images() -> None:
    manifests = render(VARIANTS["password, no TLS, a registry"])
    agent = container(manifests, "agent")
    (password,) = [each for each in agent["env"] if each["name"] == "REKNIT_ETCD_PASSWORD"]
    assert password["valueFrom"] == {"secretKeyRef": {"name": "etcd-user", "key": "password"}}
    assert agent["image"] == "mine/own/reknit-agent:0.1.0"
    assert "REKNIT_ETCD_CA" not in {each["name"] for each in agent["env"]}
    assert "etcd" not in str(container(manifests, "worker")).lower()
    with pytest.raises(helm.HelmError, match=r"passwordSecret\.name"):
        render({"etcd": {"user": "reknit"}})


def test_the_rules_are_those_of_prometheus() -> None:
    assert (CHART / "files" / RULES.name).read_text() == RULES.read_text(), f"copy {RULES} into the chart anew"
    assert only(render(ALL), "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text())


# ---------------------------------------------------------------- what must not pass


@pytest.mark.parametrize(
    "values",
    [
        {"jobs": {"pipe": 2}},
        {"job": {"pipes": 2}},
        {"job": {"pipe": "2"}},
        {"job": {"pipe": 0}},
        {"job": {"name": "a b"}},
        {"etcd": {"endpoints": "http://etcd:2379"}},
        {"etcd": {"tls": {"enable": False}}},
        {"images": {"registry": "mine/"}},
        {"images": {"pullPolicy": "Allways"}},
        {"worker": {"perPod": 0}},
        {"worker": {"resource": {}}},
        {"worker": {"env": [{"name": "A", "vale": "b"}]}},
        {"podMonitor": {"interval": "15"}},
        {"user": 0},
    ],
    ids=str,
)
def test_a_typo_in_the_values_is_refused(values: dict[str, Any]) -> None:
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(values)
    with pytest.raises(helm.HelmError):
        render(values)


def test_the_schema_knows_every_value_and_leaves_no_object_open() -> None:
    with helm.Chart.load(CHART) as chart:
        values, schema = chart.values, chart.schema
    assert schema is not None

    def compare(value: dict[str, Any], part: dict[str, Any], where: str) -> None:
        assert part.get("additionalProperties") is False, f"{where} takes any key"
        assert value.keys() <= part["properties"].keys(), where
        for key, inner in value.items():
            if isinstance(inner, dict) and "properties" in part["properties"][key]:
                compare(inner, part["properties"][key], f"{where}.{key}")

    compare(values, schema, "values")


def _replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(chart: Path) -> None:
        path = chart / "templates" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return change


@pytest.mark.parametrize(
    "change",
    [
        _replace("statefulset.yaml", ".Values.job.drainDeadline", ".Values.job.drainDeadlin"),
        _replace("statefulset.yaml", "{{- range", "{{- rnge"),
        _replace("statefulset.yaml", "livenessProbe", "livenesProbe"),
        _replace("networkpolicy.yaml", "podSelector:", "podSelektor:"),
        _replace("poddisruptionbudget.yaml", "  minAvailable", " minAvailable"),
    ],
)
def test_a_typo_in_a_template_is_found(tmp_path: Path, change: Callable[[Path], None]) -> None:
    chart = tmp_path / "reknit"
    shutil.copytree(CHART, chart)
    change(chart)
    try:
        manifests = render({}, chart)
        problems = schema_problems(manifests, VERSIONS[-1]) or lint({}, chart) or rule_problems(manifests)
    except (helm.HelmError, yaml.YAMLError) as error:
        problems = [str(error)]
    assert problems
