"""What a worker says when it opens a session: who it is, and which rounds of barriers it left last.

The coordinator tells a release before it is on disk. If it dies in between, it learns of the
release from those who left (see `core.barriers`).
"""

from msgspec import Struct

from strata.core.barriers import MAX_LEFT
from strata.wire.v1 import coordinator_pb2 as pb


class Identity(Struct, frozen=True):
    """Whom the coordinator takes us for, and the nonce that proves it."""

    worker_id: str
    incarnation: int
    nonce: str

    def __repr__(self) -> str:
        return f"Identity({self.worker_id!r}, {self.incarnation})"


class LeftBarriers:
    """The rounds of barriers that this incarnation was released from last."""

    def __init__(self) -> None:
        self._rounds: dict[str, pb.LeftBarrier] = {}

    def note(self, name: str, step: int, outcome: pb.WaitBarrierResponse) -> None:
        """The worker goes on after a release."""
        self._rounds.pop(name, None)
        self._rounds[name] = pb.LeftBarrier(
            barrier_id=name,
            round=outcome.round,
            generation=outcome.generation,
            participants=outcome.participants,
            step=step,
        )
        if len(self._rounds) > MAX_LEFT:
            del self._rounds[next(iter(self._rounds))]

    def round_of(self, name: str) -> int:
        """The round of a barrier that was left last; 0 for none."""
        found = self._rounds.get(name)
        return found.round if found is not None else 0

    def all(self) -> list[pb.LeftBarrier]:
        """What is said with a Hello."""
        return list(self._rounds.values())
