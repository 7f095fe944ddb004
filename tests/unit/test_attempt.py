"""What a commit agrees on within a replica before the vote: the norm of all gradients, and an overflow anywhere."""

from __future__ import annotations

import math

import pytest
import torch
from tests.unit.rounds import replica, together
from torch import nn

from reknit.runtime.attempt import _agree_on_overflow, _clip
from reknit.runtime.recovery.control import ReplicaRounds


def parameters(*gradients: float) -> list[nn.Parameter]:
    made = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(2, 2))
        parameter.grad = torch.full((2, 2), gradient)
        made.append(parameter)
    return made


def gradients(of: list[nn.Parameter]) -> list[torch.Tensor]:
    return [p.grad for p in of if p.grad is not None]


@pytest.mark.parametrize("limit", [0.5, 1000.0])
def test_stages_clip_by_the_norm_of_the_whole_model_as_torch_does_on_one_process(limit: float) -> None:
    first, last, whole = parameters(1.0, -2.0), parameters(3.0), parameters(1.0, -2.0, 3.0)
    torch.nn.utils.clip_grad_norm_(whole, limit)
    a, b = replica(2)
    together(lambda: _clip(a, first, limit, 0), lambda: _clip(b, last, limit, 0))
    for mine, expected in zip([*gradients(first), *gradients(last)], gradients(whole), strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_stage_without_gradients_takes_part_in_the_norm() -> None:
    a, b = replica(2)
    one = parameters(3.0)
    assert together(lambda: _clip(a, one, 1.0, 0), lambda: _clip(b, [], 1.0, 0)) == [None, None]
    assert float(gradients(one)[0].norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("mark", ["tensor_model_parallel", "model_parallel"])
def test_what_two_workers_hold_alike_counts_once_and_parts_count_each(mark: str) -> None:
    """One bias that both have, one weight of which each has a half, and one that another stage counts."""
    one, other, whole = parameters(2.0, 1.0), parameters(2.0, 3.0), parameters(2.0, 1.0, 3.0)
    for parameter in (one[1], other[1]):
        setattr(parameter, mark, True)
    tied = parameters(100.0)
    tied[0].shared = True  # type: ignore[attr-defined]
    torch.nn.utils.clip_grad_norm_(whole, 0.5)
    a, b = replica(2)
    together(lambda: _clip(a, [*one, *tied], 0.5, 0), lambda: _clip(b, other, 0.5, 1))
    bias, first, second = gradients(whole)
    for mine, theirs in zip([*gradients(one), *gradients(other)], [bias, first, bias, second], strict=True):
        torch.testing.assert_close(mine, theirs)


LARGE = 3e38  # finite, but not the sum of four


@pytest.mark.parametrize("bad", [math.inf, math.nan, LARGE])
def test_an_overflow_at_one_stage_makes_every_stages_scaler_skip(bad: float) -> None:
    first, last = parameters(1.0, 2.0), parameters(bad)
    a, b = replica(2)
    together(lambda: _agree_on_overflow(a, first), lambda: _agree_on_overflow(b, last))
    for stage in (first, last):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        scaler.scale(torch.ones(1))
        optimizer = torch.optim.SGD(stage, lr=1.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert all(torch.equal(p, torch.zeros(2, 2)) for p in stage), "the step is skipped"
        assert scaler.get_scale() == 1.0


def test_without_an_overflow_nothing_changes() -> None:
    alone = parameters(1.0)
    _agree_on_overflow(ReplicaRounds(None), alone)
    assert torch.equal(gradients(alone)[0], torch.ones(2, 2))
