"""From settings to `Config`: what `reknit run` and `reknit agent` were told, in all layers, checked as a whole."""

from __future__ import annotations

import argparse
import math
import os
import uuid
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.records import Axes, Spec
from reknit.runtime import access
from reknit.runtime.config import (
    Config,
    ConfigError,
    Ladder,
    check_http,
    check_workers,
    parse_drain_signal,
    parse_replicas,
)
from reknit.runtime.identity import default_agent_name
from reknit.runtime.layers import CONFIG_VARIABLE, Settings, read_file, resolve
from reknit.runtime.options import BY_NAME, OPTIONS, RUN


def configured(command: str, arguments: argparse.Namespace) -> Config:
    """The settings of `run` or `agent`, from its flags, the environment and its file.  Raises ConfigError."""
    settings = read_settings(command, arguments)
    told = argparse.Namespace(**{BY_NAME[name].attribute: value for name, value in settings.values.items()})
    try:
        return _run_config(told, arguments.script, arguments.arguments) if command == RUN else _agent_config(told)
    except ConfigError as error:
        raise ConfigError(settings.explained(str(error))) from None


def read_settings(command: str, arguments: argparse.Namespace) -> Settings:
    """Gather the layers.  Raises ConfigError."""
    flags = {option.name: vars(arguments)[option.attribute] for option in OPTIONS if option.attribute in arguments}
    path, source = arguments.config, "--config"
    if path is None and os.environ.get(CONFIG_VARIABLE):
        path, source = Path(os.environ[CONFIG_VARIABLE]), f"${CONFIG_VARIABLE}"
    file = {} if path is None else read_file(path, source)
    return resolve(command, flags, os.environ, file, str(path))


def _run_config(told: argparse.Namespace, script: str, rest: Sequence[str]) -> Config:
    config = _job_config(told)
    for name in ("spares", "max_restarts"):
        if getattr(told, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0, not {getattr(told, name)}")
    for name in ("restart_window", "backoff"):
        if not 0 <= getattr(told, name) < math.inf:
            raise ConfigError(
                f"--{name.replace('_', '-')} must be a number of seconds from 0, not {getattr(told, name)}"
            )
    spec, workers = config.spec, told.workers
    if workers is None:
        workers = spec.max_replicas * spec.axes.size + told.spares if config.standalone else 1
    check_workers(workers, spec, config.standalone)
    if not Path(script).is_file():
        raise ConfigError(f"the script {script} does not exist (looked in {Path.cwd()})")
    return replace(
        config,
        script=script,
        arguments=tuple(rest),
        workers=workers,
        max_restarts=told.max_restarts,
        restart_window=told.restart_window,
        backoff=told.backoff,
        warm=told.warm,
        preload=tuple(told.preload),
        data_folder=told.data_folder,
    )


def _agent_config(told: argparse.Namespace) -> Config:
    if told.etcd is None:
        raise ConfigError("`reknit agent` needs --etcd H:P: a sidecar has no etcd of its own")
    if told.socket is None:
        raise ConfigError("`reknit agent` needs --socket PATH: where workers find it")
    return replace(_job_config(told), socket=told.socket, once=told.once)


def _job_config(told: argparse.Namespace) -> Config:
    _check_job(told)
    way_in = access.access_of(told)
    return Config(
        script=None,
        job=f"standalone-{uuid.uuid4().hex[:8]}" if told.job is None else told.job,
        etcd=told.etcd,
        access=way_in,
        spec=Spec(Axes(told.pipe, told.model), *parse_replicas(told.replicas)),
        pipe_backend=told.pipe_backend,
        address=told.address or access.own_address(told.etcd, way_in.tls is not None),
        agent=told.agent or default_agent_name(),
        ladder=Ladder.derive(**{name: getattr(told, name) for name in (step.name for step in fields(Ladder))}),
        verify_every=told.verify_every,
        verify_policy=told.verify_policy,
        events=told.events,
        log_json=told.log_json,
        drain_signal=None if told.drain_signal is None else parse_drain_signal(told.drain_signal),
        drain_deadline=told.drain_deadline,
        http=check_http(told.http),
    )


def _check_job(told: argparse.Namespace) -> None:
    for name in ("pipe", "model"):
        if getattr(told, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, not {getattr(told, name)}")
    if told.verify_every < 0:
        raise ConfigError(f"--verify-every must be at least 0, not {told.verify_every}")
    if told.etcd is not None and told.job is None:
        raise ConfigError("--etcd needs --job ID: the name under which the job's hosts find each other")
    if told.etcd is None and getattr(told, "standalone", None) is False:
        raise ConfigError("--no-standalone needs --etcd H:P: where the job's hosts meet")
    for name in ("job", "agent"):
        if getattr(told, name) is not None:
            _check_name(f"--{name}", getattr(told, name))
    if not 0 < told.drain_deadline < math.inf:
        raise ConfigError(f"--drain-deadline must be a number of seconds above 0, not {told.drain_deadline}")


def _check_name(flag: str, name: str) -> None:
    try:
        check_name(flag, name)
    except RecordError as error:
        raise ConfigError(str(error)) from None
