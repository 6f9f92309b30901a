"""What waits to be written to one connection, and what waits to be answered.

Putting something into the outbox never blocks: gRPC takes from it in a thread of its own, as fast
as the connection allows. A request is kept until its answer comes and is put into the next
connection's outbox when this one breaks; every request of the protocol may be asked twice.
"""

from collections.abc import Iterator
from queue import SimpleQueue

from strata.errors import StrataError
from strata.sdk.channel import delays_s
from strata.wire.v1 import coordinator_pb2 as pb


class Outbox:
    """The messages of one connection, in order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[pb.WorkerMessage | None] = SimpleQueue()

    def put(self, message: pb.WorkerMessage) -> None:
        """Adds a message."""
        self._queue.put(message)

    @property
    def backlog(self) -> int:
        """How many messages the connection has not taken yet."""
        return self._queue.qsize()

    def close(self) -> None:
        """Ends the connection's messages after those that wait."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[pb.WorkerMessage]:
        while (message := self._queue.get()) is not None:
            yield message


class Request:
    """Something asked; exactly one of `answer` and `error` is set once it is done."""

    def __init__(self, message: pb.WorkerMessage, kind: str, barrier: str = "") -> None:
        self.message = message
        self.kind = kind
        self.barrier = barrier
        self.answer: pb.CoordinatorMessage | None = None
        self.error: StrataError | None = None
        self.delays = delays_s(0.1)

    @property
    def done(self) -> bool:
        """Whether it was answered, refused or given up."""
        return self.answer is not None or self.error is not None
