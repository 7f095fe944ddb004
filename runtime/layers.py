"""Flags over `REKNIT_*` over a TOML file: which layer sets an option, and the refusal of names that nobody knows.

Pure, but for `read_file`.  A result remembers where each value came from, so that an error can say it.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reknit.runtime import toml
from reknit.runtime.config import ConfigError
from reknit.runtime.options import ACCESS, BY_NAME, OPTIONS, PREFIX, Option, options_of
from reknit.runtime.plain import VARIABLE as PLAIN

PASSWORD_VARIABLE = "REKNIT_ETCD_PASSWORD"
CONFIG_VARIABLE = "REKNIT_CONFIG"
# What an agent sets for its workers (`keeper`); of two of them an option has the name, which a sidecar's container
# may well be given, but which are no settings of a job that is started inside a worker.
WORKER_VARIABLE = "REKNIT_WORKER_ID"
FOR_WORKERS = (
    WORKER_VARIABLE,
    "REKNIT_SOCKET",
    "REKNIT_ADDRESS",
    "REKNIT_LEASE_SECONDS",
    "REKNIT_DRAIN_SIGNAL",
    PLAIN,
)
# What Kubernetes sets in every pod of a namespace that has a service whose name begins with "reknit".
_OF_A_SERVICE = re.compile(r"REKNIT_\w*?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
OPERATING = {option.attribute: option for option in (BY_NAME["job"], BY_NAME["etcd"], *ACCESS)}


@dataclass(frozen=True)
class Settings:
    """The value of each option, by its name, and which place set it (defaults are in no place)."""

    values: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def explained(self, message: str) -> str:
        """An error's message, with the places of those options in it that no flag has set."""
        named = dict.fromkeys(re.findall(r"--([a-z][a-z-]*)", message))
        places = [f"--{name} is from {place}" for name in named if (place := self.sources.get(name, ""))]
        return f"{message} ({'; '.join(places)})" if places else message


def resolve(
    command: str, flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any], path: str = ""
) -> Settings:
    """The settings of `run` or `agent`: `flags` by option, the environment, a file's content.  Raises ConfigError."""
    layers = [
        {name: value for name, value in flags.items() if name in BY_NAME},
        from_environment(options_of(command), environment),
        _from_file(command, file, path),
    ]
    places: list[Callable[[Option], str]] = [
        lambda option: "",
        lambda option: f"${option.variable}",
        lambda option: f"{option.name} in {path}",
    ]
    values = {option.name: option.default for option in options_of(command)}
    sources: dict[str, str] = {}
    for layer, place in zip(_one_place_to_meet(layers), places, strict=True):
        for name, value in layer.items():
            if name not in sources:
                values[name], sources[name] = value, place(BY_NAME[name])
    return Settings(values, sources)


def _one_place_to_meet(layers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The layers, without what lower ones say of where the job meets once a higher one has said it."""
    cleared: list[Mapping[str, Any]] = []
    alone = shared = False
    for layer in layers:
        kept = dict(layer)
        if alone:
            kept = {name: value for name, value in kept.items() if not name.startswith("etcd")}
        if shared:
            kept.pop("standalone", None)
        if kept.get("standalone") and "etcd" in kept:
            raise ConfigError("--standalone is not allowed with --etcd: a standalone job brings its own etcd")
        alone, shared = alone or bool(kept.get("standalone")), shared or "etcd" in kept
        cleared.append(kept)
    return cleared


def from_environment(options: Iterable[Option], environment: Mapping[str, str]) -> dict[str, Any]:
    """What variables set of these options; raises ConfigError if one does not parse, or nobody knows it."""
    check_variables(environment)
    inside = WORKER_VARIABLE in environment
    found = {}
    for option in options:
        text = environment.get(option.variable, "")
        if text and not (inside and option.variable in FOR_WORKERS):
            found[option.name] = _taken(option.kind.read_text, text, f"${option.variable}")
    return found


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise ConfigError for a `REKNIT_*` variable that means nothing."""
    known = {option.variable for option in OPTIONS} | {PASSWORD_VARIABLE, CONFIG_VARIABLE, *FOR_WORKERS}
    for name in environment:
        if name.startswith(PREFIX) and name not in known and not _OF_A_SERVICE.fullmatch(name):
            raise ConfigError(f"the environment sets {name}, which reknit does not know{nearest(name, known)}")


def _from_file(command: str, file: Mapping[str, Any], path: str) -> dict[str, Any]:
    known = [option.name for option in options_of(command)]
    for key in file:
        if key in BY_NAME and key not in known:
            raise ConfigError(f"{path}: {key} is for `reknit {BY_NAME[key].commands[0]}`, not for `reknit {command}`")
        if key not in known:
            raise ConfigError(f"{path}: unknown key {key!r:.80}{nearest(key, known)}")
    return {key: _taken(BY_NAME[key].kind.read_toml, value, f"{key} in {path}") for key, value in file.items()}


def _taken(read: Any, value: Any, source: str) -> Any:
    try:
        return read(value, source)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def nearest(name: str, known: Iterable[str], otherwise: str = "; `reknit run --help` names what it knows") -> str:
    """The known name that was probably meant, as the end of a sentence."""
    found: Sequence[str] = difflib.get_close_matches(name.lower(), [each.lower() for each in known], 1, 0.6)
    if not found:
        return otherwise
    return f"; did you mean {found[0].upper() if name.startswith(PREFIX) else found[0]}?"


def read_file(path: Path, source: str) -> dict[str, Any]:
    """What a TOML file holds.  `source` says who named it.  Raises ConfigError."""
    try:
        return toml.read(path)
    except OSError as error:
        raise ConfigError(f"{source}: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{source}: {path} is not TOML: {error}") from None


def open_to_environment(parser: argparse.ArgumentParser) -> None:
    """For a command that operates a job: variables may say how to get into etcd, and which job is meant; see `fill`."""
    needed = set()
    for action in parser._actions:
        if action.dest in OPERATING:
            needed |= {action.dest} if action.required else set()
            action.required, action.default = False, argparse.SUPPRESS
    parser.set_defaults(needed=needed)
    parser.epilog = parser.epilog or (
        "What says which job is meant and how to get into its etcd can be set by variables, too: "
        f"{', '.join(option.variable for option in OPERATING.values())}."
    )


def fill(arguments: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Set what flags have left open.  Raises ConfigError, also for what is set nowhere but needed."""
    if not hasattr(arguments, "needed"):
        return
    found = from_environment(OPERATING.values(), environment)
    for attribute, option in OPERATING.items():
        if not hasattr(arguments, attribute):
            setattr(arguments, attribute, found.get(option.name))
        if attribute in arguments.needed and getattr(arguments, attribute) is None:
            raise ConfigError(f"{option.flag} {option.metavar} is needed (or {option.variable}): {option.help}")
