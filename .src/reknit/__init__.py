"""reknit keeps a PyTorch training job running while its workers die, leave and join.

The names below are the whole public API of a training script.  They are loaded when they are first used, so that
`import reknit` costs nothing and needs neither torch nor etcd.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reknit.rendezvous.errors import ReknitError
    from reknit.runtime.job import Job, join

__version__ = "0.1.0"
__all__ = ["Job", "ReknitError", "__version__", "join"]

_HOMES = {
    "Job": "reknit.runtime.job",
    "ReknitError": "reknit.rendezvous.errors",
    "join": "reknit.runtime.job",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reknit' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
