"""The record of alerts: one open alert for a rule and a subject, messages with one outcome each."""

from strata.core.alerts.alert_record import (
    MAX_OPEN,
    MAX_RESOLVED,
    AlertDelivered,
    AlertDeliveryFailed,
    AlertRaised,
    AlertRepeated,
    AlertResolved,
    Ending,
    Finding,
    NoteDelivery,
    RecordAlerts,
)
from strata.core.limits import LimitHit
from tests.core.world import World

CHANNELS = {"error": ["webhook"]}


def finding(subject="task:t", **fields):
    about = {"rule": "no_step", "severity": "error", "text": "no step", **fields}
    return Finding(subject=subject, **about)


def ending(subject="task:t"):
    return Ending(rule="no_step", subject=subject, reason="a step was committed")


def record(world, *changes):
    world.do(RecordAlerts(changes=changes, channels=CHANNELS))


def deliver(world, moment="raised", error=""):
    told = {"alert": "alert-1", "channel": "webhook", "moment": moment}
    world.do(NoteDelivery(**told, attempts=1, error=error))


def test_condition_found_again_raises_the_count_of_its_open_alert():
    world = World()
    record(world, finding())
    record(world, finding(count=3, text="still no step"))
    record(world, finding(subject="task:other"))
    assert [fact.alert for fact in world.facts(AlertRaised)] == ["alert-1", "alert-2"]
    assert world.facts(AlertRepeated)[0].count == 4
    assert world.state.alerts["alert-1"].text == "still no step"


def test_condition_that_returns_after_its_end_is_a_new_alert():
    world = World()
    record(world, finding(), ending(), finding())
    assert [alert.open for alert in world.state.alerts.values()] == [False, True]
    assert world.one(AlertResolved).reason == "a step was committed"


def test_end_of_a_condition_that_raised_no_alert_records_nothing():
    world = World()
    record(world, ending())
    assert world.last == []


def test_each_message_has_one_outcome_also_after_a_restart():
    world = World()
    record(world, finding())
    deliver(world)
    world.restart()
    assert world.state.alerts["alert-1"].pending == []
    deliver(world)
    assert len(world.facts(AlertDelivered)) == 1
    record(world, ending())
    assert world.state.alerts["alert-1"].pending == ["webhook"]
    deliver(world, "resolved", error="refused")
    assert world.one(AlertDeliveryFailed).reason == "refused"
    assert world.state.alerts["alert-1"].failed == ["webhook"]


def test_late_outcome_of_the_first_message_does_not_count_for_the_second():
    world = World()
    record(world, finding(), ending())
    deliver(world, "raised")
    assert world.last == []
    assert world.state.alerts["alert-1"].pending == ["webhook"]


def test_evidence_and_causes_are_kept():
    world = World()
    record(world, finding(evidence={"limit_s": 300.0}, causes=("w-0.1.5",), task="t"))
    alert = world.state.alerts["alert-1"]
    assert (alert.evidence, alert.causes) == ({"limit_s": 300.0}, ["w-0.1.5"])


def test_open_alerts_are_limited_and_the_limit_is_recorded():
    world = World()
    record(world, *(finding(subject=f"task:{number}") for number in range(MAX_OPEN + 5)))
    assert len(world.state.alerts) == MAX_OPEN
    assert [fact.limit for fact in world.facts(LimitHit)] == ["open alerts"]


def test_resolved_alerts_with_pending_messages_are_kept_longer():
    world = World()
    subjects = [f"task:{number}" for number in range(MAX_RESOLVED + 1)]
    record(
        world,
        *(
            finding(subject, severity=each)
            for subject, each in zip(
                subjects, ["error", "info", *["error"] * MAX_RESOLVED], strict=False
            )
        ),
    )
    record(world, *map(ending, subjects))
    assert "alert-1" in world.state.alerts
    assert "alert-2" not in world.state.alerts
    assert world.facts(AlertDeliveryFailed) == []


def test_pending_message_of_an_alert_that_is_no_longer_kept_is_recorded_as_failed():
    world = World()
    subjects = [f"task:{number}" for number in range(MAX_RESOLVED + 1)]
    record(world, *map(finding, subjects))
    record(world, *map(ending, subjects))
    failed = world.one(AlertDeliveryFailed)
    assert (failed.alert, failed.channel, failed.moment) == ("alert-1", "webhook", "resolved")
    assert "alert-1" not in world.state.alerts
    assert len(world.state.alerts) == MAX_RESOLVED


def test_alert_that_expires_sends_no_second_message():
    world = World()
    record(world, finding())
    deliver(world)
    expired = Ending(rule="no_step", subject="task:t", reason="no longer shown", expired=True)
    record(world, expired)
    assert not world.state.alerts["alert-1"].open
    assert world.state.alerts["alert-1"].pending == []


def test_newest_resolved_alerts_are_kept():
    world = World()
    subjects = [f"task:{number}" for number in range(MAX_RESOLVED + 3)]
    record(world, *map(finding, subjects))
    record(world, *map(ending, reversed(subjects)))
    kept = [alert.subject for alert in world.state.alerts.values()]
    assert kept == list(reversed(subjects))[3:]
