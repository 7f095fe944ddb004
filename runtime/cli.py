"""The command line.  Parses, checks, and hands over: 0 when the job finished, 2 for bad usage, else what went wrong."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

from reknit import __version__
from reknit.rendezvous.errors import ReknitError
from reknit.runtime import access, layers
from reknit.runtime.config import EXIT_FAILED, EXIT_USAGE, Config, ConfigError, EtcdAccess, parse_replicas
from reknit.runtime.configured import configured
from reknit.runtime.options import AGENT, EPILOG, RUN, HelpFormatter, add_options, options_of

# Each is a module of its own, loaded only if it is called: an agent, which this module starts too, needs none of them.
OPERATING = {
    "status": ("reknit.runtime.operating.status", "show a job: who is where in it, how well, and why"),
    "scale": ("reknit.runtime.operating.scale", "set how many replicas a running job shall have"),
    "drain": ("reknit.runtime.drain_command", "let workers of a running job leave, with nothing lost"),
    "events": ("reknit.runtime.operating.events", "show why each generation of a job came about"),
    "jobs": ("reknit.runtime.operating.jobs", "show the jobs that live in an etcd"),
    "doctor": ("reknit.runtime.doctor.command", "look whether this host and its etcd can do what reknit needs"),
    "chaos": ("reknit.runtime.chaos.command", "strike a running job again and again, and see how soon it recovers"),
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the whole usage.

    Options are not abbreviated, and unknown ones are named without what they were given: `--etcd-password secret` must
    neither mean another option nor come into a log.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As ever, but here nothing may be left over."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            hint = layers.nearest(options[0], self._option_string_actions, "") if options else ""
            self.error(f"unrecognized arguments: {' '.join(options or unknown)}{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"reknit: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """The `reknit` command."""
    given = sys.argv[1:] if argv is None else argv
    parser = _parser(next((word for word in given if not word.startswith("-")), None))
    arguments = parser.parse_args(given)
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


def _parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser; of the commands that operate a job it knows the options only of the `chosen` one."""
    parser = _Parser(prog="reknit", description="Keeps a PyTorch job training while workers die, leave and join.")
    parser.add_argument("--version", action="version", version=f"reknit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _add_run(commands.add_parser("run", help="run a training script on this host, alone or with others"))
    _add_agent(commands.add_parser("agent", help="the sidecar: a worker that somebody else starts comes to its socket"))
    _add_demo(commands.add_parser("demo", help="watch a pipeline-parallel GPT train while its workers are killed"))
    for name, (module, told) in OPERATING.items():
        command = commands.add_parser(name, help=told)
        if name == chosen:
            _add_operating(command, cast(Operating, importlib.import_module(module)))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser, RUN)
    parser.add_argument("script", help="the training script (one that knows nothing of reknit: as under torchrun)")
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


class Operating(Protocol):
    """A command that operates a job by what lies in its etcd: a module."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options, but for those of the access to etcd."""

    def run(self, arguments: argparse.Namespace, access: EtcdAccess) -> int:
        """Do it; returns the exit code, raises ReknitError."""


def _add_operating(parser: argparse.ArgumentParser, command: Operating) -> None:
    command.add_arguments(parser)
    access.add_arguments(parser)
    layers.open_to_environment(parser)
    parser.set_defaults(run=lambda arguments: command.run(arguments, access.access_of(arguments)))


def _run(arguments: argparse.Namespace) -> int:
    return _serve(configured(RUN, arguments))


def _agent(arguments: argparse.Namespace) -> int:
    return _serve(configured(AGENT, arguments))


def _serve(config: Config) -> int:
    gc.disable()  # what is loaded now stays: looking for garbage in it costs a tenth of the start
    from reknit.runtime.agent import run

    gc.freeze()
    gc.enable()
    return run(config)


def _demo(arguments: argparse.Namespace) -> int:
    from reknit.runtime.demo import run

    low, high = parse_replicas(arguments.replicas)
    return run(arguments.steps, low, high, arguments.pipe, arguments.kills, arguments.seed, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
