"""Which connections are closed above a limit in number or bytes."""

from strata.wire.grpc.connection_budget import Bounds, ConnectionBudget, network_of

BOUNDS = Bounds(
    max_connections=6,
    max_unauthenticated=4,
    max_unauthenticated_bytes=1_000,
    max_total_bytes=10_000,
)


class Peer:
    """A connection without a socket."""

    def __init__(self, network: str = "a") -> None:
        self.network = network
        self.authenticated = False
        self.held_bytes = 0
        self.real_bytes: int | None = None
        self.evicted = ""

    def measure(self) -> int:
        return self.held_bytes if self.real_bytes is None else self.real_bytes

    def evict(self, reason: str) -> None:
        self.evicted = reason


def budget(bounds: Bounds = BOUNDS) -> ConnectionBudget:
    return ConnectionBudget(bounds, lambda: 0.0)


def admitted(found: ConnectionBudget, count: int, network: str = "a") -> list[Peer]:
    peers = [Peer(network) for _ in range(count)]
    assert all(found.admit(peer) for peer in peers)
    return peers


def authenticated(found: ConnectionBudget, count: int) -> list[Peer]:
    peers = []
    for _ in range(count):
        peers += admitted(found, 1)
        found.authenticate(peers[-1])
    return peers


def evicted(peers: list[Peer]) -> list[bool]:
    return [bool(peer.evicted) for peer in peers]


def test_new_connection_closes_the_oldest_unauthenticated_one():
    found = budget()
    peers = admitted(found, 5)
    assert evicted(peers) == [True, False, False, False, False]
    assert found.unauthenticated_count == 4


def test_the_network_with_most_unauthenticated_connections_loses_one():
    found = budget()
    worker, *_ = admitted(found, 1, network="worker")
    attackers = admitted(found, 5, network="attacker")
    assert evicted([worker]) == [False]
    assert evicted(attackers) == [True, True, False, False, False]


def test_authenticated_connection_is_not_closed_for_an_unauthenticated_one():
    found = budget()
    workers = authenticated(found, 5)
    strangers = admitted(found, 3)
    assert evicted(workers) == [False] * 5
    assert evicted(strangers) == [True, True, False]


def test_connection_is_refused_when_all_are_authenticated():
    found = budget()
    workers = authenticated(found, 6)
    assert not found.admit(Peer())
    assert evicted(workers) == [False] * 6
    found.dismiss(workers[0])
    assert found.admit(Peer())


def test_largest_unauthenticated_connections_are_closed_at_the_byte_limit():
    found = budget()
    (worker,) = authenticated(found, 1)
    found.settle(worker, 5_000)
    small, large, middle = admitted(found, 3)
    found.settle(small, 100)
    found.settle(large, 600)
    assert not evicted([small, large]).count(True)
    found.settle(middle, 400)
    assert evicted([worker, small, large, middle]) == [False, False, True, False]
    assert (found.unauthenticated_bytes, found.total_bytes) == (500, 5_500)


def test_largest_connection_is_closed_at_the_total_byte_limit():
    found = budget()
    workers = authenticated(found, 3)
    for worker, held in zip(workers, (2_000, 7_000, 2_000), strict=True):
        found.settle(worker, held)
    assert evicted(workers) == [False, True, False]
    assert found.total_bytes == 4_000


def test_connections_are_measured_again_before_one_is_closed():
    found = budget()
    workers = authenticated(found, 2)
    found.settle(workers[0], 9_000)
    workers[0].real_bytes = 10
    found.settle(workers[1], 2_000)
    assert evicted(workers) == [False, False]
    assert found.total_bytes == 2_010


def test_bytes_of_closed_connections_are_released():
    found = budget()
    (worker,) = authenticated(found, 1)
    (stranger,) = admitted(found, 1)
    found.settle(worker, 300)
    found.settle(stranger, 200)
    for peer in (worker, stranger, worker):
        found.dismiss(peer)
    assert (found.total_bytes, found.unauthenticated_bytes) == (0, 0)
    assert found.unauthenticated_count == 0
    found.settle(worker, 300)
    assert found.total_bytes == 0


def test_bytes_leave_the_unauthenticated_share_with_authentication():
    found = budget()
    (worker,) = admitted(found, 1)
    found.settle(worker, 900)
    found.authenticate(worker)
    assert (found.total_bytes, found.unauthenticated_bytes) == (900, 0)


def test_log_rate_of_evictions_is_limited(caplog):
    now = [0.0]
    found = ConnectionBudget(BOUNDS, lambda: now[0])
    admitted(found, 50)
    assert len(caplog.records) == 1
    now[0] = 20.0
    admitted(found, 1)
    assert "45 more since" in caplog.records[-1].getMessage()


def test_addresses_of_one_ipv6_network_count_as_one():
    assert network_of("10.0.0.1") == "10.0.0.1"
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2")
    assert network_of("2001:db8:0:1::1") != network_of("2001:db8::1")
    assert network_of("fe80::1%eth0") == "fe80::"
