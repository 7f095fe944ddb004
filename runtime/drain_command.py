"""`reknit drain`: asks workers of a running job to leave, and waits until they have."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import time
from collections.abc import Iterable, Sequence

from reknit.rendezvous.draining import REPLICA, DrainOrder, decode_order, encode_order, last_holders, whom
from reknit.rendezvous.errors import RecordError, ReknitError, StoreUnavailable
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import FINISHED, Member, Name, Plan
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Store
from reknit.rendezvous.whole_job import JobRecords
from reknit.runtime.chaos.command import parse_time
from reknit.runtime.config import EXIT_FAILED, ConfigError, EtcdAccess
from reknit.runtime.operating.opening import add_job, connected, which_job

log = logging.getLogger("reknit.drain")

LOOK = 0.1  # seconds between two looks at the members
GRACE = 5.0  # seconds that an agent has, after the deadline, to end whoever has not left
KEPT = 60.0  # seconds for which an order outlives its deadline, for an agent that is away


class DrainError(ReknitError):
    """Nobody can be asked to leave."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for those of the access to etcd."""
    parser.description = (
        "Asks workers to leave a running job at a step boundary, and waits until they have: nothing is lost and no "
        "step is tried again.  They are not started again.  Exits with 1 if one of them was lost instead."
    )
    parser.add_argument("target", metavar="WORKER|HOST|replica/SLOT", help="who: a worker, all on a host, a replica")
    add_job(parser)
    parser.add_argument(
        "--deadline", default="2m", metavar="TIME", help="then whoever is still there is ended (default 2m)"
    )


def run(arguments: argparse.Namespace, access: EtcdAccess) -> int:
    """Check the options, ask, wait.  Returns the exit code; raises ReknitError, ConfigError among them."""
    seconds = parse_time("--deadline", arguments.deadline)
    try:
        whom(arguments.target, None, ())
    except RecordError as error:
        raise ConfigError(str(error)) from None
    with connected(arguments, access) as store:
        return drain(store, Keys(which_job(store, arguments.job)), arguments.target, seconds)


def drain(store: Store, keys: Keys, target: str, seconds: float) -> int:
    """Ask `target` to leave within `seconds`, and wait; returns the exit code.  Raises ReknitError."""
    records = JobRecords(store, keys, Rejected(log))
    members, plan = records.members(), records.plan()
    names = whom(target, plan, members)
    if not names and any(target in (agent.agent, agent.host) for agent in records.agents()):
        print(f"{target} has no workers: there is nothing to drain", flush=True)
        return 0
    if not names:
        raise DrainError(f"job {keys.job} has no {target}: {_who_is_there(target, plan, members)}")
    lease = store.grant(seconds + KEPT)
    by = f"reknit drain, process {os.getpid()} on {socket.gethostname()}"
    for name in names:
        store.put(keys.drain(name.worker_id), encode_order(DrainOrder(name, seconds, by)), lease=lease)
    print(f"asked {', '.join(map(str, names))} to leave within {seconds:g} s", flush=True)
    if alone := last_holders(plan, members, names):
        what = "nobody who stays holds what they hold: they stay until another worker has taken it over, if one comes"
        print(f"{_some(alone)}: {what}; after {seconds:g} s they are ended, and that state is lost", flush=True)
    return _wait(records, store, names, seconds)


def _wait(records: JobRecords, store: Store, names: Sequence[Name], seconds: float) -> int:
    begun = time.monotonic()
    waiting, lost = set(names), 0
    while waiting:
        passed = time.monotonic() - begun
        try:
            here = {m.name: m for m in records.members()}
            lost_here = {name for name in waiting if _is_lost(records, store, name, here.get(name))}
        except StoreUnavailable as error:
            if passed > seconds + GRACE:
                raise DrainError(f"nobody knows whether {_some(waiting)} left in time: {error}") from None
            continue
        for name in sorted(waiting):
            if name in lost_here:
                print(f"{name} was lost before it could leave ({passed:.1f} s)", flush=True)
            elif name not in here:
                print(f"{name} has left ({passed:.1f} s)", flush=True)
        lost += len(lost_here)
        waiting = {name for name in waiting - lost_here if name in here}
        if waiting and passed > seconds + GRACE:
            print(f"{_some(waiting)} did not leave within {seconds:g} s, and could not be ended", flush=True)
            return EXIT_FAILED
        if waiting:
            time.sleep(LOOK)
    return EXIT_FAILED if lost else 0


def _is_lost(records: JobRecords, store: Store, name: Name, member: Member | None) -> bool:
    """Whether a worker ended before it could leave: an agent that ends with it takes the record along, dead or not."""
    if member is not None:
        return member.dead
    order = store.get(records.keys.drain(name.worker_id))
    if order is None or decode_order(order.value, order.key).name != name:
        return False
    plan = records.plan()
    return plan is None or plan.state != FINISHED


def _who_is_there(target: str, plan: Plan | None, members: Sequence[Member]) -> str:
    if target.startswith(REPLICA):
        slots = [] if plan is None else [f"{REPLICA}{replica.slot}" for replica in plan.replicas]
        return f"its replicas are {_some(slots)}" if slots else "no replica of it stands"
    living = [member for member in members if not member.dead]
    if not living:
        return "no worker of it is there"
    hosts = sorted({member.host for member in living} | {member.agent for member in living})
    return f"its workers are {_some(m.name for m in living)}, its hosts and agents {', '.join(hosts)}"


def _some(names: Iterable[object]) -> str:
    return ", ".join(sorted(str(name) for name in names))
