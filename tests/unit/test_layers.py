"""Flags over variables over the file; who sets what to nonsense is named, and so is the nearest of an unknown name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reknit.runtime import cli
from reknit.runtime.config import ConfigError
from reknit.runtime.layers import FOR_WORKERS, PASSWORD_VARIABLE, Settings, nearest, read_file, resolve
from reknit.runtime.options import AGENT, OPTIONS, RUN


def told(flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, **file: Any) -> Settings:
    return resolve(RUN, flags or {}, environment or {}, {k.replace("_", "-"): v for k, v in file.items()}, "c.toml")


def test_a_flag_wins_over_a_variable_and_that_over_the_file() -> None:
    variables = {"REKNIT_PIPE": "3"}
    assert told({"pipe": 2}, variables, pipe=4)["pipe"] == 2
    assert told({}, variables, pipe=4)["pipe"] == 3
    assert told({}, {}, pipe=4)["pipe"] == 4
    assert told()["pipe"] == 1


def test_a_variable_that_is_empty_sets_nothing() -> None:
    assert told({}, {"REKNIT_PIPE": ""}, pipe=4)["pipe"] == 4


def test_a_list_is_replaced_not_extended() -> None:
    assert told({"preload": ["a"]}, {"REKNIT_PRELOAD": "b, c"})["preload"] == ["a"]
    assert told({}, {"REKNIT_PRELOAD": "b, c"}, preload=["d"])["preload"] == ["b", "c"]


def test_a_switch_can_be_turned_off_above_the_layer_that_turns_it_on() -> None:
    assert told({"warm": True}, {"REKNIT_WARM": "no"}, warm=True)["warm"] is True
    assert told({}, {"REKNIT_WARM": "0"}, warm=True)["warm"] is False


@pytest.mark.parametrize(
    ("flags", "environment", "file", "etcd"),
    [
        ({"standalone": True}, {"REKNIT_ETCD": "e:1", "REKNIT_ETCD_CA": "ca"}, {"etcd_user": "me"}, None),
        ({"etcd": "e:1"}, {"REKNIT_STANDALONE": "yes"}, {}, "e:1"),
        ({}, {"REKNIT_STANDALONE": "yes"}, {"etcd": "e:1"}, None),
        ({}, {"REKNIT_ETCD": "e:1"}, {"standalone": True}, "e:1"),
        ({}, {"REKNIT_ETCD": "e:1"}, {"etcd": "e:2"}, "e:1"),
    ],
)
def test_the_highest_layer_that_says_where_the_job_meets_has_the_say(
    flags: dict[str, Any], environment: dict[str, str], file: dict[str, Any], etcd: str | None
) -> None:
    found = told(flags, environment, **file)
    assert found["etcd"] == etcd
    if etcd is None:
        assert (found["etcd-ca"], found["etcd-user"]) == (None, None)
    else:
        assert found["standalone"] is None


@pytest.mark.parametrize("layer", ["flags", "environment", "file"])
def test_a_layer_that_contradicts_itself_is_refused(layer: str) -> None:
    both: dict[str, Any] = {"standalone": True, "etcd": "e:1"}
    variables = {"REKNIT_STANDALONE": "1", "REKNIT_ETCD": "e:1"}
    given: dict[str, Any] = {"flags": {"flags": both}, "environment": {"environment": variables}, "file": both}
    with pytest.raises(ConfigError, match="not allowed with"):
        told(**given[layer])


@pytest.mark.parametrize(
    ("environment", "file", "says"),
    [
        ({"REKNIT_PIPE": "two"}, {}, "$REKNIT_PIPE must be a whole number, not 'two'"),
        ({"REKNIT_DETECT": "5s"}, {}, "$REKNIT_DETECT must be a number of seconds, not '5s'"),
        ({"REKNIT_LOG_JSON": "maybe"}, {}, "$REKNIT_LOG_JSON must be true or false, not 'maybe'"),
        ({"REKNIT_PIPE_BACKEND": "mpi"}, {}, "$REKNIT_PIPE_BACKEND must be one of auto, nccl, gloo, not 'mpi'"),
        ({}, {"pipe": "2"}, "pipe in c.toml must be a whole number, not '2'"),
        ({}, {"pipe": 2.5}, "pipe in c.toml must be a whole number, not 2.5"),
        ({}, {"pipe": True}, "pipe in c.toml must be a whole number, not True"),
        ({}, {"detect": [1]}, "detect in c.toml must be a number of seconds, not [1]"),
        ({}, {"warm": "no"}, "warm in c.toml must be true or false, not 'no'"),
        ({}, {"preload": [1]}, "preload in c.toml must be names"),
        ({}, {"job": {"name": "x"}}, "job in c.toml must be text"),
    ],
)
def test_a_value_that_does_not_parse_names_its_source(
    environment: dict[str, str], file: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        told({}, environment, **file)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("REKNIT_REPLICA", "REKNIT_REPLICAS"), ("REKNIT_DETEKT", "REKNIT_DETECT"), ("REKNIT_XYZZY_QQ", "run --help")],
)
def test_an_unknown_variable_is_refused_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as raised:
        told({}, {name: "1"})
    assert name in str(raised.value)
    assert meant in str(raised.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [("drain_deadline", "drain-deadline"), ("replica", "replicas"), ("etcd-password", "password-file")],
)
def test_an_unknown_key_is_refused_with_the_nearest(key: str, meant: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve(RUN, {}, {}, {key: 1}, "c.toml")
    assert f"c.toml: unknown key '{key}'" in str(raised.value)
    assert meant in str(raised.value)


def test_a_key_of_the_other_command_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match="workers is for `reknit run`"):
        resolve(AGENT, {}, {}, {"workers": 2}, "c.toml")
    with pytest.raises(ConfigError, match="socket is for `reknit agent`"):
        resolve(RUN, {}, {}, {"socket": "s"}, "c.toml")


def test_what_an_agent_tells_its_workers_is_no_setting_of_a_run_within() -> None:
    environment = dict.fromkeys(FOR_WORKERS, "7") | {PASSWORD_VARIABLE: "secret"}
    values = told({}, environment).values
    assert values == told().values
    outside = {"REKNIT_ADDRESS": "10.0.0.1", "REKNIT_DRAIN_SIGNAL": "USR1", "REKNIT_SOCKET": "/s"}
    values = resolve(AGENT, {}, outside, {}).values
    assert (values["address"], values["drain-signal"], str(values["socket"])) == ("10.0.0.1", "USR1", "/s")


def test_what_kubernetes_says_of_services_is_no_setting() -> None:
    parts = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_2379_TCP", "PORT_2379_TCP_ADDR")
    assert told({}, {f"REKNIT_{name}_{part}": "x" for name in ("ETCD", "GPT_A") for part in parts}).values
    assert told({}, {f"REKNIT_{part}": "x" for part in parts}).values


def test_variables_of_the_table_are_those_that_kubernetes_does_not_use() -> None:
    from reknit.runtime.layers import _OF_A_SERVICE

    assert not [option.variable for option in OPTIONS if _OF_A_SERVICE.fullmatch(option.variable)]


def test_an_error_says_which_of_its_options_came_from_where() -> None:
    settings = told({"lease": 1.0}, {"REKNIT_DETECT": "6"}, join_window=9)
    said = settings.explained("--lease 1 and --detect 6 and --join-window")
    assert said.endswith("(--detect is from $REKNIT_DETECT; --join-window is from join-window in c.toml)")
    assert settings.explained("--lease 1 is bad") == "--lease 1 is bad"


def test_a_check_of_the_whole_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REKNIT_REPLICAS", "3:1")
    assert cli.main(["run", __file__]) == 2
    assert "--replicas is from $REKNIT_REPLICAS" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["pipe = ", "pipe = 1\npipe = 2", "\xff\xfe", "[[["])
def test_a_file_that_is_no_toml_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="is not TOML"):
        read_file(path, "--config")


def test_a_file_that_is_not_there_or_endless_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\$REKNIT_CONFIG: .*/c.toml cannot be read"):
        read_file(tmp_path / "c.toml", "$REKNIT_CONFIG")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path, "--config")
    with pytest.raises(ConfigError, match="more than 1000000 bytes"):
        read_file(Path("/dev/zero"), "--config")


def test_the_nearest_name() -> None:
    assert nearest("hangs", ["hang", "lease"]) == "; did you mean hang?"
    assert nearest("REKNIT_HANGS", ["REKNIT_HANG"]) == "; did you mean REKNIT_HANG?"


def test_a_command_that_operates_a_job_hears_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["drain", "w0"]) == 2
    said = capsys.readouterr().err
    assert "--etcd H:P,H:P is needed (or REKNIT_ETCD)" in said
    monkeypatch.setenv("REKNIT_ETCD", "no/such")
    assert cli.main(["drain", "w0"]) == 2
    assert "no/such" in capsys.readouterr().err
    monkeypatch.setenv("REKNIT_ETC", "x")
    assert cli.main(["drain", "w0"]) == 2
    assert "did you mean REKNIT_ETCD?" in capsys.readouterr().err
