"""The command line.  Parses, checks, and hands over: 0 when the job finished, 2 for bad usage, else what went wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from reknit import __version__
from reknit.rendezvous.errors import ReknitError
from reknit.runtime import access, layers
from reknit.runtime import drain_command as drain
from reknit.runtime.chaos import command as chaos
from reknit.runtime.config import EXIT_FAILED, EXIT_USAGE, ConfigError, parse_replicas
from reknit.runtime.configured import configured
from reknit.runtime.operating import status
from reknit.runtime.options import AGENT, EPILOG, RUN, HelpFormatter, add_options, options_of


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
        layers.fill(arguments, os.environ)
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
    _add_status(commands.add_parser("status", help="show a job: who is where in it, how it gets on, and why"))
    _add_chaos(commands.add_parser("chaos", help="strike a running job again and again, and see how soon it recovers"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser, RUN)
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…", help="its arguments")
    parser.set_defaults(run=_run)


def _add_agent(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser, AGENT)
    parser.set_defaults(run=_agent)


def _add_settings(parser: argparse.ArgumentParser, command: str) -> None:
    parser.formatter_class, parser.epilog = HelpFormatter, EPILOG
    parser.usage = f"%(prog)s [OPTION ...]{' SCRIPT [ARGUMENT ...]' if command == RUN else ''}"
    parser.add_argument("--config", type=Path, metavar="FILE", help="read settings from this TOML file, see below")
    add_options(parser, options_of(command))


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=300, metavar="N", help="steps to train at least (default 300)")
    parser.add_argument("--pipe", type=int, default=2, metavar="N", help="pipeline stages (default 2)")
    parser.add_argument(
        "--replicas",
        default="3",
        metavar="N|MIN:MAX",
        help="copies of the model: as many as N, at least 1; or at least MIN (default 3)",
    )
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="workers to SIGKILL (default 3)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="chooses whom, when, and the data's order")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.set_defaults(run=_demo)


def _add_drain(parser: argparse.ArgumentParser) -> None:
    drain.add_arguments(parser)
    access.add_arguments(parser)
    layers.open_to_environment(parser)
    parser.set_defaults(run=_drain)


def _add_status(parser: argparse.ArgumentParser) -> None:
    status.add_arguments(parser)
    access.add_arguments(parser)
    layers.open_to_environment(parser)
    parser.set_defaults(run=_status)


def _add_chaos(parser: argparse.ArgumentParser) -> None:
    chaos.add_arguments(parser)
    access.add_arguments(parser)
    layers.open_to_environment(parser)
    parser.set_defaults(run=_chaos)


def _run(arguments: argparse.Namespace) -> int:
    from reknit.runtime.agent import run

    return run(configured(RUN, arguments))


def _agent(arguments: argparse.Namespace) -> int:
    from reknit.runtime.agent import run

    return run(configured(AGENT, arguments))


def _demo(arguments: argparse.Namespace) -> int:
    from reknit.runtime.demo import run

    low, high = parse_replicas(arguments.replicas)
    return run(arguments.steps, low, high, arguments.pipe, arguments.kills, arguments.seed, arguments.json)


def _drain(arguments: argparse.Namespace) -> int:
    return drain.run(arguments, access.access_of(arguments))


def _status(arguments: argparse.Namespace) -> int:
    return status.run(arguments, access.access_of(arguments))


def _chaos(arguments: argparse.Namespace) -> int:
    return chaos.run(arguments, access.access_of(arguments))


if __name__ == "__main__":
    sys.exit(main())
