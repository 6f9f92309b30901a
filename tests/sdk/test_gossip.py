"""Guards the rules of gossip: everyone hears of everything, once, and of nothing from elsewhere."""

from itertools import pairwise

import msgspec
import pytest

from strata.sdk.gossip import (
    FAR_NEIGHBORS,
    FIRST_AGAIN_S,
    LATENCY_INTERVAL_S,
    LONGEST_AGAIN_S,
    Announcement,
    Gossip,
    Lags,
    Latencies,
    message_id,
    neighbors,
)

pytestmark = pytest.mark.quick

TRIO = ["a", "b", "c"]


def result(author="b", step=5, generation=2, **changes):
    said = Announcement(
        message_id(generation, step, author), generation, step, author, "f00", 100, "digits/5"
    )
    return msgspec.structs.replace(said, **changes)


@pytest.fixture
def gossip():
    return Gossip(2, "a", TRIO, step=5)


def hops(members, origin):
    """In how many hops word from one member reaches each of them."""
    found, frontier = {origin: 0}, [origin]
    while frontier:
        heard = {n: found[each] + 1 for each in frontier for n in neighbors(members, each)}
        frontier = [each for each in heard if each not in found]
        found.update({each: heard[each] for each in frontier})
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 64, 300])
def test_word_from_anyone_reaches_everyone_in_few_hops(size):
    members = [f"worker-{n}" for n in range(size)]
    for origin in members[:20]:
        found = hops(members, origin)
        assert found.keys() == set(members)
        assert max(found.values()) <= 8


def test_neighbours_are_few_never_oneself_and_alike_wherever_they_are_computed():
    members = [f"worker-{n}" for n in range(100)]
    for own in members:
        chosen = neighbors(members, own)
        assert len(chosen) == len(set(chosen)) == FAR_NEIGHBORS + 1
        assert own not in chosen
        assert chosen == neighbors(members[::-1], own)


def test_news_is_told_to_neighbours_but_not_back(gossip):
    assert gossip.heard(result("b"), "b", now_s=0)
    assert gossip.untold() == ["c"]
    assert gossip.heard(result("c"), "b", now_s=0)
    assert gossip.next_telling("b") is None
    own = Gossip(2, "a", TRIO, step=5)
    assert own.heard(result("a"), "a", now_s=0)
    assert sorted(own.untold()) == ["b", "c"]


def test_the_same_announcement_from_two_sides_counts_once(gossip):
    assert gossip.heard(result(), "b", now_s=0)
    gossip.told("c", result().message)
    assert not gossip.heard(result(), "c", now_s=1)
    assert gossip.untold() == []


def test_what_is_not_acknowledged_is_told_again_at_growing_intervals(gossip):
    gossip.heard(result(), "b", now_s=10.0)
    times, now_s = [], 10.0
    for tries in range(10):
        telling = gossip.next_telling("c")
        assert telling.tries == tries
        now_s = telling.due_s
        times.append(now_s)
        gossip.unheard("c", telling.announcement.message, now_s)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 10.0
    assert waits[:3] == [FIRST_AGAIN_S, 2 * FIRST_AGAIN_S, 4 * FIRST_AGAIN_S]
    assert waits[-1] == LONGEST_AGAIN_S
    gossip.told("c", result().message)
    assert gossip.next_telling("c") is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (result(generation=1), "it is of generation 1, this is 2"),
        (result(step=3), "it is of round 3, this is 5"),
        (result(step=7), "it is of round 7, this is 5"),
        (result("stranger"), "no member"),
        (result(message="update-2-5-c"), "its id is not"),
        (result(size_bytes=0), "0 bytes"),
        (result(size_bytes=1 << 60), "bytes"),
    ],
)
def test_what_does_not_belong_here_is_objected_to(gossip, said, why):
    assert why in gossip.objection(said)


@pytest.mark.parametrize("step", [4, 5, 6])
def test_members_may_be_a_round_apart(gossip, step):
    assert gossip.objection(result(step=step)) == ""


def test_a_second_result_under_the_same_id_is_objected_to(gossip):
    gossip.heard(result(), "b", now_s=0)
    assert "another result" in gossip.objection(result(blob="bad"))
    assert gossip.objection(result()) == ""


def test_a_new_round_lets_go_of_the_last_and_keeps_what_came_early(gossip):
    gossip.heard(result(step=5), "b", now_s=0)
    gossip.heard(result(step=6), "b", now_s=0)
    gossip.begin(6)
    assert gossip.next_telling("c").announcement.step == 6
    assert not gossip.heard(result(step=6), "c", now_s=0)
    assert not gossip.heard(result("c", step=5), "b", now_s=0), "the round is over"


def test_after_the_end_nobody_has_to_hear_anything(gossip):
    gossip.heard(result(), "b", now_s=0)
    gossip.silence()
    assert gossip.untold() == []


@pytest.mark.parametrize(
    ("next_s", "after_s", "recorded"),
    [
        (0.1, 100.0, False),
        (0.9, 100.0, True),
        (0.9, 1.0, False),
        (0.0, 100.0, False),  # the average is 0.0875 then
    ],
)
def test_a_latency_is_recorded_when_its_average_has_doubled_or_halved(next_s, after_s, recorded):
    latencies = Latencies()
    assert latencies.changed("a", 0.1, 0.0) == 0.1
    assert (latencies.changed("a", next_s, after_s) is not None) == recorded


def test_latencies_below_the_floor_are_never_news_again():
    latencies = Latencies()
    assert latencies.changed("a", 0.0001, 0.0) == 0.0001
    assert [latencies.changed("a", 0.004, 10.0 * n) for n in range(1, 200)] == [None] * 199


def test_latency_that_jumps_with_every_message_is_recorded_seldom():
    latencies = Latencies()
    found = [
        latencies.changed("a", 0.001 if n % 2 else 0.1, 0.01 * n) is not None for n in range(4_000)
    ]
    assert sum(found) < 4_000 * 0.01 / LATENCY_INTERVAL_S + 1


def test_message_that_is_passed_on_counts_its_rebroadcasts(gossip):
    gossip.heard(result("b", rebroadcasts=0), "b", now_s=0)
    assert gossip.next_telling("c").announcement.rebroadcasts == 1
    assert gossip.objection(result("b", rebroadcasts=2)) == "", "it came another way, too"
    assert "passed on" in gossip.objection(result("b", rebroadcasts=3))
    own = Gossip(2, "a", TRIO, step=5)
    own.heard(result("a"), "a", now_s=0)
    assert own.next_telling("c").announcement.rebroadcasts == 0


def test_slow_receiver_is_recorded_with_what_is_held_for_it_until_it_has_caught_up(gossip):
    lags = Lags(interval_s=5.0)
    gossip.heard(result("b"), "b", now_s=0.0)
    assert lags.changed("c", gossip.held("c"), now_s=1.9) is None
    lag = lags.changed("c", gossip.held("c"), now_s=2.5)
    assert (lag.peer, lag.held_s, lag.messages, lag.held_bytes) == ("c", 2.5, 1, 100)
    assert lags.changed("c", gossip.held("c"), now_s=7.4) is None
    assert lags.changed("c", gossip.held("c"), now_s=7.5).held_s == 7.5
    gossip.told("c", result().message)
    caught_up = lags.changed("c", gossip.held("c"), now_s=8.0)
    assert (caught_up.messages, caught_up.held_bytes) == (0, 0)
    assert lags.changed("c", gossip.held("c"), now_s=9.0) is None
