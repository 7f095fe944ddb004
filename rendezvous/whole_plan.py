"""A published plan, put together again from the store by those who need all of it."""

from __future__ import annotations

from collections.abc import Callable

from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Head, decode_whole, parts_prefix
from reknit.rendezvous.records import Plan
from reknit.rendezvous.store.protocol import Snapshot


def read_whole(head: Head, keys: Keys, read: Callable[[str], Snapshot]) -> Plan:
    """The plan of `head`; `read` lists a prefix.  RecordError if a part is missing or does not fit."""
    found = read(keys.prefix + parts_prefix(head.generation, head.writer))
    return decode_whole(head, {entry.key.removeprefix(keys.prefix): entry.value for entry in found.entries})
