"""What people install: the wheel holds real files, all of them and nothing else, whichever way it was built."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("deploy", "health", "rendezvous", "runtime")
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git says which files belong to the package")
TOP_LEVEL = {
    *FOLDERS,
    "tests",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Makefile",
}


def shipped_files() -> set[str]:
    """Every file of the four folders that git knows, as the wheel has to name it."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {f"reknit/{name}" for name in listed.stdout.splitlines() if (ROOT / name).is_file()}
    return names | {"reknit/__init__.py", "reknit/py.typed"}


def build(source: Path, output: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(output), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git would hold, so that building leaves nothing behind in the working tree."""
    copy = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if not (origin := ROOT / name).exists():
            continue
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_symlink():
            target.symlink_to(os.readlink(origin))
        else:
            target.write_bytes(origin.read_bytes())
    # A tree that was worked in holds bytecode too.
    for folder in ("runtime", "deploy/examples"):
        (copy / folder / "__pycache__").mkdir()
        (copy / folder / "__pycache__" / "left.cpython-310.pyc").write_bytes(b"")
    return copy


@pytest.fixture(scope="module")
def wheels(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel built from the tree, and the one built from the sdist."""
    direct, through_sdist = (tmp_path_factory.mktemp(name) for name in ("direct", "through_sdist"))
    build(source, direct, "--wheel")
    build(source, through_sdist)
    return {"tree": next(direct.glob("*.whl")), "sdist": next(through_sdist.glob("*.whl"))}


@pytest.mark.parametrize("origin", ["tree", "sdist"])
def test_a_wheel_holds_the_package_and_nothing_else(wheels: dict[str, Path], origin: str) -> None:
    with zipfile.ZipFile(wheels[origin]) as wheel:
        names = {info.filename for info in wheel.infolist() if not info.is_dir()}
        contents = {name: wheel.read(name) for name in names}
    inside = {name for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert inside == shipped_files()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert contents["reknit/deploy/examples/train_gpt.py"] == (ROOT / "deploy/examples/train_gpt.py").read_bytes()
    assert contents["reknit/runtime/data.py"] == (ROOT / "runtime/data.py").read_bytes()


def test_the_sdist_can_be_tested_and_read(wheels: dict[str, Path]) -> None:
    with tarfile.open(next(wheels["sdist"].parent.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {name.removeprefix("reknit/") for name in shipped_files()} <= {
        name.removeprefix(".src/reknit/") for name in names
    }
    for needed in ("pyproject.toml", "README.md", "LICENSE"):
        assert needed in names


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment in which reknit, and nothing that it depends on, is installed."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site]
    subprocess.run([*install, str(wheels["sdist"])], check=True)
    return python


def run_installed(python: Path, code: str) -> str:
    result = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_the_installed_package_is_quick_and_needs_nothing(installed: Path) -> None:
    code = """
import json, sys, time
began = time.perf_counter()
import reknit
seconds = time.perf_counter() - began
print(json.dumps([reknit.__file__, seconds, reknit.ReknitError.__name__, sorted(sys.modules)]))
"""
    runs = [json.loads(run_installed(installed, code)) for _ in range(3)]
    for file, _, error, modules in runs:
        assert Path(file).is_relative_to(installed.parents[1])
        assert error == "ReknitError"
        assert not {"torch", "numpy", "grpc", "etcd3"} & set(modules)
    assert min(seconds for _, seconds, _, _ in runs) < 0.2


def test_the_examples_are_found_where_they_were_installed(installed: Path) -> None:
    code = """
from importlib.resources import files
print((files("reknit.deploy") / "examples" / "train_ddp.py").read_text())
"""
    assert "reknit.join()" in run_installed(installed, code)


def test_the_top_level_holds_what_the_design_names() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    top = {name.split("/")[0] for name in listed if name and not name.startswith(".")}
    assert top <= TOP_LEVEL
