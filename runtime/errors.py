"""The errors of the training side.

They hang on the one tree of `rendezvous.errors`.  A training loop needs to tell only one of them from the others:
`Interrupted` means "this generation's group is over, leave it and wait for the next plan"; everything else is a
mistake that a retry would repeat.
"""

from __future__ import annotations

from reknit.rendezvous.errors import ReknitError


class CommunicatorError(ReknitError):
    """A communicator was asked for something that it cannot do.  Nothing was sent; the group is untouched."""


class Interrupted(CommunicatorError):
    """This group was interrupted or lost a peer: leave the generation.

    Raised alike by a build that could not be finished, by every wait that was blocked at the interruption and by every
    call after it.  `group` is the group's name, `rank` the caller's own rank in it, and `peers` the ranks that had
    closed their end when the group broke, as far as that is known (they died, or they left the generation first).
    `absent`: after a build that was waited for in vain, the ranks that never came, or to which there is no way.
    """

    def __init__(
        self, message: str, *, group: str, rank: int, peers: tuple[int, ...] = (), absent: tuple[int, ...] = ()
    ) -> None:
        super().__init__(message)
        self.group = group
        self.rank = rank
        self.peers = peers
        self.absent = absent

    def renewed(self) -> Interrupted:
        """Another one that says the same: raising one that is kept would tie it to all frames that it passes."""
        copy = Interrupted(str(self), group=self.group, rank=self.rank, peers=self.peers, absent=self.absent)
        copy.__cause__ = self.__cause__
        return copy


class BackendRefused(CommunicatorError):
    """The backend asked for cannot do what the data axis needs.  Raised before anything is touched."""
