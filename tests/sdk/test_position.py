"""The position of a script, and that a restored script resumes exactly there."""

import pytest

from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.data.script_position import LoopLength, Position, ScriptPosition


def run_script(script, save_at=None, epochs=3):
    """Run epochs with two loops each, then one loop; returns what ran and what was saved."""
    ran, saved = [], {}

    def loop(name):
        place, past = script.open_loop(LoopLength())
        if not past:
            ran.append(f"{name} loop")
            saved[f"in {name}"] = script.state_dict()
        script.end_loop(place)

    for epoch in script.run_epochs(epochs, None, lambda: 0):
        loop(f"a{epoch}")
        ran.append(f"evaluate {epoch}")
        loop(f"b{epoch}")
        ran.append(f"end {epoch}")
    loop("last")
    ran.append("finish")
    return ran, saved


EVERYTHING, SAVED = run_script(ScriptPosition())


def resumed(at):
    script = ScriptPosition()
    script.load_state_dict(SAVED[at])
    return run_script(script)[0]


def test_whole_script_runs_once():
    assert [
        *(
            f"{what}"
            for e in range(3)
            for what in (f"a{e} loop", f"evaluate {e}", f"b{e} loop", f"end {e}")
        ),
        "last loop",
        "finish",
    ] == EVERYTHING


@pytest.mark.parametrize(
    ("at", "first"),
    [
        ("in a0", "a0 loop"),
        ("in a1", "a1 loop"),
        ("in last", "last loop"),
    ],
)
def test_script_resumes_where_its_state_was_saved(at, first):
    assert resumed(at) == EVERYTHING[EVERYTHING.index(first) :]


def test_code_before_a_second_loop_of_an_epoch_runs_again():
    """A script runs from the start of its epoch, so code between its loops runs again."""
    assert resumed("in b1") == EVERYTHING[EVERYTHING.index("evaluate 1") :]


@pytest.mark.parametrize(
    ("at", "checks"),
    [
        ("in a0", 2),  # before the epochs, and before the loop that had begun
        ("in b1", 3),
        ("in last", 2),
    ],
)
def test_state_is_checked_before_each_replayed_loop(at, checks):
    script, seen = ScriptPosition(), []
    script.load_state_dict(SAVED[at])
    script.check_replay = lambda: seen.append(script.position)
    run_script(script)
    saved = Position(**{name: SAVED[at][name] for name in Position._fields})
    assert seen == [saved] * checks


def test_process_cannot_go_back_to_a_loop_that_it_has_left():
    script = ScriptPosition()
    run_script(script)
    with pytest.raises(NotAllowedNow, match=r"rolled back to loop 0\.1\.0"):
        script.load_state_dict(SAVED["in a1"])


def test_process_in_the_same_loop_can_load_a_state():
    script = ScriptPosition()
    script.open_loop(LoopLength())
    script.load_state_dict(Position(0, -1, 0)._asdict())


def test_epochs_go_on_until_the_steps_are_done():
    script, steps = ScriptPosition(), [0]
    seen = []
    for epoch in script.run_epochs(None, 25, lambda: steps[0]):
        seen.append((epoch, script.max_steps))
        steps[0] += 10
    assert seen == [(0, 25), (1, 25), (2, 25)]


@pytest.mark.parametrize("asked", [(None, None), (3, 10), (0, None), (None, 0)])
def test_epochs_need_exactly_one_end(asked):
    with pytest.raises(InvalidArgument):
        next(ScriptPosition().run_epochs(*asked, lambda: 0))


def test_epochs_do_not_nest():
    script = ScriptPosition()
    for _ in script.run_epochs(1, None, lambda: 0):
        with pytest.raises(NotAllowedNow, match="already open"):
            next(script.run_epochs(1, None, lambda: 0))


def test_agreement_keys_are_the_same_on_all_workers():
    script = ScriptPosition()
    script.open_loop(LoopLength())
    first = [script.agreement_key(5), script.agreement_key(5), script.agreement_key(6)]
    script.handed()
    assert [script.agreement_key(6)] == first[2:]
    assert len(set(first)) == 3


def finished(epochs=3, script=None):
    """The state that a script of one loop over epochs saves at its end."""
    script = script or ScriptPosition()
    for _ in script.run_epochs(epochs, None, lambda: 0):
        place, _ = script.open_loop(LoopLength(epochs=1))
        script.end_loop(place)
    return script.state_dict()


@pytest.mark.parametrize(("epochs", "trained"), [(5, [3, 4]), (3, []), (2, [])])
def test_finished_epochs_are_extended_if_the_script_asks_for_more(epochs, trained):
    script = ScriptPosition()
    script.load_state_dict(finished())
    assert list(script.run_epochs(epochs, None, lambda: 0)) == trained


def test_extended_epochs_can_be_extended_again():
    script = ScriptPosition()
    script.load_state_dict(finished())
    again = ScriptPosition()
    again.load_state_dict(finished(5, script))
    assert list(again.run_epochs(6, None, lambda: 0)) == [5]


def test_epochs_that_the_script_left_early_are_not_extended():
    script = ScriptPosition()
    for epoch in script.run_epochs(10, None, lambda: 0):
        if epoch == 4:
            break
    resumed = ScriptPosition()
    resumed.load_state_dict(script.state_dict())
    assert list(resumed.run_epochs(20, None, lambda: 0)) == []


def test_epochs_before_a_loop_that_has_begun_are_not_extended():
    assert "in last" in SAVED
    script = ScriptPosition()
    script.load_state_dict(SAVED["in last"])
    assert list(script.run_epochs(5, None, lambda: 0)) == []


def ended_at(max_steps, changed=False):
    """The state that a script with epochs of 10 steps saves after its limit of steps."""
    script, steps = ScriptPosition(), [0]
    script.changed_since_cut = lambda: changed
    for _ in script.run_epochs(None, max_steps, lambda: steps[0]):
        place, _ = script.open_loop(LoopLength(epochs=1))
        steps[0] = min(steps[0] + 10, max_steps)
        if steps[0] % 10:
            script.limit(place)
        script.end_loop(place)
    return script.state_dict()


@pytest.mark.parametrize(("before", "first"), [(30, 3), (25, 2)])
def test_run_that_ended_at_max_steps_is_extended_where_it_ended(before, first):
    script, steps = ScriptPosition(), iter([before, before, 50, 50])
    script.load_state_dict(ended_at(before))
    epochs = script.run_epochs(None, 50, lambda: next(steps))
    assert next(epochs) == first
    assert script.open_loop(LoopLength(epochs=1)) == (Position(0, first, 0), False)


def test_run_that_ended_inside_an_epoch_is_not_extended_if_the_script_changed_its_state():
    script = ScriptPosition()
    script.load_state_dict(ended_at(25, changed=True))
    with pytest.raises(NotAllowedNow, match="ended inside an epoch, at max_steps=25"):
        next(script.run_epochs(None, 40, lambda: 25))


@pytest.mark.parametrize(
    ("goal", "asked", "ran"),
    [
        (LoopLength(epochs=5), (3, None), 5),
        (LoopLength(epochs=2), (3, None), 2),
        (LoopLength(steps=40), (None, 20), 4),
    ],
)
def test_length_that_the_task_sets_replaces_that_of_the_script(goal, asked, ran):
    script, steps = ScriptPosition(), [0]
    script.goal = goal
    for _ in script.run_epochs(*asked, lambda: steps[0]):
        steps[0] += 10
    assert steps[0] == ran * 10
    script.require_goal_used()


@pytest.mark.parametrize(
    ("goal", "asked", "hint"),
    [(LoopLength(epochs=5), (None, 20), "--steps"), (LoopLength(steps=40), (3, None), "--epochs")],
)
def test_length_that_the_script_counts_otherwise_is_refused(goal, asked, hint):
    script = ScriptPosition()
    script.goal = goal
    with pytest.raises(InvalidArgument) as refused:
        next(script.run_epochs(*asked, lambda: 0))
    assert hint in refused.value.hint


def test_length_that_the_task_sets_in_vain_is_an_error():
    script = ScriptPosition()
    script.goal = LoopLength(epochs=5)
    with pytest.raises(InvalidArgument, match="no loop over run"):
        script.require_goal_used()
    with pytest.raises(InvalidArgument, match="with epochs=3 sets its own length"):
        script.open_loop(LoopLength(epochs=3))


@pytest.mark.parametrize(
    ("saved", "goal", "asked"),
    [("epochs", LoopLength(epochs=2), (3, None)), ("steps", LoopLength(steps=20), (None, 30))],
)
def test_length_that_the_run_has_passed_is_refused(saved, goal, asked):
    script = ScriptPosition()
    script.load_state_dict(finished() if saved == "epochs" else ended_at(30))
    script.goal = goal
    with pytest.raises(InvalidArgument, match="at the state that it resumes from"):
        list(script.run_epochs(*asked, lambda: 30))


@pytest.mark.parametrize(
    ("before", "now", "past"),
    [
        (LoopLength(epochs=3), LoopLength(epochs=3), True),
        (LoopLength(epochs=3), LoopLength(epochs=5), False),
        (LoopLength(steps=30), LoopLength(steps=20), True),
        (LoopLength(steps=30), LoopLength(), False),
        (LoopLength(), LoopLength(steps=50), True),
    ],
)
def test_finished_loop_is_opened_again_if_the_script_asks_for_more(before, now, past):
    script = ScriptPosition()
    place, _ = script.open_loop(before)
    script.end_loop(place)
    resumed = ScriptPosition()
    resumed.load_state_dict(script.state_dict())
    assert resumed.open_loop(now) == (place, past)


def stopped(after, breaks=False):
    """A script that a stop ends in its second epoch: in the loop, or after it."""
    script = ScriptPosition()
    for epoch in script.run_epochs(3, None, lambda: 0):
        place, _ = script.open_loop(LoopLength())
        if epoch == 1:
            script.stopping = lambda: True
            if after == "loop":
                script.end_loop(place)
                break
            script.end_loop(place, complete=False)
            if not breaks:
                break
            continue
        script.end_loop(place)
    return script


def test_stop_in_a_loop_keeps_the_position_in_that_loop():
    script = stopped("step")
    assert (script.position, script.resumable) == (Position(0, 1, 0), True)
    assert script.state_dict()["epoch"] == 1


def test_stop_between_loops_is_not_resumable():
    assert not stopped("loop").resumable


def test_script_that_goes_on_after_a_stopped_loop_is_not_resumable():
    assert not stopped("step", breaks=True).resumable
