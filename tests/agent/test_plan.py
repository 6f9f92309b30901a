"""The agent's plan: starts and stops for given running and wanted workers."""

from hypothesis import given
from hypothesis import strategies as st

from strata.agent.worker_plan import Start, WantedStart, plan

A1, A2, B1 = Start("t", "a", 1), Start("t", "a", 2), Start("t", "b", 1)


def test_missing_worker_is_started():
    todo = plan([A1], {}, [WantedStart(A1), WantedStart(B1)])
    assert (todo.starts, todo.stops) == ([B1], {})


def test_unwanted_worker_is_ended():
    assert plan([A1, B1], {}, [WantedStart(A1)]).stops == {B1: "unwanted"}


def test_worker_of_a_completed_task_has_its_grace_period():
    assert plan([A1], {}, [], {"t"}).stops == {A1: "completed"}
    assert plan([A1], {}, [WantedStart(A2)], {"t"}).stops == {A1: "superseded"}


def test_higher_start_waits_for_the_end_of_the_lower():
    todo = plan([A1], {}, [WantedStart(A2)])
    assert (todo.starts, todo.stops) == ([], {A1: "superseded"})
    assert plan([], {("t", "a"): 1}, [WantedStart(A2)]).starts == [A2]


def test_ended_start_is_not_repeated():
    assert plan([], {("t", "a"): 1}, [WantedStart(A1)]).starts == []


def test_stopping_task_ends_its_workers_and_starts_none():
    todo = plan([A1], {}, [WantedStart(A1, stopping=True), WantedStart(B1, stopping=True)])
    assert (todo.starts, todo.stops) == ([], {A1: "asked"})


def test_blocked_task_keeps_its_workers_and_starts_none():
    todo = plan([A1], {}, [WantedStart(A1, blocked=True), WantedStart(B1, blocked=True)])
    assert (todo.starts, todo.stops) == ([], {})


def test_equal_worker_names_in_two_tasks_are_distinct():
    assert plan([A1], {}, [WantedStart(A1), WantedStart(Start("u", "a", 1))]).starts == [
        Start("u", "a", 1)
    ]


starts = st.builds(Start, st.sampled_from("tu"), st.sampled_from("abc"), st.integers(1, 3))
duties = st.lists(
    st.builds(WantedStart, starts, st.booleans()), unique_by=lambda duty: duty.start.place
)


@given(st.sets(starts), st.dictionaries(st.sampled_from([("t", "a")]), st.integers(1, 3)), duties)
def test_applied_plan_leaves_nothing_to_do(running, ended, wanted):
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
