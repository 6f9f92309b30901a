"""Guards how much may wait for an answer, in one session and in all sessions together."""

import pytest

from strata.coordinator.backlog import EXEMPT_BYTES, Backlog, Postponed, SharedBacklog
from strata.errors import Overloaded

KILOBYTE = 1024


class Engine:
    """Answers when it is told to."""

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
    with pytest.raises(Overloaded, match="1100 bytes of this session"):
        filled(backlog, 200)
    engine.replies[1](None, None)
    filled(backlog, 200)
    assert (backlog.messages, backlog.held_bytes) == (2, 800)


def test_single_message_passes_whatever_its_size():
    backlog = Backlog(SharedBacklog(), max_bytes=1_000)
    filled(backlog, 5_000)
    with pytest.raises(Overloaded):
        filled(backlog, 1)


def test_bytes_of_all_sessions_are_bounded_and_small_requests_pass():
    shared = SharedBacklog(max_bytes=100 * KILOBYTE)
    engine = filled(Backlog(shared), 50 * KILOBYTE, 50 * KILOBYTE)
    other = Backlog(shared)
    filled(other, *[KILOBYTE] * (EXEMPT_BYTES // KILOBYTE))
    with pytest.raises(Overloaded, match="of all sessions"):
        filled(other, KILOBYTE)
    engine.replies[0](None, None)
    filled(other, KILOBYTE)


def test_answer_reaches_whoever_asked_after_its_bytes_are_given_back():
    backlog, heard = Backlog(SharedBacklog()), []
    engine = Engine()
    refusal = Overloaded("no")
    backlog.submit(10, engine.put, lambda *given: heard.append((*given, backlog.held_bytes)))
    engine.replies[0]("answer", refusal)
    assert heard == [("answer", refusal, 0)]


def test_request_that_could_not_be_put_costs_nothing():
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
