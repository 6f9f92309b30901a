"""Rebalancing of lanes: when, how many, and without moving back and forth."""

from hypothesis import given
from hypothesis import strategies as st

from strata.core.datasets.dataset_rules import AssignmentChanged
from strata.core.datasets.lane_balance import STEPS, BalanceLanes, PaceMeasured, Paces, planned
from strata.core.datasets.lane_owners import apply_moves, assign
from strata.core.generations.generation_members import GenerationChanged
from strata.core.rule_settings import Timeouts
from strata.core.task_state import Feed
from strata.core.workers.heartbeats import Beat
from strata.core.workers.liveness import Watch
from strata.timeline.audit.sample_audit import audit
from tests.timeline.fleet import Fleet


def feed(**held):
    first, holdings = 0, {}
    for worker, count in held.items():
        holdings[worker] = list(range(first, first + count))
        first += count
    return Feed("d", "lane", first, holdings=holdings, rebalance=True)


def alike(*workers):
    return dict.fromkeys(workers, 1)


def test_lanes_go_where_all_end_together():
    plan = planned(feed(a=10, b=10, c=10), {"a": 1.0, "b": 1.0, "c": 4.0}, alike("a", "b", "c"))
    assert plan.worthwhile
    assert (plan.now_s, plan.moved) == (4.0, 6)
    assert round(plan.then_s, 3) == 1.6  # within a lane of the 1.33 that cannot be divided


def test_small_differences_move_nothing():
    plan = planned(feed(a=10, b=10), {"a": 1.0, "b": 1.1}, alike("a", "b"))
    assert not plan.worthwhile


def test_weights_do_not_count_twice():
    plan = planned(feed(a=20, b=10), {"a": 1.0, "b": 1.0}, {"a": 2, "b": 1})
    assert (plan.moved, plan.worthwhile) == (0, False)


def test_worker_keeps_its_last_lane_and_one_without_lanes_is_not_measured():
    plan = planned(feed(a=1, b=1), {"a": 1.0, "b": 9.0}, alike("a", "b"))
    assert not plan.worthwhile
    plan = planned(feed(a=4, b=0), {"a": 1.0, "b": 1.0}, alike("a", "b"))
    assert plan.paces["b"] == 1_000


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 10)), min_size=2, max_size=12))
def test_after_a_move_there_is_nothing_worth_moving(measured):
    held = {f"w{n}": lanes for n, (lanes, _) in enumerate(measured)}
    lane_s = {f"w{n}": each for n, (_, each) in enumerate(measured)}
    before = feed(**held)
    busy = {worker: held[worker] * lane_s[worker] for worker in held}
    plan = planned(before, busy, alike(*held))
    assert plan.then_s <= max(busy.values()) or not plan.worthwhile
    if not plan.worthwhile:
        return
    apply_moves(before.holdings, assign(before.holdings, plan.paces, before.count))
    now = {w: len(before.holdings.get(w, ())) * lane_s[w] for w in held}
    remaining = {w: s for w, s in now.items() if s}
    again = planned(before, remaining, alike(*remaining)) if len(remaining) == len(now) else None
    assert again is None or not again.worthwhile


def test_every_member_must_report_enough_steps_of_the_generation():
    fleet = rebalancing()
    paces = Paces()
    for step in range(STEPS + 1):
        assert paces.due(fleet.state) == []
        for worker in fleet.row.members:
            if step < STEPS or worker != "w2":
                paces.note(worker, fleet.row.generation, step, 1.0)
    assert paces.due(fleet.state) == []
    paces.note("w2", fleet.row.generation, STEPS, 4.0)
    (command,) = paces.due(fleet.state)
    assert command.busy_s == {"w0": 1.0, "w1": 1.0, "w2": 4.0}
    assert paces.due(fleet.state) == []


def rebalancing():
    return Fleet(3, samples=600, batch=36, lanes=36, rebalance=True)


def test_move_is_a_generation_with_its_reason_and_costs_no_sample():
    fleet = rebalancing()
    fleet.train(2)
    generation = fleet.row.generation
    busy = {"w0": 1.0, "w1": 1.0, "w2": 4.0}
    fleet.do(BalanceLanes(task=fleet.task, generation=generation, busy_s=busy))
    (measured,) = facts(fleet, PaceMeasured)
    assert "worker w2 takes 4 s for its part of a step" in measured.reason
    assert facts(fleet, GenerationChanged)[-1].reason == measured.reason
    assert facts(fleet, AssignmentChanged)[-1].moved == 8
    assert len(fleet.row.feeds["d"].holdings["w2"]) == 4
    fleet.sync()
    fleet.train(3)
    assert audit(fleet.store, fleet.task).verdict == "proven"


def test_outdated_small_or_unrequested_rebalancing_changes_nothing():
    fleet = rebalancing()
    even = dict.fromkeys(fleet.row.members, 1.0)
    slow = even | {"w2": 4.0}
    plain = Fleet(3, samples=600, batch=36, lanes=36)
    for one, generation, busy in (
        (fleet, fleet.row.generation - 1, slow),
        (fleet, fleet.row.generation, even),
        (fleet, fleet.row.generation, {"w0": 1.0, "w1": 9.0}),
        (plain, plain.row.generation, slow),
    ):
        position = one.store.position
        one.do(BalanceLanes(task=one.task, generation=generation, busy_s=busy))
        assert one.store.position == position


def test_beats_lead_to_a_move():
    fleet = rebalancing()
    watch = Watch(Timeouts())
    watch.adopt(fleet.state, 0)
    for step in range(STEPS + 1):
        for worker in fleet.row.members:
            beat = Beat(1, fleet.row.generation, step, True, busy_s=4.0 if worker == "w2" else 1.0)
            watch.beat(worker, fleet.state.workers[worker].incarnation, beat, step)
    asked = [each for each in watch.overdue(fleet.state, 100) if isinstance(each, BalanceLanes)]
    assert [each.busy_s["w2"] for each in asked] == [4.0]


def facts(fleet, kind):
    return [event.body for event in fleet.store.read() if isinstance(event.body, kind)]
