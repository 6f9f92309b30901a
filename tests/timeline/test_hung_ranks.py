"""Which ranks `why hang` names, from collections of stacks as the core records them.

Guards that no rank is said to be present that was not asked, and that numbers of different process
groups are not compared.
"""

import pytest

from strata.core.record.event_codec import CODEC
from strata.core.workers import stack_collection
from strata.core.workers.stack_collection import ReportStacks, RequestStacks
from strata.core.workers.stack_reports import PendingExchange, StackReport
from strata.store.memory_store import MemoryStore
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.run_timeline import Timeline
from tests.core.world import World

NONE_MISSING = "no rank is missing"


def answer(exchanges, members=0):
    """The answer for workers w-0, w-1 and so on that report these exchanges."""
    world = World()
    names = [f"w-{number}" for number in range(members or len(exchanges))]
    task = world.submit(len(names))
    world.join(task, *names)
    world.do(RequestStacks(task=task.id, trigger="hang", reason="no steps"))
    for name, exchange in zip(names, exchanges, strict=False):
        report = StackReport(exchange=exchange)
        world.do(ReportStacks(task=task.id, worker=name, collection=1, report=report))
    store = MemoryStore(CODEC)
    store.append(world.log, incarnation=1, expected=0)
    return TimelineQueries(Timeline(store)).why("hang", params={"task": task.id}).answer


def waits(number, group="", **given):
    kind = "all-reduce" if group else "average"
    return PendingExchange(kind=kind, number=number, pending=True, group=group, **given)


@pytest.fixture
def three_asked(monkeypatch):
    """A limit of three workers for each collection."""
    monkeypatch.setattr(stack_collection, "MAX_ASKED", 3)


def test_missing_member_that_was_not_asked_is_named(three_asked):
    asked = [waits(12, generation=1, missing=["w-4"]), *[waits(12, generation=1)] * 2]
    text = answer(asked, members=5)
    assert text.startswith("open: w-4 is not recorded, because it was not asked; ranks 0 to 2 wait")
    assert NONE_MISSING not in text


def test_workers_that_were_not_asked_may_be_missing(three_asked):
    text = answer([waits(12, generation=1)] * 3, members=5)
    assert "a rank that is missing may be among 2 workers that were not asked" in text
    assert NONE_MISSING not in text


def test_no_rank_is_missing_if_all_wait_in_the_same_exchange():
    assert f"ranks 0 and 1 wait in average 12; {NONE_MISSING}" in answer([waits(12)] * 2)


def test_rank_in_an_earlier_exchange_of_its_group_is_named():
    text = answer([waits(7, "dp 1"), waits(6, "dp 1"), waits(90, "tp 2"), waits(90, "tp 2")])
    assert text.startswith("open: rank 1 waits in all-reduce 6 of process group dp 1; rank 0 waits")


def test_rank_that_waits_in_no_exchange_is_named():
    idle = PendingExchange(kind="average", number=11, pending=False, generation=1)
    assert answer([waits(12), idle, waits(12)]).startswith("open: rank 1 is not recorded")


@pytest.mark.parametrize(
    "other", [waits(90, "tp 2"), waits(5, generation=1)], ids=["group", "strata"]
)
def test_numbers_of_different_groups_name_no_rank(other):
    text = answer([waits(7, "dp 1"), waits(7, "dp 1"), other, other])
    assert text.startswith(
        "open: ranks 0 and 1 wait in all-reduce 7 of process group dp 1; ranks 2"
    )
    assert "the numbers of different process groups do not tell which rank is missing" in text
    assert NONE_MISSING not in text


def test_earlier_generation_of_strata_is_behind():
    connects = PendingExchange(kind="connect", number=0, pending=True, generation=3)
    text = answer([connects, waits(900, generation=2)])
    assert text.startswith("open: rank 1 waits in average 900; rank 0 waits until the members of")
