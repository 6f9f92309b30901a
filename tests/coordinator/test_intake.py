"""Acknowledgement of worker events while the disk fails: no event is lost."""

import gc

import pytest

from strata.coordinator.sessions.intake import Intakes
from strata.errors import Overloaded
from strata.store.memory_store import MemoryStore
from tests.store.kinds import CODEC, batch


@pytest.fixture
def intakes():
    return Intakes(MemoryStore(CODEC))


def test_batches_after_an_owed_batch_are_not_acknowledged(intakes):
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


def test_owed_batch_outlives_the_connection(intakes):
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


def test_batch_refused_by_a_full_inbox_is_owed(intakes):
    intake = intakes.of("w", 1)
    assert intake.take(batch(0, 3))
    with pytest.raises(Overloaded), intake.owing(batch(0, 3)):
        raise Overloaded("the queue of 65,536 requests is full")
    assert intake.take(batch(0, 3))


def test_events_being_stored_are_not_acknowledged_early(intakes):
    intake = intakes.of("w", 1)
    stored, on_its_way, owed = batch(0, 3), batch(3, 6), batch(6, 9)
    assert all(intake.take(each) for each in (stored, on_its_way, owed))
    intake.owe(owed)
    intake.stored(stored)
    assert intake.stored_seq == 2
    intake.stored(on_its_way)
    assert intake.stored_seq == 5
