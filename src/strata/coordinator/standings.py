"""Standings as they are sent: what the workers of a task share is encoded once for each position.

A standing depends on nothing but the state, so what was encoded holds until the next fact. After a
change all members of a task are told at one position; after a restart of the coordinator those that
reconnect in the same turn are.
"""

from strata.coordinator.tokens import PeerTokens
from strata.core.standing import task_standing
from strata.core.state import Cluster
from strata.wire.grpc_call import frame
from strata.wire.standing_encoder import StandingEncoder


class StandingMessages:
    """Makes the standings that sessions send."""

    def __init__(self, tokens: PeerTokens) -> None:
        self._tokens = tokens
        self._state: Cluster | None = None
        self._position = -1
        self._encoders: dict[str, StandingEncoder] = {}

    def framed(self, state: Cluster, worker_id: str, stored_seq: int) -> bytes:
        """The standing of a registered worker, for `Stream.send_raw`."""
        worker = state.workers[worker_id]
        return frame(self._encoder(state, worker.task).message(worker, stored_seq))

    def _encoder(self, state: Cluster, task_id: str) -> StandingEncoder:
        # Positions are used again when a turn was not stored; the state is another one then.
        if state is not self._state or state.position != self._position:
            self._encoders.clear()
            self._state, self._position = state, state.position
        encoder = self._encoders.get(task_id)
        if encoder is None:
            task = state.tasks[task_id]
            token = self._tokens.of(task_id, task.generation)
            encoder = StandingEncoder(task, task_standing(task), token)
            self._encoders[task_id] = encoder
        return encoder
