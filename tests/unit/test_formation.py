"""A replica's own groups: what NCCL would be asked, and in which order.  NCCL itself needs GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reknit.rendezvous.records import Name, Place, Replica
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery import formation
from reknit.runtime.recovery.formation import FormationId, choose_backend, form


def replica(size: int, formed: int = 3, slot: int = 1) -> Replica:
    return Replica(slot, formed, tuple(Place(Name(f"w{i}", "a"), "h", "127.0.0.1:1", formed) for i in range(size)))


class Nccl:
    """torch.distributed with NCCL, as far as a formation asks it: writes down what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.initialized = False
        monkeypatch.setattr(dist, "init_process_group", self.init)
        monkeypatch.setattr(dist, "is_initialized", lambda: self.initialized)
        monkeypatch.setattr(dist, "destroy_process_group", lambda: self.drop("destroy"))
        monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda group: self.drop("abort"))
        monkeypatch.setattr(dist, "PrefixStore", lambda prefix, store: f"{prefix} on {store}")
        monkeypatch.setattr(formation, "_world", lambda: "the group")

    def init(self, backend: str, *, store: Any, rank: int, world_size: int, **rest: Any) -> None:
        assert not self.initialized
        self.initialized = True
        self.calls.append(f"init {backend} {rank}/{world_size} {store}")

    def drop(self, how: str) -> None:
        """torch's abort, too, forgets the default group."""
        assert self.initialized
        self.calls.append(how)
        self.initialized = False

    def form(self, generation: int, size: int = 2) -> formation.Formation:
        def connect(*_: Any) -> Any:
            raise AssertionError("NCCL builds no gloo group")

        def store() -> Any:
            self.calls.append("store")
            return "a fresh store"

        return form(replica(size), generation, 1, "nccl", connect, store, torch.device("cpu"))


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Nccl:
    return Nccl(monkeypatch)


def test_a_formation_is_made_on_a_prefix_of_its_own(nccl: Nccl) -> None:
    first = nccl.form(3)
    first.end()
    second = nccl.form(4)
    assert nccl.calls == [
        "store", "init nccl 1/2 formation/3/1 on a fresh store", "abort",
        "store", "init nccl 1/2 formation/4/1 on a fresh store",
    ]  # fmt: skip
    assert first.group_identity != second.group_identity


def test_it_is_aborted_once_which_takes_it_apart(nccl: Nccl) -> None:
    made = nccl.form(3)
    nccl.calls.clear()
    made.interrupt()
    assert nccl.calls == ["abort"]
    assert made.lost_a_member()
    made.interrupt()
    made.end()
    made.end()
    assert nccl.calls == ["abort"]


def test_an_end_without_an_interrupt_aborts_too(nccl: Nccl) -> None:
    made = nccl.form(3)
    nccl.calls.clear()
    made.end()
    assert nccl.calls == ["abort"]


def test_an_abort_that_fails_does_not_stop_the_end(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(group: object) -> None:
        raise RuntimeError("no such communicator")

    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", fail)
    made = nccl.form(3)
    nccl.calls.clear()
    made.end()
    assert nccl.calls == ["destroy"]


def test_torchs_own_abort_leaves_nothing_to_destroy(monkeypatch: pytest.MonkeyPatch) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    made = formation.Formation(FormationId.of(replica(2)), 0, dist.group.WORLD, None)
    made.interrupt()
    made.end()
    assert not dist.is_initialized()


def test_a_failure_of_nccls_is_an_interruption(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise dist.DistBackendError("NCCL error: remote process exited")

    monkeypatch.setattr(dist, "init_process_group", fail)
    with pytest.raises(Interrupted, match="remote process exited"):
        nccl.form(3)


def test_a_script_with_a_default_group_of_its_own_is_told_so(nccl: Nccl) -> None:
    nccl.initialized = True
    with pytest.raises(formation.FormationError, match="init_process_group"):
        nccl.form(3)


@pytest.fixture
def one() -> Iterator[formation.Formation]:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a replica of one meets nobody")

    made = form(replica(1), 3, 0, "gloo", refuse, refuse, torch.device("cpu"))
    yield made
    made.end()


def test_a_replica_of_one_has_a_default_group_and_nobody_to_lose(one: formation.Formation) -> None:
    assert dist.get_world_size() == 1
    assert not one.lost_a_member()


def test_a_formation_is_its_members_and_the_generation_that_formed_it() -> None:
    here = FormationId.of(replica(2))
    assert here.same(FormationId.of(replica(2, slot=5)))
    assert not here.same(FormationId.of(replica(2, formed=4)))
    assert not here.same(FormationId.of(replica(3)))
    assert not here.same(None)
    assert str(here) == "1@3"


@pytest.mark.parametrize(
    ("devices", "workers", "expected"), [(0, 1, "gloo"), (1, 1, "nccl"), (1, 2, "gloo"), (8, 8, "nccl")]
)
def test_auto_is_nccl_only_where_each_worker_has_a_device(
    devices: int, workers: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert choose_backend("auto", workers) == expected
    assert choose_backend("gloo", workers) == "gloo"
    assert choose_backend("nccl", workers) == "nccl"
