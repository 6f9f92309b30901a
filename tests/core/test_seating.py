"""Rank assignment: ranks are dense, hosts stay together, and as few ranks as possible change."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from strata.core.generations.generation_members import seats


def host_of(worker):
    return worker[0]


def seated(members, left=(), joined=(), host_of=host_of):
    """The ranks afterwards, and how many changed."""
    changed, world_size = seats(members, left, joined, host_of)
    after = [*members, *[""] * world_size][:world_size]
    for rank, worker in changed:
        after[rank] = worker
    moved = sum(worker in members for _, worker in changed)
    return after, moved


def test_first_to_come_sit_by_host_and_number():
    after, _ = seated([], joined=["b1", "a10", "a9", "b0"])
    assert after == ["a9", "a10", "b0", "b1"]


def test_replacement_on_the_same_host_takes_the_rank_and_no_other_changes():
    assert seated(["a0", "a1", "b0", "b1"], ["a1"], ["a2"]) == (["a0", "a2", "b0", "b1"], 0)


def test_new_host_takes_the_ranks_of_a_lost_host():
    members = ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert seated(members, ["b0", "b1"], ["d0", "d1"]) == (["a0", "a1", "d0", "d1", "c0", "c1"], 0)


def test_new_host_of_another_size_comes_last():
    members = ["a0", "a1", "b0", "b1", "c0", "c1"]
    after, _ = seated(members, ["b0", "b1"], ["d0", "d1", "d2"])
    assert after == ["a0", "a1", "c0", "c1", "d0", "d1", "d2"]


def test_last_host_takes_the_ranks_of_a_lost_host_and_the_others_stay():
    members = [f"{host}{number}" for host in "abcdef" for number in range(8)]
    after, moved = seated(members, [f"b{number}" for number in range(8)])
    assert after == [f"{host}{number}" for host in "afcde" for number in range(8)]
    assert moved == 8


def test_last_host_of_the_same_size_takes_the_ranks_if_hosts_differ():
    sizes = {"a": 8, "b": 8, "c": 8, "d": 8, "e": 3, "f": 2}
    members = [f"{host}{number}" for host, size in sizes.items() for number in range(size)]
    after, moved = seated(members, [f"b{number}" for number in range(8)])
    assert "".join(host for host, _ in groupby(after, host_of)) == "adcef"
    assert moved == 8 + 3 + 2


def test_many_hosts_that_are_gone_are_each_made_up_for_by_one():
    members = [f"{host}{number}" for host in "abcdefgh" for number in range(4)]
    after, moved = seated(members, [f"{host}{number}" for host in "bd" for number in range(4)])
    assert "".join(host for host, _ in groupby(after, host_of)) == "ahcgef"
    assert moved == 8


def test_loss_moves_few_and_the_replacement_brings_the_host_together_again():
    members = [f"{host}{number}" for host in "abcd" for number in range(8)]
    smaller, moved = seated(members, ["b3"])
    assert moved == 3, "one of each host from the hole on"
    smaller, moved = seated(members, ["b3"], host_of=lambda worker: "")
    assert moved == 1, "where hosts do not matter the last takes the seat"
    again, moved = seated(smaller, joined=["b8"])
    assert again == [*members[:11], "b8", *members[12:]]
    assert moved == 1


workers = st.tuples(st.sampled_from("abcd"), st.integers(0, 99)).map("{0[0]}{0[1]}".format)


@given(st.lists(st.tuples(st.sets(workers), st.randoms()), max_size=12))
def test_whatever_happens_ranks_are_dense_and_hosts_together(history):
    members = []
    for joined, chance in history:
        left = [worker for worker in members if chance.random() < 0.3]
        joined = sorted(joined - set(members))
        chance.shuffle(joined)
        after, _ = seated(members, left, joined)
        assert sorted(after) == sorted({*members} - {*left} | {*joined})
        blocks = [host for host, _ in groupby(after, host_of)]
        assert len(blocks) == len(set(blocks))
        members = after
