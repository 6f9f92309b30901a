"""Limits on unanswered requests of one session and of all sessions."""

import pytest

from strata.coordinator.sessions.backlog import EXEMPT_BYTES, Backlog, Postponed, SharedBacklog
from strata.errors import Overloaded

KILOBYTE = 1024


class Engine:
    """An engine that answers when the test says so."""

    def __init__(self) -> None:
        self.replies = []

    def put(self, reply) -> None:
        self.replies.append(reply)


def filled(backlog: Backlog, *sizes: int) -> Engine:
    engine = Engine()
    for size in sizes:
        backlog.submit(size, engine.put, lambda answer, refusal: None)
    return engine


def test_messages_of_a_session_are_bounded():
    backlog = Backlog(SharedBacklog(), max_messages=3)
    engine = filled(backlog, 1, 1, 1)
    with pytest.raises(Overloaded, match="3 requests of this session"):
        filled(backlog, 1)
    engine.replies[0](None, None)
    filled(backlog, 1)


def test_bytes_of_a_session_are_bounded():
    backlog = Backlog(SharedBacklog(), max_bytes=1_000)
    engine = filled(backlog, 600, 300)
    with pytest.raises(Overloaded, match="of this session have 1100 bytes"):
        filled(backlog, 200)
    engine.replies[1](None, None)
    filled(backlog, 200)
    assert (backlog.messages, backlog.held_bytes) == (2, 800)


def test_single_message_of_any_size_is_accepted():
    backlog = Backlog(SharedBacklog(), max_bytes=1_000)
    filled(backlog, 5_000)
    with pytest.raises(Overloaded):
        filled(backlog, 1)


def test_bytes_of_all_sessions_are_bounded_except_small_requests():
    shared = SharedBacklog(max_bytes=100 * KILOBYTE)
    engine = filled(Backlog(shared), 50 * KILOBYTE, 50 * KILOBYTE)
    other = Backlog(shared)
    filled(other, *[KILOBYTE] * (EXEMPT_BYTES // KILOBYTE))
    with pytest.raises(Overloaded, match="of all sessions"):
        filled(other, KILOBYTE)
    engine.replies[0](None, None)
    filled(other, KILOBYTE)


def test_bytes_are_released_before_the_answer():
    backlog, replies = Backlog(SharedBacklog()), []
    engine = Engine()
    refusal = Overloaded("no")
    backlog.submit(10, engine.put, lambda *given: replies.append((*given, backlog.held_bytes)))
    engine.replies[0]("answer", refusal)
    assert replies == [("answer", refusal, 0)]


def test_request_that_could_not_be_queued_is_not_counted():
    shared = SharedBacklog()
    backlog = Backlog(shared)

    def full(reply) -> None:
        raise Overloaded("the inbox is full")

    with pytest.raises(Overloaded, match="inbox"):
        backlog.submit(10, full, lambda answer, refusal: None)
    assert (backlog.messages, backlog.held_bytes, shared.held_bytes) == (0, 0, 0)


def test_postponed_messages_count_until_they_are_taken():
    backlog = Backlog(SharedBacklog(), max_bytes=100)
    postponed = Postponed(backlog)
    postponed.keep("a", 60)
    postponed.keep("b", 30)
    with pytest.raises(Overloaded):
        postponed.keep("c", 30)
    assert (backlog.messages, backlog.held_bytes) == (2, 90)
    assert postponed.take() == ["a", "b"]
    assert (backlog.messages, backlog.held_bytes) == (0, 0)
    assert postponed.take() == []
