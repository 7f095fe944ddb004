"""`reknit status`: who trains where, at which step, how well, and why the newest generation came about."""

from __future__ import annotations

import argparse
import logging
import os
import socket

from reknit.rendezvous.keys import Keys
from reknit.rendezvous.looking import Looker
from reknit.rendezvous.rejected import Rejected
from reknit.runtime.config import EtcdAccess
from reknit.runtime.operating.opening import add_job, connected, which_job

log = logging.getLogger("reknit.status")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for those of the access to etcd."""
    parser.description = (
        "Shows a job: its replicas and who is where in them, how each worker gets on, spares, agents, and the newest "
        "events.  Exits with 1 if there is no such job, or if it is lost."
    )
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object, for programs; with --watch one a line")
    parser.add_argument("--watch", action="store_true", help="go on, once a second, until Ctrl-C")


def run(arguments: argparse.Namespace, access: EtcdAccess) -> int:
    """Check the options, look, show.  Returns the exit code; raises ReknitError, ConfigError among them."""
    from reknit.runtime.operating.status_view import show, watch  # rich is large, and an agent has no use for it

    with connected(arguments, access) as store:
        job = which_job(store, arguments.job)
        by = f"reknit status, process {os.getpid()} on {socket.gethostname()}"
        looker = Looker(store, Keys(job), Rejected(log), by)
        try:
            return watch(looker, arguments.json) if arguments.watch else show(looker, arguments.json)
        finally:
            looker.close()
