"""What waits for an answer, counted in messages and in bytes: of one session, and of all together.

A request costs its size from when it is submitted until it is answered. A session has a bound of
its own, and all sessions share one; a few kilobytes of each session are exempt from the shared
bound, so that a small request always finds room, whatever others have sent.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from strata.coordinator.inbox import Reply
from strata.errors import Overloaded, StrataError

MAX_MESSAGES = 256
MAX_BYTES = 8 * 1024 * 1024
EXEMPT_BYTES = 16 * 1024
SHARED_BYTES = 256 * 1024 * 1024

Message = TypeVar("Message")


class SharedBacklog:
    """What waits for an answer in all sessions."""

    def __init__(self, max_bytes: int = SHARED_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0


class Backlog:
    """What waits for an answer in one session."""

    def __init__(
        self, shared: SharedBacklog, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._shared = shared
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.messages = 0
        self.held_bytes = 0

    def submit(self, size_bytes: int, put: Callable[[Reply], None], reply: Reply) -> None:
        """Hand a request to `put` and count it until it is answered; raises if it is too much."""
        self.take(size_bytes)

        def answered(answer: object, refusal: StrataError | None) -> None:
            self.give_back(size_bytes)
            reply(answer, refusal)

        try:
            put(answered)
        except BaseException:
            self.give_back(size_bytes)
            raise

    def take(self, size_bytes: int) -> None:
        """Count one more message; raises if that is too much."""
        if self.messages >= self._max_messages:
            raise Overloaded(
                f"{self.messages} requests of this session wait for their answers",
                hint="wait for answers before sending more",
            )
        held_bytes = self.held_bytes + size_bytes
        if self.messages and held_bytes > self._max_bytes:
            raise Overloaded(
                f"requests of {held_bytes} bytes of this session wait for their answers, "
                f"{self._max_bytes} may",
                hint="wait for answers before sending more",
            )
        shared = self._shared
        if held_bytes > EXEMPT_BYTES and shared.held_bytes + size_bytes > shared.max_bytes:
            raise Overloaded(
                f"requests of {shared.held_bytes} bytes of all sessions wait for their answers, "
                f"{shared.max_bytes} may",
                hint="try again in a moment",
            )
        self.messages += 1
        self.held_bytes = held_bytes
        shared.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """A message was answered, or is no longer kept."""
        self.messages -= 1
        self.held_bytes -= size_bytes
        self._shared.held_bytes -= size_bytes


class Postponed(Generic[Message]):
    """Messages that are kept until they can be acted upon; they count in a session's backlog."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._kept: list[tuple[Message, int]] = []

    def keep(self, message: Message, size_bytes: int) -> None:
        """Keep a message; raises if that is too much."""
        self._backlog.take(size_bytes)
        self._kept.append((message, size_bytes))

    def take(self) -> list[Message]:
        """Return all messages, which are no longer kept."""
        kept, self._kept = self._kept, []
        for _, size_bytes in kept:
            self._backlog.give_back(size_bytes)
        return [message for message, _ in kept]
