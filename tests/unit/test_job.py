"""What a script may ask of its job, as far as no agent is needed to say no."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from reknit.runtime.attempt import AttemptError
from reknit.runtime.errors import BackendRefused
from reknit.runtime.job import Job, NotUnderReknit, join


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("REKNIT_SOCKET", "/nowhere/agent.sock")
    return Job()


def test_without_an_agent_there_is_one_sentence_that_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REKNIT_SOCKET", raising=False)
    with pytest.raises(NotUnderReknit, match="reknit run"):
        join()


@pytest.mark.parametrize("name", ["step", "samples", "version", "event", "t", "type", "generation", "worker"])
def test_a_logged_number_cannot_take_the_events_own_field(job: Job, name: str) -> None:
    with pytest.raises(AttemptError, match=name):
        job.log(**{name: 1.0})


def test_numbers_are_logged_as_floats(job: Job) -> None:
    job.log(loss=torch.tensor(2.5), accuracy=1)
    job.log(loss=3)
    assert job._take_numbers() == {"loss": 3.0, "accuracy": 1.0}


def test_nccl_on_the_data_axis_is_refused_before_anything_is_touched(job: Job) -> None:
    module = nn.Linear(1, 1)
    with pytest.raises(BackendRefused, match="in place"):
        job.data_parallel(module, backend="nccl")
    assert list(job.trained.reductions()) == []


def optimizer_of(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)


def test_what_commit_steps_must_be_registered(job: Job) -> None:
    model = nn.Linear(2, 2)
    optimizer = optimizer_of(model)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    job.register(model=model)
    with pytest.raises(AttemptError, match=r"job.register\(optimizer=optimizer\)"):
        job.trained.check(optimizer, None, None)
    job.register(optimizer=optimizer)
    job.trained.check(optimizer, None, None)  # what comes with it in a later commit is looked at, too
    with pytest.raises(AttemptError, match="scheduler"):
        job.trained.check(optimizer, scheduler, None)
    with pytest.raises(AttemptError, match="scaler"):
        job.trained.check(optimizer, None, scaler)
    job.register(scheduler=scheduler, scaler=scaler)
    job.trained.check(optimizer, scheduler, scaler)


def test_every_trained_parameter_must_be_reduced_by_somebody(job: Job) -> None:
    model, forgotten = nn.Linear(2, 2), nn.Linear(3, 3)
    optimizer = optimizer_of(model, forgotten)
    job.register(model=model, optimizer=optimizer)
    with pytest.raises(AttemptError, match="2 of the optimizer's parameters"):
        job.trained.check(optimizer, None, None)
    job.data_parallel(forgotten)
    job.trained.check(optimizer, None, None)
