"""What a worker is told of its events while the disk refuses some: none of them is forgotten."""

import gc

import pytest

from strata.coordinator.intake import Intakes
from strata.errors import Overloaded
from strata.store.memory import MemoryStore
from tests.store.kinds import CODEC, batch


@pytest.fixture
def intakes():
    return Intakes(MemoryStore(CODEC))


def test_what_follows_a_batch_that_is_owed_is_not_told_as_stored(intakes):
    intake = intakes.of("w", 1)
    first, second, third = batch(0, 3), batch(3, 6), batch(6, 9)
    for each in (first, second, third):
        assert intake.take(each)
    intake.stored(first)
    intake.owe(second)
    intake.stored(third)
    assert intake.stored_seq == 2
    assert intake.take(second)
    intake.stored(second)
    assert intake.stored_seq == 8
    assert not intake.take(second)


def test_a_debt_outlives_the_connection(intakes):
    owed, later = batch(0, 3), batch(3, 6)
    intake = intakes.of("w", 1)
    assert intake.take(owed)
    assert intake.take(later)
    intake.owe(owed)
    intake.stored(later)
    del intake
    gc.collect()
    assert intakes.of("w", 1).stored_seq == -1
    assert intakes.of("w", 1).take(owed)


def test_a_batch_that_finds_no_room_is_owed(intakes):
    intake = intakes.of("w", 1)
    assert intake.take(batch(0, 3))
    with pytest.raises(Overloaded), intake.owing(batch(0, 3)):
        raise Overloaded("65,536 requests are waiting")
    assert intake.take(batch(0, 3))


def test_events_on_their_way_to_disk_are_not_told_as_stored_because_later_ones_are_owed(intakes):
    intake = intakes.of("w", 1)
    stored, on_its_way, owed = batch(0, 3), batch(3, 6), batch(6, 9)
    assert all(intake.take(each) for each in (stored, on_its_way, owed))
    intake.owe(owed)
    intake.stored(stored)
    assert intake.stored_seq == 2
    intake.stored(on_its_way)
    assert intake.stored_seq == 5
