"""`reknit jobs`: what lives in this etcd, what has ended of which something is left, and how to get rid of that."""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from reknit.rendezvous.codec import decode_spec
from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.history import decode_record
from reknit.rendezvous.jobs import jobs_in
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import decode_head
from reknit.rendezvous.records import FINISHED, LOST, WAITING
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Compare, Delete, Store
from reknit.rendezvous.view import some
from reknit.runtime.config import EtcdAccess
from reknit.runtime.operating.opening import connected
from reknit.runtime.operating.status_table import moment

log = logging.getLogger("reknit.jobs")

NAME = 20  # characters of a job's name for which the lines have 80 columns
ABSENT = "absent"  # something is left of it, but no agent is there


class JobsError(ReknitError):
    """A job cannot be forgotten."""


@dataclass(frozen=True)
class JobLine:
    """One job.  `replicas`: of the newest plan; `wanted`, `at`: None if not known; `at`: since when its plan stands."""

    job: str
    state: str
    generation: int
    replicas: int
    wanted: int | None
    agents: int
    at: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for those of the access to etcd."""
    parser.description = (
        "Shows the jobs in this etcd: their state, how many replicas they have and want, the newest generation and "
        "when it was published, and how many agents are there.  Jobs that have ended are shown for a day."
    )
    parser.add_argument("--etcd", required=True, metavar="H:P,H:P", help="endpoints of the etcd")
    parser.add_argument(
        "--forget",
        metavar="ID",
        help="delete all that is left of a job without agents: its size and axes, its newest plan and its history "
        "(its checkpoints stay); a job that was killed whole leaves them, and a next one of that name takes them over",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for programs")


def run(arguments: argparse.Namespace, access: EtcdAccess) -> int:
    """Check the options, show.  Returns the exit code; raises ReknitError, ConfigError among them."""
    with connected(arguments, access) as store:
        if arguments.forget is not None:
            print(forget(store, Keys(arguments.forget)))
            return 0
        found = look(store)
    if arguments.json:
        for line in found:
            print(json.dumps(asdict(line), allow_nan=False))
    elif found:
        print("\n".join(render(found, time.time())))
    else:
        print("no job lives in this etcd")
    return 0


def forget(store: Store, keys: Keys) -> str:
    """Delete all that the store holds of a job; return what was done.  Raises JobsError if an agent of it is there."""
    if keys.job not in jobs_in(store):
        raise JobsError(f"there is no job {keys.job} in this etcd: `reknit jobs` shows those that are")
    agents = [entry.key.removeprefix(keys.agents) for entry in store.list(keys.agents).entries]
    done = not agents and store.transaction([Compare.absent(keys.leader)], [Delete(keys.prefix, prefix=True)]).succeeded
    if not done:
        who = f"agents of it are there ({some(agents)})" if agents else "an agent of it has just come"
        raise JobsError(f"job {keys.job} is not forgotten, as {who}: stop them first, as by `reknit drain HOST`")
    return f"all that was left of job {keys.job} is deleted; the next one of that name begins as a new job"


def look(store: Store) -> list[JobLine]:
    """All jobs, by name.  Raises StoreError."""
    rejected = Rejected(log)
    return [_line(store, Keys(name), rejected) for name in jobs_in(store)]


def _line(store: Store, keys: Keys, rejected: Rejected) -> JobLine:
    agents = len(store.list(keys.agents).entries)
    entry = store.get(keys.head)
    head = None if entry is None else rejected.read(entry, decode_head)
    entry = store.get(keys.spec)
    spec = None if entry is None else rejected.read(entry, decode_spec)
    entry = None if head is None else store.get(keys.history(head.generation))
    record = None if entry is None else rejected.read(entry, decode_record)
    state = head.state if head is not None else WAITING
    return JobLine(
        keys.job,
        state if agents or state in (FINISHED, LOST) else ABSENT,
        head.generation if head is not None else 0,
        head.replicas if head is not None else 0,
        spec.wanted if spec is not None else None,
        agents,
        record.at if record is not None else None,
    )


def render(found: Sequence[JobLine], now: float) -> list[str]:
    """The jobs as lines; `now` on the wall clock.  Columns fit into 80, but for a job of a long name."""
    today = moment(now, True)[:6]
    longest = max(len(line.job) for line in found)
    row = f"{{:<{min(longest, NAME)}}}  {{:<8}}  {{:>8}}  {{:>6}}  {{:>5}}  {{:>6}}  {{}}".format
    shown = [row("job", "state", "replicas", "wanted", "gen", "agents", "since")]
    for line in found:
        since = "-" if line.at is None else moment(line.at, moment(line.at, True)[:6] != today)
        wanted = "-" if line.wanted is None else line.wanted
        shown.append(row(line.job, line.state, line.replicas, wanted, line.generation, line.agents, since))
    return shown
