"""The gradient reduction against a peer that is simulated by what it would add."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.gradients import (
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Reduction,
    SecondBackwardError,
    make_buckets,
)


class Done:
    def __init__(self, finish: Callable[[], object]) -> None:
        self._finish = finish

    def wait(self) -> None:
        self._finish()


class Peer:
    """A group of two whose other rank adds what `other` makes of a bucket; the sum is there only after the wait."""

    size = 2

    def __init__(self, other: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.other = other
        self.sent: list[int] = []

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", *, asynchronous: bool = False) -> Done:
        assert op == "sum"
        assert asynchronous
        self.sent.append(tensor.numel())
        theirs = self.other(tensor.clone())
        return Done(lambda: tensor.add_(theirs))


class Broken:
    size = 2

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", *, asynchronous: bool = False) -> Done:
        raise Interrupted("gone", group="data", rank=0)


class Alone:
    size = 1

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", *, asynchronous: bool = False) -> None:
        raise AssertionError("a group of one sends nothing")


def same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("overlap", [True, False])
def test_two_ranks_with_the_same_gradients_get_twice_the_gradient(overlap: bool) -> None:
    net, plain = model(), model()
    reduction = Reduction(net.parameters(), overlap)
    for _ in range(2):  # the second attempt reuses the buckets
        peer = Peer(same)
        reduction.begin(peer)
        reduction.arm(True)
        net(torch.ones(3, 4)).sum().backward()
        assert bool(peer.sent) == overlap, "with overlap the reduction starts within the backward pass"
        reduction.finish()
        plain.zero_grad()
        plain(torch.ones(3, 4)).sum().backward()
        for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert theirs.grad is not None
            torch.testing.assert_close(mine.grad, 2 * theirs.grad)


def test_only_the_last_backward_of_an_attempt_is_reduced() -> None:
    net, plain = model(), model()
    reduction, peer = Reduction(net.parameters(), True), Peer(torch.zeros_like)
    reduction.begin(peer)
    for last in (False, False, True):
        assert not peer.sent
        reduction.arm(last)
        net(torch.ones(1, 4)).sum().backward()
        plain(torch.ones(1, 4)).sum().backward()
    reduction.finish()
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_parameter_that_nobody_used_has_no_gradient_and_one_that_a_peer_used_has_the_peers() -> None:
    used, theirs, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))

    def other(flat: torch.Tensor) -> torch.Tensor:  # buckets go in reverse: unused, theirs, used, then three counts
        return torch.tensor([0.0] * 4 + [5.0] * 3 + [1.0] * 2 + [0.0, 1.0, 1.0])

    reduction = Reduction([used, theirs, unused], False)
    reduction.begin(Peer(other))
    used.grad = torch.full((2,), 2.0)
    reduction.finish()
    assert unused.grad is None
    assert used.grad is not None
    assert theirs.grad is not None
    assert used.grad.tolist() == [3.0, 3.0]
    assert theirs.grad.tolist() == [5.0, 5.0, 5.0]


def test_an_error_within_backward_is_kept_for_the_end() -> None:
    net = model()
    reduction = Reduction(net.parameters(), True)
    reduction.begin(Broken())
    reduction.arm(True)
    net(torch.ones(1, 4)).sum().backward()
    with pytest.raises(Interrupted):
        reduction.finish()
    reduction.begin(Peer(same))
    reduction.arm(True)
    net(torch.ones(1, 4)).sum().backward()
    reduction.finish()


def test_a_group_of_one_keeps_its_gradients() -> None:
    net = model()
    reduction = Reduction(net.parameters(), True)
    reduction.begin(Alone())
    reduction.arm(True)
    net(torch.ones(1, 4)).sum().backward()
    before = [p.grad for p in net.parameters()]
    reduction.finish()
    assert all(mine is kept for mine, kept in zip((p.grad for p in net.parameters()), before, strict=True))


def test_buckets_depend_on_the_parameters_alone() -> None:
    parameters = [nn.Parameter(torch.zeros(n, dtype=d)) for n, d in [
        (FIRST_BUCKET_BYTES // 4, torch.float32), (3, torch.float64), (FIRST_BUCKET_BYTES // 4, torch.float32),
        (BUCKET_BYTES // 4, torch.float32), (7, torch.float32),
    ]]  # fmt: skip
    sizes = [[p.numel() for p in bucket.parameters] for bucket in make_buckets(parameters)]
    assert sizes == [[7, BUCKET_BYTES // 4], [FIRST_BUCKET_BYTES // 4], [3], [FIRST_BUCKET_BYTES // 4]]
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    assert make_buckets([frozen]) == []


def test_a_second_backward_after_the_reduction_has_begun_is_refused() -> None:
    net = model()
    reduction = Reduction(net.parameters(), True)
    reduction.begin(Peer(same))
    reduction.arm(True)
    net(torch.ones(1, 4)).sum().backward()
    net(torch.ones(1, 4)).sum().backward()
    with pytest.raises(SecondBackwardError, match="once a shard"):
        reduction.finish()
