"""Make etcd3 0.12.0 importable on any protobuf from 3.20 on.

Its generated `*_pb2.py` files were written for protobuf 3 and refuse to load on 4 and later, while a training image
brings whichever protobuf its other packages need.  The files do carry what matters, the serialized descriptors; so
these are read out of the source text and built into message classes with the installed protobuf, in a descriptor pool
of their own: another etcd client in the same process, with its own copy of the same `.proto` files, cannot clash.

Import etcd3 from here, and grpc too: `from reknit.rendezvous.store.etcd_messages import etcd3, grpc, rpc`.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

# grpc's C++ part tells standard error about each failed TLS handshake, several lines a try, beside the errors that it
# gives us to report.  It reads this while it is imported; afterwards it is taken back, for our children may use grpc
# themselves.
_quieted = "GRPC_VERBOSITY" not in os.environ
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
import grpc  # noqa: E402

if _quieted:
    del os.environ["GRPC_VERBOSITY"]

# grpc wakes every thread that waits for a stream ten times a second, of old so that Python 2 could be interrupted; a
# dozen watches would cost more of a core than all else that an agent does while nothing happens.
_waiting: Any = getattr(grpc, "_common", None)
if hasattr(_waiting, "MAXIMUM_WAIT_TIMEOUT"):
    _waiting.MAXIMUM_WAIT_TIMEOUT = 10.0

__all__ = ["etcd3", "grpc", "kv", "rpc", "serialized_descriptor"]

_PACKAGE = "etcd3.etcdrpc"
_IN_ORDER_OF_DEPENDENCE = ("kv_pb2", "auth_pb2", "rpc_pb2")
_SERIALIZED = re.compile(r"""serialized_pb=(?:_b\()?(?P<literal>b?'(?:[^'\\\n]|\\.)*'|b?"(?:[^"\\\n]|\\.)*")""")


def serialized_descriptor(source: str) -> bytes:
    """Return what `serialized_pb=` is in the text of a generated module.  Raises ValueError if it has none."""
    # Found by its looks, as parsing the whole of a generated module takes ten times as long.
    found = _SERIALIZED.search(source)
    if found is None:
        raise ValueError("no serialized_pb in this generated module")
    # Old generators wrap the literal: serialized_pb=_b('...'), with characters that stand for bytes.
    value = ast.literal_eval(found["literal"])
    return value.encode("latin1") if isinstance(value, str) else bytes(value)


def _build(name: str, source: str, pool: Any) -> ModuleType:
    """Return a module as the installed protobuf would have generated it, with its descriptors added to `pool`."""
    module = ModuleType(f"{_PACKAGE}.{name}")
    # Some protobuf versions return the file's descriptor here, others nothing.
    pool.AddSerializedFile(serialized_descriptor(source))
    descriptor = pool.FindFileByName(f"{name.removesuffix('_pb2')}.proto")
    contents = module.__dict__
    contents["DESCRIPTOR"] = descriptor
    builder.BuildMessageAndEnumDescriptors(descriptor, contents)
    builder.BuildTopDescriptorsAndMessages(descriptor, module.__name__, contents)
    return module


def _import_etcd3() -> ModuleType:
    """Import etcd3 with messages built here, unless somebody has managed to import it already."""
    if _PACKAGE in sys.modules:
        return importlib.import_module("etcd3")
    found = importlib.util.find_spec("etcd3")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "No module named 'etcd3': install it with `pip install 'reknit[agent]'`", name="etcd3"
        )
    folder = Path(found.submodule_search_locations[0]) / "etcdrpc"
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(folder)]
    registered = {_PACKAGE: package}
    pool = descriptor_pool.DescriptorPool()
    for name in _IN_ORDER_OF_DEPENDENCE:
        module = _build(name, (folder / f"{name}.py").read_text(encoding="utf-8"), pool)
        registered[module.__name__] = module
        setattr(package, name, module)
    public = {name: value for name, value in vars(package.rpc_pb2).items() if not name.startswith("_")}
    vars(package).update(public)
    sys.modules.update(registered)
    try:
        # The stubs in etcd3's rpc_pb2_grpc.py are plain Python and load as they are, over the messages just registered.
        stubs = importlib.import_module(f"{_PACKAGE}.rpc_pb2_grpc")
        vars(package).update({name: value for name, value in vars(stubs).items() if name.endswith("Stub")})
        return importlib.import_module("etcd3")
    except BaseException:
        for name in registered:
            sys.modules.pop(name, None)
        raise


etcd3: Any = _import_etcd3()
"""The etcd3 package."""

rpc: Any = sys.modules[_PACKAGE]
"""etcd's messages and service stubs."""

kv: Any = rpc.kv_pb2
"""The messages of etcd's key-value events."""
