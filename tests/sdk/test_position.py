"""Guards where a script is, and that a restored one goes on exactly there."""

import pytest

from strata.errors import InvalidArgument, NotAllowedNow
from strata.sdk.position import Position, Script


def run_script(script, save_at=None, epochs=3):
    """A script of epochs with two loops each, then one loop; what it ran, and what it saved."""
    ran, saved = [], {}

    def loop(name):
        place, past = script.open_loop()
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


EVERYTHING, SAVED = run_script(Script())


def resumed(at):
    script = Script()
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
def test_script_goes_on_where_its_state_was_saved(at, first):
    assert resumed(at) == EVERYTHING[EVERYTHING.index(first) :]


def test_code_before_a_second_loop_of_an_epoch_runs_again():
    """A script runs from the beginning of its epoch: what is between its loops runs once more."""
    assert resumed("in b1") == EVERYTHING[EVERYTHING.index("evaluate 1") :]


@pytest.mark.parametrize(
    ("at", "checks"),
    [
        ("in a0", 2),  # before the epochs, and before the loop that had begun
        ("in b1", 3),
        ("in last", 2),
    ],
)
def test_state_is_checked_wherever_code_is_run_again(at, checks):
    script, seen = Script(), []
    script.load_state_dict(SAVED[at])
    script.check_replay = lambda: seen.append(script.position)
    run_script(script)
    assert [each._asdict() for each in seen] == [SAVED[at]] * checks


def test_process_cannot_go_back_to_a_loop_that_it_has_left():
    script = Script()
    run_script(script)
    with pytest.raises(NotAllowedNow, match=r"goes back to loop 0\.1\.0"):
        script.load_state_dict(SAVED["in a1"])


def test_process_in_the_same_loop_takes_a_state_over():
    script = Script()
    script.open_loop()
    script.load_state_dict(Position(0, -1, 0)._asdict())


def test_epochs_go_on_until_the_steps_are_done():
    script, steps = Script(), [0]
    seen = []
    for epoch in script.run_epochs(None, 25, lambda: steps[0]):
        seen.append((epoch, script.max_steps))
        steps[0] += 10
    assert seen == [(0, 25), (1, 25), (2, 25)]


@pytest.mark.parametrize("asked", [(None, None), (3, 10), (0, None), (None, 0)])
def test_epochs_without_one_clear_end_are_refused(asked):
    with pytest.raises(InvalidArgument):
        next(Script().run_epochs(*asked, lambda: 0))


def test_epochs_do_not_nest():
    script = Script()
    for _ in script.run_epochs(1, None, lambda: 0):
        with pytest.raises(NotAllowedNow, match="open already"):
            next(script.run_epochs(1, None, lambda: 0))


def test_values_that_workers_agree_on_have_the_same_names_everywhere():
    script = Script()
    script.open_loop()
    first = [script.agreement_key(5), script.agreement_key(5), script.agreement_key(6)]
    script.handed()
    assert [script.agreement_key(6)] == first[2:]
    assert len(set(first)) == 3
