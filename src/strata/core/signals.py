"""What the coordinator notices without being asked for anything: beats and broken connections.

Signals go the same way as commands, in the order in which they came, but they are not recorded:
they change what the coordinator knows about who is alive (see `liveness`).
"""

from msgspec import Struct

from strata.core.workers import Reported


class Beat(Struct, frozen=True):
    """What a worker says of itself; `waiting` means that it waits for others.

    `request` is the open request for a checkpoint, 0 while a save of its own is under way (see
    `save_points`); `busy_s` is how long its part of a step takes, if it tells (see `pace`).
    """

    attempt: int = 0
    generation: int = 0
    step: int = -1
    training: bool = False
    waiting: bool = False
    request: int = 0
    busy_s: float = 0.0


class Signal(Struct, frozen=True, gc=False):
    """Base of every signal."""


class WorkerBeat(Signal, frozen=True):
    """A worker gave a sign of life; `state` is what it is doing, if it says."""

    worker: str
    incarnation: int
    beat: Beat
    state: Reported | None = None


class WorkerDisconnected(Signal, frozen=True):
    """The connection of a worker broke."""

    worker: str
    incarnation: int


class AgentBeat(Signal, frozen=True):
    """An agent gave a sign of life."""

    agent: str
    incarnation: int


class AgentDisconnected(Signal, frozen=True):
    """The connection of an agent broke."""

    agent: str
    incarnation: int
