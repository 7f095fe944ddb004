"""What a watch tells the leader: a complete state, or what has happened since."""

from __future__ import annotations

from collections.abc import Sequence

from reknit.rendezvous.store.protocol import Entry, Event, Snapshot

News = Snapshot | Sequence[Event]


def newest(news: News) -> Entry | None:
    """What stands at an exact key after the news."""
    if isinstance(news, Snapshot):
        return news.entries[0] if news.entries else None
    return news[-1].entry


def follow(known: dict[str, Entry], news: News) -> list[Entry]:
    """Keep `known`, the entries under a prefix by key, equal to what the store holds; return what was written."""
    if isinstance(news, Snapshot):
        known.clear()
        known.update((entry.key, entry) for entry in news.entries)
        return list(news.entries)
    for event in news:
        if event.entry is None:
            known.pop(event.key, None)
        else:
            known[event.key] = event.entry
    return [event.entry for event in news if event.entry is not None]
