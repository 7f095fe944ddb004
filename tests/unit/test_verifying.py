"""Who differs, and what a checksum sees."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reknit.runtime.recovery.checksum import ROW, checksum, combined
from reknit.runtime.recovery.state import State
from reknit.runtime.recovery.verifying import Verdict, is_due, judge


@pytest.mark.parametrize(
    ("sums", "verdict"),
    [
        ([7], Verdict((), True)),
        ([7, 7], Verdict((), True)),
        ([7, 8], Verdict((0, 1), False)),
        ([7, 8, 7], Verdict((1,), True)),
        ([7, 8, 9], Verdict((0, 1, 2), False)),
        ([8, 7, 7, 9, 7], Verdict((0, 3), True)),
        ([7, 7, 8, 8], Verdict((0, 1, 2, 3), False)),
        ([7, 7, 8, 9], Verdict((0, 1, 2, 3), False)),
    ],
)
def test_a_minority_is_named_and_without_a_majority_everybody_is(sums: list[int], verdict: Verdict) -> None:
    assert judge(sums) == verdict


def test_when_it_is_due() -> None:
    assert [step for step in range(9) if is_due(4, step)] == [4, 8]
    assert not any(is_due(0, step) for step in range(9))
    assert [step for step in range(9) if is_due(2, step, excused=4)] == [2, 6, 8], "nobody is healed twice for a step"


@given(st.integers(0, 3 * ROW * 8 + 5), st.data())
def test_a_checksum_sees_every_flipped_bit_and_the_length(size: int, data: st.DataObject) -> None:
    raw = torch.arange(size, dtype=torch.int64).mul_(37).to(torch.uint8)
    before = checksum(raw)
    assert checksum(raw.clone()) == before
    assert checksum(torch.cat([raw, torch.zeros(1, dtype=torch.uint8)])) != before
    if size:
        at = data.draw(st.integers(0, size - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
        assert checksum(raw) != before


def test_a_checksum_sees_the_order() -> None:
    words = torch.arange(4 * ROW, dtype=torch.int64)
    swapped = words.clone()
    swapped[[1, ROW]] = words[[ROW, 1]]
    assert checksum(words.view(torch.uint8)) != checksum(swapped.view(torch.uint8))
    assert combined([1, 2]) != combined([2, 1])
    assert checksum(torch.zeros(17, dtype=torch.uint8)[1:]) == checksum(torch.zeros(16, dtype=torch.uint8))


def made() -> tuple[State, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = State()
    state.register("model", model)
    state.register("optimizer", optimizer)
    return state, model


def test_parameters_and_optimizer_state_are_compared_and_what_may_differ_is_not() -> None:
    (one, _), (other, model) = made(), made()
    assert one.checksum() == other.checksum()
    model[1].running_mean.add_(1)  # type: ignore[index]
    torch.rand(1)
    assert one.checksum() == other.checksum()
    with torch.no_grad():
        next(model.parameters()).view(-1).view(torch.int32)[3] ^= 1
    assert one.checksum() != other.checksum()
    third, _ = made()
    moments = third.registered["optimizer"].state[next(third.registered["model"].parameters())]  # type: ignore[attr-defined]
    moments["exp_avg"][0, 0] += 1
    assert one.checksum() != third.checksum()
