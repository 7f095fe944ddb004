"""The units: systemd takes them, a drain has time and reaches only the agent, and a crash is answered in time."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deploy.manifests import AFTER_DEADLINE, DEPLOY

from reknit.runtime import cli
from reknit.runtime.config import Ladder
from reknit.runtime.configured import configured

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
NAMES = [unit.name for unit in UNITS]
ANALYZE = shutil.which("systemd-analyze")
LARGEST_EXPOSURE = {"reknit-agent@.service": 25, "reknit-run@.service": 55}  # tenths, by systemd's own measure
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def runnable(folder: Path, name: str, old: str = "", new: str = "") -> Path:
    """A copy for the job gpt whose program exists here, with one thing changed."""
    text = (DEPLOY / "systemd" / name).read_text()
    assert old in text
    path = folder / name.replace("@", "@gpt")
    path.write_text(text.replace(old, new).replace("/opt/reknit/venv/bin/reknit", sys.executable))
    return path


def verify(unit: Path) -> str:
    """What systemd says against it."""
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}
    command = [str(ANALYZE), "verify", "--man=no", "--recursive-errors=no", str(unit)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    said = [line for line in (result.stdout + result.stderr).split("\n") if unit.name in line]
    return "\n".join(said) or ("" if result.returncode == 0 else result.stderr)


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_takes_the_unit(tmp_path: Path, name: str) -> None:
    assert verify(runnable(tmp_path, name)) == ""


@needs_systemd
@pytest.mark.parametrize(
    ("old", "new"),
    [("KillMode=mixed", "KillMode=mixd"), ("TimeoutStopSec", "TimeoutStopSecs"), ("Type=exec", "Type=exe")],
)
def test_a_typo_in_a_unit_is_found(tmp_path: Path, old: str, new: str) -> None:
    assert verify(runnable(tmp_path, NAMES[0], old, new))


@needs_systemd
@pytest.mark.parametrize("name", NAMES)
def test_the_unit_may_do_little(tmp_path: Path, name: str) -> None:
    unit = runnable(tmp_path, name)
    command = [str(ANALYZE), "security", "--offline=true", "--no-pager", str(unit)]
    result = subprocess.run(
        [*command, f"--threshold={LARGEST_EXPOSURE[name]}"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-300:]


def service(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return parser["Service"]


def seconds(text: str) -> float:
    return float(text.removesuffix("ms")) / 1000 if text.endswith("ms") else float(text)


@pytest.mark.parametrize("name", NAMES)
def test_stopping_it_drains(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    its = service(name)
    words = shlex.split(re.sub(r"%\w", "x", its["ExecStart"]).replace("$SCRIPT", __file__))[1:]
    for variable, value in (("REKNIT_ETCD", "127.0.0.1:2379"), ("REKNIT_ADDRESS", "127.0.0.1")):
        monkeypatch.setenv(variable, value)
    config = configured(words[0], cli._parser(words[0]).parse_args(words))
    assert its["KillMode"] == "mixed"  # the agent alone is told: its workers leave when it lets them
    assert its["KillSignal"] == "SIGTERM"
    assert seconds(its["TimeoutStopSec"]) >= config.drain_deadline + AFTER_DEADLINE
    assert config.agent == "x"  # a name that stays


@pytest.mark.parametrize("name", NAMES)
def test_a_crash_is_answered_within_the_lease_and_what_does_not_get_better_is_not_tried_again(name: str) -> None:
    its = service(name)
    assert its["Restart"] == "on-failure"
    assert seconds(its["RestartSec"]) < Ladder.derive().lease / 3
    assert its["RestartPreventExitStatus"].split() == ["2", "3"]
    assert "PrivateIPC" not in its  # an agent knows by it that it is back where it was
    assert "RemoveIPC" not in its


def test_the_sockets_folder_is_the_agents_own_and_outlives_a_restart() -> None:
    its = service("reknit-agent@.service")
    assert its["RuntimeDirectoryMode"] == "0700"
    assert its["RuntimeDirectoryPreserve"] == "restart"
    assert f"--socket /run/{its['RuntimeDirectory']}/" in its["ExecStart"]
