"""What the agent tells its workers about the job: one frozen value, sent once, when a worker gets its coordinate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.records import Axes


@dataclass(frozen=True)
class WorkerSettings:
    """Times in seconds.  `address` is this host's, as the other members reach it."""

    job: str
    pipe: int
    model: int
    max_replicas: int
    pipe_backend: str
    address: str
    connect: float
    keepalive_idle: int
    keepalive_interval: int
    keepalive_probes: int
    user_timeout: float
    events: bool  # whether anybody reads what each step consumed
    verify_every: int = 0  # steps between two comparisons of the replicas' states; 0: never
    verify_policy: str = "heal"  # what becomes of a replica that differs: heal or evict
    hang: float = 30.0  # after this long, who lets others wait counts as hung

    @property
    def axes(self) -> Axes:
        """The job's fixed axes."""
        return Axes(self.pipe, self.model)

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def decode(cls, value: Any) -> WorkerSettings:
        """From JSON; RecordError if it does not fit this version."""
        try:
            return cls(**value)
        except TypeError as error:
            raise RecordError(f"the agent's settings do not fit this version of reknit: {error}") from None
