"""Guards the agent's decisions: what to start and what to end, given what runs and is wanted."""

from hypothesis import given
from hypothesis import strategies as st

from strata.agent.plan import Duty, Start, plan

A1, A2, B1 = Start("t", "a", 1), Start("t", "a", 2), Start("t", "b", 1)


def test_what_is_wanted_and_missing_is_started():
    todo = plan([A1], {}, [Duty(A1), Duty(B1)])
    assert (todo.starts, todo.stops) == ([B1], {})


def test_what_runs_and_is_not_wanted_ends():
    assert plan([A1, B1], {}, [Duty(A1)]).stops == {B1: "unwanted"}


def test_what_is_left_of_a_completed_task_may_take_its_time():
    assert plan([A1], {}, [], {"t"}).stops == {A1: "completed"}
    assert plan([A1], {}, [Duty(A2)], {"t"}).stops == {A1: "superseded"}


def test_a_higher_start_waits_for_the_end_of_the_lower():
    todo = plan([A1], {}, [Duty(A2)])
    assert (todo.starts, todo.stops) == ([], {A1: "superseded"})
    assert plan([], {("t", "a"): 1}, [Duty(A2)]).starts == [A2]


def test_a_start_that_ended_is_not_begun_again():
    assert plan([], {("t", "a"): 1}, [Duty(A1)]).starts == []


def test_a_task_that_stops_ends_what_runs_and_starts_nothing():
    todo = plan([A1], {}, [Duty(A1, stopping=True), Duty(B1, stopping=True)])
    assert (todo.starts, todo.stops) == ([], {A1: "asked"})


def test_blocked_task_keeps_what_runs_and_starts_nothing():
    todo = plan([A1], {}, [Duty(A1, blocked=True), Duty(B1, blocked=True)])
    assert (todo.starts, todo.stops) == ([], {})


def test_workers_of_the_same_name_in_two_tasks_are_two():
    assert plan([A1], {}, [Duty(A1), Duty(Start("u", "a", 1))]).starts == [Start("u", "a", 1)]


starts = st.builds(Start, st.sampled_from("tu"), st.sampled_from("abc"), st.integers(1, 3))
duties = st.lists(st.builds(Duty, starts, st.booleans()), unique_by=lambda duty: duty.start.place)


@given(st.sets(starts), st.dictionaries(st.sampled_from([("t", "a")]), st.integers(1, 3)), duties)
def test_carried_out_a_plan_leads_to_rest(running, ended, wanted):
    ended = dict(ended)
    for _ in range(3):
        todo = plan(running, ended, wanted)
        assert not set(todo.starts) & running
        assert todo.stops.keys() <= running
        for start in todo.stops:
            ended[start.place] = max(start.number, ended.get(start.place, 0))
        running = (running - todo.stops.keys()) | set(todo.starts)
    assert plan(running, ended, wanted) == plan([], {}, [])
    assert all(start.place in {duty.start.place for duty in wanted} for start in running)
