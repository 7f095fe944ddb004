"""Which jobs live in a store, without reading what lies there of each."""

from __future__ import annotations

from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.keys import ROOT, check_name
from reknit.rendezvous.store.protocol import Store

_BEHIND = chr(ord("/") + 1)


def jobs_in(store: Store, *, timeout: float | None = None) -> list[str]:
    """The names of all jobs of which anything lies in the store, sorted; two requests a job at most.

    Raises StoreError if the store does not answer.  What lies under a name that no job can have is left out.
    """
    found, after = [], ROOT
    while (key := store.first(ROOT, after=after, timeout=timeout)) is not None:
        name, slash, _ = key.removeprefix(ROOT).partition("/")
        after = f"{ROOT}{name}{_BEHIND}" if slash else key
        try:
            found += [check_name("job", name)] if slash else []
        except RecordError:
            pass
    return sorted(set(found))
