"""`reknit doctor`: gathers, judges, shows."""

from __future__ import annotations

import argparse
from pathlib import Path

from reknit.rendezvous.errors import RecordError, StoreError
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.store.endpoints import parse_endpoints
from reknit.runtime.access import own_address
from reknit.runtime.config import EXIT_FAILED, ConfigError, EtcdAccess
from reknit.runtime.doctor import etcd, host
from reknit.runtime.doctor.facts import Cluster, Facts, Network, Standalone, Training
from reknit.runtime.doctor.finding import BAD, is_loopback
from reknit.runtime.doctor.judging import judge
from reknit.runtime.doctor.report import as_json, render


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for those of the access to etcd."""
    parser.description = (
        "Looks whether this host can run an agent and workers, and how the etcd is that was named, and says of each "
        "thing that is not as it should be what to do.  Changes nothing.  Exits with 1 if something has failed."
    )
    parser.add_argument(
        "--etcd", metavar="H:P,H:P", help="endpoints of the job's etcd (default: look for one to start)"
    )
    parser.add_argument("--job", metavar="ID", help="write under this job's keys, if the user may write no others")
    parser.add_argument("--address", metavar="IP", help="this host's address, as the agent is to be told it")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="where the agent's socket is to be")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave out what workers need")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for programs")


def run(arguments: argparse.Namespace, access: EtcdAccess) -> int:
    """Check the options, look, say.  Returns the exit code; raises ConfigError."""
    try:
        if arguments.job is not None:
            check_name("--job", arguments.job)
        if arguments.etcd is not None:
            parse_endpoints(arguments.etcd, access.tls is not None)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except StoreError as error:
        raise ConfigError(f"--etcd: {error}") from None
    findings = judge(gather(arguments, access))
    if not arguments.torch:
        findings = [finding for finding in findings if finding.name not in ("torch", "gloo")]
    print(as_json(findings) if arguments.json else render(findings))
    return EXIT_FAILED if any(finding.verdict == BAD for finding in findings) else 0


def gather(arguments: argparse.Namespace, access: EtcdAccess) -> Facts:
    """All facts; torch is asked meanwhile."""
    probe = host.Probe() if arguments.torch else None
    try:
        found: Cluster | Standalone = etcd.standalone()
        if arguments.etcd is not None:
            found = etcd.cluster(arguments.etcd, access, arguments.job)
        return Facts(
            software=host.software(),
            kernel=host.kernel(),
            limits=host.limits(),
            network=_network(arguments, access),
            clock=host.clock(),
            socket=host.socket_folder(arguments.socket),
            etcd=found,
            training=Training() if probe is None else probe.result(),
        )
    finally:
        if probe is not None:
            probe.close()


def _network(arguments: argparse.Namespace, access: EtcdAccess) -> Network:
    here = arguments.etcd is None or all(
        is_loopback(endpoint.host) for endpoint in parse_endpoints(arguments.etcd, access.tls is not None)
    )
    try:
        address = arguments.address or own_address(arguments.etcd, access.tls is not None)
    except ConfigError as error:
        return host.network(None, str(error), here)
    return host.network(address, "", here)
