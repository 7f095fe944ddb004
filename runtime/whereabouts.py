"""Where a worker is at present, as its script asks: ranks, sizes, generation, step."""

from __future__ import annotations

from reknit.rendezvous.layout import job_layout
from reknit.rendezvous.records import Coordinate
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.recovery import Recovery
from reknit.runtime.recovery.state import State
from reknit.runtime.settings import WorkerSettings


class Whereabouts:
    """The part of a job that answers these questions.  Some answers wait until this worker is in a generation."""

    settings: WorkerSettings | None
    state: State
    recovery: Recovery
    _coordinate_index: int

    @property
    def coordinate(self) -> Coordinate:
        """This worker's place within a replica; it never changes while the process lives."""
        return self._settings.axes.coordinate(self._coordinate_index)

    @property
    def pipeline_size(self) -> int:
        """How many pipeline stages a replica has."""
        return self._settings.pipe

    @property
    def model_size(self) -> int:
        """How many workers share one stage (tensor parallel)."""
        return self._settings.model

    @property
    def replica(self) -> int:
        """This replica's index among the present ones, dense from 0."""
        return self._present().data_rank

    @property
    def replicas(self) -> int:
        """How many replicas take part in the present generation."""
        return len(self._present().view.peers)

    @property
    def rank(self) -> int:
        """This worker's dense rank in the whole job at present: a replica's ranks are contiguous."""
        layout = job_layout(self.replicas, self.pipeline_size, self.model_size)
        return layout.rank(data=self.replica, **self.coordinate._asdict())

    @property
    def world_size(self) -> int:
        """How many workers have a place at present."""
        return self.replicas * self._settings.axes.size

    @property
    def generation(self) -> int:
        """The generation that this worker is in, 0 between generations."""
        groups = self.recovery.groups
        return groups.generation if groups is not None else 0

    @property
    def step(self) -> int:
        """Committed steps of the job.

        Once something is registered this waits, if need be, until this worker is in a generation: so a loop's condition
        `job.step < steps` is about the job, not about a newcomer that has not been healed yet.
        """
        if self.state.registered:
            self._present()
        return self.state.step

    @property
    def _settings(self) -> WorkerSettings:
        assert self.settings is not None
        return self.settings

    def _present(self) -> Groups:
        return self.recovery.groups or self._enter()

    def _enter(self) -> Groups:
        raise NotImplementedError
