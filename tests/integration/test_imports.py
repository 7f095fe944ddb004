"""What each side of reknit loads, seen in a fresh interpreter: the agent no torch, a worker no etcd client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable

import pytest

ETCD_CLIENT = ("etcd3", "grpc", "google.protobuf", "tenacity", "prometheus_client")
TRAINING = ("torch", "numpy")
AGENT_SIDE = ("runtime.agent", "runtime.cli", "runtime.demo", "runtime.ipc.server", "runtime.supervisor.supervisor")


def loaded_by(modules: Iterable[str]) -> set[str]:
    """The names in sys.modules after importing these."""
    code = f"import importlib, json, sys\nfor name in {list(modules)!r}: importlib.import_module(name)\n"
    code += "print(json.dumps(list(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout))


def test_reknit_alone_loads_neither_side() -> None:
    assert loaded_by(["reknit"]).isdisjoint({*ETCD_CLIENT, *TRAINING, "reknit.runtime", "reknit.rendezvous"})


@pytest.mark.parametrize(
    "modules", [("rendezvous.session.session", "rendezvous.store.etcd", "rendezvous.store.embedded"), AGENT_SIDE]
)
def test_the_agents_side_loads_no_torch(modules: tuple[str, ...]) -> None:
    loaded = loaded_by(f"reknit.{name}" for name in modules)
    assert loaded.isdisjoint(TRAINING)


def test_the_workers_side_loads_no_etcd_client() -> None:
    loaded = loaded_by(["reknit.runtime.supervisor.warm", "reknit.runtime.job"])
    assert "torch" in loaded
    assert loaded.isdisjoint(ETCD_CLIENT)
