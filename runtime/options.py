"""The table of all settings of `reknit run` and `reknit agent`: flags, variables and TOML keys follow from it.

An option called `drain-deadline` is the flag `--drain-deadline`, the variable `REKNIT_DRAIN_DEADLINE` and the key
`drain-deadline`; `sets` names the field of `Config` that it ends in.  So the three can't drift apart, nor from the
dataclass (a test sees to that).  Which layer wins is in `layers`, what becomes of the values in `configured`.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reknit.runtime.values import LIST, PATH, RANGE, SECONDS, SWITCH, TEXT, WHOLE, Kind, choice

RUN, AGENT = "run", "agent"
BOTH = (RUN, AGENT)
PREFIX = "REKNIT_"

MEET = "where the job's hosts meet"
SHAPE = "the job's shape"
HERE = "this host's workers"
TIMES = "times, in seconds (all follow from --detect)"
LEAVING = "leaving the job"
CARE = "silent corruption"
TELLING = "what it tells"


@dataclass(frozen=True)
class Option:
    """One setting.  `shown`: the default in words where the value itself says nothing."""

    name: str
    kind: Kind
    default: Any
    sets: str
    group: str
    help: str
    metavar: str = ""
    shown: str = ""
    commands: tuple[str, ...] = BOTH

    @property
    def flag(self) -> str:
        """As on the command line."""
        return f"--{self.name}"

    @property
    def variable(self) -> str:
        """As in the environment."""
        return PREFIX + self.name.replace("-", "_").upper()

    @property
    def attribute(self) -> str:
        """As in argparse's namespace."""
        return self.name.replace("-", "_")


OPTIONS = (
    Option("standalone", SWITCH, None, "etcd", MEET, "the whole job on this host, with an etcd of its own",
           commands=(RUN,), shown="unless there is --etcd"),
    Option("etcd", TEXT, None, "etcd", MEET, "endpoints of the etcd that all hosts of the job share", "H:P,H:P"),
    Option("etcd-ca", PATH, None, "access.tls", MEET, "speak TLS: the CA that signed etcd's certificate"),
    Option("etcd-cert", PATH, None, "access.tls", MEET, "our own certificate, if etcd asks for one"),
    Option("etcd-key", PATH, None, "access.tls", MEET, "the key of --etcd-cert"),
    Option("etcd-user", TEXT, None, "access.user", MEET, "for an etcd with authentication on", "NAME"),
    Option("etcd-password-file", PATH, None, "access.password", MEET,
           "its first line is the password of --etcd-user (else $REKNIT_ETCD_PASSWORD; workers do not get to see it)"),
    Option("job", TEXT, None, "job", MEET, "the job's name; all hosts of a job give the same", "ID"),
    Option("agent", TEXT, None, "agent", MEET, "this agent's name", "NAME", "one that no other has"),
    Option("address", TEXT, None, "address", MEET, "this host's address, as the other hosts reach it", "IP",
           "the one that leads to etcd"),
    Option("replicas", RANGE, "1", "spec", SHAPE, "copies of the model: as many as N, at least 1; or at least MIN"),
    Option("pipe", WHOLE, 1, "spec", SHAPE, "pipeline stages"),
    Option("model", WHOLE, 1, "spec", SHAPE, "tensor-parallel workers a stage"),
    Option("pipe-backend", choice("auto", "nccl", "gloo"), "auto", "pipe_backend", SHAPE, "within a replica"),
    Option("socket", PATH, None, "socket", HERE, "where workers find this agent", "PATH", commands=(AGENT,)),
    Option("once", SWITCH, False, "once", HERE,
           "do not begin a job again that has ended: stay, and tell workers so, until stopped", commands=(AGENT,)),
    Option("workers", WHOLE, None, "workers", HERE, "workers on this host", commands=(RUN,),
           shown="standalone all, plus spares; else 1"),
    Option("spares", WHOLE, 0, "workers", HERE, "workers beyond the largest job that wait", commands=(RUN,)),
    Option("max-restarts", WHOLE, 3, "max_restarts", HERE, "of one worker that fails, within --restart-window",
           commands=(RUN,)),
    Option("restart-window", SECONDS, 300.0, "restart_window", HERE, "see --max-restarts", commands=(RUN,)),
    Option("backoff", SECONDS, 0.5, "backoff", HERE, "before a worker that died young twice is back; doubles",
           commands=(RUN,)),
    Option("warm", SWITCH, True, "warm", HERE, "fork workers from a process that has imported torch; no: exec each",
           commands=(RUN,)),
    Option("preload", LIST, (), "preload", HERE, "import it before forking; may be given again", "MODULE",
           commands=(RUN,)),
    Option("data-folder", PATH, None, "data_folder", HERE, "of the standalone etcd", "DIR", "a temporary one",
           commands=(RUN,)),
    Option("detect", SECONDS, 5.0, "ladder.detect", TIMES, "notice a host or link that went silent within S seconds"),
    Option("lease", SECONDS, None, "ladder.lease", TIMES, "the agent's lease", shown="as --detect"),
    Option("keepalive", SECONDS, None, "ladder.keepalive", TIMES, "between its renewals", shown="a third of --lease"),
    Option("user-timeout", SECONDS, None, "ladder.user_timeout", TIMES,
           "for a peer on the data plane that acknowledges nothing", shown="half of --detect"),
    Option("connect", SECONDS, None, "ladder.connect", TIMES, "for building a group", shown="twice --detect"),
    Option("join-window", SECONDS, 0.5, "ladder.join_window", TIMES, "wait for a burst of arrivals"),
    Option("report-grace", SECONDS, 0.05, "ladder.report_grace", TIMES, "for the loss behind a broken connection"),
    Option("accuse-after", SECONDS, 0.1, "ladder.accuse_after", TIMES,
           "a worker waits for a plan; then its agent asks whether the agents of the lost ones live"),
    Option("answer", SECONDS, 0.35, "ladder.answer", TIMES, "within which an agent that is asked says that it lives"),
    Option("hang", SECONDS, 30.0, "ladder.hang", TIMES,
           "others wait so long (and 10 steps) for a worker: it hangs, and is put out"),
    Option("kill-delay", SECONDS, 10.0, "ladder.kill_delay", TIMES, "from SIGTERM to SIGKILL"),
    Option("drain-signal", TEXT, None, "drain_signal", LEAVING,
           "like SIGTERM, it lets this agent's workers leave the job, with nothing lost (Slurm: USR1, say)", "NAME"),
    Option("drain-deadline", SECONDS, 120.0, "drain_deadline", LEAVING, "a worker that leaves has S seconds"),
    Option("verify-every", WHOLE, 0, "verify_every", CARE, "compare the replicas' states every N steps",
           shown="0: never"),
    Option("verify-policy", choice("heal", "evict"), "heal", "verify_policy", CARE,
           "a minority that differs takes the others' state, or starts afresh"),
    Option("http", TEXT, "127.0.0.1:0", "http", TELLING,
           "serve the job's page, its status, metrics and probes there", "HOST:PORT", "loopback, a free port"),
    Option("events", PATH, None, "events", TELLING, "append one JSON object a line for all that happens"),
    Option("log-json", SWITCH, False, "log_json", TELLING, "log as JSON lines"),
)  # fmt: skip

BY_NAME = {option.name: option for option in OPTIONS}
ACCESS = tuple(BY_NAME[name] for name in ("etcd-ca", "etcd-cert", "etcd-key", "etcd-user", "etcd-password-file"))

EPILOG = """\
Each option can be set in three places; the first that sets it wins:
  the flag             --drain-deadline 60
  the environment      REKNIT_DRAIN_DEADLINE=60
  a TOML file          drain-deadline = 60      (--config FILE or REKNIT_CONFIG)
A switch is true or false there; a variable that is empty sets nothing.  The
password of etcd is no option: see --etcd-password-file."""


def options_of(command: str) -> tuple[Option, ...]:
    """What `run` or `agent` takes."""
    return tuple(option for option in OPTIONS if command in option.commands)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    """Add the flags, in groups; those that are not given leave nothing in the namespace."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        add_flag(groups[option.group], option)


def add_flag(where: argparse._ActionsContainer, option: Option) -> None:
    """Add one option's flag."""
    text = f"{option.help}{_default(option)}".replace("%", "%%")
    if option.kind is SWITCH:
        where.add_argument(option.flag, action=_Switch, nargs=0, default=argparse.SUPPRESS, help=text)
        return
    where.add_argument(
        option.flag,
        type=_reader(option),
        action="extend" if option.kind is LIST else "store",
        default=argparse.SUPPRESS,
        metavar=option.metavar or option.kind.metavar,
        help=text,
    )


class _Switch(argparse.Action):
    """`--warm`, `--no-warm`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **rest: Any) -> None:
        super().__init__([*option_strings, *(f"--no-{flag[2:]}" for flag in option_strings)], dest, **rest)

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        setattr(namespace, self.dest, not str(option_string).startswith("--no-"))


def _reader(option: Option) -> Any:
    def read(text: str) -> Any:
        try:
            return option.kind.read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {option.kind.expects}, not {text!r:.80}") from None

    return read


def _default(option: Option) -> str:
    if option.shown:
        return f" (default {option.shown})"
    if option.default is None or option.default == ():
        return ""
    if option.kind is SWITCH:
        return f" (default {'yes' if option.default else 'no'})"
    return f" (default {option.default:g})" if isinstance(option.default, float) else f" (default {option.default})"


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Leaves the epilog as it is, and fills the description."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
