"""Limits on unanswered requests, in messages and bytes: per session and for all sessions.

A request counts with its size from its submission until its answer. Each session has a limit, and
all sessions share another; a few kilobytes of each session are exempt from the shared limit, so
that a small request is always accepted, whatever other sessions have sent.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from strata.coordinator.engine.inbox import Reply
from strata.errors import Overloaded, StrataError

MAX_MESSAGES = 256
MAX_BYTES = 8 * 1024 * 1024
EXEMPT_BYTES = 16 * 1024
SHARED_BYTES = 256 * 1024 * 1024

Message = TypeVar("Message")


class SharedBacklog:
    """Bytes of the unanswered requests of all sessions."""

    def __init__(self, max_bytes: int = SHARED_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0


class Backlog:
    """Unanswered requests of one session."""

    def __init__(
        self, shared: SharedBacklog, max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
    ) -> None:
        self._shared = shared
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self.messages = 0
        self.held_bytes = 0

    def submit(self, size_bytes: int, put: Callable[[Reply], None], reply: Reply) -> None:
        """Pass a request to `put` and count it until it is answered; raises above a limit."""
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
        """Count one more message; raises `Overloaded` above a limit."""
        if self.messages >= self._max_messages:
            raise Overloaded(
                f"{self.messages} requests of this session are unanswered",
                hint="wait for answers before sending more",
            )
        held_bytes = self.held_bytes + size_bytes
        if self.messages and held_bytes > self._max_bytes:
            raise Overloaded(
                f"the unanswered requests of this session have {held_bytes} bytes; the limit is "
                f"{self._max_bytes}",
                hint="wait for answers before sending more",
            )
        shared = self._shared
        if held_bytes > EXEMPT_BYTES and shared.held_bytes + size_bytes > shared.max_bytes:
            raise Overloaded(
                f"the unanswered requests of all sessions have {shared.held_bytes} bytes; the "
                f"limit is {shared.max_bytes}",
                hint="try again in a moment",
            )
        self.messages += 1
        self.held_bytes = held_bytes
        shared.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Stop counting a message that was answered or dropped."""
        self.messages -= 1
        self.held_bytes -= size_bytes
        self._shared.held_bytes -= size_bytes


class Postponed(Generic[Message]):
    """Messages kept for later processing; they count in a session's backlog."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._kept: list[tuple[Message, int]] = []

    def keep(self, message: Message, size_bytes: int) -> None:
        """Keep a message; raises `Overloaded` above a limit."""
        self._backlog.take(size_bytes)
        self._kept.append((message, size_bytes))

    def take(self) -> list[Message]:
        """Remove and return all kept messages."""
        kept, self._kept = self._kept, []
        for _, size_bytes in kept:
            self._backlog.give_back(size_bytes)
        return [message for message, _ in kept]
