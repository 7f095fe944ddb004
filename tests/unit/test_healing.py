"""A state that went over a wire is the same, bit by bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.wires import Group, at_once
from torch import nn

from reknit.rendezvous.records import Version
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery import packing
from reknit.runtime.recovery.digest import digest
from reknit.runtime.recovery.healing import Exchange, Partial, Shipment, share_out
from reknit.runtime.recovery.packing import Packed
from reknit.runtime.recovery.randomness import Snapshot
from reknit.runtime.recovery.state import RegistrationError, State, Update


def worker(seed: int) -> tuple[State, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = State()
    state.register("model", model)
    state.register("optimizer", optimizer)
    return state, model, optimizer


def trained(seed: int, steps: int = 3) -> tuple[State, nn.Module, torch.optim.Optimizer]:
    made = worker(seed)
    state, model, optimizer = made
    state.keep(Version(1, 0), 1)
    for _ in range(steps):
        model(torch.randn(8, 4)).square().sum().backward()
        state.prepare(Version(1, state.step + 1), Update(optimizer))
        state.commit()
    return made


def heal(group: Group, sources: dict[int, Packed], receivers: dict[int, Partial | None]) -> Any:
    """Everybody's outcome by rank, and what the receivers keep."""
    wires, kept, actions = group.wires(), dict[int, Partial](), list[Callable[[], Any]]()

    def be_served(rank: int) -> Any:
        exchange = Exchange(wires[rank], list(sources), list(receivers), lambda _: None)
        return exchange.be_served(Version(1, 3), receivers[rank], lambda partial: kept.update({rank: partial}))

    def serve(rank: int) -> Any:
        return Exchange(wires[rank], list(sources), list(receivers), lambda _: None).serve(sources[rank])

    def take_part(rank: int) -> Any:
        try:
            return serve(rank) if rank in sources else be_served(rank)
        except Interrupted:
            group.break_off()  # whoever leaves closes its connections
            raise

    for rank in range(group.size):
        actions.append(functools.partial(take_part, rank))
    return at_once(*actions), kept


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 128)


def chunk_of(tag: int) -> int | None:
    """Which chunk's bytes a message is."""
    return tag - 2 if tag >= 2 else None


def test_every_kind_of_value_arrives() -> None:
    value: dict[str, Any] = {
        "a": torch.randn(3, 2), "b": torch.tensor(2.5, dtype=torch.float64), "c": [1, "x", None, (2.0, True)],
        "d": torch.randn(4, 6).t(),
        "e": torch.zeros(0, 3), "f": torch.randn(5).bfloat16(), "g": nn.Parameter(torch.ones(2)),
        "h": torch.randint(0, 9, (40,), dtype=torch.int8),
        "i": torch.randn(8, 3, 2, 2).to(memory_format=torch.channels_last),
    }  # fmt: skip
    for shared in ([], ["a", "b", "d", "f", "h", "i"]):
        packed = packing.pack(value, [(name, value[name]) for name in shared])
        (sent, received), _ = heal(Group(2), {0: packed}, {1: None})
        assert digest(received.state) == digest({**value, "g": value["g"].detach()})
        assert sent == received.bytes > 0
        assert len(packed.own) == 7 - len(shared)


@pytest.mark.usefixtures("small_chunks")
def test_memory_with_two_names_travels_once() -> None:
    tied = torch.randn(100)
    packed = packing.pack({"a": tied, "b": tied.detach()}, [("a", tied)])
    (sent, received), _ = heal(Group(2), {0: packed}, {1: None})
    assert received.state["a"] is received.state["b"]
    assert torch.equal(received.state["a"], tied)
    assert sent < 800


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("sources", [1, 2, 3])
def test_all_who_hold_it_share_the_work(sources: int) -> None:
    states = [trained(0)[0] for _ in range(sources)]
    newcomers = [worker(1)[0], worker(2)[0]]
    group = Group(sources + 2)
    packs = {rank: state.packed() for rank, state in enumerate(states)}
    outcomes, _ = heal(group, packs, {sources: None, sources + 1: None})
    for newcomer, received in zip(newcomers, outcomes[sources:], strict=True):
        newcomer.forget()
        newcomer.unpack(received.state, Version(1, 3), 2)
        assert newcomer.digest() == states[0].digest()
        assert received.sources == set(range(sources))
        assert (received.kept, received.damaged) == (0, [])
    shares = [sum(chunk_of(tag) is not None for s, _, tag, _ in group.sent if s == rank) for rank in range(sources)]
    assert max(shares) - min(shares) <= 2
    assert sum(shares) == 2 * len(packs[0].shared)


@pytest.mark.usefixtures("small_chunks")
def test_who_got_a_part_of_a_state_asks_only_for_the_rest() -> None:
    packs = {rank: trained(0)[0].packed() for rank in range(3)}
    total = len(packs[0].shared)
    assert total > 6
    group = Group(4)

    def die(source: int, receiver: int, tag: int, tensor: torch.Tensor) -> None:
        if chunk_of(tag) is not None and chunk_of(tag) >= total - 3:  # type: ignore[operator]
            group.break_off()

    group.spoil = die
    outcomes, kept = heal(group, packs, {3: None})
    assert all(isinstance(outcome, Interrupted) for outcome in outcomes)
    have, count = kept[3].bytes, len(kept[3].have)
    assert 0 < count < total
    again = Group(3)
    outcomes, _ = heal(again, {0: packs[1], 1: packs[2]}, {2: kept[3]})
    received = outcomes[2]
    assert received.kept == have
    assert sum(chunk_of(tag) is not None for _, _, tag, _ in again.sent) == total - count
    newcomer = worker(5)[0]
    newcomer.unpack(received.state, Version(1, 3), 2)
    assert newcomer.digest() == trained(0)[0].digest()


@pytest.mark.usefixtures("small_chunks")
def test_a_part_of_another_version_or_layout_is_of_no_use() -> None:
    packed = trained(0)[0].packed()
    for version, signature in ((Version(1, 2), packed.signature), (Version(1, 3), packed.signature + 1)):
        stale = Partial(version, signature, packed.shared, set(range(len(packed.shared))))
        (_, received), kept = heal(Group(2), {0: packed}, {1: stale})
        assert received.kept == 0
        assert kept[1] is not stale


@pytest.mark.usefixtures("small_chunks")
def test_a_damaged_chunk_comes_again_from_another_source_and_the_sender_is_named() -> None:
    packs = {rank: trained(0)[0].packed() for rank in range(3)}
    group = Group(4)

    def flip(source: int, receiver: int, tag: int, tensor: torch.Tensor) -> None:
        if source == 1 and chunk_of(tag) is not None:
            tensor[-1] ^= 4

    group.spoil = flip
    outcomes, _ = heal(group, packs, {3: None})
    received = outcomes[3]
    assert set(received.damaged) == {1}
    assert digest(received.state["registered"]) == trained(0)[0].digest()
    again = [(s, tag) for s, _, tag, _ in group.sent if chunk_of(tag) is not None]
    assert {s for s, tag in again[len(packs[0].shared) :]} == {2}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("shared", [True, False])
def test_what_always_comes_damaged_ends_the_generation(shared: bool) -> None:
    group = Group(2)

    def flip(source: int, receiver: int, tag: int, tensor: torch.Tensor) -> None:
        if chunk_of(tag) is not None if shared else (tag == 0 and tensor.dtype == torch.int64):
            tensor[-1] ^= 1

    group.spoil = flip
    outcomes, _ = heal(group, {0: trained(0)[0].packed()}, {1: None})
    assert all(isinstance(outcome, Interrupted) for outcome in outcomes)
    assert "damaged" in str(outcomes[1])


@pytest.mark.usefixtures("small_chunks")
def test_a_source_whose_state_is_laid_out_differently_takes_no_part() -> None:
    other, _, _ = trained(0)
    other.register("more", nn.Linear(1, 1))
    packs = {0: trained(0)[0].packed(), 1: other.packed(), 2: trained(0)[0].packed()}
    outcomes, _ = heal(Group(4), packs, {3: None})
    assert outcomes[3].sources == {0, 2}


def test_what_may_differ_between_peers_comes_from_one() -> None:
    states = [trained(0) for _ in range(2)]
    for number, (_, model, _) in enumerate(states):
        model[1].running_mean.fill_(number)  # type: ignore[index]
    packs = {rank: state.packed() for rank, (state, _, _) in enumerate(states)}
    assert packs[0].signature == packs[1].signature
    outcomes, _ = heal(Group(3), packs, {2: None})
    assert set(outcomes[2].state["registered"]["model"]["1.running_mean"].tolist()) == {0.0}


def test_shares_are_fair_and_the_next_source_takes_over_what_failed() -> None:
    shipments = share_out({3: [0, 1, 2, 3], 4: [0, 1]}, [0, 1, 2], {})
    assert [(s.source, s.receiver, s.chunk) for s in shipments] == [
        (0, 3, 0), (1, 4, 0), (1, 3, 1), (2, 4, 1), (2, 3, 2), (0, 3, 3),
    ]  # fmt: skip
    assert share_out({3: [2]}, [0, 1, 2], {(3, 2): 2}) == [Shipment(0, 3, 2)]
    assert share_out({3: []}, [0], {}) == []


def test_a_healed_worker_continues_exactly_as_its_source() -> None:
    (source, model, optimizer), (newcomer, its_model, its_optimizer) = trained(0), worker(1)
    newcomer.forget()
    outcomes, _ = heal(Group(2), {0: source.packed()}, {1: None})
    newcomer.unpack(outcomes[1].state, Version(1, 3), 2)
    assert newcomer.digest() == source.digest()
    for net, opt in ((model, optimizer), (its_model, its_optimizer)):
        net(torch.ones(8, 4) * 0.5).square().sum().backward()
        opt.step()
    assert newcomer.digest() == source.digest()
    assert (newcomer.committed, newcomer.ready, newcomer.pristine) == (Version(1, 3), 2, False)


def test_peers_that_registered_different_things_are_told_so() -> None:
    (source, _, _), (newcomer, _, _) = worker(0), worker(1)
    newcomer.register("more", nn.Linear(1, 1))
    with pytest.raises(RegistrationError, match="more"):
        newcomer.unpack(source.pack(), Version(1, 0), 1)


@pytest.mark.parametrize("value", [3, object(), "text"])
def test_what_has_no_state_cannot_be_registered(value: object) -> None:
    with pytest.raises(RegistrationError, match="state_dict"):
        State().register("thing", value)


def test_a_retry_starts_from_the_same_random_state_and_buffers() -> None:
    state, model, _ = worker(0)
    state.keep(Version(1, 0), 1)
    state.begin_attempt()
    first = (torch.rand(3), model(torch.randn(8, 4)).detach())
    state.keep(Version(1, 0), 2)
    state.begin_attempt()
    again = (torch.rand(3), model(torch.randn(8, 4)).detach())
    assert digest(first) == digest(again)
    assert int(model[1].num_batches_tracked) == 1  # type: ignore[index]


def test_a_roll_forward_keeps_what_the_attempt_did_to_buffers_and_random_state() -> None:
    state, model, optimizer = worker(0)
    state.keep(Version(1, 0), 1)
    state.begin_attempt()
    model(torch.randn(8, 4)).square().sum().backward()
    state.prepare(Version(1, 1), Update(optimizer, samples=(4, 5)))
    after = torch.get_rng_state()
    update = state.commit()
    assert update.samples == (4, 5)
    assert state.committed == Version(1, 1)
    assert state.prepared is None
    assert torch.equal(torch.get_rng_state(), after)
    assert all(p.grad is None for p in model.parameters())


def test_snapshot_puts_numpys_and_pythons_random_state_back() -> None:
    import random

    import numpy

    snapshot = Snapshot([])
    first = (random.random(), numpy.random.random())
    snapshot.restore()
    assert (random.random(), numpy.random.random()) == first


def test_digest_sees_every_bit_and_no_order_of_keys() -> None:
    a = {"x": torch.zeros(2), "y": [1]}
    assert digest(a) == digest({"y": [1], "x": torch.zeros(2)})
    assert digest(a) != digest({"x": torch.zeros(2), "y": [2]})
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    assert digest(torch.zeros(2)) != digest(torch.zeros(1, 2))


def test_a_state_that_was_dropped_for_healing_is_no_longer_what_the_script_built() -> None:
    state, model, optimizer = worker(0)
    state.keep(Version(1, 0), 1)
    assert state.pristine
    state.forget()
    assert state.pristine, "the healing broke off before the first byte was taken over"
    state.keep(Version(2, 0), 2)
    model(torch.randn(8, 4)).sum().backward()
    state.prepare(Version(2, 1), Update(optimizer))
    state.commit()
    state.forget()
    assert state.committed is None
    assert not state.pristine
    source, _, _ = worker(1)
    state.unpack(source.pack(), Version(3, 0), 3)
    assert state.pristine


def test_a_retry_after_unscaling_unscales_again() -> None:
    state, model, optimizer = worker(0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    state.register("scaler", scaler)
    state.keep(Version(1, 0), 1)
    for generation in (2, 3):
        state.begin_attempt()
        scaler.scale(model(torch.randn(8, 4)).square().sum()).backward()
        state.unscaled_by(scaler)
        scaler.unscale_(optimizer)
        state.keep(Version(1, 0), generation)
    assert scaler.get_scale() == 4.0
    scaler.scale(model(torch.randn(8, 4)).square().sum()).backward()
    state.unscaled_by(scaler)
    scaler.unscale_(optimizer)
    state.prepare(Version(3, 1), Update(optimizer, scaler=scaler))
    state.commit()
    assert state.step == 1
