"""What is left of a job that has ended: its spec, its newest plan and its history, for a while.

Whoever wants to know how it ended finds that; then it is gone without anybody's doing, as it hangs on a lease that
nobody renews.  A next run under the same name takes off what it goes on with, by writing it.
"""

from __future__ import annotations

from reknit.rendezvous.leader.chunks import chunks
from reknit.rendezvous.leader.fence import Fence
from reknit.rendezvous.store.protocol import Compare, Delete, Entry, Lease, Put


def leave(fence: Fence, lease: Lease, unchanged: Compare) -> bool:
    """Hang all that is left of a job, but its head, on `lease`, and delete what nobody needs any more.

    Returns whether all of it hangs there now; it does not if somebody wrote meanwhile.  Raises StoreError, `Deposed`
    among them.
    """
    keys = fence.keys
    spec = fence.get(keys.spec)
    left: list[Entry] = [] if spec is None else [spec]
    for prefix in (keys.plans, keys.histories):
        left += fence.list(prefix).entries
    loose = {entry.key: entry for entry in left if not entry.lease}
    complete = True
    for chunk in chunks(Put(entry.key, entry.value, lease) for entry in loose.values()):
        as_read = [Compare.mod_revision(put.key, loose[put.key].mod_revision) for put in chunk]
        complete &= fence.try_write(chunk, unchanged, *as_read)
    fence.write([Delete(keys.assignments, prefix=True)], unchanged)
    return complete
