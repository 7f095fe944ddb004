"""What the command line accepts, and how it refuses the rest: one sentence, exit code 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reknit.rendezvous.records import Axes, Spec
from reknit.rendezvous.store.endpoints import TlsFiles
from reknit.runtime import cli
from reknit.runtime.config import Config, ConfigError, Ladder, check_workers, parse_replicas
from reknit.runtime.configured import configured
from reknit.runtime.options import RUN


def test_one_time_derives_the_others() -> None:
    ladder = Ladder.derive(6.0)
    assert (ladder.lease, ladder.keepalive, ladder.user_timeout, ladder.connect) == (6.0, 2.0, 3.0, 12.0)


@pytest.mark.parametrize(
    ("settings", "both"),
    [
        ({"detect": 0.5}, ["--detect"]),
        ({"detect": 1.5}, ["--lease", "--detect"]),
        ({"lease": 1.0}, ["--lease", "2 s"]),
        ({"connect": 2.0}, ["--connect", "--detect"]),
        ({"join_window": 9.0}, ["--join-window", "--lease"]),
        ({"detect": float("nan")}, ["--detect"]),
        ({"kill_delay": -1.0}, ["--kill-delay"]),
        ({"hang": 1.0}, ["--hang", "2.5 s"]),
        ({"hang": float("inf")}, ["--hang"]),
        ({"lease": 2.0, "answer": 2.0}, ["--answer", "--lease"]),
        ({"keepalive": 3.0}, ["--keepalive", "--lease"]),
        ({"keepalive": 0.0}, ["--keepalive", "--lease"]),
        ({"user_timeout": 6.0}, ["--user-timeout", "--detect"]),
    ],
)
def test_a_ladder_that_cannot_hold_names_what_conflicts(settings: dict[str, float], both: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        Ladder.derive(**settings)
    assert all(word in str(raised.value) for word in both)


def test_replicas_are_a_number_or_a_range() -> None:
    assert parse_replicas("4") == (1, 4)
    assert parse_replicas("2:8") == (2, 8)


@pytest.mark.parametrize("text", ["0", "-1", "x", "3:2", "0:4", ":", "1:2:3", ""])
def test_other_replicas_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--replicas"):
        parse_replicas(text)


def test_workers_that_can_never_form_a_replica_are_refused_only_when_nobody_else_can_come() -> None:
    spec = Spec(Axes(2, 1), 2, 3)
    with pytest.raises(ConfigError, match="at least 4"):
        check_workers(3, spec, standalone=True)
    check_workers(3, spec, standalone=False)
    check_workers(4, spec, standalone=True)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("pass")
    return str(path)


ETCD = ["--etcd", "127.0.0.1:2379", "--job", "j"]


def parse(*argv: str) -> Config:
    return configured(RUN, cli._parser().parse_args(["run", *argv]))


def test_a_standalone_job_has_all_its_workers_here(script: str) -> None:
    config = parse("--replicas", "2:3", "--pipe", "2", "--spares", "1", script, "--steps", "5", "--pipe", "9")
    assert (config.workers, config.spec) == (7, Spec(Axes(2, 1), 2, 3))
    assert config.arguments == ("--steps", "5", "--pipe", "9")
    assert config.standalone
    assert config.address == "127.0.0.1"


def test_with_etcd_this_host_has_one_worker_unless_told(script: str) -> None:
    assert parse("--etcd", "127.0.0.1:2379", "--job", "j", script).workers == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--pipe", "0"], "--pipe must be at least 1"),
        (["--model", "-2"], "--model must be at least 1"),
        (["--pipe", "two"], "--pipe"),
        (["--replicas", "3:1"], "MIN <= MAX"),
        (["--workers", "1", "--pipe", "2"], "can't form"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--spares", "-1"], "--spares"),
        (["--etcd", "h:1"], "--job"),
        (["--standalone", "--etcd", "h:1"], "not allowed with"),
        (["--no-standalone"], "--no-standalone needs --etcd"),
        (["--pipe-backend", "mpi"], "must be one of auto, nccl, gloo"),
        (["--detect", "0"], "--detect"),
        (["--max-restarts", "-1"], "--max-restarts"),
        (["--restart-window", "nan"], "--restart-window"),
        (["--kill-delay", "nan"], "--kill-delay"),
        (["--kill-delay", "inf"], "--kill-delay"),
        (["--kill-delay", "-1"], "--kill-delay"),
        (["--job", "a/b"], "--job"),
        (["--job", ""], "--job"),
        (["--etcd", "127.0.0.1:1", "--job", ""], "--job"),
        (["--agent", "a/b"], "--agent"),
        (["--agent", ""], "--agent"),
        (["--etcd-ca", "x"], "--etcd-ca needs --etcd"),
        (["--etcd-password-file", "x"], "--etcd-password-file needs --etcd"),
        ([*ETCD, "--etcd-ca", "no/such/file"], "no/such/file"),
        ([*ETCD, "--etcd-cert", "x", "--etcd-key", "y"], "need --etcd-ca"),
        ([*ETCD, "--etcd-ca", __file__, "--etcd-cert", __file__], "go together"),
        ([*ETCD, "--etcd-user", "me"], "needs a password"),
        ([*ETCD, "--etcd-user", "me", "--etcd-password-file", "no/such/file"], "no/such/file"),
        ([*ETCD, "--etcd-user", "me", "--etcd-password-file", "/dev/null"], "needs a password"),
        ([*ETCD, "--etcd-password-file", __file__], "needs --etcd-user"),
        (["--etcd", "https://127.0.0.1:1", "--job", "j"], "asks for TLS"),
        (["--etcd", "h:p:q", "--job", "j"], "--etcd"),
        (["--no-such-thing"], "--no-such-thing"),
        (["--replica=2"], "unrecognized arguments: --replica; did you mean --replicas?"),
        (["--det", "3"], "did you mean --detect?"),
        (["--etcd-password=secret"], "unrecognized arguments: --etcd-password; did you mean --etcd-password-file?"),
    ],
)
def test_bad_usage_is_one_sentence_and_exit_code_2(
    argv: list[str], says: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = cli.main(["run", *argv, script])
    except SystemExit as ending:
        code = ending.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert code == 2
    assert says in error
    assert error.count("\n") == 1
    assert "secret" not in error
    assert "Traceback" not in error


def test_what_opens_an_etcd_reaches_the_store_and_no_worker(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REKNIT_ETCD_PASSWORD", "from the environment")
    secret = tmp_path / "secret"
    secret.write_text("from a file\nsecond line")
    files = ["--etcd-ca", script, "--etcd-cert", script, "--etcd-key", script]
    config = parse(*ETCD, *files, "--etcd-user", "me", script)
    assert config.access.tls == TlsFiles(Path(script), Path(script), Path(script))
    assert (config.access.user, config.access.password) == ("me", "from the environment")
    assert "environment" not in repr(config)
    assert "REKNIT_ETCD_PASSWORD" not in os.environ
    config = parse(*ETCD, "--etcd-user", "me", "--etcd-password-file", str(secret), script)
    assert (config.access.tls, config.access.password) == (None, "from a file")
    assert parse("--kill-delay", "3", script).ladder.kill_delay == 3.0


def test_help_names_what_opens_an_etcd(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["agent", "--help"])
    said = capsys.readouterr().out
    for option in ("--etcd-ca", "--etcd-cert", "--etcd-key", "--etcd-user", "--etcd-password-file"):
        assert option in said
    assert "REKNIT_ETCD_PASSWORD" in said


def test_a_script_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "no/such/script.py"]) == 2
    assert "no/such/script.py" in capsys.readouterr().err


def test_an_agent_needs_an_etcd(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "--socket", "s"]) == 2
    assert "--etcd" in capsys.readouterr().err


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "run" in capsys.readouterr().out
