"""A state that went over a wire is the same, bit by bit."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import nn

from reknit.rendezvous.records import Version
from reknit.runtime.recovery import healing
from reknit.runtime.recovery.digest import digest
from reknit.runtime.recovery.randomness import Snapshot
from reknit.runtime.recovery.state import RegistrationError, State, Update


class Wire:
    """Messages of one sender to one receiver; as gloo, it insists on equal sizes."""

    def __init__(self) -> None:
        self.messages: collections.deque[torch.Tensor] = collections.deque()

    def send(self, tensor: torch.Tensor, destination: int, tag: int = 0) -> None:
        self.messages.append(tensor.clone())

    def recv(self, tensor: torch.Tensor, source: int, tag: int = 0) -> None:
        message = self.messages.popleft()
        assert message.shape == tensor.shape
        assert message.dtype == tensor.dtype
        tensor.copy_(message)


def worker(seed: int) -> tuple[State, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    state = State()
    state.register("model", model)
    state.register("optimizer", optimizer)
    return state, model, optimizer


def test_every_kind_of_value_arrives() -> None:
    value: dict[str, Any] = {
        "a": torch.randn(3, 2), "b": torch.tensor(2.5, dtype=torch.float64), "c": [1, "x", None, (2.0, True)],
        "d": torch.randn(4, 6).t(),
        "e": torch.zeros(0, 3), "f": torch.randn(5).bfloat16(), "g": nn.Parameter(torch.ones(2)),
        "h": torch.randint(0, 9, (40,), dtype=torch.int8),
    }  # fmt: skip
    wire = Wire()
    sent = healing.send_state(wire, 1, value)
    received, count = healing.receive_state(wire, 0)
    assert digest(received) == digest({**value, "g": value["g"].detach()})
    assert sent == count > 0
    assert not wire.messages


def test_large_tensors_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "CHUNK_BYTES", 1000)
    wire, value = Wire(), torch.randn(1111)
    healing.send_state(wire, 1, value)
    assert max(m.numel() for m in wire.messages) <= 1000
    assert torch.equal(healing.receive_state(wire, 0)[0], value)


def test_a_healed_worker_continues_exactly_as_its_source() -> None:
    (source, model, optimizer), (newcomer, its_model, its_optimizer) = worker(0), worker(1)
    source.keep(Version(1, 0), 1)
    for _ in range(3):
        model(torch.randn(8, 4)).square().sum().backward()
        source.prepare(Version(1, source.step + 1), Update(optimizer))
        source.commit()
    wire = Wire()
    newcomer.forget()
    healing.send_state(wire, 1, source.pack())
    newcomer.unpack(healing.receive_state(wire, 0)[0], Version(1, 3), 2)
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
