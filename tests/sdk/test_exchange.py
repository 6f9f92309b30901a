"""`run.average`, also over TLS: one result for all, and a prompt end when a member is lost."""

import contextlib
import signal
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from strata.coordinator.sessions.peer_certificates import peer_certificate
from strata.core.workers.exchange_facts import PeerLagged
from strata.errors import InvalidArgument, Unavailable
from strata.sdk.peers import exchange_log
from strata.sdk.peers.exchange import HELLO, MAGIC, Exchange, LinkBroken
from strata.sdk.peers.exchange_log import ExchangeLog
from strata.sdk.peers.peer_encryption import peer_encryption
from strata.sdk.record.recorder import Recorder
from strata.sdk.session.channel import Address, MeetingPlace
from tests.sdk.harness import until

LEARNER = Path(__file__).with_name("learner.py")
TOKEN = "t" * 64
TLS_ALERT = b"\x15"


class Circle:
    """The members of a generation, each in its own thread."""

    def __init__(self, size: int, certificate: str = "") -> None:
        self.size = size
        self.certificate = certificate
        self.over = threading.Event()
        self.meeting = MeetingPlace(Address("127.0.0.1", 1, False))
        self.members: list[Exchange] = []
        self.pool = ThreadPoolExecutor(size)

    def meet(self, generation: int = 1) -> None:
        def enter(rank: int) -> Exchange:
            return Exchange(
                generation,
                rank,
                self.size,
                self.meeting.address,
                TOKEN,
                self.meeting,
                self.over.is_set,
                lambda: False,
                name=f"w{rank}",
                encryption=peer_encryption(self.certificate),
            )

        self.members = self.each(enter, range(self.size))

    def each(self, work, given):
        return [future.result(20) for future in [self.pool.submit(work, one) for one in given]]

    def average(self, values, weights=None):
        """Each member's result or exception."""

        def work(rank: int):
            weight = 1.0 if weights is None else weights[rank]
            try:
                return self.members[rank].average(values(rank), weight)
            except (LinkBroken, InvalidArgument) as error:
                self.members[rank].close()
                return error

        return self.each(work, range(self.size))

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.over.set()
        self.pool.shutdown()
        self.meeting.close()


@pytest.fixture(params=["plain", "encrypted"])
def circle(request):
    certificate = peer_certificate(b"s" * 32, "t") if request.param == "encrypted" else ""
    with contextlib.ExitStack() as stack:

        def form(size: int) -> Circle:
            formed = Circle(size, certificate)
            stack.callback(formed.close)
            return formed

        yield form


def test_all_members_get_the_same_weighted_mean(circle):
    members = circle(3)
    members.meet()
    found = members.average(
        lambda rank: {"a": np.full((2, 3), rank, np.float32), "b": [rank, (10.0 * rank,)]},
        weights=[1, 2, 3],
    )
    for each in found:
        assert each["a"].dtype == np.float32
        np.testing.assert_allclose(each["a"], 8 / 6)
        assert each["b"] == [pytest.approx(8 / 6), (pytest.approx(80 / 6),)]
    assert {each["a"].tobytes() for each in found} == {found[0]["a"].tobytes()}


@pytest.mark.parametrize("weights", [[1, 0], [0, 1]])
def test_member_without_samples_adds_nothing_even_if_its_mean_is_nan(circle, weights):
    members = circle(2)
    members.meet()
    found = members.average(
        lambda rank: np.array([2.0 if weights[rank] else np.nan]), weights=weights
    )
    assert [each.tolist() for each in found] == [[2.0], [2.0]]


def test_half_precision_is_summed_in_single(circle):
    members = circle(4)
    members.meet()
    (first, *_) = members.average(lambda rank: np.array([60_000], np.float16))
    assert first.dtype == np.float16
    assert float(first[0]) == pytest.approx(60_000, rel=1e-3)


def test_large_arrays_and_many_exchanges_go_through(circle):
    members = circle(2)
    members.meet()
    for number in range(20):
        (one, two) = members.average(lambda rank, n=number: np.full(200_000, n + rank, np.float64))
        assert one[0] == two[-1] == number + 0.5


def test_different_arrays_on_two_ranks_are_an_error(circle):
    members = circle(2)
    members.meet()
    leader, other = members.average(lambda rank: np.zeros(3 + rank))
    assert isinstance(leader, InvalidArgument)
    assert "of rank 1 is an average of 32 bytes" in leader.message
    assert "24 bytes" in leader.message
    assert isinstance(other, LinkBroken)


@pytest.mark.parametrize("values", ["text", np.array(["x"]), object()])
def test_value_that_is_not_a_number_is_an_error_before_sending(circle, values):
    members = circle(2)
    members.meet()
    with pytest.raises(InvalidArgument, match="cannot average"):
        members.members[1].average(values, 1.0)
    (one, _) = members.average(lambda rank: 1.0)
    assert one == 1.0


def test_weights_that_sum_to_zero_are_an_error(circle):
    members = circle(2)
    members.meet()
    found = members.average(lambda rank: 1.0, weights=[0.0, 0.0])
    assert isinstance(found[0], InvalidArgument)
    assert isinstance(found[1], LinkBroken)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * HELLO.size,
        HELLO.pack(MAGIC, 1, 1, b"f" * 64),  # another token
        HELLO.pack(MAGIC, 2, 1, TOKEN.encode()),  # another generation
        HELLO.pack(MAGIC, 1, 7, TOKEN.encode()),  # a rank that is not
    ],
)
def test_connection_without_the_token_is_closed(circle, words):
    members = circle(2)
    host, _, port = members.meeting.address.rpartition(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(words)
        stranger.shutdown(socket.SHUT_WR)
        members.meet()
        assert members.average(lambda rank: float(rank)) == [0.5, 0.5]
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) in (b"", TLS_ALERT)


def test_broken_connection_ends_the_exchange_for_all(circle):
    members = circle(3)
    members.meet()
    link = members.members[2]._links[0].socket
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.shutdown(socket.SHUT_RDWR)
    assert all(isinstance(each, LinkBroken) for each in members.average(lambda rank: 1.0))


def test_leader_tells_the_others_which_member_it_lost(circle):
    members = circle(3)
    members.meet()
    leader, other, lost = members.members
    assert other.members == ["w0", "w1", "w2"]
    waiting = members.pool.submit(other.average, 1.0, 1.0)
    lost.close()
    with pytest.raises(LinkBroken, match="connection to w2 broke") as broken:
        leader.average(1.0, 1.0)
    assert broken.value.rank == 2
    leader.close(2)
    with pytest.raises(LinkBroken, match="w0 lost its connection to w2") as told:
        waiting.result(10)
    assert (told.value.rank, told.value.reported) == (2, True)


def test_leader_does_not_interrupt_a_partly_sent_message(circle):
    members = circle(2)
    members.meet()
    leader, other = members.members
    leader._half_sent.add(leader._links[0])
    (link,) = other._links
    leader.close(1)
    assert link.peek(1) == b""


def test_lost_member_is_found_by_its_closed_connection(circle):
    members = circle(3)
    members.meet()
    leader, other, lost = members.members
    lost.close()
    failed = LinkBroken("a collective of PyTorch failed")
    assert leader.find_lost(failed).rank == 2
    leader.close(2)
    assert other.find_lost(failed).rank == 2


def test_sending_to_a_member_that_does_not_read_ends_with_the_generation(circle):
    members = circle(2)
    members.meet()
    leader, other = members.members
    values = np.zeros(4 << 20, np.float32)
    averaging = members.pool.submit(leader.average, values, 1.0)
    other._number += 1
    other._send(other._links[0], values.view(np.uint8), 1.0)
    until(lambda: leader._half_sent, what="half a message")
    members.over.set()
    with pytest.raises(LinkBroken, match="the generation is over"):
        averaging.result(10)


def test_member_that_does_not_read_is_recorded_as_lagging(circle, monkeypatch):
    monkeypatch.setattr(exchange_log, "LAG_S", 0.1)
    members = circle(2)
    members.meet()
    leader, other = members.members
    recorder = Recorder(progress_interval_s=0.1)
    leader.log = ExchangeLog(recorder, lambda: 7)
    values = np.zeros(4 << 20, np.float32)
    averaging = members.pool.submit(leader.average, values, 1.0)
    other._number += 1
    other._send(other._links[0], values.view(np.uint8), 1.0)

    def lags():
        return [each[3] for each in list(recorder._waiting) if isinstance(each[3], PeerLagged)]

    until(lags, what="a lag")
    assert (lags()[0].peer, lags()[0].purpose, lags()[0].held_bytes > 0) == ("w1", "exchange", True)
    mean, _ = other._receive(other._links[0], values.nbytes)
    assert mean.nbytes == averaging.result(20).nbytes
    assert (lags()[-1].peer, lags()[-1].held_bytes) == ("w1", 0)


def test_waiting_ends_with_the_generation(circle):
    members = circle(2)
    members.meet()
    waiting = members.pool.submit(members.members[0].average, 1.0, 1.0)
    members.over.set()
    with pytest.raises(LinkBroken, match="the generation is over"):
        waiting.result(10)


def test_exchange_continues_without_a_killed_member(group):
    crew = group({}, {"late_at": 3}, {}, rounds=6)
    crew[1].says("late")
    crew[1].signal(signal.SIGKILL)
    for survivor in (crew[0], crew[2]):
        recovered = survivor.says("recovered")
        assert (recovered["steps"], recovered["world_size"]) == (3, 2)
        assert survivor.ends() == 0
        last = survivor.says("agreed", count=6)
        assert last["mean"] == [pytest.approx(2 / 3)]


def test_rank_0_that_cannot_be_reached_is_an_error_that_names_it():
    circle = Circle(2)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"could not connect to rank 0 at {address}") as found:
            Exchange(
                *(1, 1, 2, address, TOKEN, circle.meeting),
                *(circle.over.is_set, lambda: False),
                name="w1",
                peer_timeout_s=0.2,
            )
    assert "check the network between their hosts" in found.value.hint
    circle.close()


def test_link_that_breaks_between_living_members_makes_a_new_generation(hub, group):
    crew = group({"cut_at": 2}, {"cut_at": 2}, rounds=5)
    for each in crew:
        recovered = each.says("recovered")
        assert (recovered["steps"], recovered["world_size"]) == (2, 2)
        assert recovered["generation"] > 1
        assert each.ends() == 0
    assert hub.facts("WorkerLost") == []
    assert {broken.generation for broken in hub.facts("ExchangeBroken")} == {1}


def test_ranks_that_average_different_arrays_fail_with_the_reason(group):
    crew = group({"wrong_at": 1}, {}, rounds=3)
    until(lambda: any(each.process.poll() is not None for each in crew), what="an end")
    until(
        lambda: any(
            "the workers called different collectives" in "".join(each.output) for each in crew
        ),
        what="the reason",
    )
