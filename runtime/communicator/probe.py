"""Whether the members of a group can be reached at all, asked while a build takes too long.

gloo connects one peer after the other and waits for each: behind one connection that does not come about, many others
are not even tried.  So which connections exist says little about who cannot be reached.  This tries all at once.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Mapping

from reknit.runtime.communicator.sockets import Address

# The far machine has answered, if only that nobody listens there any more: its process is another question.
ANSWERS = (0, errno.EISCONN, errno.ECONNREFUSED, errno.ECONNRESET)


class Probes:
    """One connection under way to each of `addresses`.  The constructor opens the sockets; nothing here ever blocks.

    gloo's listeners take no notice of a caller that says nothing and goes.
    """

    def __init__(self, addresses: Mapping[int, Address]) -> None:
        self._calls: dict[int, socket.socket] = {}
        self._failed: set[int] = set()
        for rank, address in addresses.items():
            call = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
            call.setblocking(False)
            self._calls[rank] = call
            if call.connect_ex(address) not in (*ANSWERS, errno.EINPROGRESS):
                self._failed.add(rank)

    def unanswered(self) -> set[int]:
        """The ranks from whose machines no answer has come up to now."""
        poll = select.poll()
        for call in self._calls.values():
            poll.register(call, select.POLLOUT)
        decided = {descriptor for descriptor, _ in poll.poll(0)}
        for rank, call in self._calls.items():
            # The kernel tells an error once.
            if call.fileno() in decided and call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in ANSWERS:
                self._failed.add(rank)
        waiting = {rank for rank, call in self._calls.items() if call.fileno() not in decided}
        return waiting | self._failed

    def close(self) -> None:
        """Hang up."""
        for call in self._calls.values():
            call.close()
