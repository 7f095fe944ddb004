"""The part of the command line that says how to get into etcd: where it is, TLS files, a user with a password."""

from __future__ import annotations

import argparse
import os

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.store.endpoints import TlsFiles, parse_endpoints
from reknit.runtime.config import ConfigError, EtcdAccess
from reknit.runtime.layers import PASSWORD_VARIABLE
from reknit.runtime.options import ACCESS, add_flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options, but for `--etcd` itself."""
    for option in ACCESS:
        add_flag(parser, option)


def access_of(arguments: argparse.Namespace) -> EtcdAccess:
    """How to get into etcd.  Takes the password out of the environment, which workers inherit.  Raises ConfigError."""
    password = os.environ.pop(PASSWORD_VARIABLE, None)
    given = [option.flag for option in ACCESS if getattr(arguments, option.attribute)]
    if given and arguments.etcd is None:
        raise ConfigError(f"{given[0]} needs --etcd: a standalone job brings its own etcd")
    if arguments.etcd_ca is None and (arguments.etcd_cert or arguments.etcd_key):
        raise ConfigError("--etcd-cert and --etcd-key need --etcd-ca FILE: the CA that signed etcd's certificate")
    try:
        tls = arguments.etcd_ca and TlsFiles(arguments.etcd_ca, arguments.etcd_cert, arguments.etcd_key)
    except StoreError as error:
        raise ConfigError(str(error)) from None
    path = arguments.etcd_password_file
    if arguments.etcd_user is None:
        if path is not None:
            raise ConfigError("--etcd-password-file needs --etcd-user NAME: whose password it is")
        return EtcdAccess(tls)
    if path is not None:
        try:
            password = path.read_text().partition("\n")[0].rstrip("\r")
        except (OSError, ValueError) as error:
            raise ConfigError(f"--etcd-password-file {path} cannot be read: {error}") from None
    if not password:
        raise ConfigError(
            f"--etcd-user {arguments.etcd_user} needs a password: give --etcd-password-file FILE, "
            f"or set ${PASSWORD_VARIABLE}"
        )
    return EtcdAccess(tls, arguments.etcd_user, password)


def own_address(etcd: str | None, tls: bool = False) -> str:
    """The address of this host on its way to etcd; loopback for a standalone job.  Sends nothing."""
    if etcd is None:
        return "127.0.0.1"
    try:
        first = parse_endpoints(etcd, tls)[0]
    except StoreError as error:
        raise ConfigError(f"--etcd: {error}") from None
    try:
        return first.own_address()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--etcd {etcd}: cannot tell which address leads there ({error}); give --address IP"
        ) from None
