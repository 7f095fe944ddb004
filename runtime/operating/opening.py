"""What agents and operating commands begin with: options checked, a connection to etcd, the job that is meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from reknit.rendezvous.errors import RecordError, ReknitError, StoreError
from reknit.rendezvous.jobs import jobs_in
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.store.endpoints import parse_endpoints
from reknit.rendezvous.store.protocol import Store
from reknit.runtime.config import ConfigError, EtcdAccess

CONNECT_SECONDS = 10.0  # for etcd to be there at the start
NAMED = 10  # jobs


class NoSuchJobError(ReknitError):
    """It is not clear which job is meant, or there is none."""


def add_job(parser: argparse.ArgumentParser) -> None:
    """The options that say which job is meant, and where."""
    parser.add_argument("--job", metavar="ID", help="the job's name (default: the only one there is)")
    parser.add_argument("--etcd", required=True, metavar="H:P,H:P", help="endpoints of the job's etcd")


def check(arguments: argparse.Namespace, access: EtcdAccess) -> None:
    """Check `--job` (if it is given) and `--etcd`.  Raises ConfigError."""
    try:
        if getattr(arguments, "job", None) is not None:
            check_name("--job", arguments.job)
        parse_endpoints(arguments.etcd, access.tls is not None)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except StoreError as error:
        raise ConfigError(f"--etcd: {error}") from None


@contextmanager
def connected(arguments: argparse.Namespace, access: EtcdAccess) -> Iterator[Store]:
    """The store that `--etcd` names, connected, for as long as the context.  Raises ConfigError, StoreError."""
    check(arguments, access)
    with connection(arguments.etcd, access) as store:
        yield store


@contextmanager
def connection(etcd: str, access: EtcdAccess) -> Iterator[Store]:
    """The store at these endpoints, connected, for as long as the context.  Raises StoreError."""
    from reknit.rendezvous.store.etcd import EtcdStore

    store = EtcdStore(etcd, tls=access.tls, user=access.user, password=access.password)
    try:
        store.connect(timeout=CONNECT_SECONDS)
        yield store
    finally:
        store.close()


def which_job(store: Store, name: str | None) -> str:
    """The job that is meant: `name`, or the only one there is.  Raises NoSuchJobError, naming those that there are."""
    if name is not None:
        return name
    found = jobs_in(store)
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoSuchJobError("no job lives in this etcd")
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    raise NoSuchJobError(f"several jobs live in this etcd; say which by --job: {', '.join(found[:NAMED])}{more}")
