"""What is left of a job that has ended: its spec, its newest plan and its history, for a while.

Whoever wants to know how it ended finds that; then it is gone without anybody's doing, as it hangs on a lease that
nobody renews.  A next run under the same name takes off what it goes on with, by writing it.  Older plans, which are
large, are deleted: the history says what they were.
"""

from __future__ import annotations

from collections.abc import Iterable

from reknit.rendezvous.leader.chunks import chunks
from reknit.rendezvous.leader.fence import Fence
from reknit.rendezvous.store.protocol import Compare, Delete, Entry, Lease, Put


def leave(fence: Fence, lease: Lease, generation: int, older: Iterable[int], unchanged: Compare) -> bool:
    """Hang what is left of a job but its head on `lease`; delete the plans of `older` generations and assignments.

    Returns whether all of it hangs there now; it does not if somebody wrote meanwhile.  Raises StoreError, `Deposed`
    among them.
    """
    keys = fence.keys
    spec = fence.get(keys.spec)
    left: list[Entry] = [] if spec is None else [spec]
    for prefix in (f"{keys.plans}{generation}/", keys.histories):
        left += fence.list(prefix).entries
    loose = {entry.key: entry for entry in left if not entry.lease}
    complete = True
    for puts in chunks(Put(entry.key, entry.value, lease) for entry in loose.values()):
        as_read = [Compare.mod_revision(put.key, loose[put.key].mod_revision) for put in puts]
        complete &= fence.try_write(puts, unchanged, *as_read)
    gone = [keys.assignments, *(f"{keys.plans}{number}/" for number in older)]
    for deletions in chunks(Delete(prefix, prefix=True) for prefix in gone):
        fence.write(deletions, unchanged)
    return complete
