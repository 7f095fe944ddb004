"""The table of options: each can be set in each layer, and the table and `Config` can't drift apart."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from reknit.runtime import cli
from reknit.runtime.config import Config, EtcdAccess, Ladder
from reknit.runtime.configured import configured
from reknit.runtime.layers import FOR_WORKERS
from reknit.runtime.options import AGENT, OPTIONS, RUN, Option
from reknit.runtime.values import LIST, SWITCH

ETCD = {"etcd": "127.0.0.1:7", "job": "j"}
# For each option: what it is set to, with what beside it, and what follows in Config, read by `at`.
CASES: dict[str, tuple[Any, dict[str, str], Any]] = {
    "standalone": (True, {}, None),
    "etcd": ("127.0.0.1:9", {"job": "j"}, "127.0.0.1:9"),
    "etcd-ca": (__file__, ETCD, (Path(__file__), None, None)),
    "etcd-cert": (__file__, {**ETCD, "etcd-ca": __file__, "etcd-key": __file__}, (Path(__file__),) * 3),
    "etcd-key": (__file__, {**ETCD, "etcd-ca": __file__, "etcd-cert": __file__}, (Path(__file__),) * 3),
    "etcd-user": ("me", {**ETCD, "etcd-password-file": __file__}, "me"),
    "etcd-password-file": (__file__, {**ETCD, "etcd-user": "me"}, Path(__file__).read_text().partition("\n")[0]),
    "job": ("gpt", {}, "gpt"),
    "agent": ("left", {}, "left"),
    "address": ("10.1.2.3", {}, "10.1.2.3"),
    "replicas": ("2:3", {}, (1, 1, 2, 3)),
    "pipe": (2, {}, (2, 1, 1, 1)),
    "model": (3, {}, (1, 3, 1, 1)),
    "pipe-backend": ("gloo", {}, "gloo"),
    "socket": ("/s", ETCD, Path("/s")),
    "once": (True, {**ETCD, "socket": "/s"}, True),
    "workers": (5, {}, 5),
    "spares": (2, {}, 3),
    "max-restarts": (9, {}, 9),
    "restart-window": (9.5, {}, 9.5),
    "backoff": (1.5, {}, 1.5),
    "warm": (False, {}, False),
    "preload": (["json", "re"], {}, ("json", "re")),
    "data-folder": ("/d", {}, Path("/d")),
    "detect": (7.0, {}, 7.0),
    "lease": (6.0, {}, 6.0),
    "keepalive": (0.5, {}, 0.5),
    "user-timeout": (0.75, {}, 0.75),
    "connect": (8.5, {}, 8.5),
    "join-window": (0.25, {}, 0.25),
    "report-grace": (0.125, {}, 0.125),
    "accuse-after": (0.625, {}, 0.625),
    "answer": (0.875, {}, 0.875),
    "hang": (12.5, {}, 12.5),
    "kill-delay": (1.25, {}, 1.25),
    "drain-signal": ("USR2", {}, "USR2"),
    "drain-deadline": (61.5, {}, 61.5),
    "verify-every": (5, {}, 5),
    "verify-policy": ("evict", {}, "evict"),
    "http": ("[::1]:9400", {}, "[::1]:9400"),
    "events": ("/e", {}, Path("/e")),
    "log-json": (True, {}, True),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    for name in FOR_WORKERS:
        monkeypatch.delenv(name, raising=False)


def at(config: Config, option: Option) -> Any:
    value: Any = config
    for name in option.sets.split("."):
        value = getattr(value, name)
    if option.sets == "spec":
        return config.spec.axes.pipe, config.spec.axes.model, config.spec.min_replicas, config.spec.max_replicas
    return (value.ca, value.certificate, value.key) if option.sets == "access.tls" else value


def flag(option: Option, value: Any) -> list[str]:
    if option.kind is SWITCH:
        return [option.flag if value else f"--no-{option.name}"]
    return [part for each in (value if option.kind is LIST else [value]) for part in (option.flag, str(each))]


def read(option: Option, flags: list[str]) -> Config:
    command = RUN if RUN in option.commands else AGENT
    return configured(command, cli._parser().parse_args([command, *flags, *([__file__] if command == RUN else [])]))


def beside(option: Option) -> list[str]:
    return [part for name, value in CASES[option.name][1].items() for part in (f"--{name}", value)]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_can_be_set_by_its_flag(option: Option) -> None:
    value, _, expected = CASES[option.name]
    assert at(read(option, [*beside(option), *flag(option, value)]), option) == expected


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_can_be_set_by_its_variable(option: Option, monkeypatch: pytest.MonkeyPatch) -> None:
    value, _, expected = CASES[option.name]
    monkeypatch.setenv(option.variable, ",".join(value) if option.kind is LIST else str(value))
    assert at(read(option, beside(option)), option) == expected


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_option_can_be_set_in_the_file(option: Option, tmp_path: Path) -> None:
    value, _, expected = CASES[option.name]
    written = str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
    (tmp_path / "c.toml").write_text(f"{option.name} = {written}\n")
    assert at(read(option, [*beside(option), "--config", str(tmp_path / "c.toml")]), option) == expected


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_that_is_not_set_has_the_default_that_help_names(option: Option) -> None:
    if option.default is None or option.sets in ("spec", "workers"):
        return
    config = read(option, [] if RUN in option.commands else beside(option))
    found = at(config, option)
    assert found == option.default
    assert found != CASES[option.name][2]


def test_every_field_of_the_config_is_set_by_an_option_and_every_option_sets_one() -> None:
    nested = {"ladder": Ladder, "access": EtcdAccess}
    names = {field.name for field in fields(Config)} - {"script", "arguments"} - set(nested)
    names |= {f"{name}.{field.name}" for name, kind in nested.items() for field in fields(kind)}
    assert {option.sets for option in OPTIONS} == names


def test_defaults_are_those_of_the_config() -> None:
    standard, ladder = Config(None), Ladder.derive()
    same = [option for option in OPTIONS if option.default is not None and option.sets not in ("spec", "workers")]
    for option in same:
        assert at(standard, option) == option.default, option.name
    assert ladder == standard.ladder
    assert len(same) > 15


def test_every_option_has_a_case_and_one_name() -> None:
    assert list(CASES) == [option.name for option in OPTIONS]
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("command", [RUN, AGENT])
def test_help_names_every_option_its_default_and_the_layers(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for option in OPTIONS:
        assert (f"{option.flag} " in said or f"{option.flag}," in said) == (command in option.commands), option.name
        if command in option.commands and isinstance(option.default, float):
            assert f"(default {option.default:g})" in said
    for word in ("REKNIT_DRAIN_DEADLINE=60", "--config FILE", "the job's shape:"):
        assert word in said
