"""The command line.  Parses, checks, and hands over: 0 when the job finished, 2 for bad usage, else what went wrong."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from reknit import __version__
from reknit.rendezvous.errors import RecordError, ReknitError
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.records import Axes, Spec
from reknit.runtime import access
from reknit.runtime import drain_command as drain
from reknit.runtime.chaos import command as chaos
from reknit.runtime.config import (
    EXIT_FAILED,
    EXIT_USAGE,
    Config,
    ConfigError,
    Ladder,
    check_workers,
    parse_drain_signal,
    parse_replicas,
)
from reknit.runtime.identity import default_agent_name


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"reknit: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The `reknit` command."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return EXIT_USAGE
    try:
        return int(arguments.run(arguments))
    except ConfigError as error:
        print(f"reknit: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ReknitError as error:
        print(f"reknit: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="reknit", description="Keeps a PyTorch job training while workers die, leave and join.")
    parser.add_argument("--version", action="version", version=f"reknit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _add_run(commands.add_parser("run", help="run a training script on this host, alone or with others"))
    _add_agent(commands.add_parser("agent", help="the sidecar: a worker that somebody else starts comes to its socket"))
    _add_demo(commands.add_parser("demo", help="watch a pipeline-parallel GPT train while its workers are killed"))
    _add_drain(commands.add_parser("drain", help="let workers of a running job leave, with nothing lost"))
    _add_chaos(commands.add_parser("chaos", help="strike a running job again and again, and see how soon it recovers"))
    return parser


def _add_shape(parser: argparse.ArgumentParser, replicas: str, pipe: int) -> None:
    parser.add_argument("--pipe", type=int, default=pipe, metavar="N", help=f"pipeline stages (default {pipe})")
    parser.add_argument(
        "--replicas",
        default=replicas,
        metavar="N|MIN:MAX",
        help=f"copies of the model: as many as N, at least 1; or at least MIN (default {replicas})",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--standalone", action="store_true", help="the whole job on this host, with an etcd of its own")
    _add_job(parser, where)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="workers on this host (default: standalone all, plus spares; else 1)"
    )
    parser.add_argument(
        "--spares", type=int, default=0, metavar="N", help="workers beyond the largest job that wait (default 0)"
    )
    parser.add_argument(
        "--max-restarts", type=int, default=3, metavar="N", help="of one worker that fails, in 5 minutes (default 3)"
    )
    parser.add_argument(
        "--backoff", type=float, default=0.5, metavar="S", help="before a worker that died young twice is back; doubles"
    )
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="exec each worker instead of forking it")
    parser.add_argument("--preload", action="append", default=[], metavar="MODULE", help="import it before forking")
    parser.add_argument(
        "--data-folder", type=Path, metavar="DIR", help="of the standalone etcd (default: a temporary one)"
    )
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its arguments")
    parser.set_defaults(run=_run)


def _add_agent(parser: argparse.ArgumentParser) -> None:
    _add_job(parser, parser)
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where workers find this agent")
    parser.set_defaults(run=_agent)


def _add_job(parser: argparse.ArgumentParser, where: argparse._ActionsContainer) -> None:
    """What an agent needs to know of its job, whoever starts its workers."""
    where.add_argument("--etcd", metavar="H:P,H:P", help="endpoints of the etcd that all hosts of the job share")
    access.add_arguments(parser)
    parser.add_argument("--job", metavar="ID", help="the job's name; all hosts of a job give the same")
    _add_shape(parser, "1", 1)
    parser.add_argument("--model", type=int, default=1, metavar="N", help="tensor-parallel workers a stage (default 1)")
    parser.add_argument(
        "--pipe-backend", choices=("auto", "nccl", "gloo"), default="auto", help="within a replica (default auto)"
    )
    parser.add_argument("--address", metavar="IP", help="this host's address, as the other hosts reach it")
    parser.add_argument("--agent", metavar="NAME", help="this agent's name (default: one that no other has)")
    parser.add_argument(
        "--detect",
        type=float,
        default=5.0,
        metavar="S",
        help="notice a host or link that went silent within S seconds (default 5)",
    )
    parser.add_argument("--lease", type=float, metavar="S", help="the agent's lease (default: as --detect)")
    parser.add_argument("--connect", type=float, metavar="S", help="for building a group (default: 2 x --detect)")
    parser.add_argument(
        "--hang",
        type=float,
        default=30.0,
        metavar="S",
        help="others wait so long (and 10 steps) for a worker: it hangs, and is put out (default 30)",
    )
    parser.add_argument(
        "--verify-every",
        type=int,
        default=0,
        metavar="N",
        help="compare the replicas' states every N steps, to find silent corruption (default 0: never)",
    )
    parser.add_argument(
        "--verify-policy",
        choices=("heal", "evict"),
        default="heal",
        help="a minority that differs takes the others' state, or starts afresh (default heal)",
    )
    parser.add_argument(
        "--kill-delay", type=float, default=10.0, metavar="S", help="from SIGTERM to SIGKILL (default 10)"
    )
    parser.add_argument(
        "--drain-signal",
        metavar="NAME",
        help="like SIGTERM, it lets this agent's workers leave the job, with nothing lost (Slurm: USR1, say)",
    )
    parser.add_argument(
        "--drain-deadline", type=float, default=120.0, metavar="S", help="a worker that leaves has S s (default 120)"
    )
    parser.add_argument(
        "--join-window", type=float, default=0.5, metavar="S", help="wait for a burst of arrivals (default 0.5)"
    )
    parser.add_argument(
        "--events", type=Path, metavar="FILE", help="append one JSON object a line for all that happens"
    )
    parser.add_argument("--log-json", action="store_true", help="log as JSON lines")


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps to train at least (default 300)")
    _add_shape(parser, "3", 2)
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="workers to SIGKILL (default 3)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="chooses whom, when, and the data's order")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.set_defaults(run=_demo)


def _add_drain(parser: argparse.ArgumentParser) -> None:
    drain.add_arguments(parser)
    access.add_arguments(parser)
    parser.set_defaults(run=_drain)


def _add_chaos(parser: argparse.ArgumentParser) -> None:
    chaos.add_arguments(parser)
    access.add_arguments(parser)
    parser.set_defaults(run=_chaos)


def run_config(arguments: argparse.Namespace) -> Config:
    """What `reknit run` was told, checked.  Raises ConfigError."""
    config = _job_config(arguments)
    if arguments.spares < 0:
        raise ConfigError(f"--spares must be at least 0, not {arguments.spares}")
    if arguments.max_restarts < 0:
        raise ConfigError(f"--max-restarts must be at least 0, not {arguments.max_restarts}")
    if not 0 <= arguments.backoff < float("inf"):
        raise ConfigError(f"--backoff must be a number of seconds from 0, not {arguments.backoff}")
    spec, standalone = config.spec, arguments.etcd is None
    workers = arguments.workers
    if workers is None:
        workers = spec.max_replicas * spec.axes.size + arguments.spares if standalone else 1
    check_workers(workers, spec, standalone)
    if not Path(arguments.script).is_file():
        raise ConfigError(f"the script {arguments.script} does not exist (looked in {Path.cwd()})")
    return replace(
        config,
        script=arguments.script,
        arguments=tuple(arguments.arguments),
        workers=workers,
        max_restarts=arguments.max_restarts,
        backoff=arguments.backoff,
        warm=arguments.warm,
        preload=tuple(arguments.preload),
        data_folder=arguments.data_folder,
    )


def agent_config(arguments: argparse.Namespace) -> Config:
    """What `reknit agent` was told, checked.  Raises ConfigError."""
    if arguments.etcd is None:
        raise ConfigError("`reknit agent` needs --etcd H:P: a sidecar has no etcd of its own")
    return replace(_job_config(arguments), socket=arguments.socket)


def _job_config(arguments: argparse.Namespace) -> Config:
    for name in ("pipe", "model"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    if arguments.verify_every < 0:
        raise ConfigError(f"--verify-every must be at least 0, not {arguments.verify_every}")
    if arguments.etcd is not None and arguments.job is None:
        raise ConfigError("--etcd needs --job ID: the name under which the job's hosts find each other")
    for name in ("job", "agent"):
        if getattr(arguments, name) is not None:
            _check_name(name, getattr(arguments, name))
    deadline, number = arguments.drain_deadline, arguments.drain_signal
    if not 0 < deadline < float("inf"):
        raise ConfigError(f"--drain-deadline must be a number of seconds above 0, not {deadline}")
    way_in = access.access_of(arguments)
    return Config(
        script=None,
        job=f"standalone-{uuid.uuid4().hex[:8]}" if arguments.job is None else arguments.job,
        etcd=arguments.etcd,
        access=way_in,
        spec=Spec(Axes(arguments.pipe, arguments.model), *parse_replicas(arguments.replicas)),
        pipe_backend=arguments.pipe_backend,
        address=arguments.address or access.own_address(arguments.etcd, way_in.tls is not None),
        agent=arguments.agent or default_agent_name(),
        ladder=Ladder.derive(
            arguments.detect,
            lease=arguments.lease,
            connect=arguments.connect,
            join_window=arguments.join_window,
            kill_delay=arguments.kill_delay,
            hang=arguments.hang,
        ),
        verify_every=arguments.verify_every,
        verify_policy=arguments.verify_policy,
        events=arguments.events,
        log_json=arguments.log_json,
        drain_signal=None if number is None else parse_drain_signal(number),
        drain_deadline=deadline,
    )


def _check_name(option: str, name: str) -> None:
    try:
        check_name(f"--{option}", name)
    except RecordError as error:
        raise ConfigError(str(error)) from None


def _run(arguments: argparse.Namespace) -> int:
    from reknit.runtime.agent import run

    return run(run_config(arguments))


def _agent(arguments: argparse.Namespace) -> int:
    from reknit.runtime.agent import run

    return run(agent_config(arguments))


def _demo(arguments: argparse.Namespace) -> int:
    from reknit.runtime.demo import run

    low, high = parse_replicas(arguments.replicas)
    return run(arguments.steps, low, high, arguments.pipe, arguments.kills, arguments.seed, arguments.json)


def _drain(arguments: argparse.Namespace) -> int:
    return drain.run(arguments, access.access_of(arguments))


def _chaos(arguments: argparse.Namespace) -> int:
    return chaos.run(arguments, access.access_of(arguments))


if __name__ == "__main__":
    sys.exit(main())
