"""The channel to one endpoint of etcd: how it notices a silent server, how soon it connects again, with which files."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from reknit.rendezvous.store.endpoints import Endpoint, TlsFiles
from reknit.rendezvous.store.etcd_messages import etcd3, rpc

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # A frozen server keeps its TCP connection: only unanswered pings tell.  etcd says GOAWAY to pings under 5 s apart.
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.ping_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # gRPC's own back-off grows to two minutes.  The middle one is also how long connecting may take.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # A restarted pod has a new address under its old name.
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # A name with several addresses, such as a headless service: spread over them, and survive the loss of one.
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    # The answer to a list has no limit in etcd; the default of 4 MiB here would refuse it for ever.
    ("grpc.max_receive_message_length", -1),
    # etcd is never behind the web proxy that the environment may name.
    ("grpc.enable_http_proxy", 0),
)


class Connection:
    """The channel to one endpoint, and etcd's methods on it.  The socket is opened by the first call.

    It keeps to the TLS files as they are now: OSError if they cannot be read.
    """

    def __init__(self, endpoint: Endpoint, tls: TlsFiles | None) -> None:
        self.endpoint = endpoint
        self.stamp = tls and tls.stamp()  # before they are read: a replacement in between shows later
        client = etcd3.Etcd3Client(
            host=endpoint.url_host,
            port=endpoint.port,
            ca_cert=tls and str(tls.ca),
            cert_cert=tls and tls.certificate and str(tls.certificate),
            cert_key=tls and tls.key and str(tls.key),
            grpc_options=_OPTIONS,
        )
        self.close: Callable[[], None] = client.close
        self.kv: Any = client.kvstub
        self.lease: Any = client.leasestub
        self.watch: Any = rpc.WatchStub(client.channel).Watch
        self.authenticate: Any = rpc.AuthStub(client.channel).Authenticate
        # On the wire, one request and one answer on a stream is a plain call: no thread and no stream object to tend.
        self.keep_alive: Any = client.channel.unary_unary(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=rpc.LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=rpc.LeaseKeepAliveResponse.FromString,
        )
