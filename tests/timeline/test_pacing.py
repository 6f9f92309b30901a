"""Guards the cache of expensive answers: computed once for all pages, again when due, bounded."""

import pytest

from strata.timeline import answer_cache
from strata.timeline.answer_cache import KEPT, MOST_S, SHARE, Paced


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now_s = 100.0

        def monotonic(self):
            return self.now_s

    found = Clock()
    monkeypatch.setattr(answer_cache, "time", found)
    return found


def counting(clock, cost_s):
    """A function that takes time and returns the number of its calls."""
    made = []

    def make():
        clock.now_s += cost_s
        made.append(clock.now_s)
        return len(made)

    return make


def test_answer_is_reused_until_it_expires(clock):
    paced, make = Paced(), counting(clock, 0.1)
    assert [paced.get("a", make, changes=True) for _ in range(20)] == [1] * 20
    clock.now_s += SHARE * 0.1 - 0.01
    assert paced.get("a", make, changes=True) == 1
    clock.now_s += 0.02
    assert paced.get("a", make, changes=True) == 2


def test_answer_expires_after_a_maximum_age(clock):
    paced, make = Paced(), counting(clock, 600.0)
    assert paced.get("a", make, changes=True) == 1
    clock.now_s += MOST_S + 0.1
    assert paced.get("a", make, changes=True) == 2


def test_unchanging_answer_is_computed_once(clock):
    paced, make = Paced(), counting(clock, 0.1)
    for _ in range(3):
        clock.now_s += 1_000
        assert paced.get("a", make, changes=False) == 1


def test_number_of_cached_answers_is_bounded(clock):
    paced, make = Paced(), counting(clock, 0.0)
    for number in range(KEPT + 1):
        paced.get(number, make, changes=False)
    assert paced.get(KEPT, make, changes=False) == KEPT + 1
    assert paced.get(0, make, changes=False) == KEPT + 2
