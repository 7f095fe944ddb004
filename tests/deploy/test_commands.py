"""Every `reknit` command line in deploy/ is one that the real parser takes, so that flags can't drift apart."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.manifests import DEPLOY, container, environment, overlay
from tests.deploy.test_helm import TWO_BY_TWO, VARIANTS, render

from reknit.runtime import cli
from reknit.runtime.config import Config, Ladder
from reknit.runtime.configured import configured
from reknit.runtime.layers import FOR_WORKERS, PASSWORD_VARIABLE, from_environment
from reknit.runtime.options import BY_NAME, OPTIONS

SUFFIXES = {".md", ".sbatch", ".service", ".yaml", ".tpl", ".txt", ".py", ".json", ""}
IN_CODE = re.compile(r"`(reknit [^`\n]+)`")
IN_SHELL = re.compile(r"(?:^|[\s/])(reknit (?:run|agent|status|scale|drain|events|jobs|doctor|demo|chaos)\b[^#\n]*)")
STAND_INS = {"N": "2", "NAME": "USR1", "MIN:MAX": "1:2", "SCRIPT": "train.py"}


def texts() -> Iterator[tuple[str, str]]:
    """Every file that may hold one, by its name, with what is in it."""
    for path in sorted(DEPLOY.rglob("*")):
        where = path.relative_to(DEPLOY)
        if path.is_file() and path.suffix in SUFFIXES and not {"__pycache__", "examples"} & set(where.parts):
            yield str(where), path.read_text()


def command_lines() -> Iterator[tuple[str, str]]:
    """Where it stands, and the line."""
    for where, written in texts():
        text = written.replace("\\\n", " ")
        prose = where.endswith((".md", ".py", ".json"))
        found = IN_CODE.findall(text) if prose else []
        for line in text.split("\n"):
            if not prose or line.startswith(("$ ", "    reknit ")):
                found += IN_SHELL.findall(line)
        yield from ((where, line) for line in found)


def words_of(line: str) -> list[str]:
    """The arguments of a line as written: shell variables and placeholders stand for something, the rest is cut off."""
    line = re.sub(r"\{\{[^}]*\}\}", "120", line)
    line = re.split(r"`| \|\| | >|;", line)[0].rstrip("]'\" ,.:)")
    if line.count('"') % 2:
        line += '"'
    words = [
        re.sub(r'"?\$\{?\w+\}?"?', "x", word)
        for word in shlex.split(line.replace('"$@"', "x").replace('"$0"', "2"))[1:]
    ]
    return [STAND_INS.get(word, word) for word in words if word != "…"]


def problem(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the parser says against them; empty for nothing."""
    parser: argparse.ArgumentParser = cli._parser(words[0] if words else None)
    try:
        parser.parse_args(words)
    except SystemExit as ended:
        said = capsys.readouterr()
        return "" if ended.code == 0 else said.err
    return ""


def test_the_parser_takes_every_command_line_in_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    lines = list(command_lines())
    assert {"README.md", "slurm/reknit.sbatch", "systemd/reknit-agent@.service"} <= {where for where, _ in lines}
    assert len(lines) > 30
    problems = {(where, line): said for where, line in lines if (said := problem(words_of(line), capsys))}
    assert problems == {}


@pytest.mark.parametrize(
    "line",
    [
        'reknit drain "$REKNIT_AGENT" --daedline 120s',
        "reknit agnet",
        "reknit scale",
        'reknit run --agent "$SLURMD_NODENAME" --wrokers 2 x',
    ],
)
def test_a_typo_in_a_command_line_is_found(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert problem(words_of(line), capsys)


# ---------------------------------------------------------------- what containers are told


def settle(manifest: str, monkeypatch: pytest.MonkeyPatch, **changed: str) -> Config:
    """What the agent of a pod takes its environment for."""
    manifests = overlay() if manifest == "kustomize" else render(VARIANTS.get(manifest, TWO_BY_TWO))
    for name, value in {**environment(manifests, "agent"), **changed}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("reknit.runtime.access.TlsFiles", lambda *files: files)  # there are none here
    words = container(manifests, "agent")["args"]
    return configured("agent", cli._parser().parse_args(words))


@pytest.mark.parametrize("manifest", ["kustomize", "chart", "password, no TLS, a registry"])
def test_an_agent_understands_what_its_pod_tells_it(manifest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settle(manifest, monkeypatch)
    assert config.agent == "train-0"
    assert config.http.rpartition(":")[0] == "[10.0.0.7]"
    assert config.address == "10.0.0.7"
    assert config.ladder.lease == 15.0
    assert config.once
    assert config.spec.desired is None
    assert config.ladder.hang == Ladder.derive().hang


def test_a_variable_that_reknit_does_not_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="did you mean REKNIT_DETECT"):
        settle("kustomize", monkeypatch, REKNIT_DETEKT="15")


def test_a_drain_before_the_stop_finds_the_job_by_its_containers_environment() -> None:
    told = environment(overlay(), "agent")
    words = shlex.split(container(overlay(), "agent")["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert words[:3] == ["exec", "reknit", "drain"]
    assert words[3] == "$REKNIT_AGENT"
    found = from_environment([BY_NAME[name] for name in ("job", "etcd", "etcd-ca", "etcd-cert", "etcd-key")], told)
    assert (found["job"], found["etcd"]) == ("train", "etcd-client:2379")
    assert found["etcd-ca"] == Path("/etc/reknit/etcd/ca.crt")


def test_settings_that_files_of_the_environment_may_hold_are_real() -> None:
    """What comments and README name as REKNIT_… is a variable that is read."""
    known = {option.variable for option in OPTIONS} | {PASSWORD_VARIABLE, *FOR_WORKERS}
    named = {name for _, text in texts() for name in re.findall(r"\bREKNIT_[A-Z][A-Z_]*[A-Z]\b", text)}
    assert named
    assert named <= known
