"""The sampler: every sample once, whatever the number of replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from reknit.rendezvous.errors import ReknitError
from reknit.runtime.data import DataError, Sampler, deal, permute


@dataclass
class RecordingView:
    """A job of a given shape that writes down what the sampler tells it."""

    replicas: int = 1
    replica: int = 0
    begun: list[bool] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    def begin_shard(self, indices: Sequence[int], is_last: bool) -> None:
        self.begun.append(is_last)

    def consumed(self, indices: Sequence[int]) -> None:
        self.used.extend(indices)


def sampler(
    length: int, global_batch: int, micro_batch: int, seed: int = 0, view: RecordingView | None = None
) -> Sampler:
    return Sampler(length, global_batch, micro_batch, seed, view or RecordingView())


@given(some.integers(1, 200), some.data())
def test_deal_covers_every_micro_batch_once_and_evenly(micro_batches: int, data: some.DataObject) -> None:
    replicas = data.draw(some.integers(1, micro_batches))
    shares = [deal(micro_batches, replicas, index) for index in range(replicas)]
    assert [number for share in shares for number in share] == list(range(micro_batches))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("micro_batches", "replicas", "index"), [(4, 3, 3), (4, 3, -1), (4, 0, 0), (2, 3, 0)])
def test_deal_refuses_what_has_no_share(micro_batches: int, replicas: int, index: int) -> None:
    with pytest.raises(DataError):
        deal(micro_batches, replicas, index)


@given(some.integers(1, 3000), some.integers(), some.integers(0, 2**70))
def test_an_epoch_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    order = permute(numpy.arange(length), length, seed, epoch)
    assert order.dtype == numpy.int64
    assert sorted(order.tolist()) == list(range(length))


@given(some.integers(1, 2**62), some.integers(0, 2**32), some.data())
def test_random_access_equals_sequential_access(length: int, epoch: int, data: some.DataObject) -> None:
    start = data.draw(some.integers(0, length - 1))
    positions = numpy.arange(start, min(length, start + 20))
    together = permute(positions, length, 7, epoch).tolist()
    assert together == [int(permute(numpy.array([position]), length, 7, epoch)[0]) for position in positions]
    assert len(set(together)) == len(together)
    assert all(0 <= index < length for index in together)


def test_every_order_of_a_small_data_set_occurs_about_equally_often() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(2400):
        order = tuple(permute(numpy.arange(4), 4, 1, epoch).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert min(counts.values()) > 50
    assert max(counts.values()) < 200


def test_neighbours_in_an_epoch_are_not_neighbours_in_the_data_set() -> None:
    order = permute(numpy.arange(100_000), 100_000, 3, 0)
    assert abs(numpy.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(numpy.corrcoef(order, numpy.arange(100_000))[0, 1]) < 0.02


@given(some.integers(1, 60), some.integers(1, 5), some.integers(1, 12), some.integers(0, 1000), some.data())
def test_the_dealt_samples_are_the_steps_samples(
    length: int, micro_batch: int, micro_batches: int, step: int, data: some.DataObject
) -> None:
    replicas = data.draw(some.integers(1, micro_batches))
    dealt: list[int] = []
    whole: list[int] = []
    for replica in range(replicas):
        view = RecordingView(replicas, replica)
        source = sampler(length, micro_batch * micro_batches, micro_batch, view=view)
        shards = list(source.shards(step))
        share = deal(micro_batches, replicas, replica)
        assert [len(shard) for shard in shards] == [micro_batch] * len(share)
        assert view.begun == [False] * (len(share) - 1) + [True]
        assert view.used == [index for shard in shards for index in shard]
        dealt += view.used
        batch = source.batch(step)
        assert batch.micro_batches == len(share)
        assert len(batch) == len(share) * micro_batch
        whole += batch.indices.tolist()
    assert tuple(dealt) == tuple(whole) == sampler(length, micro_batch * micro_batches, micro_batch).samples(step)


@given(some.integers(1, 50), some.integers(1, 20), some.integers(1, 4))
def test_every_epoch_uses_every_sample_once_although_steps_cut_through_epochs(
    length: int, batch: int, epochs: int
) -> None:
    source = sampler(length, batch, 1)
    steps = -(-length * epochs // batch)
    used = [index for step in range(steps) for index in source.samples(step)]
    for epoch in range(epochs):
        assert sorted(used[epoch * length : (epoch + 1) * length]) == list(range(length))


def test_the_seed_alone_chooses_the_order() -> None:
    first, again, other = (sampler(10_000, 64, 8, seed) for seed in (5, 5, 6))
    assert [first.samples(step) for step in (0, 9, 3)] == [again.samples(step) for step in (0, 9, 3)]
    assert first.samples(0) != other.samples(0)
    assert first.samples(0) != first.samples(1)


def test_two_epochs_have_different_orders() -> None:
    source = sampler(64, 64, 8)
    assert source.samples(0) != source.samples(1)
    assert sorted(source.samples(0)) == sorted(source.samples(1))


def test_the_order_never_changes_between_releases() -> None:
    """A resumed job must go on with the samples that the interrupted one would have used."""
    assert sampler(1000, 8, 2, seed=42).samples(3) == GOLDEN


def test_weights_over_all_replicas_add_up_to_one() -> None:
    weights = [
        shard.weight for replica in range(3) for shard in sampler(100, 40, 4, view=RecordingView(3, replica)).shards(0)
    ]
    assert sum(weights) == pytest.approx(1.0)
    assert weights[0] == pytest.approx(sampler(100, 40, 4).weight)


@pytest.mark.parametrize("micro_batch", [1, 8, 40])
def test_a_shard_indexes_tensors_and_arrays(micro_batch: int) -> None:
    rows = torch.arange(200.0).view(100, 2)
    shard = next(sampler(100, 40, micro_batch).shards(0))
    assert shard.indices.dtype == torch.int64
    assert torch.equal(rows[shard], rows[shard.indices])
    assert numpy.array_equal(rows.numpy()[shard], rows[shard.indices].numpy())
    assert list(shard) == shard.indices.tolist() == shard[:]
    assert shard[-1] == int(shard.indices[-1])


def test_only_the_last_shard_of_a_replica_says_so() -> None:
    for replica in range(3):
        shards = list(sampler(100, 40, 4, view=RecordingView(3, replica)).shards(0))
        assert [shard.is_last for shard in shards] == [False] * (len(shards) - 1) + [True]


def test_an_unfinished_shard_is_not_consumed() -> None:
    view = RecordingView()
    shards = sampler(100, 8, 4, view=view).shards(0)
    first = next(shards)
    assert view.used == []
    next(shards)
    assert view.used == list(first)


def test_the_view_can_end_the_attempt_between_two_shards() -> None:
    class Ending(RecordingView):
        def begin_shard(self, indices: Sequence[int], is_last: bool) -> None:
            if is_last:
                raise InterruptedError

    view = Ending()
    shards = sampler(100, 12, 4, view=view).shards(0)
    taken = [*next(shards), *next(shards)]
    with pytest.raises(InterruptedError):
        next(shards)
    assert view.used == taken


@pytest.mark.parametrize(
    ("length", "global_batch", "micro_batch", "max_replicas", "named"),
    [
        (0, 8, 4, 1, "length is 0"),
        (9, 0, 4, 1, "global_batch is 0"),
        (9, 8, -1, 1, "micro_batch is -1"),
        (9, 8, 3, 1, "global_batch 8 is not a multiple of micro_batch 3"),
        (9, 8, 4, 3, "3 replicas, but a step has only 2 micro-batches"),
    ],
)
def test_sizes_that_cannot_be_dealt_are_refused(
    length: int, global_batch: int, micro_batch: int, max_replicas: int, named: str
) -> None:
    with pytest.raises(ReknitError, match=named):
        Sampler(length, global_batch, micro_batch, 0, RecordingView(), max_replicas)


GOLDEN = (436, 67, 876, 666, 715, 511, 255, 553)
