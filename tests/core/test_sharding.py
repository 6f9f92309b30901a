"""`assign`: every item has one owner, shares are fair within one, no item moves without need, the
same history gives the same result, and 1,000 workers are fast."""

from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.datasets.lane_owners import Move, apply_moves, assign

NAMES = [f"w{index}" for index in range(12)]
CHANGES = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 5)), min_size=1, max_size=40)


def histories(members, changes):
    """Members after each change: a worker that is there leaves, another joins with a weight."""
    for worker, weight in changes:
        if worker in members:
            del members[worker]
        else:
            members[worker] = weight
        if members:
            yield dict(members)


def items_of(moves):
    return [item for move in moves for item in range(move.first, move.last + 1)]


def fewest_moves(holdings, members, count):
    """The minimum, by trying every distribution of the remainder: shares are floor or floor + 1."""
    total = sum(members.values())
    floors = {worker: count * weight // total for worker, weight in members.items()}
    extra = count - sum(floors.values())
    held = {worker: len(holdings.get(worker, ())) for worker in members}

    def staying(lucky):
        return sum(min(held[w], floors[w] + (w in lucky)) for w in members)

    return count - max(staying(lucky) for lucky in combinations(members, extra))


def check(holdings, members, count):
    """Apply the result of `assign` and check every guarantee."""
    fewest = fewest_moves(holdings, members, count)
    moves = assign(holdings, members, count)
    moved = items_of(moves)
    assert len(moved) == len(set(moved)) == fewest
    assert moves == assign({w: list(i) for w, i in holdings.items()}, dict(members), count)
    owner = {item: worker for worker, items in holdings.items() for item in items}
    for move in moves:
        assert {owner.get(item, "") for item in range(move.first, move.last + 1)} == {move.source}
        assert move.target in members
        assert move.source != move.target
    apply_moves(holdings, moves)
    held = sorted(item for items in holdings.values() for item in items)
    assert held == list(range(count))
    assert set(holdings) <= set(members)
    total = sum(members.values())
    for worker, weight in members.items():
        assert abs(len(holdings.get(worker, ())) - Fraction(count * weight, total)) <= 1


@settings(max_examples=150, deadline=None)
@given(count=st.integers(1, 80), changes=CHANGES)
def test_with_weights_every_change_is_fair_and_moves_the_minimum(count, changes):
    holdings = {}
    for members in histories({}, changes):
        check(holdings, members, count)


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 80), names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=40))
def test_with_equal_workers_shares_differ_by_at_most_one(count, names):
    holdings = {}
    for members in histories({}, [(name, 1) for name in names]):
        check(holdings, members, count)
        shares = [len(holdings.get(worker, ())) for worker in members]
        assert max(shares) - min(shares) <= 1


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 60), changes=CHANGES)
def test_several_may_come_and_go_at_once(count, changes):
    holdings = {}
    steps = list(histories({}, changes))
    for members in steps[::3]:
        check(holdings, members, count)


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 60), changes=CHANGES)
def test_order_in_which_members_are_named_does_not_matter(count, changes):
    forth, back = {}, {}
    for members in histories({}, changes):
        moves = assign(forth, members, count)
        assert moves == assign(back, dict(reversed(members.items())), count)
        apply_moves(forth, moves)
        apply_moves(back, moves)


def test_nothing_moves_when_nothing_changed():
    holdings = {}
    apply_moves(holdings, assign(holdings, {"a": 1, "b": 2}, 10))
    assert assign(holdings, {"a": 1, "b": 2}, 10) == []


def test_without_members_all_items_lose_their_owner():
    holdings = {"a": [0, 1], "b": [2]}
    moves = assign(holdings, {}, 3)
    assert moves == [Move(0, 1, "a", ""), Move(2, 2, "b", "")]
    apply_moves(holdings, moves)
    assert holdings == {}


def test_fewer_items_than_workers_leave_some_without():
    holdings = {}
    check(holdings, dict.fromkeys(NAMES, 1), 5)
    assert sorted(map(len, holdings.values())) == [1] * 5


def test_first_division_is_recorded_in_few_runs():
    moves = assign({}, dict.fromkeys(NAMES, 1), 100_000)
    assert len(moves) == len(NAMES)


def test_worker_keeps_the_order_in_which_its_items_came():
    holdings = {"a": [4, 1, 3], "b": [0, 2]}
    apply_moves(holdings, [Move(1, 1, "a", "b")])
    assert holdings == {"a": [4, 3], "b": [0, 2, 1]}


@pytest.mark.parametrize("change", ["loss", "join"])
def test_change_among_a_thousand_workers_moves_the_minimum(change):
    """Its duration is measured by benchmarks/bench_assign.py."""
    members = {f"worker-{index}": 1 for index in range(1_000)}
    holdings = {}
    apply_moves(holdings, assign(holdings, members, 100_000))
    if change == "loss":
        del members["worker-500"]
    else:
        members["newcomer"] = 1
    moves = assign(holdings, members, 100_000)
    assert len(items_of(moves)) in (99, 100)
