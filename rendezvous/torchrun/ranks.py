"""Which host gets which rank in the next round: hosts that stay keep theirs.

torch numbers the hosts of each round anew, in the order of their addresses, so that one that comes or goes moves the
others, and rank 0 with the store of all workers.  Pure; a node is torch's (address, process id, number).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar


class Node(Protocol):
    """An agent, as torch's rendezvous names it."""

    @property
    def addr(self) -> str:
        """Its host."""


N = TypeVar("N", bound=Node)


def steady_ranks(nodes: Iterable[N], before: Mapping[N, int]) -> dict[N, int]:
    """Ranks 0 to len(nodes) - 1, given the newest round's.  `nodes` come in the order in which newcomers are numbered.

    First an agent keeps its own rank, then one on the same host takes over a lost agent's, then the gaps are filled.
    Only ranks that the new size has no room for move.
    """
    waiting = list(nodes)
    present, size = set(waiting), len(waiting)
    ranks = {node: before[node] for node in waiting if before.get(node, size) < size}
    lost = [(rank, node.addr) for node, rank in before.items() if node not in present and rank < size]
    for rank, host in sorted(lost):
        heir = next((node for node in waiting if node not in ranks and node not in before and node.addr == host), None)
        if heir is not None:
            ranks[heir] = rank
    free = iter(sorted(set(range(size)) - set(ranks.values())))
    return {node: ranks[node] if node in ranks else next(free) for node in waiting}
