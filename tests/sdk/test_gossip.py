"""The gossip protocol: every member gets every announcement once, and invalid ones are rejected."""

from itertools import pairwise

import msgspec
import pytest

from strata.sdk.peers.gossip import (
    FAR_NEIGHBORS,
    FIRST_RETRY_S,
    LATENCY_INTERVAL_S,
    MAX_RETRY_S,
    Announcement,
    Gossip,
    LagTracker,
    LatencyTracker,
    message_id,
    neighbors,
)

pytestmark = pytest.mark.quick

TRIO = ["a", "b", "c"]


def result(author="b", step=5, generation=2, **changes):
    announced = Announcement(
        message=message_id(generation, step, author),
        generation=generation,
        step=step,
        author=author,
        blob="f00",
        size_bytes=100,
        batch="digits/5",
    )
    return msgspec.structs.replace(announced, **changes)


@pytest.fixture
def gossip():
    return Gossip(2, "a", TRIO, step=5)


def hops(members, origin):
    """The number of hops from one member to each of them."""
    found, frontier = {origin: 0}, [origin]
    while frontier:
        reached = {n: found[each] + 1 for each in frontier for n in neighbors(members, each)}
        frontier = [each for each in reached if each not in found]
        found.update({each: reached[each] for each in frontier})
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 64, 300])
def test_announcement_reaches_all_members_in_few_hops(size):
    members = [f"worker-{n}" for n in range(size)]
    for origin in members[:20]:
        found = hops(members, origin)
        assert found.keys() == set(members)
        assert max(found.values()) <= 8


def test_neighbors_are_few_exclude_the_member_and_do_not_depend_on_the_order():
    members = [f"worker-{n}" for n in range(100)]
    for own in members:
        chosen = neighbors(members, own)
        assert len(chosen) == len(set(chosen)) == FAR_NEIGHBORS + 1
        assert own not in chosen
        assert chosen == neighbors(members[::-1], own)


def test_announcement_is_forwarded_but_not_to_its_sender_or_author(gossip):
    assert gossip.accept(result("b"), "b", now_s=0)
    assert gossip.pending_neighbors() == ["c"]
    assert gossip.accept(result("c"), "b", now_s=0)
    assert gossip.next_delivery("b") is None
    own = Gossip(2, "a", TRIO, step=5)
    assert own.accept(result("a"), "a", now_s=0)
    assert sorted(own.pending_neighbors()) == ["b", "c"]


def test_duplicate_announcement_is_not_forwarded(gossip):
    assert gossip.accept(result(), "b", now_s=0)
    gossip.acknowledge("c", result().message)
    assert not gossip.accept(result(), "c", now_s=1)
    assert gossip.pending_neighbors() == []


def test_unacknowledged_delivery_is_retried_at_growing_intervals(gossip):
    gossip.accept(result(), "b", now_s=10.0)
    times, now_s = [], 10.0
    for tries in range(10):
        delivery = gossip.next_delivery("c")
        assert delivery.tries == tries
        now_s = delivery.due_s
        times.append(now_s)
        gossip.retry_later("c", delivery.announcement.message, now_s)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 10.0
    assert waits[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert waits[-1] == MAX_RETRY_S
    gossip.acknowledge("c", result().message)
    assert gossip.next_delivery("c") is None


@pytest.mark.parametrize(
    ("announced", "reason"),
    [
        (result(generation=1), "it is for generation 1, not 2"),
        (result(step=3), "it is for round 3, not 5"),
        (result(step=7), "it is for round 7, not 5"),
        (result("stranger"), "is not in generation 2"),
        (result(message="update-2-5-c"), "its id does not match"),
        (result(size_bytes=0), "0 bytes"),
        (result(size_bytes=1 << 60), "bytes"),
    ],
)
def test_invalid_announcement_is_rejected_with_a_reason(gossip, announced, reason):
    assert reason in gossip.rejection(announced)


@pytest.mark.parametrize("step", [4, 5, 6])
def test_announcements_of_the_adjacent_rounds_are_accepted(gossip, step):
    assert gossip.rejection(result(step=step)) == ""


def test_second_result_under_the_same_id_is_rejected(gossip):
    gossip.accept(result(), "b", now_s=0)
    assert "another result" in gossip.rejection(result(blob="bad"))
    assert gossip.rejection(result()) == ""


def test_new_round_drops_old_deliveries_and_keeps_early_ones(gossip):
    gossip.accept(result(step=5), "b", now_s=0)
    gossip.accept(result(step=6), "b", now_s=0)
    gossip.begin_round(6)
    assert gossip.next_delivery("c").announcement.step == 6
    assert not gossip.accept(result(step=6), "c", now_s=0)
    assert not gossip.accept(result("c", step=5), "b", now_s=0), "the round is over"


def test_stop_drops_all_deliveries(gossip):
    gossip.accept(result(), "b", now_s=0)
    gossip.stop()
    assert gossip.pending_neighbors() == []


@pytest.mark.parametrize(
    ("next_s", "after_s", "recorded"),
    [
        (0.1, 100.0, False),
        (0.9, 100.0, True),
        (0.9, 1.0, False),
        (0.0, 100.0, False),  # the average is then 0.0875
    ],
)
def test_latency_is_recorded_when_its_average_has_doubled_or_halved(next_s, after_s, recorded):
    latencies = LatencyTracker()
    assert latencies.update("a", 0.1, 0.0) == 0.1
    assert (latencies.update("a", next_s, after_s) is not None) == recorded


def test_latency_below_the_floor_is_recorded_once():
    latencies = LatencyTracker()
    assert latencies.update("a", 0.0001, 0.0) == 0.0001
    assert [latencies.update("a", 0.004, 10.0 * n) for n in range(1, 200)] == [None] * 199


def test_latency_that_jumps_with_every_message_is_recorded_seldom():
    latencies = LatencyTracker()
    found = [
        latencies.update("a", 0.001 if n % 2 else 0.1, 0.01 * n) is not None for n in range(4_000)
    ]
    assert sum(found) < 4_000 * 0.01 / LATENCY_INTERVAL_S + 1


def test_forwarded_announcement_counts_its_rebroadcasts(gossip):
    gossip.accept(result("b", rebroadcasts=0), "b", now_s=0)
    assert gossip.next_delivery("c").announcement.rebroadcasts == 1
    assert gossip.rejection(result("b", rebroadcasts=2)) == "", "it also came another way"
    assert "forwarded 3 times" in gossip.rejection(result("b", rebroadcasts=3))
    own = Gossip(2, "a", TRIO, step=5)
    own.accept(result("a"), "a", now_s=0)
    assert own.next_delivery("c").announcement.rebroadcasts == 0


def test_lagging_neighbor_is_recorded_until_it_has_caught_up(gossip):
    lags = LagTracker(interval_s=5.0)
    gossip.accept(result("b"), "b", now_s=0.0)
    assert lags.update("c", gossip.pending("c"), now_s=1.9) is None
    lag = lags.update("c", gossip.pending("c"), now_s=2.5)
    assert (lag.peer, lag.held_s, lag.messages, lag.held_bytes) == ("c", 2.5, 1, 100)
    assert lags.update("c", gossip.pending("c"), now_s=7.4) is None
    assert lags.update("c", gossip.pending("c"), now_s=7.5).held_s == 7.5
    gossip.acknowledge("c", result().message)
    caught_up = lags.update("c", gossip.pending("c"), now_s=8.0)
    assert (caught_up.messages, caught_up.held_bytes) == (0, 0)
    assert lags.update("c", gossip.pending("c"), now_s=9.0) is None
