"""The command line of `reknit chaos`: its options, checked."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from reknit.runtime.chaos.choice import KINDS, Orders
from reknit.runtime.config import ConfigError, EtcdAccess
from reknit.runtime.operating.opening import check

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for those of the access to etcd."""
    parser.description = (
        "Strikes a running job again and again and tells how soon it trains on.  Only processes of this host and of "
        "this user are struck, and never so that no whole set of coordinates would be left."
    )
    parser.add_argument("--job", required=True, metavar="ID", help="the job's name")
    parser.add_argument("--etcd", required=True, metavar="H:P,H:P", help="endpoints of the job's etcd")
    parser.add_argument("--every", default="30s", metavar="TIME", help="from one fault to the next (default 30s)")
    parser.add_argument(
        "--kinds",
        default=",".join(KINDS),
        metavar="KIND,KIND",
        help="kill: SIGKILL a worker; stop: SIGSTOP a worker, until the end; node: SIGKILL an agent with all its "
        "workers (default all)",
    )
    parser.add_argument("--for", dest="time", metavar="TIME", help="for how long (default: until Ctrl-C)")
    parser.add_argument(
        "--deadline", default="2m", metavar="TIME", help="the job must have recovered by then (default 2m)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="chooses what and when (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")


def run(arguments: argparse.Namespace, access: EtcdAccess) -> int:
    """Check the options and begin.  Returns the exit code; raises ReknitError, ConfigError among them."""
    from reknit.runtime.chaos import runner

    check(arguments, access)
    path = arguments.json
    if path is not None and not path.absolute().parent.is_dir():
        raise ConfigError(f"--json {path}: there is no folder {path.absolute().parent}")
    chaos = runner.Chaos(
        job=arguments.job,
        etcd=arguments.etcd,
        access=access,
        orders=Orders(parse_kinds(arguments.kinds), parse_time("--every", arguments.every), arguments.seed),
        seconds=None if arguments.time is None else parse_time("--for", arguments.time),
        deadline=parse_time("--deadline", arguments.deadline),
        json=path,
    )
    return runner.run(chaos)


def parse_kinds(text: str) -> tuple[str, ...]:
    """`kill,stop` → ("kill", "stop"), each once.  Raises ConfigError."""
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--kinds must be some of {','.join(KINDS)}, not {text!r:.80}")
    return kinds


def parse_time(option: str, text: str) -> float:
    """`500ms`, `30s`, `10m` or `1h` → seconds.  Raises ConfigError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", text)
    if found is None:
        raise ConfigError(f"{option} must be a time such as 500ms, 30s or 10m, not {text!r:.80}")
    return float(found[1]) * _UNITS[found[2]]
