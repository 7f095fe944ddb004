"""Kubernetes manifests as they would be applied: built by the tools that people use, and judged twice.

`schema_problems` says what Kubernetes' own schemas refuse, typos included.  `rule_problems` says what they cannot know:
that selectors select the pods, that what is mounted exists, that a drain has time enough.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

DEPLOY = Path(__file__).parents[2] / "deploy"
OLDEST = (1, 29)  # the first whose native sidecars need no feature gate
VERSIONS = [v for v in dict.fromkeys(all_versions()) if tuple(map(int, v.split(".")[:2])) >= OLDEST]
AFTER_DEADLINE = 15.0  # seconds: ends whoever has not left by the drain's deadline, and then the agent itself

Manifest = dict[str, Any]

# The operator's own kinds are in no schema of Kubernetes: the fields that are used here, and no others.
_ENDPOINT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["port"],
    "properties": {
        "port": {"type": "string"},
        "path": {"type": "string"},
        "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
        "scrapeTimeout": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
    },
}
_LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
_SELECTOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["matchLabels"],
    "properties": {"matchLabels": _LABELS},
}
_RULE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["expr"],
    "properties": {
        **{name: {"type": "string"} for name in ("alert", "record", "expr", "for", "keep_firing_for")},
        "labels": _LABELS,
        "annotations": _LABELS,
    },
}
_GROUP = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "rules"],
    "properties": {
        "name": {"type": "string"},
        "interval": {"type": "string"},
        "rules": {"type": "array", "items": _RULE},
    },
}
_SPECS: dict[str, dict[str, Any]] = {
    "PodMonitor": {
        "type": "object",
        "additionalProperties": False,
        "required": ["selector", "podMetricsEndpoints"],
        "properties": {"selector": _SELECTOR, "podMetricsEndpoints": {"type": "array", "items": _ENDPOINT}},
    },
    "PrometheusRule": {
        "type": "object",
        "additionalProperties": False,
        "required": ["groups"],
        "properties": {"groups": {"type": "array", "items": _GROUP}},
    },
}


def build(folder: Path) -> list[Manifest]:
    """What `kubectl apply -k` would apply.  Skips the test where no kustomize is to be had."""
    command = ["kubectl", "kustomize"] if shutil.which("kubectl") else ["kustomize", "build"]
    if shutil.which(command[0]) is None:
        pytest.skip("neither kubectl nor kustomize is installed")
    result = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        raise ValueError(result.stderr)
    return parse(result.stdout)


@cache
def overlay() -> list[Manifest]:
    """The overlay, which holds the base."""
    return build(DEPLOY / "kubernetes" / "overlays" / "two-by-two")


def parse(text: str) -> list[Manifest]:
    """The documents of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


def only(manifests: Sequence[Manifest], kind: str) -> Manifest:
    """The one of this kind."""
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


# ---------------------------------------------------------------- what the schemas say


def schema_problems(manifests: Sequence[Manifest], version: str) -> list[str]:
    """What is no field, or has no such value, in this version of Kubernetes."""
    problems = []
    for manifest in manifests:
        where = f"{manifest.get('kind')} {manifest.get('metadata', {}).get('name')}"
        try:
            if manifest["kind"] in _SPECS:
                _validate_ours(manifest)
            else:
                kubernetes_validate.validate(manifest, version, strict=True)
        except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
            problems.append(f"{where}: {'.'.join(map(str, error.path))}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            problems.append(f"{where}: {error.message}")
    return problems


def _validate_ours(manifest: Manifest) -> None:
    outside = {
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"const": "monitoring.coreos.com/v1"},
            "kind": {},
            "metadata": {"type": "object", "required": ["name"]},
            "spec": _SPECS[manifest["kind"]],
        },
    }
    jsonschema.validate(manifest, outside)


# ---------------------------------------------------------------- what they can't know


def pod_of(manifests: Sequence[Manifest]) -> Manifest:
    """The pod template's spec."""
    spec: Manifest = only(manifests, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def container(manifests: Sequence[Manifest], name: str) -> Manifest:
    """A container of the pod, the sidecar included."""
    pod = pod_of(manifests)
    (found,) = [each for each in (*pod.get("initContainers", []), *pod["containers"]) if each["name"] == name]
    return dict(found)


def environment(
    manifests: Sequence[Manifest], name: str, pod_name: str = "train-0", address: str = "10.0.0.7"
) -> dict[str, str]:
    """A container's variables, as the kubelet would set them."""
    values: dict[str, str] = {}
    its = container(manifests, name)
    for origin in its.get("envFrom", []):
        wanted = origin["configMapRef"]["name"]
        maps = [m for m in manifests if m["kind"] == "ConfigMap" and m["metadata"]["name"] == wanted]
        assert maps, f"container {name} takes its variables from {wanted}, which does not exist"
        values.update(maps[0]["data"])
    fields = {"metadata.name": pod_name, "status.podIP": address}
    for variable in its.get("env", []):
        source = variable.get("valueFrom", {})
        text = variable.get("value", "secret")
        if "fieldRef" in source:
            text = fields[source["fieldRef"]["fieldPath"]]
        for known, value in values.items():
            text = text.replace(f"$({known})", value)
        values[variable["name"]] = text
    return values


def rule_problems(manifests: Sequence[Manifest]) -> list[str]:
    """What would not work, though every field is right."""
    return [
        *_selector_problems(manifests),
        *_port_problems(manifests),
        *_volume_problems(pod_of(manifests)),
        *_security_problems(pod_of(manifests)),
        *_lifecycle_problems(manifests),
        *_size_problems(manifests),
        *_secret_problems(manifests),
    ]


def _selectors(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Mapping[str, str]]]:
    kinds = {"StatefulSet": "selector", "PodDisruptionBudget": "selector", "NetworkPolicy": "podSelector"}
    kinds["PodMonitor"] = "selector"
    for manifest in manifests:
        kind, spec = manifest["kind"], manifest.get("spec", {})
        if kind in kinds:
            yield kind, spec.get(kinds[kind], {}).get("matchLabels", {})
        if kind == "Service":
            yield kind, spec.get("selector", {})
        if kind == "NetworkPolicy":
            for peer in (peer for rule in spec["ingress"] for peer in rule["from"] if "podSelector" in peer):
                yield "NetworkPolicy's peers", peer["podSelector"].get("matchLabels", {})
    for spread in pod_of(manifests).get("topologySpreadConstraints", []):
        yield "topologySpreadConstraints", spread.get("labelSelector", {}).get("matchLabels", {})


def _selector_problems(manifests: Sequence[Manifest]) -> list[str]:
    labels = only(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    return [
        f"{kind} selects {dict(selector)}, not just this job's pods ({labels})"
        for kind, selector in _selectors(manifests)
        if "app.kubernetes.io/instance" not in selector or not selector.items() <= labels.items()
    ]


def _port_problems(manifests: Sequence[Manifest]) -> list[str]:
    agent = container(manifests, "agent")
    named = {port["name"]: port["containerPort"] for port in agent.get("ports", [])}
    used = [agent[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    used += [port["targetPort"] for port in only(manifests, "Service")["spec"]["ports"]]
    used += [
        port["port"] for rule in only(manifests, "NetworkPolicy")["spec"]["ingress"] for port in rule.get("ports", [])
    ]
    for monitor in (m for m in manifests if m["kind"] == "PodMonitor"):
        used += [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    known = {*named, *named.values()}
    problems = [f"no container has a port {port}" for port in used if port not in known]
    told = environment(manifests, "agent").get("REKNIT_HTTP", "")
    if told.rpartition(":")[2] != str(named.get("http")):
        problems.append(f"the agent listens on {told}, but its port http is {named.get('http')}")
    return problems


def _volume_problems(pod: Manifest) -> list[str]:
    known = {volume["name"] for volume in pod["volumes"]}
    mounted = {m["name"] for c in (*pod["initContainers"], *pod["containers"]) for m in c.get("volumeMounts", [])}
    problems = [f"volume {name} is mounted, and does not exist" for name in sorted(mounted - known)]
    return problems + [f"volume {name} is mounted nowhere" for name in sorted(known - mounted)]


def _security_problems(pod: Manifest) -> list[str]:
    problems = []
    context = pod.get("securityContext", {})
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        problems.append("the pod may run as root")
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        problems.append("the pod has no seccomp profile")
    if pod.get("automountServiceAccountToken") is not False:
        problems.append("the pod is given a token of Kubernetes, which it does not need")
    for each in (*pod["initContainers"], *pod["containers"]):
        own, name = each.get("securityContext", {}), each["name"]
        if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
            problems.append(f"{name} may get more rights than it has")
        if "runAsUser" in own:
            problems.append(f"{name} is a user of its own: the agent's socket is for one user only")
        if "memory" not in each.get("resources", {}).get("limits", {}):
            problems.append(f"{name} has no limit of memory")
        image = each["image"].rpartition("/")[2]
        if "@sha256:" not in image and image.rpartition(":")[2] in ("", "latest", image):
            problems.append(f"{name}'s image {each['image']} is not pinned")
    return problems


def _lifecycle_problems(manifests: Sequence[Manifest]) -> list[str]:
    agent, problems = container(manifests, "agent"), []
    if agent.get("restartPolicy") != "Always":
        problems.append("the agent is no native sidecar: the pod would wait for its end")
    if agent["startupProbe"]["httpGet"]["path"] == "/readyz":
        problems.append("the worker is started after the startup probe, which waits for the worker")
    deadline = float(environment(manifests, "agent").get("REKNIT_DRAIN_DEADLINE", 120))
    grace = pod_of(manifests).get("terminationGracePeriodSeconds", 30)
    if grace < deadline + AFTER_DEADLINE:
        problems.append(f"a pod has {grace} s to end, and a drain {deadline:g} s: worker and agent end after that")
    if not only(manifests, "Service")["spec"].get("publishNotReadyAddresses"):
        problems.append("pods have no names before they are ready")
    if only(manifests, "StatefulSet")["spec"].get("podManagementPolicy") != "Parallel":
        problems.append("each pod waits for the one before it")
    return problems


def _size_problems(manifests: Sequence[Manifest]) -> list[str]:
    told = environment(manifests, "agent")
    low, _, high = told["REKNIT_REPLICAS"].rpartition(":")
    of_a_replica = int(told.get("REKNIT_PIPE", 1)) * int(told.get("REKNIT_MODEL", 1))
    per_pod = len(pod_of(manifests)["containers"])
    smallest = -(-int(low or 1) * of_a_replica // per_pod)
    problems = []
    budgets = [m for m in manifests if m["kind"] == "PodDisruptionBudget"]
    if any(budget["spec"]["minAvailable"] != smallest for budget in budgets):
        problems.append(f"the disruption budget keeps {budgets[0]['spec']['minAvailable']} pods, but {smallest} train")
    pods = only(manifests, "StatefulSet")["spec"]["replicas"]
    if not smallest <= pods <= int(high) * of_a_replica:
        problems.append(f"{pods} pods, but the job takes {smallest} to {int(high) * of_a_replica} workers")
    return problems


def _secret_problems(manifests: Sequence[Manifest]) -> list[str]:
    pod = pod_of(manifests)
    secret = {volume["name"] for volume in pod["volumes"] if "secret" in volume}
    problems = ["a secret is written out" for manifest in manifests if manifest["kind"] == "Secret"]
    problems += [
        f"{each['name']} can read the secret of etcd"
        for each in pod["containers"]
        if secret & {mount["name"] for mount in each.get("volumeMounts", [])}
    ]
    return problems + [
        f"everybody can read {volume['name']}"
        for volume in pod["volumes"]
        if volume.get("secret", {}).get("defaultMode", 0) & 0o007
    ]
