"""Alert rules on facts and on time: each planted condition is found once, and ends by itself."""

import math

import pytest

from strata.core.alerts.alert_record import Ending, Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.alert_watch import AlertWatch
from strata.core.alerts.goodput_rules import RecentGoodput
from strata.core.alerts.loss_rules import LossSample
from strata.core.checkpoints.checkpoint_lifecycle import CheckpointCommitted, CheckpointFailed
from strata.core.checkpoints.save_schedule import CheckpointPostponed
from strata.core.events import Envelope, Now
from strata.core.generations.recovery import StepsCommitted
from strata.core.hosts.host_exclusion import HostExcluded, HostIncluded
from strata.core.hosts.host_health import HostHealth
from strata.core.hosts.host_record import HostMeasured
from strata.core.state import Alert, Cluster, Salvage
from strata.core.task_spec import TaskSpec
from strata.core.task_state import Task
from strata.core.tasks.task_lifecycle import TaskStateChanged
from strata.core.workers.heartbeats import Beat
from strata.core.workers.host_agents import AgentRegistered
from strata.core.workers.worker_lifecycle import WorkerLost

SECOND_NS = 1_000_000_000
GB = 10**9


class Run:
    """A running task, the watch on it, and the time."""

    def __init__(self, alerts=(), **thresholds: object) -> None:
        self.state = Cluster()
        self.task = self.state.tasks["t"] = Task(id="t", spec=TaskSpec(name="t"), submitted_ns=0)
        self.task.state = "running"
        self.state.alerts = {alert.id: alert for alert in alerts}
        self.now_s = 1_000_000.0
        thresholds = {"settle_s": 5.0, **thresholds}
        self.watch = AlertWatch(AlertThresholds(**thresholds), self.state, self.now)
        self.found: list[Finding | Ending] = []
        self._seq = 0

    @property
    def now(self) -> Now:
        ns = int(self.now_s * SECOND_NS)
        return Now(wall_ns=ns, mono_ns=ns)

    def happens(self, *bodies) -> str:
        for body in bodies:
            self._seq += 1
            if isinstance(body, TaskStateChanged):
                self.task.state = body.after
            if isinstance(body, StepsCommitted):
                self.task.committed = body.last
            at = self.now
            self.watch.follow(Envelope(self._seq, at.wall_ns, at.mono_ns, body))
        return f"@{self._seq}"

    def step(self, steps: int = 1, every_s: float = 1.0) -> str:
        ref = ""
        for _ in range(steps):
            number = self.task.committed + 1
            ref = self.happens(
                StepsCommitted(
                    task="t", attempt=1, generation=1, first=number, last=number, reason=""
                )
            )
            self.wait(every_s)
        return ref

    def wait(self, seconds: float) -> None:
        """Let time pass, with a look about every second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(self.now_s + 1.0, end_s)
            self.found += self.watch.changes(self.state, self.now)

    def change(self, after: str) -> str:
        return self.happens(
            TaskStateChanged(task="t", before=self.task.state, after=after, reason="asked for")
        )

    @property
    def raised(self) -> list[tuple[str, str]]:
        return [(each.rule, each.subject) for each in self.found if isinstance(each, Finding)]

    @property
    def ended(self) -> list[str]:
        return [each.reason for each in self.found if isinstance(each, Ending)]

    def alert(self) -> Alert:
        """The newest finding as a recorded alert."""
        found = next(each for each in reversed(self.found) if isinstance(each, Finding))
        return Alert(
            id="alert-1",
            rule=found.rule,
            severity=found.severity,
            subject=found.subject,
            text=found.text,
            raised_ns=self.now.wall_ns,
            position=1,
            task=found.task,
            worker=found.worker,
            evidence=found.evidence,
            causes=list(found.causes),
            last_ns=self.now.wall_ns,
        )


def lost(worker="w-0"):
    return WorkerLost(worker=worker, incarnation=1, task="t", signal="exit", reason="exit code 1")


def committed(step):
    return CheckpointCommitted(task="t", checkpoint=f"c-{step}", step=step, path="", size_bytes=1)


def failed(step, **fields):
    return CheckpointFailed(task="t", checkpoint=f"c-{step}", step=step, reason="disk", **fields)


def test_task_without_a_step_is_found_and_ends_with_the_next_step():
    run = Run(no_step_s=30)
    last = run.step(20)
    run.wait(28)
    assert run.found == []
    run.wait(2)
    (found,) = run.found
    assert (found.rule, found.subject, found.causes) == ("no_step", "task:t", (last,))
    assert found.evidence["limit_s"] == 30
    run.wait(100)
    run.step()
    run.wait(6)
    assert run.raised == [("no_step", "task:t")]
    assert run.ended == ["step 21 was committed"]


def test_first_step_may_take_long_and_long_steps_raise_the_limit():
    run = Run(no_step_s=30)
    run.wait(890)
    assert run.found == []
    run.step(15, every_s=20)
    run.wait(170)
    assert run.found == []
    run.wait(20)
    assert run.raised == [("no_step", "task:t")]


@pytest.mark.parametrize("state", ["queued", "stopping", "completed"])
def test_task_that_does_not_train_needs_no_steps(state):
    run = Run(no_step_s=30)
    run.step(20)
    run.change(state)
    run.wait(1000)
    assert run.found == []


def test_time_in_which_the_coordinator_did_not_run_does_not_count():
    run = Run(no_step_s=60)
    run.step(20)
    run.now_s += 3600
    run.wait(50)
    assert run.found == []
    run.wait(15)
    assert run.raised == [("no_step", "task:t")]


def test_task_that_becomes_slow_is_found_and_one_pause_is_not():
    run = Run(no_step_s=10_000)
    run.step(60)
    run.step(1, every_s=200)
    run.step(20)
    assert run.found == []
    run.step(6, every_s=20)
    (found,) = run.found
    assert (found.rule, found.severity) == ("slow_steps", "warning")
    run.step(20)
    run.wait(5)
    assert len(run.ended) == 1
    assert run.ended[0].startswith("it makes 1 steps/s again")


def recent(productive_s, counted_s=1_000.0):
    return RecentGoodput(
        task="t",
        wall_s=1_000.0,
        counted_s=counted_s,
        productive_s=productive_s,
        lost_as="rolled-back work",
        cause="w-0 was declared lost (exit)",
        cause_s=600.0,
        ref="@7",
    )


def test_low_goodput_is_found_with_its_largest_cause_and_ends_above_the_share():
    run = Run(goodput_below=0.3, no_step_s=10_000)
    for productive_s, counted_s in ((310, 1_000), (20, 400), (290, 1_000), (310, 1_000)):
        run.watch.goodput.measured(recent(productive_s, counted_s), run.now.mono_ns)
        run.wait(10)
    (found,) = run.found
    assert (found.rule, found.subject, found.causes) == ("goodput_low", "task:t", ("@7",))
    assert "was 29% in the last 30 min, below 30%" in found.text
    assert "most was lost to w-0 was declared lost (exit) (600 s)" in found.text
    run.watch.goodput.measured(recent(340), run.now.mono_ns)
    run.wait(10)
    assert run.ended == ["its goodput is 34%"]


def compare(run, steps, every_s=1.0, **parts):
    """Steps in which each member spends these seconds computing and waiting for data."""
    run.task.members, run.task.generation = [*parts], 1
    for _ in range(steps):
        run.step(1, every_s)
        beats = {
            worker: Beat(generation=1, step=run.task.committed, busy_s=sum(part), data_s=part[1])
            for worker, part in parts.items()
        }
        run.watch.compare(run.state, beats, run.now.mono_ns)
    run.wait(1)


@pytest.mark.parametrize(("slow", "part"), [((0.4, 0.0), "computing"), ((0.1, 0.3), "waiting")])
def test_straggler_is_found_with_the_part_of_its_steps_and_ends_when_it_is_as_fast(slow, part):
    run = Run(straggler_s=60, no_step_s=10_000)
    fast = {"w-0": (0.1, 0.0), "w-2": (0.12, 0.0)}
    compare(run, 50, **fast, **{"w-1": slow})
    assert run.found == []
    compare(run, 20, **fast, **{"w-1": slow})
    (found,) = run.found
    assert (found.rule, found.subject, found.task) == ("straggler", "worker:w-1", "t")
    assert f"the difference {part}" in found.text
    assert found.evidence["busy_s"] == pytest.approx(0.4)
    assert found.evidence["others_busy_s"] == pytest.approx(0.11)
    assert found.causes[0].startswith("@")
    compare(run, 1, **fast, **{"w-1": (0.11, 0.0)})
    run.wait(10)
    assert [reason[:22] for reason in run.ended] == ["its part of a step tak"]


def test_workers_that_are_slow_together_or_for_a_few_steps_are_no_stragglers():
    run = Run(straggler_s=60, no_step_s=10_000)
    compare(run, 100, **{"w-0": (0.4, 0.0), "w-1": (0.3, 0.0)})
    for _ in range(3):
        compare(run, 30, **{"w-0": (0.1, 0.0), "w-1": (0.9, 0.0)})
        compare(run, 5, **{"w-0": (0.1, 0.0), "w-1": (0.1, 0.0)})
    compare(run, 10, 30.0, **{"w-0": (10.0, 0.0), "w-1": (29.0, 0.0)})
    assert "straggler" not in [rule for rule, _ in run.raised]


def test_straggler_that_is_lost_is_resolved():
    run = Run(straggler_s=10, no_step_s=10_000)
    compare(run, 40, **{"w-0": (0.1, 0.0), "w-1": (0.4, 0.0)})
    compare(run, 10, **{"w-0": (0.1, 0.0)})
    assert run.raised == [("straggler", "worker:w-1")]
    assert run.ended == ["w-1 is no longer a member of t"]


def test_worker_lost_twice_is_found_with_both_losses_and_ends_after_the_window():
    run = Run(worker_losses_within_s=600)
    first = run.happens(lost())
    run.happens(lost("w-1"))
    run.wait(300)
    assert run.found == []
    second = run.happens(lost())
    run.wait(1)
    (found,) = run.found
    assert (found.subject, found.worker, found.causes) == ("worker:w-0", "w-0", (first, second))
    run.wait(590)
    assert run.ended == []
    run.wait(20)
    assert run.ended == ["it was not lost again for 600 s"]


def test_workers_that_are_killed_while_their_task_stops_are_no_alert():
    run = Run()
    run.happens(lost())
    run.change("stopping")
    run.happens(lost())
    run.wait(1)
    assert run.found == []


def test_losses_that_lie_far_apart_are_no_alert():
    run = Run(worker_losses_within_s=600, no_step_s=10_000)
    for _ in range(5):
        run.happens(lost())
        run.wait(601)
    assert run.found == []


def test_second_failed_checkpoint_is_found_and_ends_with_a_commit():
    run = Run()
    first = run.happens(committed(1), failed(2))
    run.wait(2)
    assert run.found == []
    second = run.happens(failed(3))
    run.wait(1)
    (found,) = run.found
    assert (found.rule, found.causes) == ("checkpoint_failing", (first, second))
    assert found.evidence["newest_committed_step"] == 1
    run.happens(committed(4))
    run.wait(6)
    assert run.ended == ["checkpoint c-4 was committed"]


def test_failure_after_a_commit_or_of_a_postponed_save_does_not_count():
    run = Run()
    run.happens(failed(2), committed(3), failed(4), committed(5))
    postponed = {"task": "t", "worker": "w-0", "generation": 1, "request": 1, "reason": "busy"}
    for step in (6, 7, 8):
        run.happens(CheckpointPostponed(**postponed, step=step), failed(step))
    run.wait(5)
    assert run.found == []


def test_damaged_checkpoint_is_found_at_once():
    run = Run()
    run.happens(failed(2, damaged=True))
    run.wait(1)
    assert "c-2 is damaged: disk" in run.found[0].text


def test_late_checkpoint_is_found_by_the_usual_interval():
    run = Run(checkpoint_late_s=10, no_step_s=10_000)
    for step in range(4):
        run.happens(committed(step))
        run.step(10)
    run.step(29)
    assert run.found == []
    run.step(3)
    (found,) = run.found
    assert (found.rule, found.evidence["limit_s"]) == ("checkpoint_late", 40)
    run.happens(committed(99))
    run.wait(6)
    assert run.ended == ["checkpoint c-99 was committed"]


def test_checkpoint_is_not_late_while_no_step_is_made():
    run = Run(checkpoint_late_s=10, no_step_s=10_000)
    for step in (10, 20, 30, 40):
        run.step(10)
        run.happens(committed(step))
    run.wait(300)
    assert run.found == []


def disk(run, free, times=1, every_s=10, host="h", **machine):
    for _ in range(times):
        bytes_free = int(free() if callable(free) else free)
        run.watch.disks.measured(host, bytes_free, run.now.mono_ns, **machine)
        run.wait(every_s)


def test_nearly_full_disk_is_found_and_ends_when_there_is_room_again():
    run = Run(disk_free_bytes=2 * GB)
    disk(run, 3 * GB)
    assert run.found == []
    disk(run, 1 * GB)
    (found,) = run.found
    assert (found.rule, found.subject, found.severity) == ("disk_filling", "host:h", "error")
    disk(run, 2.1 * GB, times=3)
    assert run.ended == []
    disk(run, 9 * GB)
    assert run.ended == ["9.0 GB are free"]


def test_disk_of_several_hosts_raises_one_alert_until_their_free_space_differs():
    run = Run(disk_free_bytes=2 * GB)
    for host in ("a", "b", "c"):
        disk(run, 1 * GB, host=host)
    disk(run, 0.99 * GB, host="b")
    assert run.raised == [("disk_filling", "host:a")]
    disk(run, 0.5 * GB, host="b")
    disk(run, 0.99 * GB, host="d")
    assert run.raised == [("disk_filling", f"host:{host}") for host in ("a", "b", "d")]


def test_network_file_system_of_several_hosts_raises_one_alert_whatever_they_report():
    run = Run(disk_free_bytes=2 * GB)
    disk(run, 1 * GB, host="a", source="filer:/export")
    disk(run, 0.5 * GB, host="b", source="filer:/export")
    disk(run, 0.5 * GB, host="c", source="filer:/other")
    disk(run, 0.5 * GB, host="d")
    assert run.raised == [("disk_filling", f"host:{host}") for host in ("a", "c", "d")]
    assert "filer:/export, used by a, has 1.0 GB free" in run.found[0].text
    assert run.found[0].evidence["disk_source"] == "filer:/export"


def test_next_host_with_the_disk_raises_the_alert_when_the_first_is_gone():
    run = Run(disk_free_bytes=2 * GB)
    disk(run, 1 * GB, host="a")
    disk(run, 1 * GB, host="b", times=70)
    assert run.raised == [("disk_filling", "host:a"), ("disk_filling", "host:b")]


def test_folder_of_the_coordinator_on_the_disk_of_its_host_raises_no_second_alert():
    run = Run(disk_free_bytes=2 * GB)
    disk(run, 1 * GB)
    disk(run, 0.98 * GB, host="coordinator", same_machine=frozenset({"h"}))
    assert run.raised == [("disk_filling", "host:h")]


def test_disk_that_stays_nearly_full_is_recorded_once_and_its_alert_settles():
    run = Run(disk_free_bytes=2 * GB, settle_s=60)
    disk(run, 1 * GB, times=60)
    assert [each.count for each in run.found] == [1]
    disk(run, 9 * GB, times=4)
    assert run.ended == []
    disk(run, 9 * GB, times=4)
    assert run.ended == ["9.0 GB are free"]


def test_full_disk_is_found_although_unmeasured_ones_report_the_same_number():
    run = Run()
    disk(run, 0, times=3)
    assert run.found == []
    disk(run, 9 * GB)
    disk(run, 0)
    assert run.raised == [("disk_filling", "host:h")]


def test_disk_that_will_be_full_soon_is_found():
    run = Run(disk_full_within_s=3600, no_step_s=10_000)
    room = iter(range(100 * GB, 0, -GB))
    disk(run, lambda: next(room), times=59)
    assert run.found == []
    disk(run, lambda: next(room))
    (found,) = run.found
    assert (found.severity, found.evidence["free_bytes"]) == ("warning", 41 * GB)
    assert found.evidence["full_in_s"] == pytest.approx(410, rel=0.2)


def test_files_that_come_and_go_do_not_fill_a_disk():
    run = Run(no_step_s=10_000)
    room = iter([100 * GB, 80 * GB, 60 * GB, 40 * GB] * 30)
    disk(run, lambda: next(room), times=120)
    assert run.found == []


def test_host_that_reports_no_longer_has_no_alert():
    run = Run()
    disk(run, 1 * GB)
    run.wait(700)
    assert run.ended == ["the host has not reported for 600 s"]


def test_failed_task_is_found_and_its_other_alerts_end_with_it():
    run = Run(no_step_s=30)
    run.step(3)
    run.wait(40)
    failure = run.change("failed")
    run.wait(1)
    assert run.raised == [("no_step", "task:t"), ("task_failed", "task:t")]
    assert run.ended == ["t has failed"]
    assert run.found[-1].causes == (failure,)
    run.change("queued")
    run.wait(6)
    assert run.ended[1:] == ["the task is queued again"]


def test_alert_of_a_failed_task_expires_after_an_hour():
    run = Run(no_step_s=10_000)
    run.change("failed")
    run.wait(3_610)
    ending = run.found[-1]
    assert ending.expired
    assert ending.reason == "no longer shown after 1 h; the task is still failed"


def test_loss_that_arrives_after_the_end_of_its_task_is_found_and_leaves_its_failure_open():
    run = Run()
    run.change("failed")
    sample = {"task": "t", "worker": "w-0", "generation": 1, "step": 5, "name": "loss"}
    run.watch.sample(LossSample(**sample, value=math.nan, ref="w-0.1.7"), run.now.mono_ns)
    run.wait(1)
    assert [rule for rule, _ in run.raised] == ["loss_not_finite", "task_failed"]
    assert run.ended == ["t has failed"]
    assert run.watch.conditions.holds("task_failed", "task:t")


def test_condition_of_a_task_that_ends_at_once_is_still_raised():
    run = Run()
    run.happens(lost(), lost())
    run.change("stopped")
    run.wait(1)
    assert run.raised == [("worker_lost_again", "worker:w-0")]
    assert run.ended == ["t has been stopped"]


def test_host_that_was_excluded_by_a_rule_is_found_until_it_is_included():
    run = Run()
    run.happens(HostExcluded(host="b", reason="to repair it", by="person"))
    ref = run.happens(HostExcluded(host="a", reason="3 scripts failed there", by="failures"))
    run.wait(1)
    (found,) = run.found
    assert (found.rule, found.subject, found.causes) == ("host_excluded", "host:a", (ref,))
    run.happens(HostIncluded(host="a", reason="repaired"))
    run.wait(6)
    assert run.ended == ["it was included again: repaired"]


def measured(host: int | None, cgroup: int | None):
    health = HostHealth(oom_kills=host, cgroup_oom_kills=cgroup)
    return HostMeasured(host="a", hostname="a", reporter="a", health=health)


@pytest.mark.parametrize(
    ("kills", "severity", "text"),
    [
        ([(4, 0), (4, 0), (6, 2)], "error", "2 OOM kills were counted in the cgroup of a"),
        ([(4, None), (5, None)], "error", "1 OOM kill was counted on host a"),
        (
            [(4, 0), (5, 0)],
            "warning",
            "1 OOM kill was counted on host a, but none in the cgroup of a",
        ),
    ],
)
def test_oom_kill_is_found_with_its_measurement_and_ends_after_ten_minutes(kills, severity, text):
    run = Run()
    refs = [run.happens(measured(*each)) for each in kills]
    run.wait(590)
    (found,) = run.found
    assert (found.rule, found.subject, found.severity) == ("oom_kill", "host:a", severity)
    assert found.text == f"memory was used up on host a: {text}"
    assert found.causes == (refs[-1],)
    run.wait(20)
    assert run.ended == ["there was no other one for 600 s"]


def test_oom_kills_before_the_first_measurement_of_an_agent_are_not_found():
    run = Run()
    run.happens(measured(9, 3), measured(2, 0), measured(None, None), measured(5, 1))
    run.happens(AgentRegistered(agent="a", incarnation=2, hostname="a", slots=1), measured(8, 3))
    run.wait(1)
    assert run.found == []


def test_dropped_events_are_found():
    run = Run()
    run.watch.failures.dropped("t", "w-0", 12, "w-0.1.9", run.now)
    run.wait(1)
    assert "w-0 dropped 12 events" in run.found[0].text
    run.wait(600)
    assert run.ended == ["no more events were dropped for 10 min"]


def test_salvaged_log_is_found():
    run = Run()
    now_ns = run.now.wall_ns
    run.state.salvages = [
        Salvage(position=9, wall_ns=now_ns, base=3, lost=[(3, 5)]),
        Salvage(position=5, wall_ns=now_ns - 90_000 * SECOND_NS, base=1, lost=[(1, 2)]),
    ]
    run.wait(1)
    (found,) = run.found
    assert (found.subject, found.causes) == ("fact:@9", ("@9",))
    assert "facts @3 to @4" in found.text


def test_condition_that_comes_and_goes_is_one_alert_with_a_count():
    run = Run(settle_s=60)
    for _ in range(10):
        disk(run, 1 * GB)
        disk(run, 9 * GB)
    assert run.raised == [("disk_filling", "host:h")] * 4
    assert sum(each.count for each in run.found) == 10
    assert run.ended == []
    disk(run, 9 * GB, times=7)
    assert run.ended == ["9.0 GB are free"]


def test_open_alert_stays_open_after_a_restart_until_its_condition_ends():
    before = Run(no_step_s=30)
    before.step(5)
    before.wait(40)
    after = Run(alerts=[before.alert()], no_step_s=30)
    after.wait(600)
    assert after.found == []
    after.step()
    after.wait(6)
    assert after.ended == ["step 1 was committed"]


def test_alert_of_a_rule_that_was_turned_off_is_resolved_at_the_start():
    before = Run(no_step_s=30)
    before.step(5)
    before.wait(40)
    after = Run(alerts=[before.alert()], off=frozenset({"no_step"}))
    after.wait(1)
    assert after.ended == ["the rule no_step is turned off"]


def test_rules_that_are_off_find_nothing():
    run = Run(off=frozenset({"all"}), no_step_s=10)
    run.step(5)
    run.happens(lost(), lost(), failed(1), failed(2), failed(3))
    disk(run, 1 * GB)
    run.wait(900)
    run.change("failed")
    run.wait(1)
    assert run.found == []
