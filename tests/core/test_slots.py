"""Free slots: the host with the most slots first, hosts in doubt last, none used twice."""

from hypothesis import given
from hypothesis import strategies as st

from strata.core.tasks.host_slots import FreeSlots


def test_preferred_host_is_taken_while_it_has_a_slot():
    slots = FreeSlots({"a": 1, "b": 3})
    assert [slots.take("a") for _ in range(5)] == ["a", "b", "b", "b", ""]
    assert slots.total == 0


def test_roomiest_host_is_taken_and_of_equals_the_first():
    slots = FreeSlots({"a": 1, "b": 2, "c": 2})
    assert [slots.take() for _ in range(5)] == ["b", "c", "a", "b", "c"]


def test_doubtful_host_is_taken_only_when_no_other_has_a_slot():
    slots = FreeSlots({"a": 8, "b": 1}, doubtful={"a"})
    assert [slots.take("a"), slots.take("a")] == ["b", "a"]


counts = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 4))


@given(counts, st.sets(st.sampled_from("abcde")), st.lists(st.sampled_from(["", *"abcdef"])))
def test_slots_are_taken_as_by_a_full_scan(free, doubtful, preferred):
    slots, left = FreeSlots(free, doubtful), dict(free)
    for wanted in preferred:
        taken = slots.take(wanted)
        if left.get(wanted, 0) > 0 and wanted not in doubtful:
            expected = wanted
        else:
            able = [agent for agent in left if left[agent] > 0]
            expected = max(able, key=lambda a: (a not in doubtful, left[a]), default="")
        assert taken == expected
        if taken:
            left[taken] -= 1
        assert slots.total == sum(left.values())
