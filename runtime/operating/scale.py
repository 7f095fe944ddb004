"""`reknit scale`: how many replicas the operator wants of a running job.

The number is a field of the job's spec, which the leader follows.  Several operators may be at it: what one has read
must still stand when it writes, else it is told what stands now.
"""

from __future__ import annotations

import argparse
import logging
import time
from dataclasses import dataclass, replace

from reknit.rendezvous.codec import decode_spec, dumps, loads
from reknit.rendezvous.errors import LayoutError, ReknitError, StoreUnavailable
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Head, decode_head
from reknit.rendezvous.records import FINISHED, LOST, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Compare, Entry, Put, Store
from reknit.rendezvous.whole_job import JobRecords
from reknit.runtime.chaos.command import parse_time
from reknit.runtime.config import EXIT_FAILED, ConfigError, EtcdAccess
from reknit.runtime.operating.opening import add_job, connected, which_job

log = logging.getLogger("reknit.scale")

AUTO = "auto"
LOOK = 0.05  # seconds between two looks for the size


class ScaleError(ReknitError):
    """The job cannot have this size, or somebody else has changed it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for those of the access to etcd."""
    parser.description = (
        "Sets how many replicas of the model a running job shall have.  Nobody tries a step again: members join, and "
        "leave, between two steps; those that lose their place wait as spares.  Exits with 1 if the job cannot have "
        "this size, or if somebody else has changed it meanwhile."
    )
    parser.add_argument(
        "size", metavar="N|auto", help="how many replicas; auto: as many as the members allow, up to the maximum"
    )
    add_job(parser)
    parser.add_argument("--wait", metavar="TIME", help="until the job has this size, for so long at most")


def run(arguments: argparse.Namespace, access: EtcdAccess) -> int:
    """Check the options, set the size, wait for it.  Returns the exit code; raises ReknitError, ConfigError too."""
    desired = parse_size(arguments.size)
    seconds = None if arguments.wait is None else parse_time("--wait", arguments.wait)
    with connected(arguments, access) as store:
        keys = Keys(which_job(store, arguments.job))
        begun = time.monotonic()
        print(scale(store, keys, desired), flush=True)
        return 0 if seconds is None else wait(store, keys, begun, seconds)


def parse_size(text: str) -> int | None:
    """A number of replicas, or None for `auto`.  Raises ConfigError."""
    if text == AUTO:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) < 1:
        raise ConfigError(f"the size must be {AUTO}, or a number of replicas from 1, not {text!r:.80}")
    return int(text)


@dataclass(frozen=True)
class _Standing:
    """What stands in the store: what is asked of the job, and what it is.

    `spares`: members without a place, those who have come since the newest plan included.
    """

    entry: Entry
    spec: Spec
    head: Head | None
    spares: int


def scale(store: Store, keys: Keys, desired: int | None) -> str:
    """Let the job have `desired` replicas (None: as many as fit); returns a sentence.  Raises ReknitError."""
    standing = _read(store, keys)
    try:
        wished = replace(standing.spec, desired=desired)
    except LayoutError:
        spec = standing.spec
        raise ScaleError(
            f"job {keys.job} can have from {spec.min_replicas} to {spec.max_replicas} replicas (min and max of "
            f"--replicas, which a running job keeps), not {desired}"
        ) from None
    if wished != standing.spec:
        _write(store, keys, standing, desired)
    return sentence(keys.job, standing.spec, wished, standing.head, standing.spares)


def _read(store: Store, keys: Keys) -> _Standing:
    entry = store.get(keys.spec)
    if entry is None:
        raise ScaleError(f"there is no job {keys.job} in this etcd")
    found = store.get(keys.head)
    head = None if found is None else decode_head(found.value, found.key)
    if head is not None and head.state in (FINISHED, LOST):
        raise ScaleError(f"job {keys.job} is over: {head.reason}")
    spec = decode_spec(entry.value, entry.key)
    here = [m for m in JobRecords(store, keys, Rejected(log)).members() if not (m.dead or m.draining)]
    placed = head.replicas * spec.axes.size if head is not None else 0
    return _Standing(entry, spec, head, max(0, len(here) - placed))


def _write(store: Store, keys: Keys, standing: _Standing, desired: int | None) -> None:
    """Replace what was read.  Fields of a later version stay."""
    entry = standing.entry
    value = dumps({**loads(entry.value, entry.key), "desired": desired})
    try:
        unchanged = Compare.mod_revision(entry.key, entry.mod_revision)
        if store.transaction([unchanged], [Put(entry.key, value)]).succeeded:
            return
    except StoreUnavailable as error:
        raise ScaleError(f"nobody knows whether the size was set; ask again for it: {error}") from None
    now = _read(store, keys)
    raise ScaleError(
        f"somebody else has changed what is wanted of job {keys.job} meanwhile: {_wanted(now.spec)} now "
        f"(it was {_size(standing.spec.desired)}); nothing was set, ask again if you still want {_size(desired)}"
    )


# ---------------------------------------------------------------- what is said


def sentence(job: str, before: Spec, after: Spec, head: Head | None, spares: int) -> str:
    """What was wanted, what is, and what that means."""
    was = "already" if before == after else f"(was {_size(before.desired)})"
    parts = [f"{_wanted(after)} {was}"]
    if head is None:
        return f"{job}: {parts[0]}; the job has not begun"
    running = f"{head.replicas} {_be(head.replicas)} running" if head.replicas else "none is running"
    waiting = f"{spares} {'spare waits' if spares == 1 else 'spares wait'}" if spares else ""
    parts.append(", ".join(filter(None, (running, waiting))))
    missing = ((after.desired or 0) - head.replicas) * after.axes.size - spares
    if missing > 0:
        parts.append(f"{missing} more {'worker is' if missing == 1 else 'workers are'} needed")
    return f"{job}: {'; '.join(parts)}"


def _wanted(spec: Spec) -> str:
    if spec.desired is None:
        return f"as many replicas as the members allow are wanted, up to {spec.max_replicas}"
    return f"{spec.desired} {'replica' if spec.desired == 1 else 'replicas'} {_be(spec.desired)} wanted"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _size(desired: int | None) -> str:
    return AUTO if desired is None else str(desired)


# ---------------------------------------------------------------- waiting


def wait(store: Store, keys: Keys, begun: float, seconds: float) -> int:
    """Wait until the newest plan has the size that is wanted, whoever wants it; returns the exit code."""
    while True:
        standing = _read(store, keys)
        head, passed = standing.head, time.monotonic() - begun
        now = head.replicas if head is not None else 0
        if head is not None and now == reachable(standing.spec, now, standing.spares):
            print(f"{keys.job}: {now} in generation {head.generation} ({passed:.2f} s)", flush=True)
            return 0
        if passed >= seconds:
            print(f"{keys.job}: still {now} after {passed:.0f} s", flush=True)
            return EXIT_FAILED
        time.sleep(LOOK)


def reachable(spec: Spec, replicas: int, spares: int) -> int:
    """The size that is wanted, or with `auto` the one that the members allow."""
    if spec.desired is not None:
        return spec.desired
    return min(spec.max_replicas, replicas + spares // spec.axes.size)
